-- search -- the pair of scale and offset with the least squared error among eight.
--
-- With lo and hi of the group, mid = lo / 2 + hi / 2, half = hi / 2 - lo / 2, unit = 1 / half:
--     candidate 0  the pair of minmax
--     candidate i  = 1 .. 7: from the range shrunk to 1 - 0.085 (i - 1) of itself, at 1 bit to
--                  1 - 0.11 (i - 1): s = 2 shrink / code_max, m = 0, in units of half about mid.
--                  Twice: with y = (x - mid) unit, the codes c nearest to (y - m) / s, counted
--                  from the middle code, and s and m refitted to them by least squares:
--                      det = n sum c^2 - (sum c)^2
--                      s   = (n sum c y - sum c sum y) / det     m = (sum y - s sum c) / n
--                  which is left out where det <= 1e-6 n sum c^2 or s <= 0.
--                  Then the pair nearest to scale s half and middle mid + m half, as stored
-- Its error is the sum of ((x - x') unit)^2, x' as decoded from the codes of the stored pair; of
-- equals the first is taken.  So no group is further from its values than with minmax.
-- All sums run in the group's order, in float32.  Where half <= 2^-100 candidate 0 is taken.

return { stage = "fit", name = "search", text = "shrink the range, refit by least squares",
         levels = "affine", searches = true,
         shrink = "1.0f, 1.0f, 0.915f, 0.83f, 0.745f, 0.66f, 0.575f, 0.49f",
         shrink_of_1_bit = "1.0f, 1.0f, 0.89f, 0.78f, 0.67f, 0.56f, 0.45f, 0.34f",
         stats = { { name = "lo", first = "x", next = "x < lo ? x : lo" },
                   { name = "hi", first = "x", next = "x > hi ? x : hi" } } }

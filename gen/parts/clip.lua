-- clip -- as minmax, of a row whose largest magnitudes are clipped first.
--
-- The fit of arXiv:2605.17757: with the magnitudes of a row of d values in its basis sorted,
-- from 0, the one at min(d - 1, number d / 100), rounded down, is the bound that every value of the
-- row is brought to, from either side; then each group spans its smallest to its largest.  The
-- source's numbers are 96 for keys and 92 for values: 5 and 10 values of 128 are clipped.
-- The bound is a value of the row: there is nothing to round.

return { stage = "fit", name = "clip", text = "min and max of the row, clipped at a percentile",
         levels = "affine", number = "percent", number_usual = 96, number_least = 1,
         number_most = 100, clips_rows = true,
         stats = { { name = "lo", first = "x", next = "x < lo ? x : lo" },
                   { name = "hi", first = "x", next = "x > hi ? x : hi" } } }

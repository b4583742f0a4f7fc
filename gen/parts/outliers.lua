-- outliers -- the strongest channels of a head are a set of their own, with one bit more.
--
-- arXiv:2504.19874 has 32 channels of 128 at 3 bits, the others at 2.  Table outlier_order names
-- the channels of a head: the first n are one set, the others a second one, and a row is
--     x' = (T_1 x[order[0 ... n - 1]], T_2 x[order[n ... d - 1]])
-- Each set is stored as if it were a head, by the words of the side, b + 1 bits a value in the
-- first and b in the second: the transform has pieces that divide it, and a token one group in it,
-- with a scale, and a zero where levels have one.  In a page the second set lies behind the first.
-- Queries go the same way, and outputs come back.  The number n is a multiple of 16: without one
-- the greatest power of two up to a quarter of the head, at least 16.
--
-- Calibration: channels in falling order of the mean square that rows have there without their
-- shift, of equal ones the lower first; the first n are the first set.  In a set of p pieces of m
-- channels, m the largest power of two that divides it, the channel of rank r is number r div p of
-- piece r mod p: pieces that share a scale are of one size.

return { stage = "extra", name = "outliers", number = "share", splits = true,
         text = "the strongest channels in a set of their own, with a bit more",
         tables = { { name = "outlier_order", shape = { "dim" },
                      per_codec = { "extra", "shift" } } } }

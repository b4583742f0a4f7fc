-- sketch_apart -- sketch, with the farthest channels of each 32 tokens in a sketch of their own.
--
-- Of the 32 rows that are one unit of a page, the 8 channels of the greatest sum of r^2, of equal
-- ones the lower, are kept apart: r has two parts, r = r_in + r_out, each 0 in the other's
-- channels.  r_in has the sketch of gen/parts/sketch.lua; r_out a norm of its own and the signs of
-- Q_0 r_out, as many as there are channels.  A unit stores the 8 channels, a byte each, in rising
-- order.  Sums of squares run in the order of tokens, in float32.  arXiv:2406.03482: of outliers a
-- norm that all channels share would be the outliers' own.

return { stage = "extra", name = "sketch_apart", side = "k", number = "rotations",
         number_usual = 2, number_least = 1, number_most = 4,
         text = "sketch, 8 channels of 32 tokens apart", signs = true,
         apart = { channels = 8, rows = 32 } }

-- midpoint -- x ~ scale * (code - code_max / 2): symmetric about zero, which is between two levels.
--
-- The mid-rise grid of arXiv:2502.05003: at 2 bits -3/2, -1/2, 1/2, 3/2 times the scale.  No
-- offset is stored.  A group of zeros has scale 0 and is exact.

return { stage = "levels", name = "midpoint", text = "scale * (code - code_max / 2)",
         bits = { 1, 2, 3, 4, 5, 6, 8 }, offset = "-scale * (0.5f * (float)code_max)" }

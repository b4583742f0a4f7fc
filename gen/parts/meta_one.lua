-- meta_one -- the scale is 1: nothing is stored.
--
-- What engines do with 8-bit floats that no calibration gave a scale.

return { stage = "meta", name = "one", text = "the scale is 1, nothing is stored",
         scale_bytes = 0, zero_bytes = 0, size_bits = 0, scale_type = "one", zero_type = "i8",
         store_clipped = [[
(void)wanted;
scale_code = 0;
scale = 1.0f;
grid.inverse = 1.0f;]] }

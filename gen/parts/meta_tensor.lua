-- meta_tensor -- one calibrated scale of all heads of a layer: nothing is stored with groups.
--
--     scale = max|x| / the greatest level     of all rows that calibration has seen
-- Rows are divided by table tensor_scale, the same number for each channel, before the codes;
-- queries are multiplied by it, and so is what comes back.  What lies beyond gets the greatest
-- level.  What engines do with 8-bit floats whose scale llm-compressor or ModelOpt found.

return { stage = "meta", name = "tensor", text = "a calibrated scale a layer, nothing stored",
         scale_bytes = 0, zero_bytes = 0, size_bits = 0, scale_type = "one", zero_type = "i8",
         base = "tensor_scale",
         tables = { { name = "tensor_scale", shape = { "dim" },
                      per_codec = { "transform", "levels", "bits", "meta" } } },
         store_clipped = [[
(void)wanted;
scale_code = 0;
scale = 1.0f;
grid.inverse = 1.0f;]] }

-- meta_head -- one calibrated scale of each KV head: nothing is stored with groups.
--
-- meta=tensor, of the rows of a head alone; table head_scale.

return { stage = "meta", name = "head", text = "a calibrated scale a head, nothing stored",
         scale_bytes = 0, zero_bytes = 0, size_bits = 0, scale_type = "one", zero_type = "i8",
         base = "head_scale",
         tables = { { name = "head_scale", shape = { "dim" },
                      per_codec = { "transform", "levels", "bits", "meta" } } },
         store_clipped = [[
(void)wanted;
scale_code = 0;
scale = 1.0f;
grid.inverse = 1.0f;]] }

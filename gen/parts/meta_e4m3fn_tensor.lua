-- meta_e4m3fn_tensor -- meta=e4m3fn, in units of a calibrated scale of the layer.
--
--     tensor_scale = max|x| / (the greatest level 448)     448: the greatest e4m3
-- so that the group with the greatest value has the greatest scale: where rows are small, scales
-- of e4m3 alone fall below its least normal, 2^-6, and lose bits.  Rows are divided by the table
-- tensor_scale before the fit; queries are multiplied by it, and so is what comes back.

return { stage = "meta", name = "e4m3fn_tensor", text = "e4m3fn about a calibrated scale a layer",
         scale_bytes = 1, zero_bytes = 1, size_bits = 0x7f, scale_type = "e4m3fn",
         zero_type = "i8", base = "tensor_scale",
         tables = { { name = "tensor_scale", shape = { "dim" },
                      per_codec = { "transform", "levels", "bits", "meta" } } },
         store_clipped = [[
scale_code = e4m3fn_of_f32(wanted);
if (wanted > 0.0f && scale_code == 0) scale_code = 1;
scale = f32_of_e4m3fn(scale_code);
grid.inverse = scale > 0.0f ? 1.0f / scale : 0.0f;]] }

-- fp8_tensor -- 8-bit floats (e4m3), a calibrated scale for the keys and one for the values.
--
-- What engines do with the scales that llm-compressor writes.  meta=head has one for each head.

return {
    name = "fp8-tensor", text = "8-bit floats, e4m3, a scale a layer",
    source = "vLLM, TensorRT-LLM",
    key     = { bits = 8, group = "head", axis = "per_token", fit = "amax", levels = "e4m3",
                meta = "tensor" },
    value   = { bits = 8, group = "head", axis = "per_token", fit = "amax", levels = "e4m3",
                meta = "tensor" },
    windows = {},
}

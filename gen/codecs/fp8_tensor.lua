-- fp8_tensor -- 8-bit floats (e4m3), a calibrated scale for the keys and one for the values.
--
-- What engines do with the scales that llm-compressor writes.  meta=head has one for each head.
-- Levels of floats are as fine at any scale: a calibrated one is for values beyond 448, or near
-- 2^-6 and below.  On SmolLM2 the greatest are 25, and it gains nothing: KL 1.94, a head 1.73,
-- where fp8 has 1.56, of two windows.

return {
    name = "fp8-tensor", text = "8-bit floats, e4m3, a scale a layer",
    source = "vLLM, TensorRT-LLM",
    key     = { bits = 8, group = "head", axis = "per_token", fit = "amax", levels = "e4m3",
                meta = "tensor" },
    value   = { bits = 8, group = "head", axis = "per_token", fit = "amax", levels = "e4m3",
                meta = "tensor" },
    windows = {},
}

-- nvfp4 -- 4-bit floats (e2m1), 16 channels of a token share an 8-bit float.
--
-- The scale is max|x| / 6, rounded to e4m3.  The scale of the whole tensor that the format has
-- beside it is 1, as engines have it where no calibration gives one; nvfp4-tensor has it.

return {
    name = "nvfp4", text = "4-bit floats, an 8-bit float for 16",
    source = "NVIDIA TensorRT-LLM, FlashInfer",
    key     = { bits = 4, group = 16, axis = "per_token", fit = "amax", levels = "e2m1",
                meta = "e4m3fn" },
    value   = { bits = 4, group = 16, axis = "per_token", fit = "amax", levels = "e2m1",
                meta = "e4m3fn" },
    windows = {},
}

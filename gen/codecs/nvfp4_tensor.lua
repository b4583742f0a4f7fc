-- nvfp4_tensor -- nvfp4 with both of its scales: an 8-bit float for 16 channels, one of the layer.
--
-- The second scale is calibrated: max|x| / (6 448).

return {
    name = "nvfp4-tensor", text = "4-bit floats, an 8-bit float for 16, a scale a layer",
    source = "NVIDIA TensorRT-LLM, FlashInfer",
    key     = { bits = 4, group = 16, axis = "per_token", fit = "amax", levels = "e2m1",
                meta = "e4m3fn_tensor" },
    value   = { bits = 4, group = 16, axis = "per_token", fit = "amax", levels = "e2m1",
                meta = "e4m3fn_tensor" },
    windows = {},
}

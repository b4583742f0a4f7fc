-- q8_0 -- ggml's 8-bit format: 32 channels of a token share d = max|x| / 127, x ~ d q.

return {
    name = "q8_0", text = "llama.cpp's 8-bit cache type",
    source = "ggml, quantize_row_q8_0_ref",
    key     = { bits = 8, group = 32, axis = "per_token", fit = "absmax", levels = "symmetric",
                round = "nearest_away", meta = "f16" },
    value   = { bits = 8, group = 32, axis = "per_token", fit = "absmax", levels = "symmetric",
                round = "nearest_away", meta = "f16" },
    windows = {},
}

-- q5_0 -- ggml's 5-bit format: 32 channels of a token share d = (signed extreme) / -16.
--
--     q = min(31, floor(x / d + 16.5))     x ~ d (q - 16)

return {
    name = "q5_0", text = "llama.cpp's 5-bit cache type",
    source = "ggml, quantize_row_q5_0_ref",
    key     = { bits = 5, group = 32, axis = "per_token", fit = "signed_absmax",
                levels = "symmetric", round = "nearest_up", meta = "f16" },
    value   = { bits = 5, group = 32, axis = "per_token", fit = "signed_absmax",
                levels = "symmetric", round = "nearest_up", meta = "f16" },
    windows = {},
}

-- q4_0 -- ggml's 4-bit format: 32 channels of a token share d = (signed extreme) / -8.
--
--     q = min(15, floor(x / d + 8.5))     x ~ d (q - 8)

return {
    name = "q4_0", text = "llama.cpp's 4-bit cache type",
    source = "ggml, quantize_row_q4_0_ref",
    key     = { bits = 4, group = 32, axis = "per_token", fit = "signed_absmax",
                levels = "symmetric", round = "nearest_up", meta = "f16" },
    value   = { bits = 4, group = 32, axis = "per_token", fit = "signed_absmax",
                levels = "symmetric", round = "nearest_up", meta = "f16" },
    windows = {},
}

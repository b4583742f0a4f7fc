-- iq4_nl -- ggml's non-linear 4-bit format: 32 channels of a token, levels that are closer about 0.

return {
    name = "iq4_nl", text = "llama.cpp's non-linear 4-bit type",
    source = "ggml, quantize_row_iq4_nl_ref",
    key     = { bits = 4, group = 32, axis = "per_token", fit = "squares", levels = "nl4",
                meta = "f16" },
    value   = { bits = 4, group = 32, axis = "per_token", fit = "squares", levels = "nl4",
                meta = "f16" },
    windows = {},
}

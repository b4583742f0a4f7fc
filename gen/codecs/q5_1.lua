-- q5_1 -- ggml's 5-bit format with a minimum: x ~ d q + m, 32 channels of a token.
--
--     d = (max - min) / 31     q = floor((x - min) / d + 1/2)     d and m are stored as f16

return {
    name = "q5_1", text = "llama.cpp's 5-bit cache type, affine",
    source = "ggml, quantize_row_q5_1_ref",
    key     = { bits = 5, group = 32, axis = "per_token", fit = "span", levels = "affine",
                round = "nearest_up", meta = "f16" },
    value   = { bits = 5, group = 32, axis = "per_token", fit = "span", levels = "affine",
                round = "nearest_up", meta = "f16" },
    windows = {},
}

-- q4_1 -- ggml's 4-bit format with a minimum: x ~ d q + m, 32 channels of a token.
--
--     d = (max - min) / 15     q = floor((x - min) / d + 1/2)     d and m are stored as f16

return {
    name = "q4_1", text = "llama.cpp's 4-bit cache type, affine",
    source = "ggml, quantize_row_q4_1_ref",
    key     = { bits = 4, group = 32, axis = "per_token", fit = "span", levels = "affine",
                round = "nearest_up", meta = "f16" },
    value   = { bits = 4, group = 32, axis = "per_token", fit = "span", levels = "affine",
                round = "nearest_up", meta = "f16" },
    windows = {},
}

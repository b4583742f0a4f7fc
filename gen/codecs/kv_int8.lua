-- kv_int8 -- 8-bit codes, scale and zero point for each token and head.
--
--     scale = (max - min) / 255     zero = -min / scale     q = floor(x / scale + zero + 1/2)

return {
    name = "kv-int8", text = "8-bit codes, a zero point a token",
    source = "LMDeploy, quant_policy 8",
    key     = { bits = 8, group = "head", axis = "per_token", fit = "span", levels = "affine",
                round = "nearest_up", meta = "f16_point" },
    value   = { bits = 8, group = "head", axis = "per_token", fit = "span", levels = "affine",
                round = "nearest_up", meta = "f16_point" },
    windows = {},
}

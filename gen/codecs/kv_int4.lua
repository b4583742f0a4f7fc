-- kv_int4 -- 4-bit codes, scale and zero point for each token and head.
--
--     scale = (max - min) / 15     zero = -min / scale     q = floor(x / scale + zero + 1/2)

return {
    name = "kv-int4", text = "4-bit codes, a zero point a token",
    source = "LMDeploy, quant_policy 4",
    key     = { bits = 4, group = "head", axis = "per_token", fit = "span", levels = "affine",
                round = "nearest_up", meta = "f16_point" },
    value   = { bits = 4, group = "head", axis = "per_token", fit = "span", levels = "affine",
                round = "nearest_up", meta = "f16_point" },
    windows = {},
}

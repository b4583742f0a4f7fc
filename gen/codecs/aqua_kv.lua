-- aqua_kv -- what the layer below and the key do not say of a row, on points of the plane
-- (arXiv:2501.19392).
--
-- Keys before RoPE are predicted from those of the layer below, values from the key and the value
-- below, by least squares on rows as they are restored.  The source keeps the lowest layer, which
-- nothing predicts, at 4 bits: `aqua-kv 0:aqua-kv:b4` as a list of specs.  Its rotation and norm
-- are of all heads of a layer, here of one head.  Layers are appended to in their order.  Reading
-- costs what predicting all rows costs, products of each with matrices of a layer's channels.
--
-- KL divergence x1000 of SmolLM2 over one window of 512 tokens, the newest 32 in 16 bits, with a
-- calibration on 1024 tokens: 29.8, and 20.0 with 4 bits in the lowest layer, 2.32 in the mean;
-- higgs has 136 at 2.25 bits, 24.4 at 3.25.

return {
    name = "aqua-kv", text = "predicted from the layer below",
    source = "AQUA-KV, arXiv:2501.19392",
    key     = { bits = 2, group = "head", axis = "per_token", place = "pre_rope",
                shift = "predicted", transform = "signed_hadamard", fit = "norm",
                levels = "plane", meta = "f16" },
    value   = { bits = 2, group = "head", axis = "per_token", shift = "predicted",
                transform = "signed_hadamard", fit = "norm", levels = "plane", meta = "f16" },
    windows = { sink = 4, recent = 128 },
}

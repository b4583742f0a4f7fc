-- oscar_v1 -- oscar as first published: one rotation for all KV heads (arXiv:2605.17757).

return {
    name = "oscar_v1", text = "the same, one rotation a layer",
    source = "OSCAR, arXiv:2605.17757",
    key     = { bits = 2, group = "head", axis = "per_token", transform = "eigen_layer",
                fit = "clip96", levels = "affine", meta = "f16" },
    value   = { bits = 2, group = "head", axis = "per_token", transform = "eigen_layer",
                fit = "clip92", levels = "affine", meta = "f16" },
    windows = { sink = 64, recent = 256, chunk = 8 },
}

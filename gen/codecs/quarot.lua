-- quarot -- whole-head Hadamard and min/max, per token (arXiv:2404.00456, for caches).

return {
    name = "quarot", text = "Hadamard, per token",
    source = "QuaRot, arXiv:2404.00456",
    key     = { bits = 2, group = "head", axis = "per_token", transform = "hadamard",
                fit = "minmax", levels = "affine", meta = "f16" },
    value   = { bits = 2, group = "head", axis = "per_token", transform = "hadamard",
                fit = "minmax", levels = "affine", meta = "f16" },
    windows = { sink = 64, recent = 256, chunk = 8 },
}

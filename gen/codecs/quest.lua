-- quest -- Hadamard and the rms grid, per token: 2.125 bits (arXiv:2502.05003, for caches).

return {
    name = "quest", text = "Hadamard and rms grid, per token",
    source = "QuEST, arXiv:2502.05003",
    key     = { bits = 2, group = "head", axis = "per_token", transform = "hadamard",
                fit = "rms", levels = "midpoint", meta = "f16" },
    value   = { bits = 2, group = "head", axis = "per_token", transform = "hadamard",
                fit = "rms", levels = "midpoint", meta = "f16" },
    windows = { sink = 64, recent = 256, chunk = 8 },
}

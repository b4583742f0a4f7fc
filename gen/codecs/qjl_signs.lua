-- qjl_signs -- keys as the signs of one rotation and a norm, values as kivi has them.
--
-- The least that arXiv:2406.03482 can be: as many signs as channels, none kept apart, 1.125 bits a
-- key at head dim 128.

return {
    name = "qjl-signs", text = "signs of rotated keys, 2-bit values",
    source = "after QJL, arXiv:2406.03482",
    key     = { bits = 1, group = "head", axis = "per_token", transform = "signed_hadamard",
                fit = "norm", levels = "signs", meta = "f16" },
    value   = { bits = 2, group = 32, axis = "per_token", fit = "minmax", levels = "affine",
                meta = "f16" },
    windows = { sink = 4, recent = 128 },
}

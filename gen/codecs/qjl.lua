-- qjl -- keys as signs of a random rotation and a norm, values as kivi has them (arXiv:2406.03482).
--
-- The source's sketch has twice as many rows as the head has channels, and keeps the 8 largest
-- channels of each 32 tokens apart.  Here it has as many rows as channels and keeps none apart:
-- 1.125 bits a key at head dim 128.

return {
    name = "qjl", text = "signs of rotated keys, 2-bit values",
    source = "QJL, arXiv:2406.03482",
    key     = { bits = 1, group = "head", axis = "per_token", transform = "signed_hadamard",
                fit = "norm", levels = "signs", meta = "f16" },
    value   = { bits = 2, group = 32, axis = "per_token", fit = "minmax", levels = "affine",
                meta = "f16" },
    windows = { sink = 4, recent = 128 },
}

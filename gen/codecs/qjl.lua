-- qjl -- keys as signs of random rotations and norms, values as kivi has them (arXiv:2406.03482).
--
-- Twice as many signs as channels and a norm a token; the 8 farthest channels of each 32 tokens
-- have a norm and signs of their own.  The source draws its rows from Gaussians, makes them
-- orthogonal, and has twice as many in the first 15 layers (k.extra=sketch_apart4); here they are
-- three rounds of signs and Hadamards, and the factor is exact for orthogonal rows.  A score is
-- right in the mean, and off by more than most: signs spend on the mean what levels spend on the
-- error.

return {
    name = "qjl", text = "keys as signs of rotations, 2-bit values",
    source = "QJL, arXiv:2406.03482",
    key     = { bits = 0, levels = "nothing", extra = "sketch_apart2" },
    value   = { bits = 2, group = 32, axis = "per_token", fit = "minmax", levels = "affine",
                meta = "f16" },
    windows = { sink = 4, recent = 128 },
}

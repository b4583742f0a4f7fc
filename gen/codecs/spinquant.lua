-- spinquant -- a Hadamard of keys, a learned rotation of values, per token (arXiv:2405.16406).
--
-- The rotation is a matrix out of a file (the source's R2; R3 is the Hadamard): converted from one
-- that was trained elsewhere, or found by kvloom-calibrate --learn rotation.  The source's 4 bits,
-- min/max over the head.

return {
    name = "spinquant", text = "Hadamard, values by a learned rotation",
    source = "SpinQuant, arXiv:2405.16406",
    key     = { bits = 4, group = "head", axis = "per_token", transform = "hadamard",
                fit = "minmax", levels = "affine", meta = "f16" },
    value   = { bits = 4, group = "head", axis = "per_token", transform = "file",
                fit = "minmax", levels = "affine", meta = "f16" },
    windows = { sink = 64, recent = 256, chunk = 8 },
}

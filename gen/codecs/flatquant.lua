-- flatquant -- learned invertible matrices of keys and values, per token (arXiv:2410.09426).
--
-- The matrices come out of a file: converted from those that were trained elsewhere, or found by
-- kvloom-calibrate --learn affine.  The source shrinks the range of a row by a learned factor; here
-- fit=search shrinks it by what serves the row.  The source's 4 bits.

return {
    name = "flatquant", text = "learned invertible matrices, per token",
    source = "FlatQuant, arXiv:2410.09426",
    key     = { bits = 4, group = "head", axis = "per_token", transform = "file",
                fit = "search", levels = "affine", meta = "f16" },
    value   = { bits = 4, group = "head", axis = "per_token", transform = "file",
                fit = "search", levels = "affine", meta = "f16" },
    windows = { sink = 64, recent = 256, chunk = 8 },
}

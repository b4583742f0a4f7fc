-- mxfp4 -- 4-bit floats (e2m1), 32 channels of a token share a power of two.

return {
    name = "mxfp4", text = "4-bit floats, a power of two for 32",
    source = "OCP microscaling formats 1.0",
    key     = { bits = 4, group = 32, axis = "per_token", fit = "shared", levels = "e2m1",
                meta = "e8m0" },
    value   = { bits = 4, group = 32, axis = "per_token", fit = "shared", levels = "e2m1",
                meta = "e8m0" },
    windows = {},
}

-- mxfp8 -- 8-bit floats (e4m3; levels=e5m2), 32 channels of a token share a power of two.
--
-- b6,levels=e2m3 and b6,levels=e3m2 are the formats of 6 bits.

return {
    name = "mxfp8", text = "8-bit floats, a power of two for 32",
    source = "OCP microscaling formats 1.0",
    key     = { bits = 8, group = 32, axis = "per_token", fit = "shared", levels = "e4m3",
                meta = "e8m0" },
    value   = { bits = 8, group = 32, axis = "per_token", fit = "shared", levels = "e4m3",
                meta = "e8m0" },
    windows = {},
}

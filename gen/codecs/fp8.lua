-- fp8 -- 8-bit floats (e4m3) with the scale 1: what engines do where no calibration gives a scale.
--
-- fp8-tensor has calibrated ones; meta=f16 stores a scale for each token and head, levels=e5m2
-- trades precision for range.

return {
    name = "fp8", text = "8-bit floats, e4m3, scale 1",
    source = "OCP 8-bit floating point 1.0, arXiv:2209.05433",
    key     = { bits = 8, group = "head", axis = "per_token", fit = "amax", levels = "e4m3",
                meta = "one" },
    value   = { bits = 8, group = "head", axis = "per_token", fit = "amax", levels = "e4m3",
                meta = "one" },
    windows = {},
}

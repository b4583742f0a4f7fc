-- rtn -- round to nearest: every 32 channels of a token share an affine grid from min to max.

return {
    name = "rtn", text = "round to nearest, per token",
    key     = { bits = 4, group = 32, axis = "per_token", fit = "minmax", levels = "affine",
                meta = "8bit" },
    value   = { bits = 4, group = 32, axis = "per_token", fit = "minmax", levels = "affine",
                meta = "8bit" },
    windows = { sink = 4, recent = 128 },
}

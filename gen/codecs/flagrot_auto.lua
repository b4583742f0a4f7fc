-- flagrot_auto -- keys without their mean, per token; each chooses: pieces rotated, or the head.

return {
    name = "flagrot-auto", text = "centered keys, per token, and each chooses rotations",
    source = "FlagRot",
    key     = { bits = 2, group = 32, axis = "per_token", fit = "minmax", levels = "affine",
                meta = "e4m3", shift = "mean", choose = "unit", score = "attention" },
    value   = { bits = 2, group = 32, axis = "per_token", fit = "minmax", levels = "affine",
                meta = "8bit" },
    windows = { sink = 4, recent = 128 },
}

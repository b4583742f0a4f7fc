-- f16 -- plain 16-bit rows: the baseline that every other codec is compared with.

return {
    name = "f16", text = "plain half-precision rows", default = true,
    key     = { bits = 16, levels = "f16" },
    value   = { bits = 16, levels = "f16" },
    windows = { rows = "f16" },
}

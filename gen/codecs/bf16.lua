-- bf16 -- plain bfloat16 rows: the range of float32, 8 significant bits.

return {
    name = "bf16", text = "plain bfloat16 rows",
    key     = { bits = 16, levels = "bf16" },
    value   = { bits = 16, levels = "bf16" },
    windows = { rows = "bf16" },
}

-- bf16 -- the code is the row's value as a bfloat16; no metadata.

return { stage = "levels", name = "bf16", text = "bfloat16", bits = { 16 }, raw = "bf16" }

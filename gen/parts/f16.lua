-- f16 -- the code is the row's value as an IEEE 754 half; no metadata.

return { stage = "levels", name = "f16", text = "16-bit float", bits = { 16 }, raw = "f16" }

-- rotatekv -- heads rotated together before RoPE, channels sorted (arXiv:2501.16383).
--
-- The channels that share a scale are of any head, with neighbouring means; of a group's range the
-- middle 80 percent is kept, and its zero point is a whole number.  Not repeated from the source:
-- its code range of bits^2 - 1, and an order calibrated on the text that is measured.  The tokens
-- of a prompt that have the 20 largest numbers at a layer's input stay in 16 bits there: the engine
-- names them, as `decode` and `kvloom-eval` do; where it does not, none stays.  Reading costs what
-- restoring all heads of a layer costs, for each head.

return {
    name = "rotatekv", text = "heads rotated together, channels sorted",
    source = "RotateKV, arXiv:2501.16383",
    key     = { bits = 2, group = "head", axis = "per_token", place = "pre_rope",
                transform = "grouped4", fit = "shrink80", levels = "affine", meta = "f16_point" },
    value   = { bits = 2, group = "head", axis = "per_token", transform = "hadamard",
                fit = "shrink80", levels = "affine", meta = "f16_point" },
    windows = { sink = 0, recent = 0, kept = 20 },
}

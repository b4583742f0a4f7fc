-- flagrot_kivi -- kivi whose 32 tokens of keys choose: pieces as they are or rotated, or the head.
--
-- Values are kivi's.  The 8-bit scales have a sign, where the pieces' flags are: 2.5 bits a value
-- at 2, as kivi.  k.meta=f16 is the 3.0-bit layout of the ablation; k.choose=fixed writes without
-- trials.

return {
    name = "flagrot-kivi", text = "kivi, and each 32 tokens choose rotations",
    source = "FlagRot",
    key     = { bits = 2, group = 32, axis = "per_channel", fit = "minmax", levels = "affine",
                meta = "e4m3", choose = "unit", score = "attention" },
    value   = { bits = 2, group = 32, axis = "per_token", fit = "minmax", levels = "affine",
                meta = "8bit" },
    windows = { sink = 4, recent = 128 },
}

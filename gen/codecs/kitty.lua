-- kitty -- kivi whose strongest key channels have 4 bits in two planes of 2 (arXiv:2511.18643).
--
-- An eighth of 64 channels, those of the greatest magnitudes in 128 tokens, have 2 bits more; all
-- codes have one width, and the second plane lies beside them.  The source's metadata is f16.  It
-- names the share of channels, 12.5 percent (k.extra=promote16 at a head dim of 128) or 25.

return {
    name = "kitty", text = "kivi, strong key channels at 4 bits",
    source = "Kitty, arXiv:2511.18643",
    key     = { bits = 2, group = 128, axis = "per_channel", extra = "promote8", fit = "minmax",
                levels = "affine", meta = "f16" },
    value   = { bits = 2, group = "head", axis = "per_token", fit = "minmax", levels = "affine",
                meta = "f16" },
    windows = { sink = 32, recent = 128 },
}

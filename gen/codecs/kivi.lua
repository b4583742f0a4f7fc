-- kivi -- keys per channel along 32 tokens, values per token along 32 channels (arXiv:2402.02750).
--
-- Key outliers sit in fixed channels, so a key channel gets its own grid; values have none.  The
-- released code stores f16 metadata (meta=f16: 3.0 bits at 2), flushes 128 rows at once and has no
-- sink (sink=0,recent=0,chunk=128).

return {
    name = "kivi", text = "keys per channel, values per token",
    source = "KIVI, arXiv:2402.02750",
    key     = { bits = 2, group = 32, axis = "per_channel", fit = "minmax", levels = "affine",
                meta = "8bit" },
    value   = { bits = 2, group = 32, axis = "per_token", fit = "minmax", levels = "affine",
                meta = "8bit" },
    windows = { sink = 4, recent = 128 },
}

-- loom -- keys in a flat basis, values whitened, both rounded with feedback: 2.25 bits.
--
-- Every channel of a key has the same size and, after feedback, the same price, which is what equal
-- bits want; the reader sees an ordinary page of per-channel groups.  At other sizes:
--     2.125 bits  loom:g64      2.5  loom:meta=e4m3      3.25  loom:b3      4.25  loom:b4

return {
    name = "loom", text = "flat basis and feedback rounding",
    key     = { bits = 2, group = 32, axis = "per_channel", shift = "mean", transform = "flat",
                fit = "search", levels = "affine", round = "feedback2", meta = "log4" },
    value   = { bits = 2, group = 32, axis = "per_token", transform = "whiten", fit = "search",
                levels = "affine", round = "feedback2", meta = "log4" },
    windows = { sink = 4, recent = 128 },
    sizes   = { { "2.125", "bits=auto:2.125,g64" }, { "2.25", "bits=auto:2.25" },
                { "2.5", "bits=auto:2.5" }, { "3.25", "bits=auto:3.25" },
                { "4.25", "bits=auto:4.25" } },
}

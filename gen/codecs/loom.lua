-- loom -- keys in a flat basis, values whitened, both rounded with feedback: 2.25 bits.
--
-- Every channel of a key has the same size and, after feedback, the same price, which is what equal
-- bits want; the reader sees an ordinary page of per-channel groups.  Without a size all layers
-- have the same bits: 2.125 with g64, 3.25 with b3, 4.25 with b4.  Sizes let a calibration choose
-- them, in groups of 64: what scales of smaller groups take is worth more as bits of layers, and
-- from 3 bits on scales want 8 bits (docs/transforms.md).

return {
    name = "loom", text = "flat basis and feedback rounding",
    key     = { bits = 2, group = 32, axis = "per_channel", shift = "mean", transform = "flat",
                fit = "search", levels = "affine", round = "feedback2", meta = "log4" },
    value   = { bits = 2, group = 32, axis = "per_token", transform = "whiten", fit = "search",
                levels = "affine", round = "feedback2", meta = "log4" },
    windows = { sink = 4, recent = 128 },
    sizes   = { { "1.5", "bits=auto:1.5,g64" }, { "2.125", "bits=auto:2.125,g64" },
                { "2.25", "bits=auto:2.25,g64" }, { "2.5", "bits=auto:2.5,g64" },
                { "3.25", "bits=auto:3.25,g64,meta=e4m3" },
                { "4.25", "bits=auto:4.25,g64,meta=e4m3" } },
}

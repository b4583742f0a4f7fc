-- kvquant -- keys before RoPE, calibrated ranges and levels, outliers apart (arXiv:2401.18079).
--
-- Keys: a calibrated range a channel, 8 levels that are means of clusters: a token is stored at
-- once and has no scale.  Values: min/max a token; the source has calibrated levels there too.  Of
-- both the farthest value of a token is kept in 16 bits: 1.6 percent of 64 channels, 0.8 of 128.
-- The source finds outliers by thresholds, weights clusters by squared gradients, and keeps 1 to 5
-- first tokens.

return {
    name = "kvquant", text = "keys before RoPE, calibrated levels, outliers apart",
    source = "KVQuant, arXiv:2401.18079",
    key     = { bits = 3, group = "head", axis = "per_token", place = "pre_rope",
                shift = "middle", fit = "static", levels = "kmeans", extra = "sparse1",
                meta = "static" },
    value   = { bits = 3, group = "head", axis = "per_token", fit = "minmax", levels = "affine",
                extra = "sparse1", meta = "f16" },
    windows = { sink = 4, recent = 0 },
}

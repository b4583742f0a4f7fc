-- wush -- a calibrated basis that makes key and query moments equal (arXiv:2609.38121).
--
-- The source's 2.25 bits: a group is the head of a token, clipped at a percentile, f16 scale and
-- offset; 64 first and 256 recent rows in 16 bits, the rest quantized in chunks of 8.  Its
-- controlled study uses levels=midpoint,fit=rms instead (2.125 bits).

return {
    name = "wush", text = "sensitivity-balanced basis, per token",
    source = "WUSH-KV, arXiv:2609.38121",
    key     = { bits = 2, group = "head", axis = "per_token", transform = "balance",
                fit = "clip96", levels = "affine", meta = "f16" },
    value   = { bits = 2, group = "head", axis = "per_token", transform = "balance",
                fit = "clip92", levels = "affine", meta = "f16" },
    windows = { sink = 64, recent = 256, chunk = 8 },
}

-- oscar -- eigenbasis of queries, Hadamard, percentile clip, per token (arXiv:2605.17757).
--
-- A rotation a KV head, as the source's second format has it; f16 metadata, so 2.25 bits (its
-- released launch stores float32: 2.5).

return {
    name = "oscar", text = "rotation from query moments, per token",
    source = "OSCAR, arXiv:2605.17757",
    key     = { bits = 2, group = "head", axis = "per_token", transform = "eigen",
                fit = "clip96", levels = "affine", meta = "f16" },
    value   = { bits = 2, group = "head", axis = "per_token", transform = "eigen",
                fit = "clip92", levels = "affine", meta = "f16" },
    windows = { sink = 64, recent = 256, chunk = 8 },
}

-- turboquant_k8v4 -- 8-bit floats for keys, 4 bits between min and max for values: vLLM's
-- turboquant_k8v4.
--
-- Keys are neither rotated nor scaled.  What is left of turboquant are its values.

return {
    name = "turboquant-k8v4", text = "8-bit float keys, 4-bit values",
    source = "TurboQuant, arXiv:2504.19874, vLLM",
    key     = { bits = 8, group = "head", axis = "per_token", fit = "amax", levels = "e4m3",
                meta = "one" },
    value   = { bits = 4, group = "head", axis = "per_token", fit = "minmax", levels = "affine",
                meta = "f16" },
    windows = { sink = 4, recent = 128 },
}

-- turboquant_3bit -- turboquant at 3 bits: vLLM's turboquant_3bit_nc.

return {
    name = "turboquant-3bit", text = "Lloyd-Max keys, 3 bits",
    source = "TurboQuant, arXiv:2504.19874, vLLM",
    key     = { bits = 3, group = "head", axis = "per_token", transform = "signed_hadamard",
                fit = "matched", levels = "lloyd", meta = "f16" },
    value   = { bits = 3, group = "head", axis = "per_token", fit = "minmax", levels = "affine",
                meta = "f16" },
    windows = { sink = 4, recent = 128 },
}

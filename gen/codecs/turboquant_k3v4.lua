-- turboquant_k3v4 -- turboquant with keys at 3 bits, values at 4: vLLM's turboquant_k3v4_nc.

return {
    name = "turboquant-k3v4", text = "Lloyd-Max keys at 3 bits, values at 4",
    source = "TurboQuant, arXiv:2504.19874, vLLM",
    key     = { bits = 3, group = "head", axis = "per_token", transform = "signed_hadamard",
                fit = "matched", levels = "lloyd", meta = "f16" },
    value   = { bits = 4, group = "head", axis = "per_token", fit = "minmax", levels = "affine",
                meta = "f16" },
    windows = { sink = 4, recent = 128 },
}

-- turboquant -- rotated keys on Lloyd-Max levels, values between min and max: as engines ship it.
--
-- vLLM's turboquant_4bit_nc, with norm correction; its others are turboquant-k8v4, -k3v4 and -3bit.
-- Its values are not rotated.  It leaves two layers at either end in 16 bits.

return {
    name = "turboquant", text = "random rotation, Lloyd-Max keys",
    source = "TurboQuant, arXiv:2504.19874, vLLM",
    key     = { bits = 4, group = "head", axis = "per_token", transform = "signed_hadamard",
                fit = "matched", levels = "lloyd", meta = "f16" },
    value   = { bits = 4, group = "head", axis = "per_token", fit = "minmax", levels = "affine",
                meta = "f16" },
    windows = { sink = 4, recent = 128 },
}

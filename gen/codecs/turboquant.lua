-- turboquant -- rotated keys on Lloyd-Max levels, values between min and max: as engines ship it.
--
-- vLLM's presets: 4 bits with norm correction (this), k3v4 (k3), 3 bits (b3), and 8-bit keys
-- (fp8/turboquant).  Its values are not rotated.  It leaves two layers at either end in 16 bits.

return {
    name = "turboquant", text = "random rotation, Lloyd-Max keys",
    source = "TurboQuant, arXiv:2504.19874, vLLM",
    key     = { bits = 4, group = "head", axis = "per_token", transform = "signed_hadamard",
                fit = "matched", levels = "lloyd", meta = "f16" },
    value   = { bits = 4, group = "head", axis = "per_token", fit = "minmax", levels = "affine",
                meta = "f16" },
    windows = { sink = 4, recent = 128 },
}

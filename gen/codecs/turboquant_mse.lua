-- turboquant_mse -- keys and values rotated, on Lloyd-Max levels, a norm each (arXiv:2504.19874).
--
-- The source's variant of least squared error, at 1 to 4 bits; its fit=norm stores the norm alone,
-- here the norm is that of what is read.

return {
    name = "turboquant-mse", text = "random rotation, Lloyd-Max",
    source = "TurboQuant, arXiv:2504.19874",
    key     = { bits = 4, group = "head", axis = "per_token", transform = "signed_hadamard",
                fit = "matched", levels = "lloyd", meta = "f16" },
    value   = { bits = 4, group = "head", axis = "per_token", transform = "signed_hadamard",
                fit = "matched", levels = "lloyd", meta = "f16" },
    windows = { sink = 4, recent = 128 },
}

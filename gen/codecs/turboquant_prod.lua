-- turboquant_prod -- Lloyd-Max keys of a bit less, and signs of what they leave.
--
-- The variant of arXiv:2504.19874 with unbiased products: 3-bit levels, then a norm and one sign a
-- channel of the residual.  LMDeploy's quant_policy 42 is turboquant-prod:v2.  Other engines leave
-- the signs out: a fourth bit of levels lowers the error by more than the mean is worth to a
-- softmax.

return {
    name = "turboquant-prod", text = "Lloyd-Max keys, signs of the residual",
    source = "TurboQuant, arXiv:2504.19874, LMDeploy",
    key     = { bits = 3, group = "head", axis = "per_token", transform = "signed_hadamard",
                fit = "norm", levels = "lloyd", extra = "sketch1", meta = "f16" },
    value   = { bits = 4, group = "head", axis = "per_token", transform = "signed_hadamard",
                fit = "matched", levels = "lloyd", meta = "f16" },
    windows = { sink = 4, recent = 128 },
}

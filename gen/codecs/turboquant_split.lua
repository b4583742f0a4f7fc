-- turboquant_split -- turboquant-mse, outlying channels apart with a bit more (arXiv:2504.19874).
--
-- What the source calls 2.5 bits: of 128 channels the 32 strongest have 3 and the others 2, which
-- is 2.25, and each of the two sets has a rotation and a norm in 16 bits of its own, 0.25 more.
-- b3 is what it calls 3.5.  Which channels are the strong ones a calibration says, and
-- extra=outliersN how many.  KL (median) of SmolLM2, 64 channels, one window of 1024 tokens: 168
-- (31) at 2.75 bits, b3 35 (6.3) at 3.75; turboquant-mse has 246 (76) at 2.25, 56 (12) at 3.25.

return {
    name = "turboquant-split", text = "outlying channels with a bit more",
    source = "TurboQuant, arXiv:2504.19874",
    key     = { bits = 2, group = "head", axis = "per_token", transform = "signed_hadamard",
                fit = "matched", levels = "lloyd", extra = "outliers", meta = "f16" },
    value   = { bits = 2, group = "head", axis = "per_token", transform = "signed_hadamard",
                fit = "matched", levels = "lloyd", extra = "outliers", meta = "f16" },
    windows = { sink = 4, recent = 128 },
}

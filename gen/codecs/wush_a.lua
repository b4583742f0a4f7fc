-- wush_a -- wush with the price of an error in the module's output (arXiv:2609.38121, appendix).

return {
    name = "wush_a", text = "the same, priced by the output",
    source = "WUSH-KV, arXiv:2609.38121",
    key     = { bits = 2, group = "head", axis = "per_token", transform = "balance_output",
                fit = "clip96", levels = "affine", meta = "f16" },
    value   = { bits = 2, group = "head", axis = "per_token", transform = "balance_output",
                fit = "clip92", levels = "affine", meta = "f16" },
    windows = { sink = 64, recent = 256, chunk = 8 },
}

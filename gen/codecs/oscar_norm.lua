-- oscar_norm -- kivi in a Hadamard basis, tokens divided by their norms first (arXiv:2605.19660).
--
-- Tokens of other sizes than their neighbours', sinks above all, would widen the ranges of all
-- channels of their group.  The source (OScaR, called by its title "Occam's razor" too; oscar is
-- another method) has one norm a token in 16 bits for all heads; here each head has its own in 8.
-- k.extra=token_norm does it to every codec whose key groups run along tokens.

return {
    name = "oscar-norm", text = "kivi, rotated, tokens of one norm",
    source = "OScaR, arXiv:2605.19660",
    key     = { bits = 2, group = 32, axis = "per_channel", transform = "hadamard",
                extra = "token_norm", fit = "minmax", levels = "affine", meta = "8bit" },
    value   = { bits = 2, group = 32, axis = "per_token", transform = "hadamard", fit = "minmax",
                levels = "affine", meta = "8bit" },
    windows = { sink = 0, recent = 128 },
}

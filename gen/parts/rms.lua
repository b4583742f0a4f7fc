-- rms -- scale = step sqrt(mean x^2): the uniform grid of least squared error for Gaussian values.
--
-- The fit of arXiv:2502.05003, step = 2 alpha / code_max with the source's alpha of each width.
-- Values beyond the grid are clipped to its ends.  x^2 is summed in the group's order, in float32,
-- of values brought to +-2^57 first, so that 4096 of them stay finite; then one division by their
-- number, one square root, one product.  Codes come from the scale as it is stored.

return { stage = "fit", name = "rms", text = "scale = step * root mean square", levels = "midpoint",
         ordered = true, clips = true,
         factors = { 1.59576912, 0.995689747, 0.586019529, 0.335190744, 0.188135090, 0.104018961,
                     nil, 0.0304701084 },
         stats = { { name = "sum", first = "squared(clamp(x, -0x1p57f, 0x1p57f))",
                     next = "sum + squared(clamp(x, -0x1p57f, 0x1p57f))" } },
         wanted = "factor * square_root(sum / (float)group_size)" }

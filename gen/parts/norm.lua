-- norm -- scale = sqrt(mean x^2): levels are for values of variance 1.
--
-- arXiv:2504.19874 divides a row by its norm and has levels for what a rotation makes of it, of
-- variance 1 / n: the same.  x^2 is summed as rms has it.  Codes come from the scale as it is
-- stored.

return { stage = "fit", name = "norm", text = "scale = root mean square", levels = "book",
         ordered = true,
         stats = { { name = "sum", first = "squared(clamp(x, -0x1p57f, 0x1p57f))",
                     next = "sum + squared(clamp(x, -0x1p57f, 0x1p57f))" } },
         wanted = "square_root(sum / (float)group_size)" }

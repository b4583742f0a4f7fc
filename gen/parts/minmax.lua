-- minmax -- the group's smallest and largest value, lo and hi, span the codes.
--
-- scale = (hi - lo) / code_max: the quantizer of arXiv:2402.02750 and of every plain rounding.

return { stage = "fit", name = "minmax", text = "scale = (max - min) / code_max",
         levels = "affine",
         stats = { { name = "lo", first = "x", next = "x < lo ? x : lo" },
                   { name = "hi", first = "x", next = "x > hi ? x : hi" } } }

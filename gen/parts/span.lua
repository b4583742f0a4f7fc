-- span -- as minmax, and codes come from scale and minimum before they are stored.
--
--     y = (x - min) (1 / ((max - min) / code_max))
-- as ggml and others have it: a code may be further than half a step from what is read.

return { stage = "fit", name = "span", text = "scale = (max - min) / code_max, codes from these",
         levels = "affine", unrounded = true,
         stats = { { name = "lo", first = "x", next = "x < lo ? x : lo" },
                   { name = "hi", first = "x", next = "x > hi ? x : hi" } } }

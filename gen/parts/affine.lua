-- affine -- x ~ scale * code + offset.

return { stage = "levels", name = "affine", text = "scale * code + offset",
         bits = { 1, 2, 3, 4, 5, 6, 8 }, stores_zero = true }

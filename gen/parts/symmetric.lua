-- symmetric -- x ~ scale * (code - 2^(bits-1)): no offset is stored.

return { stage = "levels", name = "symmetric", text = "scale * (code - 2^(bits-1))",
         bits = { 1, 2, 3, 4, 5, 6, 8 }, is_centered = true,
         offset = "-scale * (float)half_codes" }

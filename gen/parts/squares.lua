-- squares -- from the value of largest magnitude, refitted by least squares with weights x^2.
--
-- As ggml's quantize_row_iq4_nl_ref has it.  Codes are those of inverse 1 / (m / first level), m
-- the value of largest magnitude with its sign, the first of equals.  With the levels l of these
-- codes and w = x^2 the scale that is stored is
--     sum w l x / sum w l l
-- products from the left, sums in the group's order.  Magnitudes beyond 2^36 count as that.  A
-- group with none from 1e-15 has scale 0.

return { stage = "fit", name = "squares", text = "least squares with weights x^2", levels = "book",
         signed = true, ordered = true, unrounded = true,
         stats = { { name = "extreme", first = "x",
                     next = "absolute(x) > absolute(extreme) ? x : extreme" } },
         wanted = "absolute(extreme) < 1e-15f ? 0.0f : extreme / first_level",
         refit = { { name = "products", term = "squared(near) * level * near" },
                   { name = "levels_sum", term = "squared(near) * level * level" } },
         again = "scale == 0.0f ? 0.0f : levels_sum > 0.0f ? products / levels_sum : wanted" }

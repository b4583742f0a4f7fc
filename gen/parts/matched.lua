-- matched -- as norm, and the scale that is stored gives a group its norm back.
--
-- Codes come from sqrt(mean x^2) before it is rounded.  With the levels l of those codes
--     scale = sqrt(sum x^2 / sum l^2)
-- both sums in the group's order: the norm correction of the engines that ship arXiv:2504.19874.

return { stage = "fit", name = "matched", text = "as norm; what is read has the norm of the group",
         levels = "book", ordered = true, unrounded = true,
         stats = { { name = "sum", first = "squared(clamp(x, -0x1p57f, 0x1p57f))",
                     next = "sum + squared(clamp(x, -0x1p57f, 0x1p57f))" } },
         wanted = "square_root(sum / (float)group_size)",
         refit = { { name = "levels_sum", term = "level * level" } },
         again = "levels_sum > 0.0f ? square_root(sum / levels_sum) : 0.0f" }

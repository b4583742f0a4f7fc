-- amax -- scale = max|x| / the greatest level.

return { stage = "fit", name = "amax", text = "scale = max|x| / greatest level", levels = "book",
         stats = { { name = "extreme", first = "absolute(x)",
                     next = "absolute(x) > extreme ? absolute(x) : extreme" } },
         wanted = "extreme / top" }

-- absmax -- scale = max|x| / (2^(bits-1) - 1), symmetric about zero, as ggml has it.

return { stage = "fit", name = "absmax", text = "scale = max|x| / (2^(bits-1) - 1)",
         levels = "symmetric", min_bits = 2,
         stats = { { name = "extreme", first = "absolute(x)",
                     next = "absolute(x) > extreme ? absolute(x) : extreme" } },
         wanted = "extreme / (float)(half_codes - 1)" }

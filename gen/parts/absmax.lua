-- absmax -- scale = max|x| / (2^(bits-1) - 1), symmetric about zero: ggml's q8_0 at 8 bits.

return { stage = "fit", name = "absmax", text = "scale = max|x| / (2^(bits-1) - 1), as q8_0",
         levels = "symmetric", min_bits = 2,
         stats = { { name = "extreme", first = "absolute(x)",
                     next = "absolute(x) > extreme ? absolute(x) : extreme" } },
         wanted = "extreme / (float)(half_codes - 1)" }

-- nearest_up -- floor(x + 1/2): ties upward, as ggml's 4-bit type has it.

return { stage = "round", name = "nearest_up", text = "nearest level, ties upward",
         code = "round_down(y + (zero_point + 0.5f))" }

-- nearest_away -- to the nearest level, ties away from zero, as C's roundf: ggml's q8_0.

return { stage = "round", name = "nearest_away", text = "nearest level, ties away from zero",
         code = "round_away(y) + zero_point" }

-- nearest_away -- nearest level, ties away from zero, as C's roundf and ggml's 8-bit type have it.

return { stage = "round", name = "nearest_away", text = "nearest level, ties away from zero",
         code = "round_away(y) + zero_point" }

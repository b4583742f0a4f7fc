-- nearest -- to the nearest level, ties to even.

return { stage = "round", name = "nearest", text = "nearest level, ties to even",
         of_books = true, code = "round_even(y) + zero_point" }

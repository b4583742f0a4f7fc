-- nothing -- no codes: a key is what is stored beside them (extra=sketch, extra=sketch_apart).

return { stage = "levels", name = "nothing", side = "k", text = "no codes: extra has all",
         bits = { 0 }, raw = "nothing", empty = true }

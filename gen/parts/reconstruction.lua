-- reconstruction -- an error e costs |e|^2.

return { stage = "score", name = "reconstruction", text = "by the squared error alone" }

-- lloyd -- x ~ scale * level, the levels of least squared error for values of variance 1.
--
-- Lloyd (IEEE Trans. Inf. Theory 28, 1982) and Max (IRE Trans. 6, 1960) for the normal
-- distribution: each level is the mean of the values that are nearest to it.  No offset is stored.
-- A value in the middle of two levels gets the upper one.

return { stage = "levels", name = "lloyd", text = "scale * level, best for a bell curve",
         bits = { 1, 2, 3, 4 }, offset = "scale - scale", book = "normal" }

-- lloyd -- x ~ scale * level, the levels of least squared error for values of variance 1.
--
-- Lloyd (IEEE Trans. Inf. Theory 28, 1982) and Max (IRE Trans. 6, 1960) for the normal
-- distribution: each level is the mean of the values that are nearest to it.  No offset is stored.
-- A value in the middle of two levels gets the upper one.

return { stage = "levels", name = "lloyd", text = "scale * level, best for a bell curve",
         bits = { 1, 2, 3, 4 }, offset = "scale - scale",
         book = {
             { -0.797884561, 0.797884561 },
             { -1.51041761, -0.452780035, 0.452780035, 1.51041761 },
             { -2.1519457, -1.34390928, -0.756005281, -0.245094179,
               0.245094179, 0.756005281, 1.34390928, 2.1519457 },
             { -2.73258957, -2.06901723, -1.61804639, -1.2562312,
               -0.942340456, -0.656759119, -0.388048299, -0.12839503,
               0.12839503, 0.388048299, 0.656759119, 0.942340456,
               1.2562312, 1.61804639, 2.06901723, 2.73258957 } } }

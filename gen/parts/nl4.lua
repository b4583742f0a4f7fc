-- nl4 -- x ~ scale * level, 16 whole numbers that are closer about zero, as ggml has them.
--
-- kvalues_iq4nl of ggml.  No offset is stored.  A value in the middle of two levels gets the upper
-- one.

return { stage = "levels", name = "nl4", text = "scale * one of 16 whole numbers",
         bits = { 4 }, offset = "scale - scale",
         book = { [4] = { -127, -104, -83, -65, -49, -35, -22, -10,
                          1, 13, 25, 38, 53, 69, 89, 113 } } }

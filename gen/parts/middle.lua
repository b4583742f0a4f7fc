-- middle -- y = x - middle: rows are stored without the middle of each channel's calibrated range.
--
-- As `mean`, by another vector; fit=static has the ranges.

return { stage = "shift", name = "middle", side = "k",
         text = "subtract the middle of each channel's calibrated range",
         tables = { { name = "static_middle", shape = { "dim" } } }, subtract = "static_middle" }

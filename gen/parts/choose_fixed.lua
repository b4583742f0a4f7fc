-- choose_fixed -- pieces of the head that a calibration found better rotated are, or the head is.
--
-- The choice of unit (choose_unit.lua), made once for a layer and head from the scores of many
-- units: table choice has 1 for each rotated piece, and behind the pieces 1 for the head, which
-- then is rotated instead.  Nothing is stored, and the query takes the same transforms once a step.
-- The scores depend on the whole composition of the side, and so does the table.

return { stage = "choose", name = "fixed", number = "piece_up_to", number_usual = 32,
         number_least = 16, number_most = 256,
         text = "by calibration: pieces as they are or rotated, or the head",
         side = "k",
         tables = { { name = "choice", shape = { "choices" }, per_codec = true } } }

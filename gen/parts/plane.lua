-- plane -- two neighbouring channels of a row take one of 4^bits points of the plane together.
--
-- Lloyd's condition (IEEE Trans. Inf. Theory 28, 1982) in two dimensions, for two normal values of
-- variance 1: each point is the mean of the pairs that are nearest to it.  gen/points.lua has the
-- points; a value's squared error is .1076, .0295 and .0077 at 2, 3 and 4 bits, where that of
-- levels=lloyd is .1175, .0345 and .0095.  arXiv:2411.17525 does so with what a Hadamard rotated.
-- No offset is stored.  With y the pair of channels 2 i and 2 i + 1 in units of the scale, and each
-- operation rounded to float32:
--     point p with the greatest (p_1 y_1 + p_2 y_2) - |p|^2 / 2, of equal ones the first
-- The lower half of its number's bits is the code of the first channel, the upper half that of the
-- second.  As levels (kvl_read_codes) the first has the number, the second one 4^bits more.

return { stage = "levels", name = "plane", text = "scale * point of the plane, for two channels",
         bits = { 2, 3, 4 }, offset = "scale - scale", points = true }

-- levels_e4m3 -- x ~ scale * float: up to 448, down to 2^-9; no infinity.
--
-- The 8-bit floats of OCP (1.0, 2023), arXiv:2209.05433.  Its NaN, 127 and 255, is never written.
-- No offset is stored.  The nearest one, ties to even; beyond the greatest, that one.

return { stage = "levels", name = "e4m3", text = "scale * float of 4 exponent, 3 mantissa bits",
         bits = { 8 }, offset = "scale - scale",
         float = { exponent = 4, mantissa = 3, bias = 7, last = 126 } }

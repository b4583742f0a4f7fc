-- levels_e5m2 -- x ~ scale * float: up to 57344, down to 2^-16.
--
-- The 8-bit floats of OCP (1.0, 2023), arXiv:2209.05433.  Infinities and NaN are never written.
-- No offset is stored.  The nearest one, ties to even; beyond the greatest, that one.

return { stage = "levels", name = "e5m2", text = "scale * float of 5 exponent, 2 mantissa bits",
         bits = { 8 }, offset = "scale - scale",
         float = { exponent = 5, mantissa = 2, bias = 15, last = 123 } }

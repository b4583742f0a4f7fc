-- levels_e2m3 -- x ~ scale * float: up to 7.5, in steps of 1/8 below 2.
--
-- Of the OCP microscaling formats (1.0, 2023).
-- No offset is stored.  The nearest one, ties to even; beyond the greatest, that one.

return { stage = "levels", name = "e2m3", text = "scale * float of 2 exponent, 3 mantissa bits",
         bits = { 6 }, offset = "scale - scale",
         float = { exponent = 2, mantissa = 3, bias = 1, last = 31 } }

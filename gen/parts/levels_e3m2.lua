-- levels_e3m2 -- x ~ scale * float: up to 28, down to 1/16.
--
-- Of the OCP microscaling formats (1.0, 2023).
-- No offset is stored.  The nearest one, ties to even; beyond the greatest, that one.

return { stage = "levels", name = "e3m2", text = "scale * float of 3 exponent, 2 mantissa bits",
         bits = { 6 }, offset = "scale - scale",
         float = { exponent = 3, mantissa = 2, bias = 3, last = 31 } }

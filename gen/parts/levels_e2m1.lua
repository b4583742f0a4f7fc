-- levels_e2m1 -- x ~ scale * float: 0, 1/2, 1, 3/2, 2, 3, 4, 6 and their negatives.
--
-- Of the OCP microscaling formats (1.0, 2023).
-- No offset is stored.  The nearest one, ties to even; beyond the greatest, that one.

return { stage = "levels", name = "e2m1", text = "scale * float of 2 exponent, 1 mantissa bits",
         bits = { 4 }, offset = "scale - scale",
         float = { exponent = 2, mantissa = 1, bias = 1, last = 7 } }

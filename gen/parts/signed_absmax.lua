-- signed_absmax -- scale = m / -2^(bits-1), m the value of largest magnitude with its sign.
--
-- As ggml has it: m itself gets code 0 and is exact up to the rounding of the scale.  The
-- first of equal magnitudes decides, so the values are visited in order.

return { stage = "fit", name = "signed_absmax",
         text = "scale = (value of largest magnitude) / -2^(bits-1)", levels = "symmetric",
         signed = true, ordered = true,
         stats = { { name = "extreme", first = "x",
                     next = "absolute(x) > absolute(extreme) ? x : extreme" } },
         wanted = "extreme / -(float)half_codes" }

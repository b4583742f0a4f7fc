-- shared -- a power of two: that of max|x|, over that of the greatest level.
--
--     scale = 2^(floor(log2 max|x|) - floor(log2 top))
-- as the OCP microscaling formats (1.0, 2023) have it.  The greatest values of a group may lie
-- beyond the greatest level: they get it.

return { stage = "fit", name = "shared", text = "scale = a power of two, of max|x|",
         levels = "book",
         stats = { { name = "extreme", first = "absolute(x)",
                     next = "absolute(x) > extreme ? absolute(x) : extreme" } },
         wanted = "float_of(bits_of(extreme) & 0x7f800000u) * octave" }

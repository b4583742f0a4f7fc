-- meta_e8m0 -- scale as a power of two: 8 bits of exponent, bias 127, from 2^-127 to 2^127.
--
-- The scales of the OCP microscaling formats (1.0, 2023); 255, their NaN, is never written.  A
-- scale that is no power of two becomes the nearer of its neighbours, the greater one in the
-- middle.

return { stage = "meta", name = "e8m0", text = "scale as a power of two, 8 bits",
         scale_bytes = 1, zero_bytes = 1, size_bits = 0xff, scale_type = "e8m0", zero_type = "i8",
         store_clipped = [[
scale_code = e8m0_of_f32(wanted);
scale = f32_of_e8m0(scale_code);
grid.inverse = 1.0f / scale;]] }

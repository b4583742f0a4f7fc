-- meta_f16_point -- scale as f16, and for affine levels the zero point as f16, in units of it.
--
--     offset = -scale zero     zero = f16(-min / scale)
-- with the scale before it is rounded, not below 2^-24 unless all values are 0.  A group of equal
-- values has their magnitude as its scale, and is exact where that is an f16.

return { stage = "meta", name = "f16_point", text = "scale and zero point as f16",
         scale_bytes = 2, zero_bytes = 2, size_bits = 0x7fff, scale_type = "f16",
         zero_type = "f16", offset = "-scale * zero",
         store_plain = [[
float step = hi > lo ? least(hi - lo, float_max) / (float)code_max : absolute(lo);
if (step > 0.0f) step = most(step, 0x1p-24f);
scale_code = f16_of_f32(step);
scale = f32_of_f16(scale_code);
grid.inverse = step > 0.0f ? 1.0f / step : 0.0f;
grid.offset = lo;
zero_code = f16_of_f32(step > 0.0f ? -lo / step : 0.0f);]] }

-- meta_e4m3 -- scale in 8 bits, whose sign is free, and for affine levels the middle in 8 bits.
--
--     scale  u8: sign (bit 7), 4 exponent and 3 mantissa bits, bias 8, no infinity or NaN:
--            e = 0: m 2^-10;  else (8 + m) 2^(e - 11).  From 2^-10 to 240.
--     zero   i8 and offset: as 8bit has them
--
-- Scales are not negative: the sign is there for flags (stage choose), and reading leaves it out.
-- A group that would need a scale beyond 240 gets 240: values further than half a step outside the
-- levels take the outermost ones.  They stay finite, and groups beside it are not touched.  A range
-- below 2^-10 has a step of 2^-10.  The rest is the arithmetic of 8bit.

return { stage = "meta", name = "e4m3", text = "scale in 8 bits (e4m3), middle in 8 bits",
         scale_bytes = 1, zero_bytes = 1, free_sign = 7,
         size_bits = 0x7f, scale_type = "e4m3", zero_type = "i8", steps = 32,
         offset = "scale * (zero * ((float)(1 << bits) / 32.0f) - 0.5f * (float)code_max)",
         store_affine = [[
const float unit = (float)(1 << bits) / 32.0f;
const float range = least(hi - lo, float_max), mid = 0.5f * lo + 0.5f * hi;
const float wanted = most(range / (float)code_max, absolute(mid) / (127.0f * unit));
float zero;
scale_code = e4m3_of_f32(wanted);
if (wanted > 0.0f && scale_code == 0) scale_code = 1;
for (;; ++scale_code) {
    scale = f32_of_e4m3(scale_code);
    const float step = scale * unit;
    zero = nearest_flagged(scale > 0.0f ? clamp(mid / step, -127.0f, 127.0f) : 0.0f, flag);
    if (scale_code == 127) break;
    if (0.5f * range + absolute(mid - zero * step) <= scale * (float)half_codes) break;
}
zero_code = (uint32_t)(int32_t)zero & 255u;
grid.offset = scale * (zero * unit - 0.5f * (float)code_max);
grid.inverse = scale > 0.0f ? 1.0f / scale : 0.0f;]],
         store_symmetric = [[
scale_code = e4m3_of_f32(wanted);
if (wanted > 0.0f && scale_code == 0) scale_code = 1;
while (scale_code < 127
       && absolute(extreme) > f32_of_e4m3(scale_code) * ((float)half_codes - 0.5f)) ++scale_code;
scale = f32_of_e4m3(scale_code);
grid.inverse = scale > 0.0f ? 1.0f / scale : 0.0f;]],
         near_affine = [[
const float unit = (float)(1 << bits) / 32.0f;
wanted = most8(wanted, absolute8(middle) / (127.0f * unit));
scale_code = e4m3_of_value8(wanted);
scale_code += (scale_code == 0) & 1;
scale = value8_of_e4m3(scale_code);
const v8 step = scale * unit;
const v8 zero = nearest8(most8(least8(middle / step, repeat8(127.0f)), repeat8(-127.0f)));
zero_code = integer8(zero) & 255;
offset = scale * (zero * unit - 0.5f * (float)code_max);]],
         store_clipped = [[
scale_code = e4m3_of_f32(wanted);
if (wanted > 0.0f && scale_code == 0) scale_code = 1;
scale = f32_of_e4m3(scale_code);
grid.inverse = scale > 0.0f ? 1.0f / scale : 0.0f;]] }

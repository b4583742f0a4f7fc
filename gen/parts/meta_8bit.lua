-- meta_8bit -- scale in 8 bits, and for affine levels the group's middle in 8 bits.
--
--     scale  u8: 5 exponent and 3 mantissa bits, no sign, bias 15, no infinity or NaN:
--            e = 0: m 2^-17;  else (8 + m) 2^(e - 18).  The greatest is 122880.
--     zero   i8, -127 .. 127, in units of scale 2^(bits - 5): 1/8 of a step at 2 bits.
--     offset = scale (zero 2^(bits - 5) - code_max / 2)
--
-- The zero is an integer in units of the scale, since a float zero of 3 mantissa bits would be off
-- by steps where a channel's mean is many times its spread.  A middle that is out of its reach
-- widens the scale.  Affine, from lo and hi of the group, with mid = (lo + hi) / 2 and
-- unit = 2^(bits - 5):
--     wanted = max((hi - lo) / code_max, |mid| / (127 unit))
--     scale  = the stored value nearest to wanted, ties to even, not below the least if wanted > 0
--     zero   = round(mid / (scale unit)), ties to even, clamped to -127 .. 127
--     while (hi - lo) / 2 + |mid - zero scale unit| > scale 2^(bits - 1): the next greater scale
-- so that no value of the group is further than half a step from a level of the stored pair.
-- Symmetric levels store the scale alone: nearest, or the next greater where the nearest would
-- leave max|x| further than half a step outside.  A fit that clips gets the nearest scale.

return { stage = "meta", name = "8bit", text = "scale in 8 bits (e5m3), middle in 8 bits",
         scale_bytes = 1, zero_bytes = 1,
         size_bits = 0xff, scale_type = "e5m3", zero_type = "i8", steps = 32,
         offset = "scale * (zero * ((float)(1 << bits) / 32.0f) - 0.5f * (float)code_max)",
         store_affine = [[
const float unit = (float)(1 << bits) / 32.0f;
const float range = least(hi - lo, float_max), mid = 0.5f * lo + 0.5f * hi;
const float wanted = most(range / (float)code_max, absolute(mid) / (127.0f * unit));
float zero;
scale_code = e5m3_of_f32(wanted);
if (wanted > 0.0f && scale_code == 0) scale_code = 1;
for (;; ++scale_code) {
    scale = f32_of_e5m3(scale_code);
    const float step = scale * unit;
    zero = scale > 0.0f ? nearest_even(clamp(mid / step, -127.0f, 127.0f)) : 0.0f;
    if (scale_code == 255) break;
    if (0.5f * range + absolute(mid - zero * step) <= scale * (float)half_codes) break;
}
zero_code = (uint32_t)(int32_t)zero & 255u;
grid.offset = scale * (zero * unit - 0.5f * (float)code_max);
grid.inverse = scale > 0.0f ? 1.0f / scale : 0.0f;]],
         store_symmetric = [[
scale_code = e5m3_of_f32(wanted);
if (wanted > 0.0f && scale_code == 0) scale_code = 1;
while (scale_code < 255
       && absolute(extreme) > f32_of_e5m3(scale_code) * ((float)half_codes - 0.5f)) ++scale_code;
scale = f32_of_e5m3(scale_code);
grid.inverse = scale > 0.0f ? 1.0f / scale : 0.0f;]],
         near_affine = [[
const float unit = (float)(1 << bits) / 32.0f;
wanted = most8(wanted, absolute8(middle) / (127.0f * unit));
scale_code = e5m3_of_value8(wanted);
scale_code += (scale_code == 0) & 1;
scale = value8_of_e5m3(scale_code);
const v8 step = scale * unit;
const v8 zero = nearest8(most8(least8(middle / step, repeat8(127.0f)), repeat8(-127.0f)));
zero_code = integer8(zero) & 255;
offset = scale * (zero * unit - 0.5f * (float)code_max);]],
         store_clipped = [[
scale_code = e5m3_of_f32(wanted);
if (wanted > 0.0f && scale_code == 0) scale_code = 1;
scale = f32_of_e5m3(scale_code);
grid.inverse = scale > 0.0f ? 1.0f / scale : 0.0f;]] }

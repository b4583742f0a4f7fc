-- meta_log4 -- scale in 4 logarithmic steps an octave and middle in 4 bits: a byte for both.
--
-- Channels are divided by the calibrated base, the best step of their size, after the transform;
-- queries are multiplied by it, and so is what comes back.  In what is left
--     scale  4 bits, i = -8 .. 7 stored as i + 8, the high ones: 2^(i / 4), from 1/4 to 3.36
--     zero   4 bits, -8 .. 7 stored with 8 added, the low ones: the group's middle, in units of
--            scale 2^(bits - 3), so that it reaches about 4 times the usual size at every width
--     offset = scale (zero 2^(bits - 3) - code_max / 2)
-- The scale is the one whose exponent is nearest to that of what is wanted: as many as there are
-- bounds 2^((i + 1/2) / 4), i = -8 .. 6, that are not greater.  A group beyond the grid is clipped
-- to it, a group of less than 1/4 of its usual size has steps of 1/4: unlike with other metadata,
-- a group of equal values is exact only by chance.  With shift=mean a channel's middle is near 0.

return { stage = "meta", name = "log4", text = "scale and middle in 4 bits each, about a base",
         scale_bytes = 1, zero_bytes = 0, packed = true, levels = "affine", base = "log4_base",
         tables = { { name = "log4_base", shape = { "dim" },
                      per_codec = { "position", "transform", "bits", "base", "path" } } },
         size_bits = 0xf0, scale_type = "log4", zero_type = "low4", steps = 8,
         offset = "scale * (zero * ((float)(1 << bits) / 8.0f) - 0.5f * (float)code_max)",
         store_affine = [[
const float unit = (float)(1 << bits) / 8.0f;
const float range = least(hi - lo, float_max), mid = 0.5f * lo + 0.5f * hi;
scale_code = log4_of_f32(range / (float)code_max);
scale = f32_of_log4(scale_code);
const float zero = nearest_even(clamp(mid / (unit * scale), -8.0f, 7.0f));
zero_code = (uint32_t)((int32_t)zero + 8);
grid.offset = scale * (zero * unit - 0.5f * (float)code_max);
grid.inverse = 1.0f / scale;]],
         near_affine = [[
const float unit = (float)(1 << bits) / 8.0f;
scale_code = log4_of_value8(wanted);
scale = value8_of_log4(scale_code);
const v8 zero = nearest8(most8(least8(middle / (unit * scale), repeat8(7.0f)), repeat8(-8.0f)));
zero_code = integer8(zero) + 8;
offset = scale * (zero * unit - 0.5f * (float)code_max);]] }

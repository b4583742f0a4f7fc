-- meta_f16 -- scale as f16, and for affine levels the offset as f16.
--
-- Affine, from lo and hi of the group:
--     offset = f16(lo)     scale = f16((hi - lo) / code_max), not below the least f16 if hi > lo
--     scale is raised to f16_up(need) if it is less than
--         need = max((hi - offset) / (code_max + 1/2), 2 (offset - lo))
-- so that no value of the group is further than half a step from a level of the stored pair.
-- Symmetric levels store the scale alone, and their codes come from the scale before it is rounded:
-- that is ggml's arithmetic, whose bytes its two types reproduce.  Whatever would leave the range
-- of f16 is brought into it before any code is computed.  A fit that clips gets the nearest scale,
-- not below the least f16, and codes come from it.  fit=span stores the nearest of both and takes
-- codes from what it found, as ggml has it.
-- A scale so small that its inverse is infinite has the inverse 0.  At 1 bit a range beyond 98256
-- cannot be met within half a step: the scale stops at 65504.
-- A group of equal values that are f16 numbers has scale 0 and is exact.
-- Where the offset's lowest bit is a flag (stage choose) and f16(lo) has the other one, the offset
-- is the f16 below, or above where none is below; equal values then have the scale lo - offset,
-- and stay exact.

return { stage = "meta", name = "f16", text = "scale and offset as f16",
         scale_bytes = 2, zero_bytes = 2, signed = true, free_sign = 15,
         size_bits = 0x7fff, scale_type = "f16", zero_type = "f16", offset = "zero",
         store_affine = [[
const float range = least(hi - lo, float_max);
scale_code = f16_of_f32(range / (float)code_max);
if (hi > lo && scale_code == 0) scale_code = 1;
zero_code = flagged_f16(f16_of_f32(lo), flag);
grid.offset = f32_of_f16(zero_code);
if (flag >= 0 && hi == lo) scale_code = f16_of_f32(most(lo - grid.offset, 0.0f));
const float need = most((hi - grid.offset) / ((float)code_max + 0.5f),
                        2.0f * (grid.offset - lo));
if (f32_of_f16(scale_code) < need) {
    scale_code = f16_of_f32(need);
    if (f32_of_f16(scale_code) < need && scale_code < 0x7bff) ++scale_code;
}
scale = f32_of_f16(scale_code);
grid.inverse = scale > 0.0f ? 1.0f / scale : 0.0f;]],
         store_symmetric = [[
scale = clamp(wanted, -65504.0f, 65504.0f);
scale_code = f16_of_f32(scale);
grid.inverse = absolute(scale) > 0x1p-128f ? 1.0f / scale : 0.0f;]],
         near_affine = [[
scale_code = f16_of_value8(wanted);
scale_code += (scale_code == 0) & 1;
scale = value8_of_f16(scale_code);
zero_code = f16_of_value8(middle - scale * (0.5f * (float)code_max));
offset = value8_of_f16(zero_code);]],
         store_plain = [[
const float step = least(hi - lo, float_max) / (float)code_max;
scale_code = f16_of_f32(step);
zero_code = f16_of_f32(lo);
scale = f32_of_f16(scale_code);
grid.inverse = step > 0x1p-126f ? 1.0f / step : 0.0f;
grid.offset = lo;]],
         store_clipped = [[
scale_code = f16_of_f32(wanted);
if (wanted > 0.0f && scale_code == 0) scale_code = 1;
scale = f32_of_f16(scale_code);
grid.inverse = scale > 0.0f ? 1.0f / scale : 0.0f;]] }

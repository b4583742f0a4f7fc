-- shrink -- as minmax, of a range that is shrunk about 0, with a whole number as the zero point.
--
-- Of arXiv:2501.16383, in float32, with r = number / 100 and lo < hi of the group:
--     lo' = r lo     hi' = r hi     step = (hi' - lo') / code_max     zero = rint(-lo' / step)
-- with zero brought to +-65504 first.  The group then spans -zero step to (code_max - zero) step;
-- values beyond are clipped.  The source's number is 80 at 2 bits and 100 above; its code_max is
-- bits^2 - 1, right at 2 bits alone: here it is 2^bits - 1.  A group of equal values is not shrunk.
-- Codes come from the pair before it is stored, as with span.

return { stage = "fit", name = "shrink", text = "a share of the range, a whole zero point",
         levels = "affine", unrounded = true, number = "percent", number_usual = 80,
         number_least = 1, number_most = 100, shrinks = true,
         stats = { { name = "lo", first = "x", next = "x < lo ? x : lo" },
                   { name = "hi", first = "x", next = "x > hi ? x : hi" } },
         before = [[
if (lo < hi) {
    const float low = lo * shrink, high = hi * shrink;
    const float whole = least(high - low, float_max) / (float)code_max;
    const float point = whole > 0.0f ? clamp(-low / whole, -65504.0f, 65504.0f) : 0.0f;
    lo = -(nearest_even(point) * whole) + 0.0f;
    hi = lo + whole * (float)code_max;
}]] }

-- meta_e4m3fn -- scale as an 8-bit float of OCP, without a sign: up to 448, down to 2^-9.
--
-- Nearest, ties to even; at most 448; not below the least if it is wanted at all.

return { stage = "meta", name = "e4m3fn", text = "scale as an 8-bit float (e4m3, bias 7)",
         scale_bytes = 1, zero_bytes = 1, size_bits = 0x7f, scale_type = "e4m3fn",
         zero_type = "i8",
         store_clipped = [[
scale_code = e4m3fn_of_f32(wanted);
if (wanted > 0.0f && scale_code == 0) scale_code = 1;
scale = f32_of_e4m3fn(scale_code);
grid.inverse = scale > 0.0f ? 1.0f / scale : 0.0f;]] }

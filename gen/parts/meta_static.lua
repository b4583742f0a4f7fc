-- meta_static -- nothing is stored: channels are in units of half their calibrated range.
--
--     scale = 2 / code_max     offset = scale (-code_max / 2)     of affine levels
--     scale = 1                offset = 0                         of levels that are calibrated
-- Channels are divided by the table after the shift; queries are multiplied by it, and so is what
-- comes back.

return { stage = "meta", name = "static", text = "nothing stored, half the calibrated range",
         scale_bytes = 0, zero_bytes = 0, base = "static_half", constant = true,
         tables = { { name = "static_half", shape = { "dim" } } },
         scale = "2.0f / (float)code_max", offset = "scale * (-0.5f * (float)code_max)",
         store_symmetric = [[
(void)wanted;
scale_code = 0;
scale = 2.0f / (float)code_max;
grid.inverse = 0.5f * (float)code_max;]] }

-- isa.lua -- what a host instruction set offers to the templates: one description each.
--
--     lanes       floats in a vector
--     vector      which instructions the prelude spells: x86 (VEX), arm (A64) or none (plain C)
--     broadcast   a multiply-add takes its factor from memory and repeats it
--     head_tile   accumulators that stay in registers beside a cell's words

return {
    avx512   = { lanes = 16, vector = "x86",  broadcast = 1, head_tile = 16 },
    avx2     = { lanes = 8,  vector = "x86",  broadcast = 0, head_tile = 8 },
    neon     = { lanes = 4,  vector = "arm",  broadcast = 0, head_tile = 16 },
    portable = { lanes = 4,  vector = "none", broadcast = 0, head_tile = 8 },
}

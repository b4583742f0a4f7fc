-- isa.lua -- what a host instruction set offers to the templates: one description each.
--
--     lanes       floats in a vector
--     vector      which instructions the prelude spells: x86 (VEX), arm (A64) or none (plain C)
--     broadcast   a multiply-add takes its factor from memory and repeats it
--     head_tile   accumulators that stay in registers beside a cell's words
--     sums        accumulators of attend_windows: four rows, or a few vectors, of each head
--     dot         sums of products of codes and 16-bit weights: vnni (vpdpwssd) and madd (vpmaddwd
--                 and an addition), pairs; bytes (udot and sdot), fours of codes with the weights'
--                 low and high bytes; or none, where floats are as fast: NEON without dot products
--                 has four products either way
--     chains      sums in flight at once where few heads share a cell: latency times rate
--     abreast     vectors of lanes that a weight serves once it is in a register
--
-- runtime/kvl_isa.h has the same names, with what detects them and the compiler's flags.

return {
    avx512   = { lanes = 16, vector = "x86",  broadcast = 1, head_tile = 16, sums = 20,
                 dot = "vnni", chains = 8, abreast = 1 },
    avx512bw = { lanes = 16, vector = "x86",  broadcast = 1, head_tile = 16, sums = 20,
                 dot = "madd", chains = 1, abreast = 1 },
    avxvnni  = { lanes = 8,  vector = "x86",  broadcast = 0, head_tile = 8,  sums = 8,
                 dot = "vnni", chains = 8, abreast = 2 },
    avx2     = { lanes = 8,  vector = "x86",  broadcast = 0, head_tile = 8,  sums = 8,
                 dot = "madd", chains = 1, abreast = 2 },
    neondot  = { lanes = 4,  vector = "arm",  broadcast = 0, head_tile = 16, sums = 20,
                 dot = "bytes", chains = 1, abreast = 2 },
    neon     = { lanes = 4,  vector = "arm",  broadcast = 0, head_tile = 16, sums = 20,
                 dot = "none", chains = 1, abreast = 1 },
    portable = { lanes = 4,  vector = "none", broadcast = 0, head_tile = 8,  sums = 8,
                 dot = "none", chains = 1, abreast = 1 },
}

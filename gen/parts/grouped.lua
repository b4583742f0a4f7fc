-- grouped -- keys before RoPE, heads mixed by one Hadamard, then the layer's channels in an order.
--
-- arXiv:2501.16383.  The number G is how many neighbouring KV heads are mixed; where it does not
-- divide their number, or is no power of two, the greatest power of two below that does.  Of a row
-- of all heads of a layer, turned back by RoPE (place=pre_rope) and not rounded yet, with p the
-- largest power of two that divides head_dim:
--     pieces of p channels of each head    butterflies of stride 1, 2, ... p / 2
--     the same channel of the G heads      butterflies of stride 1, 2, ... G / 2 heads
--     all times 1 / sqrt(G p), each operation rounded to float32: H of G p where p is head_dim
-- Then channel c of stored head h is number grouped_order[h][c] of the layer's channels, rounded to
-- the window's type.  The order is calibrated: ascending in the sum of each rotated channel, with
-- its sign, so that what shares a scale has neighbouring means.
--
-- A head's codes are of channels of any head: a row is encoded, restored and scored with all heads
-- of its layer, on the host by the runtime (kvl_across.h), whose kernels see rows without it.

return { stage = "transform", name = "grouped", side = "k", across = true,
         number = "heads", number_usual = 4, number_least = 1, number_most = 16,
         text = "Hadamard over heads, then a calibrated order of the layer's channels",
         tables = { { name = "grouped_order", shape = { "dim" }, per_codec = { "transform" } } } }

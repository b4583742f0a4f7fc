-- trellis -- neighbouring codes choose the sub-grid: the levels of one bit more, in the same bits.
--
-- A group is a path, its values in order, t = 0 .. n - 1, and round again: t counts modulo n.
-- Bit 0 of code t is x_t, the others are h_t, and what is read is
--     level = 4 h_t + 2 s1 + s0         value = scale level + offset
--     s1 = XOR of x_{t-i}, i the ones of h0         s0 = likewise of h1
-- Polynomials in octal, bit i for the delay i: Ungerboeck's codes of one dimension (IEEE Trans.
-- Inf. Theory 28, 1982), quantizers since Marcellin and Fischer (IEEE Trans. Comm. 38, 1990):
--     states   4   8  16  32  64
--     h1       2  04  04  10  024
--     h0       5  13  23  45  103
-- So scale and offset are those of levels 0 .. 2^(bits+1) - 1, in fit and metadata alike.
--
-- The state before t is x_{t-1}, x_{t-2}, ..., the latest in bit 0.  With
--     y = (x - offset) inverse, no further than 8 from the levels
--     k = round_even((y - d) / 4) within 0 .. 2^(bits-1) - 1,  of each of the sub-grids d = 0 .. 3
-- level 4 k + d costs (y - 4 k - d)^2, and the path of least cost that ends in the state it began
-- with is taken: costs add up in float32 from t = 0 on; of equal ways into a state the one from the
-- smaller state, of equal paths the one that begins in the smaller state.  fit=search takes paths
-- where it speaks of codes.

return { stage = "round", name = "trellis", text = "a path: codes choose each other's sub-grid",
         levels = "affine", number = "states", number_usual = 8, number_least = 4, number_most = 64,
         path = true }

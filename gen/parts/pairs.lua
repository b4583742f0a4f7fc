-- pairs -- channels that RoPE turns together have bits of their own, so many a value in the mean.
--
-- arXiv:2606.24033: a score is a sum over pairs of channels, and pairs of more energy mind an error
-- more.  Two calibrated tables of a head, equal for both channels of a pair:
--     pair_bits [dim]   n, whole numbers from 0 to 6 whose sum is dim times the bits of the side
--     pair_size [dim]   what rows are divided by after the shift: root mean squares
-- A value is rounded to the nearest of the 2^n levels of levels=lloyd, found in units of the scale:
--     y = (x / size) (1 / scale)     code = as many of the bounds between levels as y is not below
--     x ~ size (scale level)         of n = 0 the one level is 0
-- The codes of a row are one string of bits, those of a channel after those of the one before, low
-- bits first.  It is cut into dim numbers of as many bits as the side has, which lie in the page
-- where codes of one width would.
--
-- Calibration (runtime/kvl_pairs.h): of pair b, without the shift of keys,
--     s = (E|q_b|^2 + E|k_b|^2) / 2     size = sqrt(E|k_b|^2 / 2)
-- and from n = 0 on the pair with the greatest s 4^-n, of equal ones the lower, gets a bit until
-- all are given: the least sum of s 4^-n.  Which channels are a pair is what kvl_layer_desc.rope
-- says; those that do not turn are neighbours.  Without it there are no such tables.
--
-- The source turns the channels of equal bits by a random rotation and stores a norm for each
-- number of bits; here rows are in units of sizes, and a norm is of a group (fit=norm).

return { stage = "levels", name = "pairs", side = "k", text = "bits of its own for each RoPE pair",
         bits = { 1, 2, 3, 4 }, widths = { 1, 2, 3, 4, 5, 6 }, offset = "scale - scale",
         book = "normal", base = "pair_size",
         tables = { { name = "pair_bits", shape = { "dim" }, per_codec = { "bits", "shift" } },
                    { name = "pair_size", shape = { "dim" }, per_codec = { "shift" } } } }

-- rotating-mean -- y_t = k_t - R_t m: keys without the mean of what they are before RoPE.
--
-- Of a model whose keys have biases, most of a key is the same before RoPE: after it, a sinusoid in
-- every pair of channels that turns, which no mean of rows after RoPE takes away and any rotation
-- spreads over all channels.  With m that mean, and a_c the angle that channel c turns by a
-- position:
--     (R_t m)_c = mean_c cos(t a_c) + side_c sin(t a_c)
-- side_c is m of c's partner, with the sign that it comes in with.  Nothing is lost:
--     q . k_t = q . y_t + q . R_t m
-- Windows hold plain rows; y_t is rounded to their type before it is transformed; the score of a
-- quantized key gets q . R_t m back before the soft cap, and a restored one R_t m.  A row's
-- position is its number in the sequence.
--
-- The table has four rows of dim numbers: mean, side, angle and the number of the channel's
-- partner, its own where it does not turn.  Angles are multiplied, and R_t m summed up, in double.
-- On the host that is the runtime's (kvl_shift.h), and kernels see y.

return { stage = "shift", name = "rotating-mean",
         text = "subtract the calibrated mean of keys before RoPE, turned to their position",
         side = "k", by_position = true,
         tables = { { name = "rotating_mean", shape = { 4, "dim" } } } }

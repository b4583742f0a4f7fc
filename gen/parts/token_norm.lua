-- token_norm -- tokens are divided by a size of their own before groups along tokens are fitted.
--
-- arXiv:2605.19660: tokens whose keys are far smaller or larger than their neighbours' (sinks)
-- widen the ranges of all channels of their group.  Of a row of d channels without its shift,
-- before any transform, x brought to +-2^57, squares summed in the order of channels, in float32:
--     norm = e5m3(sqrt(sum x^2 / d)), not below the least e5m3 unless all are 0     y = x / norm
-- y goes through the other stages; a row of norm 0 stays as it is.  What is restored is multiplied
-- by the norm as it is stored, and so is the score of a key, before what a shift took comes back: a
-- key's norm is no rounding of it.  One byte a token and head; the source has one number in 16 bits
-- a token, the norm over all heads.

return { stage = "extra", name = "token_norm", side = "k", row_bytes = 1,
         text = "tokens divided by their root mean square, 8 bits each" }

-- pre_rope -- keys are stored as they were before RoPE, which is applied when they are read.
--
-- The engine appends keys after RoPE, as ever, and windows hold them so.  A key that leaves the
-- window at position t, its number in the sequence, is turned back: of the pair (a, b) of channels
-- that turns by the angle w (kvl_layer_desc.rope)
--     a' = a cos(t w) + b sin(t w)     b' = b cos(t w) - a sin(t w)
-- in double, rounded to the window's type.  a' and b' go through all other stages.  A restored key
-- is turned again, a = a' cos - b' sin, b = b' cos + a' sin, and so is one that is scored: it meets
-- the query in the original basis, whatever transform the codec has.
--
-- On the host the arithmetic is the runtime's (kvl_turn.h): kernels see keys before RoPE, and leave
-- scores to it.  A calibrated table of such keys is another than that of keys after RoPE, and its
-- name says so.

return { stage = "place", name = "pre_rope", text = "keys before RoPE, which reading applies",
         side = "k", unrotated = true }

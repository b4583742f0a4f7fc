-- feedback_trellis -- a path through the trellis, and errors move on.
--
-- The levels and the path are trellis.lua's, the sums and the tables feedback.lua's, but channels
-- keep their order, which is a path's.
--
-- Groups along tokens: as feedback1, with paths for nearest codes.
--
-- Groups along channels: all groups are fitted to y first.  Then group by group, with the errors e
-- of those before it as they are, each way through the trellis has its own errors: of the way that
-- is in a state before j
--     t = (y_j + sum of U_ij e_i before the group) + sum of U_ij e_i of the way
--     c = c + D_j (scale (w - level))^2       w = (t - offset) inverse, as trellis.lua has y
--     e_j = y_j - (scale level + offset)
-- the latter sum in the order of i, each product and addition rounded once together.  D_j is from
-- table cost.  The first time every state may begin, at no cost; the state in which the least cost
-- ends, of equals the smallest, is where the second time begins and has to end: that way is taken.

return { stage = "round", name = "feedback_trellis", text = "a path, and errors move on",
         levels = "affine", number = "states", number_usual = 8, number_least = 4, number_most = 64,
         feedback = true, path = true, sweeps = 1,
         tables = { { name = "feedback_factor", shape = { "dim", "dim" },
                      per_codec = { "position", "transform", "base", "path" } },
                    { name = "feedback_price", shape = { "dim", "dim" },
                      per_codec = { "position", "transform", "base", "path" } },
                    { name = "feedback_cost", shape = { "dim" },
                      per_codec = { "position", "transform", "base", "path" } } } }

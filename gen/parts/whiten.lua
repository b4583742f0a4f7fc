-- whiten -- H M^-1/2: channels of one size that are not correlated.
--
-- T = c H M^-1/2: of keys M is the covariance inside groups of 32 tokens, which per-channel groups
-- see, of values the second moment.  What rounding with feedback wants of a basis.
--
-- Rows are multiplied from the left, y = x F with F = T^T, queries by Q = T^-1, so that y . (q Q) =
-- x . q; rows of the basis come back as y Q^T.  Rows beyond +-2^18 are brought to it first.  Sums
-- run in the order of channels, each product and addition rounded once together.  The tables hold F
-- and Q, row-major; calibration derives them (docs/transforms.md).

return { stage = "transform", name = "whiten",
         text = "H M^-1/2: channels of one size that are not correlated",
         dense = { forward = "whiten_forward", query = "whiten_query" },
         tables = { { name = "whiten_forward", shape = { "dim", "dim" } },
                    { name = "whiten_query", shape = { "dim", "dim" } } } }

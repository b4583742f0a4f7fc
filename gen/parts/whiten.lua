-- whiten -- H M^-1/2: channels of one size that are not correlated.
--
-- T = c H M^-1/2: of keys M is the covariance inside groups of 32 tokens, which per-channel groups
-- see, of values the second moment.  What rounding with feedback wants of a basis.
--
-- Arithmetic as of `file`; calibration derives the tables (docs/transforms.md).

return { stage = "transform", name = "whiten",
         text = "H M^-1/2: channels of one size that are not correlated",
         dense = { forward = "whiten_forward", query = "whiten_query" },
         tables = { { name = "whiten_forward", shape = { "dim", "dim" },
                      per_codec = { "position" } },
                    { name = "whiten_query", shape = { "dim", "dim" },
                      per_codec = { "position" } } } }

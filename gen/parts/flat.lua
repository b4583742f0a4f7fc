-- flat -- P^T M^-2/5, P so that feedback prices channels alike.
--
-- T = c P^T M^-2/5, M as for whiten, P from the geometric-mean decomposition of the flattened
-- price: after feedback every channel of every row costs the same, which is what equal bits want.
--
-- Arithmetic as of `file`; calibration derives the tables (docs/transforms.md).

return { stage = "transform", name = "flat",
         text = "P^T M^-2/5, P so that feedback prices channels alike",
         dense = { forward = "flat_forward", query = "flat_query" },
         tables = { { name = "flat_forward", shape = { "dim", "dim" },
                      per_codec = { "position" } },
                    { name = "flat_query", shape = { "dim", "dim" },
                      per_codec = { "position" } } } }

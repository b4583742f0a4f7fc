-- flat -- P^T M^-2/5, P so that feedback prices channels alike.
--
-- T = c P^T M^-2/5, M as for whiten, P from the geometric-mean decomposition of the flattened
-- price: after feedback every channel of every row costs the same, which is what equal bits want.
--
-- Rows are multiplied from the left, y = x F with F = T^T, queries by Q = T^-1, so that y . (q Q) =
-- x . q; rows of the basis come back as y Q^T.  Rows beyond +-2^18 are brought to it first.  Sums
-- run in the order of channels, each product and addition rounded once together.  The tables hold F
-- and Q, row-major; calibration derives them (docs/transforms.md).

return { stage = "transform", name = "flat",
         text = "P^T M^-2/5, P so that feedback prices channels alike",
         dense = { forward = "flat_forward", query = "flat_query" },
         tables = { { name = "flat_forward", shape = { "dim", "dim" } },
                    { name = "flat_query", shape = { "dim", "dim" } } } }

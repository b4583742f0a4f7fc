-- eigen -- eigenbasis of the queries, Hadamard, bit reversal.
--
-- arXiv:2605.17757, a rotation a KV head: T = B H V^T, V the eigenvectors of E[q q^T] of keys, of
-- E[o o^T] of attended values for values, in descending order; B reverses the bits of a channel.
--
-- Arithmetic as of `file`; calibration derives the tables (docs/transforms.md).

return { stage = "transform", name = "eigen",
         text = "eigenbasis of the queries, Hadamard, bit reversal",
         dense = { forward = "eigen_forward", query = "eigen_query" },
         tables = { { name = "eigen_forward", shape = { "dim", "dim" } },
                    { name = "eigen_query", shape = { "dim", "dim" } } } }

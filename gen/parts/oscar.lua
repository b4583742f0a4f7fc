-- oscar -- eigenbasis of the queries, Hadamard, bit reversal.
--
-- OSCAR (arXiv:2605.17757), a rotation a KV head: T = B H V^T, V the eigenvectors of E[q q^T] of
-- keys, of E[o o^T] of attended values for values, in descending order; B reverses the bits of a
-- channel.
--
-- Rows are multiplied from the left, y = x F with F = T^T, queries by Q = T^-1, so that y . (q Q) =
-- x . q; rows of the basis come back as y Q^T.  Rows beyond +-2^18 are brought to it first.  Sums
-- run in the order of channels, each product and addition rounded once together.  The tables hold F
-- and Q, row-major; calibration derives them (docs/transforms.md).

return { stage = "transform", name = "oscar",
         text = "eigenbasis of the queries, Hadamard, bit reversal",
         dense = { forward = "oscar_forward", query = "oscar_query" },
         tables = { { name = "oscar_forward", shape = { "dim", "dim" } },
                    { name = "oscar_query", shape = { "dim", "dim" } } } }

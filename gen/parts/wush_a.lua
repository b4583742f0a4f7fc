-- wush_a -- WUSH with the price of an error in the output.
--
-- WUSH's transform with an attention-aware price of keys: A = E[w q q^T], w = sum_t p^2 |W (v -
-- o)|^2, what an error of a score does to the module's output.  Values as wush.
--
-- Rows are multiplied from the left, y = x F with F = T^T, queries by Q = T^-1, so that y . (q Q) =
-- x . q; rows of the basis come back as y Q^T.  Rows beyond +-2^18 are brought to it first.  Sums
-- run in the order of channels, each product and addition rounded once together.  The tables hold F
-- and Q, row-major; calibration derives them (docs/transforms.md).

return { stage = "transform", name = "wush_a",
         text = "WUSH with the price of an error in the output",
         dense = { forward = "wush_a_forward", query = "wush_a_query" },
         tables = { { name = "wush_a_forward", shape = { "dim", "dim" } },
                    { name = "wush_a_query", shape = { "dim", "dim" } } } }

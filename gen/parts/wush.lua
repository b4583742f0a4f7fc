-- wush -- H Lambda^-1/4 U^T L^T of raw moments (WUSH).
--
-- WUSH (arXiv:2512.00956) for caches: with the second moment M of the rows and the price A = L L^T
-- of an error, L^T M L = U Lambda U^T:
--     T = c H Lambda^-1/4 U^T L^T     of keys A = E[q q^T]; of values A = sum_g W_O,g^T W_O,g.
--
-- Rows are multiplied from the left, y = x F with F = T^T, queries by Q = T^-1, so that y . (q Q) =
-- x . q; rows of the basis come back as y Q^T.  Rows beyond +-2^18 are brought to it first.  Sums
-- run in the order of channels, each product and addition rounded once together.  The tables hold F
-- and Q, row-major; calibration derives them (docs/transforms.md).

return { stage = "transform", name = "wush",
         text = "H Lambda^-1/4 U^T L^T of raw moments (WUSH)",
         dense = { forward = "wush_forward", query = "wush_query" },
         tables = { { name = "wush_forward", shape = { "dim", "dim" } },
                    { name = "wush_query", shape = { "dim", "dim" } } } }

-- balance -- H Lambda^-1/4 U^T L^T of raw moments.
--
-- arXiv:2512.00956, for caches: with the second moment M of the rows and the price A = L L^T of an
-- error, L^T M L = U Lambda U^T:
--     T = c H Lambda^-1/4 U^T L^T     of keys A = E[q q^T]; of values A = sum_g W_O,g^T W_O,g.
-- Rows and queries then have the same moment, alike in every channel.
--
-- Arithmetic as of `file`; calibration derives the tables (docs/transforms.md).

return { stage = "transform", name = "balance",
         text = "H Lambda^-1/4 U^T L^T of raw moments",
         dense = { forward = "balance_forward", query = "balance_query" },
         tables = { { name = "balance_forward", shape = { "dim", "dim" },
                      per_codec = { "position" } },
                    { name = "balance_query", shape = { "dim", "dim" },
                      per_codec = { "position" } } } }

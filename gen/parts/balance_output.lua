-- balance_output -- balance with the price of an error in the output.
--
-- Keys are priced as attention feels them, A = E[w q q^T], w = sum_t p^2 |W (v - o)|^2: what an
-- error of a score does to the module's output (arXiv:2609.38121, appendix).  Values as of
-- `balance`.
--
-- Arithmetic as of `file`; calibration derives the tables (docs/transforms.md).

return { stage = "transform", name = "balance_output",
         text = "balance, priced by an error in the output",
         dense = { forward = "balance_output_forward", query = "balance_output_query" },
         tables = { { name = "balance_output_forward", shape = { "dim", "dim" },
                      per_codec = { "position" } },
                    { name = "balance_output_query", shape = { "dim", "dim" },
                      per_codec = { "position" } } } }

-- eigen_layer -- `eigen` with one rotation for all KV heads of a layer.
--
-- The first published form of arXiv:2605.17757: V are the eigenvectors of the sum of the heads'
-- moments.  Where heads have unrelated eigenbases it does little more than a Hadamard; it is here
-- to be compared with.
--
-- Arithmetic as of `file`; calibration derives the tables (docs/transforms.md).

return { stage = "transform", name = "eigen_layer",
         text = "eigen, one rotation for all heads of a layer",
         dense = { forward = "eigen_layer_forward", query = "eigen_layer_query" },
         tables = { { name = "eigen_layer_forward", shape = { "dim", "dim" } },
                    { name = "eigen_layer_query", shape = { "dim", "dim" } } } }

-- attention -- an error e of key k costs the sum over queries of p (q . e)^2.
--
--     p = min(1, exp(q . k - L))
-- Queries of a calibration text stand for those to come: table queries has the number of them,
-- times softmax_scale, of all query heads of the KV head together, query_lse the logarithm L of
-- each one's softmax sum over its own context.  p is the weight that the key would have had there.
-- k is the plain key.  A unit's score is the sum over its keys.

return { stage = "score", name = "attention", number = "count", number_usual = 32,
         number_least = 16, number_most = 512,
         text = "by calibration queries and the weight they give the key",
         columns = "queries", normalisers = "query_lse", weighs = true,
         total = "the sum over columns of weight (e . column)^2",
         product = "mul_add(weight * sum, sum, TOTAL)",
         tables = { { name = "queries", shape = { "number", "dim" }, only = "unit",
                      transposed = true },
                    { name = "query_lse", shape = { "number" }, only = "unit" } } }

-- channel -- an error e costs  e . M e,  with M the second moment of queries: table query_moment.

return { stage = "score", name = "channel", text = "by the second moment of queries",
         columns = "query_moment",
         total = "the sum over columns i in the range of e_i (e . column)",
         product = "mul_add(error, sum, TOTAL)",
         tables = { { name = "query_moment", shape = { "dim", "dim" }, only = "unit" } } }

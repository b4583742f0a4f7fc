-- channel -- an error e costs  e . M e,  with M the second moment of queries: table query_moment.

return { stage = "score", name = "channel", text = "by the second moment of queries",
         tables = { { name = "query_moment", shape = { "dim", "dim" }, only = "unit" } } }

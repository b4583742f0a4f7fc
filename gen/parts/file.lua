-- file -- a matrix of the user's.
--
-- Any invertible T of a KV head, as the user's file gives it: how learned transforms enter.
--
-- Rows are multiplied from the left, y = x F with F = T^T, queries by Q = T^-1, so that y . (q Q) =
-- x . q; rows of the basis come back as y Q^T.  Rows beyond +-2^18 are brought to it first.  Sums
-- run in the order of channels, each product and addition rounded once together.  The tables hold F
-- and Q, row-major; they lie in the calibration file (docs/transforms.md).

return { stage = "transform", name = "file",
         text = "a matrix of the user's",
         dense = { forward = "file_forward", query = "file_query" },
         tables = { { name = "file_forward", shape = { "dim", "dim" } },
                    { name = "file_query", shape = { "dim", "dim" } } } }

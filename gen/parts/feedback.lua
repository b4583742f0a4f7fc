-- feedback -- each channel's error moves into the channels after it, priced by the query.
--
-- With A the price of an error in the stored basis and its channels in the table's order, A = U D
-- U^T, U unit upper triangular.  The value that is rounded for channel j of a row is
--     t_j = y_j + sum_{i < j} U_ij e_i        e_i = y_i - y'_i, y' as decoded
-- so that sum_j D_j (t_j - y'_j)^2 is the row's whole price.  Groups along tokens are fitted to
-- their t, channel by channel; groups along channels are fitted to y before any is rounded.  Then
-- `number` sweeps over the channels: t_j = y_j + sum_{p /= j} A_jp / A_jj e_p.  Groups along tokens
-- are fitted again, and keep pair and codes where the squared error of t does not fall; groups
-- along channels keep their pair and take the codes nearest to t.
--
-- A sum is of four: those of i = 0, 4, 8, ..., of 1, 5, ..., each product and addition rounded once
-- together, then (s0 + s1) + (s2 + s3), then it joins y.  A squared error of a group is of four in
-- the same way, of tokens, each operation rounded.
--
-- The tables: order [dim], the channel that is j-th; factor [dim, dim], row j holds U_ij at i < j;
-- price [dim, dim], row j holds A_jp / A_jj, 0 at j; i and p count in order.  LDLQ and GPTQ round
-- weights in this way; the reader sees an ordinary page.

return { stage = "round", name = "feedback", text = "errors move on, priced by the query",
         levels = "affine", number = "sweeps", number_usual = 2, number_least = 1, number_most = 8,
         feedback = true, code = "round_even(y) + zero_point",
         tables = { { name = "feedback_order", shape = { "dim" },
                      per_codec = { "position", "transform", "base" } },
                    { name = "feedback_factor", shape = { "dim", "dim" },
                      per_codec = { "position", "transform", "base" } },
                    { name = "feedback_price", shape = { "dim", "dim" },
                      per_codec = { "position", "transform", "base" } } } }

-- predicted -- y = x - p: what the layer below and the key do not say of a row.
--
-- arXiv:2501.19392: keys and values of neighbouring layers are nearly linear in each other.  With
-- k' and v' what is restored of a row, of all KV heads of a layer, and W and w of each head:
--     keys of layer l      p = w + k'(l - 1) W         before RoPE (place=pre_rope)
--     values               p = w + [k'(l), v'(l - 1)] W
-- The layer below is the next lower one that has KV heads; at the lowest what it says is 0.  p is
-- summed in double and rounded to float32; y = x - p is rounded to the window's type and goes
-- through the other stages; what is restored, y' + p, is rounded to it likewise.
--
-- The table has a row of W for each channel of each head that predicts, then w: `inputs` rows in
-- all.  It is fitted on rows as they are restored, not as they come: layer by layer, keys first.
--
-- A row is encoded where the layer below has its codes, and read by restoring it in all layers from
-- the lowest on.  On the host that is the runtime's (kvl_predict.h), on a device that of a kernel
-- (predict_rows.cu).  Both keep the rows of the layer that was read last: layers that are read in
-- order cost one layer each.

return { stage = "shift", name = "predicted", predicts = true,
         text = "what the layer below and the key say of a row",
         tables = { { name = "predicted", shape = { "inputs", "dim" }, of_layer = true,
                      per_codec = true } } }

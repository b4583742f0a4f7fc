-- kernels.lua -- the programs of target cuda: one file of templates/cuda/, one kernel or two each.
--
--     name         of the program and of its kernel, or what follows k_ and v_
--     file         of templates/cuda/ without .cu; name where it is left out
--     by_side      there is a k_ and a v_ kernel
--     side         there is one for keys (k) or values (v): what takes long to compile is divided
--     codec        reads or writes pages
--     writes       a side that is in the other has none
--     transform    changes bases
--     scores       reads keys for queries
--     predicts     restores rows that are predicted from the layer below; others have none

return {
    { name = "append_rows" },
    { name = "k_encode_rows", file = "encode_rows", side = "k", codec = true, transform = true,
      writes = true },
    { name = "v_encode_rows", file = "encode_rows", side = "v", codec = true, transform = true,
      writes = true },
    { name = "k_predict_rows", file = "predict_rows", side = "k", codec = true, transform = true,
      predicts = true },
    { name = "v_predict_rows", file = "predict_rows", side = "v", codec = true, transform = true,
      predicts = true },
    { name = "advance_rows" },
    { name = "prepare_query", transform = true },
    { name = "attend_splits", codec = true, scores = true },
    { name = "merge_splits", transform = true },
    { name = "restore_rows", by_side = true, codec = true, transform = true },
    { name = "merge_results" },            -- of no layer: any configuration gives the same kernel

    -- What the derivation asks of an instruction set: a thread has one float at a time.
    isa = { lanes = 1, vector = "none", broadcast = 0, head_tile = 16, sums = 16, dot = "none",
            chains = 1 },
}

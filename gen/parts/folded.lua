-- folded -- values come in their basis: the model's weights have the transform.
--
-- With F and Q of the side's transform (`file`), the engine replaces, for each KV head h and each
-- query head g of it,
--     W_V,h <- F^T W_V,h     W_O,g <- W_O,g Q
-- so that a value comes as v F, and the output that leaves, sum p v F, is what the new W_O takes.
-- Nothing is computed at run time: the arithmetic is that of transform=none.  Windows hold rows as
-- they come.  kvl_value_basis gives F and Q.  Exact, since values have no rotation by position.

return { stage = "place", name = "folded", side = "v", folded = true,
         text = "values in their basis, which the weights have" }

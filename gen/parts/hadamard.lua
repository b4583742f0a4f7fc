-- hadamard -- orthonormal Sylvester Hadamard of equal pieces of the head, x' = H x / sqrt(n).
--
-- The number is the piece n, a power of two that divides head_dim.  Without a number n is the
-- largest such power: the whole head where head_dim is a power of two, 16 x 5 at 80, 32 x 3 at 96.
-- H is symmetric and its own inverse: the query takes the same transform, the output too.
-- A row's values beyond +-2^119, which only rows=bf16 can hold, are brought to it first: no sum of
-- 256 of them overflows.  Then butterflies of stride 1, 2, 4, ..., then one multiplication by
-- 1 / sqrt(n) in float32: the order is part of the definition, so that every target gets the same
-- bits.

return { stage = "transform", name = "hadamard", number = "piece",
         text = "Hadamard of the head, or of pieces: hadamard32" }

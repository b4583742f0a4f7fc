-- signed_hadamard -- a fixed random rotation: signs of channels, then a Hadamard, x' = H S x.
--
-- What arXiv:2504.19874 rotates with in practice.  The sign of channel i is minus where in 32 bits
--     h = (i + 1) 2654435761,  h ^= h >> 15,  h *= 2246822519,  h ^= h >> 13
-- is odd: the same in every head and layer.  The Hadamard, its pieces and the order of operations
-- are `hadamard`'s.  The query takes the same transform; an output is turned back by S H.

return { stage = "transform", name = "signed_hadamard", number = "piece", signs = true,
         text = "fixed random signs, then a Hadamard" }

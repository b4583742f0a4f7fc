-- sketch -- a norm and signs of random rotations of what the codes leave of a key.
--
-- With r = k - k', k the row as the window has it and k' what its codes restore, Q_j the `number`
-- rotations of gen/parts/sketch.lua and m the sum of their rows:
--     stored       |r| as f16, the signs of Q_j r (0 counts as plus), a bit each
--     read         k' + r'     r' = g |r| / number  sum_j  Q_j^T sign(Q_j r)
--     g = sqrt(pi) G((d + 1) / 2) / (d G(d / 2))        G: the gamma function, d channels
-- so that E[q . r'] = q . r for any q, over random rotations: g is exact for orthonormal rows,
-- where arXiv:2406.03482 and 2504.19874 have what Gaussian ones need, sqrt(pi / 2) / sqrt(d), less
-- by 1 / 4d of it.  |r| is the root of the sum of squares in order, in float32.
--
-- Q_j is three rounds i = 3 j, 3 j + 1, 3 j + 2 of: signs of channels, minus where
--     h = (c + 1 + 1024 (i + 1)) 2654435761,  h ^= h >> 15,  h *= 2246822519,  h ^= h >> 13
-- is odd; a Hadamard of pieces (gen/parts/hadamard.lua); and where there are p > 1 pieces of n
-- channels, channel a n + b goes to b p + a.
--
-- Queries are turned once a step, in their own basis, whatever that of the codes is.  The score of
-- a key is that of its codes and  g |r| / number  times a sum of m products with signs.

return { stage = "extra", name = "sketch", side = "k", number = "rotations", number_usual = 1,
         number_least = 1, number_most = 4, text = "signs of what codes leave, unbiased scores",
         signs = true }

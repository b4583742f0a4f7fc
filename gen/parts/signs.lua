-- signs -- x ~ scale * sqrt(pi / 2) * the sign of x: a product with it is right in the mean.
--
-- With a random rotation before it and fit=norm, the sketch of arXiv:2406.03482 with as many
-- rows as channels, made orthogonal: of a row x in the rotated basis and any q
--     E[q . x'] = q . x     x' = sqrt(pi / 2) (|x| / sqrt(d)) sign(x)
-- Levels of least squared error are 2 / pi of these (levels=lloyd).

return { stage = "levels", name = "signs", text = "scale * sign, unbiased after a rotation",
         bits = { 1 }, offset = "scale - scale",
         book = { { -1.25331414, 1.25331414 } } }

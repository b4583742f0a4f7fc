-- higgs -- two channels of a rotated row take a point of the plane together (arXiv:2411.17525).
--
-- The source's grids of dimension 2, after a random Hadamard, in units of the root mean square.  It
-- has weights in groups of 1024, and AQUA-KV (arXiv:2501.19392) its caches: there a rotation and a
-- norm of all heads of a layer, here of one head.

return {
    name = "higgs", text = "random rotation, points of the plane",
    source = "HIGGS, arXiv:2411.17525",
    key     = { bits = 2, group = "head", axis = "per_token", transform = "signed_hadamard",
                fit = "norm", levels = "plane", meta = "f16" },
    value   = { bits = 2, group = "head", axis = "per_token", transform = "signed_hadamard",
                fit = "norm", levels = "plane", meta = "f16" },
    windows = { sink = 4, recent = 128 },
}

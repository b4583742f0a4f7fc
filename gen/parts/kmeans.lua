-- kmeans -- codes are levels of a calibrated book, the means of clusters of values.
--
-- arXiv:2401.18079: of values in units of half their channel's range, those in the range, clusters
-- of least squared error, weighted by what an error of the channel costs (calibration: the query's
-- second moment of the channel), one book for all heads of a layer.  Table kmeans_book has the
-- levels rising, 16 numbers of which the first 2^bits count.  Code: as many of the bounds
-- (level_i + level_i+1) / 2, in float32, as are not greater than the value.

return { stage = "levels", name = "kmeans", side = "k", text = "a calibrated book of levels",
         bits = { 1, 2, 3, 4 }, offset = "scale - scale", calibrated = "kmeans_book",
         tables = { { name = "kmeans_book", shape = { 16 }, per_codec = { "bits" } } } }

-- fit_static -- the range of a channel is calibrated: groups are not looked at.
--
-- A range is from the quantile 0.005 to the quantile 0.995 of a channel's values, of keys before
-- RoPE where they are stored so (arXiv:2401.18079).  shift=middle takes its middle off, meta=static
-- divides by half of it: values of the range are then from -1 to 1, and others are brought to it,
-- or have slots (extra=sparse).

return { stage = "fit", name = "static", side = "k", text = "the calibrated range of each channel",
         static = true, wanted = "1.0f",
         stats = { { name = "any", first = "x", next = "any" } } }

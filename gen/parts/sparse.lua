-- sparse -- the values of a row that are farthest from 0 are stored as they are, in 16 bits.
--
-- Of a row as it is rounded (without its shift, in units of its base) the values of the `number`
-- greatest magnitudes, of equal ones the lower channels, have a slot each: the 16 bits that the
-- window has for the value, and its channel in a byte.  They come back bit for bit.  For the fit
-- and in the codes the value before it in its group that has no slot takes the place of each, of
-- the first ones the first that has none.  So a group must be longer than the slots, and run along
-- channels; channels must be those of the window (no transform).
--
-- Dense-and-sparse of arXiv:2401.18079, in a bounded number of slots: 24 bits each, 0.375 bits a
-- value for one of 64 channels, where the source takes 1 percent of a vector.

return { stage = "extra", name = "sparse", number = "slots", number_usual = 1, number_least = 1,
         number_most = 16, text = "the farthest values of a row in 16 bits",
         sparse = true }

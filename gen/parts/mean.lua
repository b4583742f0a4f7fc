-- mean -- y = x - mean: rows are stored without the calibrated mean of each channel.
--
-- In float32, one subtraction, before any transform; a difference beyond +-2^119 is brought to it,
-- so that no sum of 256 overflows.  Nothing is lost: with y for the key,
--     q . x = q . y + q . mean
-- prepare_query yields the constant softmax_scale q . mean of each query head, and the scores of
-- quantized keys get it back before the soft cap.  So windows hold plain rows, and a capped model
-- may use it.  Of values the output gets the mean back, times the weight that quantized rows have.

return { stage = "shift", name = "mean", text = "subtract the calibrated mean of each channel",
         tables = { { name = "mean", shape = { "dim" } } }, subtract = "mean" }

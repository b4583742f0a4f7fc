-- promote -- the strongest channels of a group of tokens have 2 bits more, in a plane of their own.
--
-- arXiv:2511.18643: of the channels of a group (axis per_channel, bits b) the `number` whose
-- magnitudes have the greatest sum, in float32 in the order of tokens, of equal ones the lower
-- channels, are promoted.  Their grid is fitted to lo and, where lo < hi, to lo rest + hi share:
--     m = 2^b - 1     rest = (3/4) / (m + 3/4)     share = m / (m + 3/4)
-- so that scale is four steps of b + 2 bits, and with the pair (scale, offset) as it is stored
--     t = rint(clamp(((x - offset) (1 / scale)) 4, 0, 4 m + 3))
--     code = t div 4     low = t mod 4     x ~ scale (code + low / 4) + offset
-- The first plane holds the codes of all channels in b bits, as without the part; behind the
-- metadata, for each group, the promoted channels in rising order, a byte each, and then their
-- planes of 2 bits: low of token i in bits 2 (i mod 4) of byte i div 4.

return { stage = "extra", name = "promote", side = "k", number = "channels", number_usual = 8,
         number_least = 1, number_most = 128, promotes = true,
         text = "the strongest channels of a group with 2 bits more" }

// choices.cuh -- the bases that rows of $(codec.title) may be in: 0 as they are, 1 their pieces
// rotated, 2 the head rotated.
//
// A choice has bit p where piece p is rotated, or bit 31 where the head is.

// The basis of a channel.
INLINE int $(s "basis_of")(uint32_t choice, int channel)
{
    return choice >> 31 ? 2 : (int)(choice >> (channel / $(codec.choice_piece)) & 1u);
}

// delays.h -- what is later in a path gets what is earlier.

//% for i = 1, isa.lanes - 1 do
//% if i <= 6 then
// Lane l gets lane l - $(i), of the first ones what is at the end of `before`.
INLINE vu $("later_" .. i)(vu before, vu now)
{
#if defined(__clang__)
    return __builtin_shufflevector(before, now, $(counted(isa.lanes - i, isa.lanes)));
#else
    return __builtin_shuffle(before, now, (vu){ $(counted(isa.lanes - i, isa.lanes)) });
#endif
}

//% end
//% end
// Halves of `span` bits move up by `left` bits, and get the last ones of `before`.
INLINE vp shift_in(vp now, vp before, int left, int span)
{
    return (now << left) | ((before >> (span - left)) & (uint16_t)((1 << left) - 1));
}

INLINE vu swapped(vu x) { return (x << 16) | (x >> 16); }

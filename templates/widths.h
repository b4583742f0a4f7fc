// widths.h -- channels that have bits of their own: codes of 0 to $(codec.widths.most) bits of the
// $(codec.title), $(codec.bits) in the mean.

// By bits, from 0 on: levels, those of n bits from 2^n - 1 on, and the bounds between them, from
// 2^n - 1 - n on.
CONSTANT float $(s "width_values")[$(codec.widths.num_values)] = {
    $(codec.widths.values)
};

//% if kernel == "none" or kernel.writes then
CONSTANT float $(s "width_bounds")[$(codec.widths.num_bounds)] = {
    $(codec.widths.bounds)
};

// As many bounds between the levels of n bits as y is not below.
INLINE uint32_t $(s "code_of_width")(float y, int n)
{
    const float* bounds = $(s "width_bounds") + ((1 << n) - 1 - n);
    uint32_t code = 0;
    for (uint32_t bit = 1u << n >> 1; bit > 0; bit >>= 1)
        if (y >= bounds[(code | bit) - 1]) code |= bit;
    return code;
}
//% end

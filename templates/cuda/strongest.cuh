// strongest.cuh -- the channels of the $(codec.title) that have the greatest strengths.

// Of strengths [dim] in shared memory the `count` greatest, of equal ones the lower channels.
template <int count>
INLINE void $(s "find_strongest")(const float* strengths, int* is_strong)
{
    __syncthreads();
    for (int channel = threadIdx.x; channel < $(s "dim"); channel += cta_threads) {
        int before = 0;
#pragma unroll 1
        for (int other = 0; other < $(s "dim"); ++other)
            before += strengths[other] > strengths[channel]
                      || strengths[other] == strengths[channel] && other < channel;
        is_strong[channel] = before < count;
    }
    __syncthreads();
}

// The place of a channel among them, which are in rising order.
INLINE int $(s "place_of")(const int* is_strong, int channel)
{
    int place = 0;
#pragma unroll 1
    for (int other = 0; other < channel; ++other) place += is_strong[other];
    return place;
}

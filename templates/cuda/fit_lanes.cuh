// fit_lanes.cuh -- a group of $(codec.title), values side by side, is fitted by eight lanes.

// x [group_size] in shared memory.  All lanes of a warp take part; each has the group's result.
INLINE $(s "grid") $(s "fit_lanes")($(s "pair")* pair, const float* x)
{
    const int own = threadIdx.x % 8;
    float lo = x[0], hi = x[0];
    for (int i = own; i < $(codec.group_size); i += 8) {
        lo = least(x[i], lo);
        hi = most(x[i], hi);
    }
    for (int d = 1; d < 8; d *= 2) {
        lo = least(lo, __shfl_xor_sync(0xffffffffu, lo, d));
        hi = most(hi, __shfl_xor_sync(0xffffffffu, hi, d));
    }
    lo += 0.0f;                      // as in fit_grid
    hi += 0.0f;
    $(s "grid") grid = $(s "fit_grid")(pair, -1, lo, hi);
    //% if codec.searches then
    grid = $(s "search_lanes")(pair, x, lo, hi, grid);
    //% end
    __syncwarp();
    return grid;
}

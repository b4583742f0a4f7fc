// paths.cuh -- rows become codes that are paths: gen/parts/trellis.lua defines them.
//
// Teams of lanes have a group each.  A step of the path that is found takes its value's place.
//% local step = codec.step_type

enum { $(s "teams") = $(codec.path_warps * 32 // codec.team) };

// Values of a group, `stride` apart, become bits of codes, and its scale and zero are stored where
// `write` says so.
INLINE void $(s "encode_path")(const $(s "unit")& u, int group, float* x, int stride,
                          $(step)* steps, bool write)
{
    const int lane = threadIdx.x % $(s "team");
    $(s "walk") w = $(s "walk_of")(x, stride, steps);
    $(s "pair") pair;
    $(s "grid") grid;
    const $(step)* path = $(s "fit_path")(&w, &pair, &grid);
    if (write && lane == 0) $(s "put_pair")(u.page, group, pair.scale_code, pair.zero_code);
    for (int i = lane; i < $(s "path_len"); i += $(s "team"))
        x[i * stride] = float_of($(s "code_in")((uint32_t)path[i]));
}

//% if codec.axis == "per_token" then
INLINE void $(s "encode_unit")(const $(s "unit")& u, int first, int end)
{
    enum { groups = $(codec.head_dim // codec.group_size), teams = $(s "teams") };
    __shared__ float x[16 * $(s "row_stride")];
    __shared__ $(step) steps[teams][2 * $(s "path_len")];
    const int team = threadIdx.x / $(s "team");
#pragma unroll 1
    for (int tile = first / 16; tile * 16 < end; ++tile) {
        $(s "load_tile")(u, tile, first, end, x);
#pragma unroll 1
        for (int item = team; item < 16 * groups && team < teams; item += teams) {
            const int row = tile * 16 + item % 16, channel = item / 16 * $(s "path_len");
            const int group = $(s "group")($(codec.word_lane("row", "channel")));
            float* of = x + item % 16 * $(s "row_stride") + channel;
            $(s "encode_path")(u, group, of, 1, steps[team], row >= first && row < end);
        }
        __syncthreads();
        $(s "put_tile")(u, tile, first, end, x);
    }
}
//% else
enum { $(s "slice") = $(codec.slice), $(s "slice_stride") = $(codec.slice + 1) };

// Groups along tokens: path_len rows at once, as many channels at a time as there is room for.
INLINE void $(s "encode_unit")(const $(s "unit")& u, int first, int end)
{
    enum { teams = $(s "teams"), stride = $(s "slice_stride") };
    enum { slices = ($(s "dim") + $(s "slice") - 1) / $(s "slice") };
    __shared__ float x[8 * $(s "row_stride")], y[$(s "path_len") * stride];
    __shared__ $(step) steps[teams][2 * $(s "path_len")];
    const int team = threadIdx.x / $(s "team");
#pragma unroll 1
    for (int at = 0; at < (end - first) / $(s "path_len") * slices; ++at) {
        const int row = first + at / slices * $(s "path_len"), from = at % slices * $(s "slice");
        const int channels = least_of($(s "slice"), $(s "dim") - from);
#pragma unroll 1
        for (int begin = 0; begin < $(s "path_len"); begin += 8) {
            $(s "load_rows")<8>(u, row + begin, first, end, x);
            for (int i = threadIdx.x; i < 8 * channels; i += cta_threads)
                y[(begin + i / channels) * stride + i % channels] =
                    x[i / channels * $(s "row_stride") + from + i % channels];
        }
        __syncthreads();
#pragma unroll 1
        for (int item = team; item < channels && team < teams; item += teams) {
            const int channel = from + item;
            const int group = $(s "group")($(codec.word_lane("row", "channel")));
            $(s "encode_path")(u, group, y + item, stride, steps[team], true);
        }
        __syncthreads();
#pragma unroll 1
        for (int tile = row / 16; tile * 16 < row + $(s "path_len"); ++tile)
            $(s "put_cells")(u.page, tile, row, row + $(s "path_len"),
                        y + (tile * 16 - row) * stride, stride, from, channels);
    }
}
//% end

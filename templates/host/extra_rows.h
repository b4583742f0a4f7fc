// extra_rows.h -- what rows of the $(codec.title) have beside their codes, to and from files: the
// bytes of a page are those of a file.

//% local L = codec.layout
static void $(s "copy_extra")(const kvl__linear_args* a)
{
    enum { rows = $(L.extra_rows), bytes = $(L.extra_bytes), at = $(L.slots_at) };
    const int64_t count = (int64_t)((a->num_rows + rows - 1) / rows) * bytes;
    unsigned char* to = (a->into_page ? a->page : a->linear) + at;
    const unsigned char* from = (a->into_page ? a->linear : a->page) + at;
    __builtin_memcpy(to, from, (uint64_t)count);
}

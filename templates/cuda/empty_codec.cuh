// empty_codec.cuh -- $(codec.title) without codes, which are what is stored beside them.

enum { $(s "dim") = $(codec.head_dim), $(s "page_bytes") = $(codec.layout.page_bytes) };

INLINE float $(s "read_value")(const unsigned char* page, int row, int channel, uint32_t* code)
{
    (void)page, (void)row, (void)channel;
    *code = 0;
    return 0.0f;
}
//% if kernel.name == "attend_splits" then

INLINE void $(s "read_words")(const unsigned char* page, int lane, int word, float* x)
{
    (void)page, (void)lane, (void)word;
    for (int i = 0; i < $(codec.read_words); ++i) x[i] = 0.0f;
}
//% end

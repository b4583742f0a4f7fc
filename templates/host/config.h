// config.h -- the shape that this program is for.  C99 has no constexpr: these are its constants.

enum { head_dim_k = $(config.k.head_dim), head_dim_v = $(config.v.head_dim) };
enum { num_heads = $(config.num_heads), page_size = $(config.page_size) };
enum { window_rows = $(plan.window_rows), strip_rows = $(plan.strip_rows) };
enum { part_rows = $(plan.part_rows) };              // rows of a strip that are in one page
enum { strip_pages = strip_rows / part_rows };
enum { strip_words = $(plan.strip_words) };          // strip_rows, filled up to two vectors

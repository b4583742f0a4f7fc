// program.c -- every kernel of one layer configuration, and the descriptor that the runtime reads.
//
// Scores are $(sides[1].math) sums, outputs $(sides[2].math) sums, for $(config.isa).

#include <stdint.h>

#include "kvl_args.h"
#include "prelude.h"
#include "config.h"
#include "softmax.h"
//% if sides[1].searches or sides[2].searches or sides[1].path or sides[2].path then
#include "eights.h"
//% end
//% if sides[1].path or sides[2].path then
#include "delays.h"
//% end
//% for _, side in ipairs(sides) do
//% for _, set in ipairs(side.is_split and side.sets or {}) do
//% use_side(set)
#include "set.h"
//% end
//% use_side(side)
//% if side.empty then
#include "empty_rows.c"
//% else
//% if side.is_split then
#include "sets.h"
//% else
#include "codec.h"
//% if side.math == "int" then
#include "dots.h"
//% elseif side.math == "tile" then
#include "tiles.h"
//% else
#include "cells.h"
//% end
//% end
#include "transform_rows.c"
//% if side.math ~= "tile" then
//% if side.path then
#include "trellis.h"
//% elseif side.searches and not side.is_split then
#include "search.h"
//% end
//% if side.slots > 0 then
#include "sparse.h"
//% end
//% if side.promoted > 0 then
#include "promote.h"
//% end
//% if side.widths then
#include "width_rows.h"
//% end
#include "encode_rows.c"
#include "decode_rows.c"
#include "linear_rows.c"
//% end
//% end
//% end
//% use_side(nil)
//% local stored = sides[2].math == "tile" and "k_" or "v_"      -- where values are
#include "attend_windows.c"
#include "attend_pages.c"

// C has one name space for types and objects, so the object gets its exported name as a label.
#define LABEL_TEXT(text) #text
#define LABEL(prefix, name) LABEL_TEXT(prefix) name
extern const kvl__program program __asm__(LABEL(__USER_LABEL_PREFIX__, "kvl__program"));

const kvl__program program = {
    .abi            = KVL__ABI,
    .lanes          = 16,
    .k_page_bytes   = k_page_bytes,
    //% if sides[2].math == "tile" then
    .v_page_bytes   = 0,                             // values are in the keys
    //% else
    .v_page_bytes   = v_page_bytes,
    //% end
    .scratch_bytes  = sizeof(workspace) + 64,        // room to begin at a cache line
    .encode_keys    = $(sides[1].norms and "k_encode_normed" or "k_encode_rows"),
    .encode_values  = $(stored .. "encode_rows"),
    .decode_keys    = k_decode_rows,
    .decode_values  = $(stored .. "decode_rows"),
    .linear_keys    = k_linear_rows,
    .linear_values  = $(stored .. "linear_rows"),
    .attend_windows = attend_windows,
    .attend_pages   = attend_pages,
    .prepare_query  = k_transform_rows,
    .finish_output  = v_transform_rows,
};

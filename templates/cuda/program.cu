// program.cu -- one kernel of a layer configuration, with what it is made of.

#include "prelude.cuh"
#include "config.cuh"
//% if sides[1].searches or sides[2].searches then
#include "eights.cuh"
//% end
//% if kernel.codec and (sides[1].path or sides[2].path) then
#include "delays.cuh"
//% end
//% for _, side in ipairs(sides) do
//% use_side(side)
//% if kernel.codec then
#include "codec.cuh"
//% end
//% if kernel.name == "encode_rows" and side.searches then
#include "search.cuh"
//% end
//% if kernel.name == "encode_rows" and side.path then
#include "trellis.cuh"
//% end
//% if side.by_position and (kernel.writes or kernel.transform or kernel.codec) then
#include "turn.cuh"
//% end
//% if kernel.transform then
#include "transform.cuh"
//% end
//% if kernel.by_side and not (kernel.writes and side.in_keys) then
$(include(kernel.name .. ".cu"))
//% end
//% end
//% use_side(nil)
//% if not kernel.by_side then
$(include(kernel.name .. ".cu"))
//% end

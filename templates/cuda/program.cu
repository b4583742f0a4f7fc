// program.cu -- one kernel of a layer configuration, with what it is made of.

#include "prelude.cuh"
#include "config.cuh"
//% if kernel.writes and (sides[1].searches or sides[2].searches) then
#include "eights.cuh"
//% end
//% if kernel.codec and (sides[1].path or sides[2].path) then
#include "delays.cuh"
//% end
//% for _, side in ipairs(sides) do
//% if not kernel.side or kernel.side == side.side then
//% for _, set in ipairs(side.is_split and side.sets or {}) do
//% use_side(set)
#include "set.cuh"
//% end
//% use_side(side)
//% if side.is_split then
#include "sets.cuh"
//% else
//% if kernel.codec then
//% if side.empty then
#include "empty_codec.cuh"
//% else
#include "codec.cuh"
//% if side.widths then
#include "widths.cuh"
//% end
//% end
//% end
//% if kernel.writes and side.searches then
#include "search.cuh"
//% end
//% end
//% if kernel.writes and side.path then
#include "trellis.cuh"
//% end
//% if not side.is_split and (kernel.transform or kernel.scores and side.restored) then
#include "transform.cuh"
//% end
//% if (side.by_position or side.unrotated) and (kernel.transform or kernel.codec) then
#include "turn.cuh"
//% end
//% if side.across and kernel.codec and not kernel.writes then
#include "across.cuh"
//% end
//% if side.predicted and kernel.codec then
#include "predicted.cuh"
//% end
//% local turned = kernel.name == "prepare_query" and side.sketched_at
//% if side.sketches > 0 and (turned or kernel.codec and not kernel.writes) then
#include "sketch.cuh"
//% end
//% if kernel.scores and side.restored then
#include "restored_keys.cuh"
//% end
//% if kernel.by_side or kernel.side then
$(include((kernel.file or kernel.name) .. ".cu"))
//% end
//% end
//% end
//% use_side(nil)
//% if not kernel.by_side and not kernel.side then
$(include(kernel.name .. ".cu"))
//% end

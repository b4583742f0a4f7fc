// set.cuh -- a set of channels that has a codec of its own: the $(codec.title).

//% if kernel.codec then
#include "codec.cuh"
//% end
//% if kernel.writes then
//% if codec.searches then
#include "search.cuh"
//% end
#include "put_cells.cuh"
#include "token_groups.cuh"
//% end
//% if kernel.transform or kernel.scores then
#include "transform.cuh"
//% end

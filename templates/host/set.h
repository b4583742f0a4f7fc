// set.h -- a set of channels that has a codec of its own: the $(codec.title).

#include "codec.h"
#include "cells.h"
#include "transform_rows.c"
//% if codec.searches then
#include "search.h"
//% end
#include "encode_row.h"
#include "read_row.h"
#include "linear_rows.c"

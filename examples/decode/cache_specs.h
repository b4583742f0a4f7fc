// cache_specs.h -- the spec of each layer from a list of arguments, as programs take them.
//
//     SPEC            both sides of all layers          kivi:k2,v2,g32
//     k=SPEC, v=SPEC  the keys or the values            v=rtn:b4
//     0-3:..., 7:...  only in these layers              0-1:q8_0   4:k=f16
//
// Later arguments win over earlier ones. A side that is named alone is joined to the other side by
// the a/b form of specs: items that belong to both sides are given to the one that is named, and
// windows are those of the keys' preset and of the items. kvl checks what comes out.

#ifndef KVLOOM_DECODE_CACHE_SPECS_H
#define KVLOOM_DECODE_CACHE_SPECS_H

#include <stddef.h>

enum { CACHE_SPEC_BYTES = 512 };

typedef struct cache_specs {
    int num_layers;
    char (*text)[CACHE_SPEC_BYTES];  // [num_layers]
    const char** specs;              // [num_layers] pointers to text
} cache_specs;

// Layers that no argument names get "f16". Returns 0, or another value with one line in message;
// out is then empty.
int cache_specs_create(const char* const* args, int num_args, int num_layers, cache_specs* out,
                       char* message, size_t message_bytes);
void cache_specs_free(cache_specs* specs);

#endif

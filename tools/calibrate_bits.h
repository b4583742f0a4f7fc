// calibrate_bits.h -- what the output loses with one side of one layer at 2 bits: for bits=auto.
//
// One window of the text runs with full rows, and again from each layer on, that layer's keys, or
// values, as a cache holds them: 2 passes a layer over the layers above it.  The loss is the mean
// KL divergence of the next token, of positions from a quarter of the window on.

#ifndef KVLOOM_CALIBRATE_BITS_H
#define KVLOOM_CALIBRATE_BITS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kvloom.h"
#include "model.h"

typedef struct calibrate_bits_desc {
    const model* m;
    const kvl_calibration* calibration;   // with the tables of spec
    const char* spec;            // of all layers, with bits of its own
    const int32_t* ids;          // [count] of one window
    int64_t count;
    int num_threads;             // 0: one a processor
    bool (*tick)(void* user, int done, int total);   // true: stop.  Can be NULL
    void* user;
} calibrate_bits_desc;

// losses [num_layers, 2], keys and values, to 3 digits.  Returns 0, or another value with one line
// in message.
int calibrate_bits_measure(const calibrate_bits_desc* desc, double* losses, char* message,
                           size_t message_bytes);

#endif

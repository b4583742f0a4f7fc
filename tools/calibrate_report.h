// calibrate_report.h -- why a layer is hard: spectra, conditions, damping and predicted errors.
//
// One HTML page that loads nothing, in the style of kvloom-eval's; and a summary as text.

#ifndef KVLOOM_CALIBRATE_REPORT_H
#define KVLOOM_CALIBRATE_REPORT_H

#include <stdio.h>

#include "kvloom.h"

typedef struct calibrate_report_desc {
    const kvl_statistics* stats;
    const kvl_calibration* calibration;  // its bases are described
    const kvl_layer_desc* layers;        // [num_layers]
    int num_layers;
    const char *path, *model, *text;     // of the page; the model's and the text's names
    FILE* summary;                       // gets the text; NULL: nobody
} calibrate_report_desc;

// Returns 0, or another value with one line in message.
int calibrate_report_write(const calibrate_report_desc* desc, char* message, size_t message_bytes);

#endif

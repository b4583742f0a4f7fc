// eval_html.h -- an evaluation as one HTML file that loads nothing and reads without a network.

#ifndef KVLOOM_EVAL_HTML_H
#define KVLOOM_EVAL_HTML_H

#include "eval_results.h"

#include <stddef.h>

// Writes the page to path: to a temporary file beside it that takes its name when it is complete,
// or straight into path where that is a device or a pipe. The same results give the same bytes:
// the page holds no date, and its numbers do not depend on the locale.
// Returns 0, or -1 with a message that names the path.
// - message must have message_bytes >= 1 bytes; it is "" on success
int eval_html_write(const eval_results* results, const char* path, char* message,
                    size_t message_bytes);

// The style of the page, for others of its kind: lines, the last one NULL. Static.
const char* const* eval_html_style(void);

#endif

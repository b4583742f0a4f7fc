// eval_progress.c -- the line of progress.

#include "eval_progress.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "eval_engine.h"

void eval_progress_start(eval_progress* p, bool quiet, int total)
{
    *p = (eval_progress){ .quiet = quiet, .total = total, .start = eval_seconds() };
    p->is_terminal = isatty(STDERR_FILENO) == 1;
}

// Seconds that are left, from the mean of the steps that are done; below 0: not known.
static double time_left(const eval_progress* p, double share)
{
    const double done = (double)p->done + share;
    if (done < 0.1) { return -1.0; }
    return (eval_seconds() - p->start) / done * ((double)p->total - done);
}

static void format_time(double seconds, char* out, size_t bytes)
{
    if (seconds < 0.0) {
        snprintf(out, bytes, "...");
    } else if (seconds < 100.0) {
        snprintf(out, bytes, "%.0f s left", seconds);
    } else if (seconds < 100.0 * 60.0) {
        snprintf(out, bytes, "%.0f min left", seconds / 60.0);
    } else {
        snprintf(out, bytes, "%.1f h left", seconds / 3600.0);
    }
}

static void show(eval_progress* p, const char* detail, double share)
{
    char left[32], line[320];
    format_time(time_left(p, share), left, sizeof left);
    const int written = snprintf(line, sizeof line, "[%d/%d] %s%s, %s", p->done + 1, p->total,
                                 p->what, detail, left);
    const int columns = written < (int)sizeof line ? written : (int)sizeof line - 1;
    fprintf(stderr, "\r%s%*s", line, p->columns > columns ? p->columns - columns : 0, "");
    p->columns = columns;
    p->shown = eval_seconds();
}

void eval_progress_step(eval_progress* p, const char* what)
{
    snprintf(p->what, sizeof p->what, "%s", what);
    if (!p->quiet && p->is_terminal) { show(p, "", 0.0); }
}

void eval_progress_layer(eval_progress* p, int layer, int num_layers)
{
    char detail[48];
    if (p->quiet || !p->is_terminal || eval_seconds() - p->shown < 0.2) { return; }
    snprintf(detail, sizeof detail, ", layer %d of %d", layer + 1, num_layers);
    show(p, detail, 0.0);
}

void eval_progress_clear(eval_progress* p)
{
    if (p->columns > 0) { fprintf(stderr, "\r%*s\r", p->columns, ""); }
    p->columns = 0;
}

void eval_progress_done(eval_progress* p, const char* what, const char* result)
{
    p->done++;
    if (p->quiet) { return; }
    if (!p->is_terminal) {
        char left[32];
        format_time(time_left(p, 0.0), left, sizeof left);
        fprintf(stderr, "[%d/%d] %s%s, %s\n", p->done, p->total, what, result, left);
    }
}

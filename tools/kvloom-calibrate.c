// kvloom-calibrate.c -- runs a model over a text and writes what calibrated caches need to know.

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "calibrate_options.h"
#include "calibrate_run.h"

// The second signal before the program has come round ends it.
static void on_interrupt(int number)
{
    (void)number;
    if (calibrate_interrupted) { _exit(130); }
    calibrate_interrupted = 1;
}

int main(int argc, char** argv)
{
    calibrate_options options;
    char message[1024] = "";
    int status = calibrate_options_read(argc, argv, &options);
    if (status == CALIBRATE_RUN) {
        struct sigaction action;
        memset(&action, 0, sizeof action);
        action.sa_handler = on_interrupt;
        sigemptyset(&action.sa_mask);
        sigaction(SIGINT, &action, NULL);
        status = calibrate_run(&options, false, message, sizeof message);
        if (status != 0) { fprintf(stderr, "kvloom-calibrate: %s\n", message); }
    }
    calibrate_options_free(&options);
    return status;
}

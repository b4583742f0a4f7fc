// kvloom-eval.c -- what caches cost, measured as decoding would see it.
//
// stdout has the table alone; progress and messages go to stderr.

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "eval_html.h"
#include "eval_json.h"
#include "eval_module.h"
#include "eval_options.h"
#include "eval_run.h"
#include "eval_table.h"

enum { STATUS_INTERRUPTED = 130 };

// The second signal before the program has come round ends it.
static void on_interrupt(int number)
{
    (void)number;
    if (eval_interrupted) { _exit(STATUS_INTERRUPTED); }
    eval_interrupted = 1;
}

static int fail(const char* message)
{
    fprintf(stderr, "kvloom-eval: %s\n", message);
    return 1;
}

// A file that cannot be written is known before the work.
static int check_output(const char* path, const char* option)
{
    if (path == NULL) { return 0; }
    FILE* file = fopen(path, "a");
    if (file != NULL) {
        fclose(file);
        return 0;
    }
    fprintf(stderr, "kvloom-eval: %s ", option);
    perror(path);
    return 1;
}

static int report(const eval_options* options, const eval_results* results)
{
    char message[1024] = "";
    int status = 0;
    if (options->module) {
        eval_module_print(stdout, results, options->markdown);
    } else {
        eval_table_print(stdout, results, options->markdown);
    }
    if (fflush(stdout) != 0) { status = fail("stdout cannot be written"); }
    if (options->json != NULL &&
        eval_json_write(options->json, results, message, sizeof message) != 0) {
        status = fail(message);
    }
    if (options->html != NULL &&
        eval_html_write(results, options->html, message, sizeof message) != 0) {
        status = fail(message);
    }
    return status;
}

int main(int argc, char** argv)
{
    eval_options options;
    eval_results results;
    char message[1024] = "";
    int status = eval_options_read(argc, argv, &options);
    if (status == EVAL_RUN) {
        struct sigaction action;
        memset(&action, 0, sizeof action);
        action.sa_handler = on_interrupt;
        sigemptyset(&action.sa_mask);
        sigaction(SIGINT, &action, NULL);
        status = check_output(options.json, "--json") | check_output(options.html, "--html");
        if (status == 0) {
            status = eval_run(&options, false, &results, message, sizeof message);
            if (status != 0) { fail(message); }
            // What is finished is worth reading, whatever came after it.
            const bool any = results.num_caches > 0 && results.num_positions > 0 &&
                             (options.module ? status == 0 && !results.interrupted
                                             : results.base_perplexity > 0.0);
            if (any && report(&options, &results) != 0) { status = 1; }
            if (status == 0 && results.interrupted) {
                if (!any) { fail("interrupted before a window was finished"); }
                status = STATUS_INTERRUPTED;
            }
            eval_results_free(&results);
        }
    }
    eval_options_free(&options);
    return status;
}

// criterion.h -- the part of Criterion that the tests use, for builds with the thread sanitizer.
//
// Criterion maps memory where that sanitizer keeps its own and cannot start under it.  This stands
// in for it: every test runs in a child process, one after the other, and the results are TAP.
// Of the options, --filter=PATTERN is known, on suite/name; .timeout means ten times what it says.

#ifndef CRITERION_STAND_IN_H
#define CRITERION_STAND_IN_H

#include <fnmatch.h>
#include <math.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

typedef struct criterion_options {
    void       (*init)(void);
    void       (*fini)(void);
    double       timeout;       // seconds; 0: none
    int          signal;        // that is expected; 0: none
    int          exit_code;     // that is expected
    bool         disabled;
    const char*  description;
} criterion_options;

typedef struct criterion_test {
    const char*            suite;
    const char*            name;
    void                 (*body)(void);    // NULL: the options of a whole suite
    criterion_options      options;
    struct criterion_test* next;
} criterion_test;

enum { CRITERION_SKIPPED = 77, CRITERION_SLOWER = 10 };

// One copy in the program, whichever units include this.
__attribute__((weak)) criterion_test* criterion_first;

__attribute__((weak)) void criterion_add(criterion_test* test)
{
    criterion_test** at = &criterion_first;
    while (*at) at = &(*at)->next;
    *at = test;
}

__attribute__((weak, noreturn, format(printf, 4, 5)))
void criterion_fail(const char* file, int line, const char* what, const char* format, ...)
{
    va_list args;
    printf("# %s:%d: %s does not hold:", file, line, what);
    va_start(args, format);
    vprintf(format, args);
    va_end(args);
    printf("\n");
    fflush(stdout);
    _exit(1);
}

__attribute__((weak, noreturn, format(printf, 1, 2)))
void criterion_skip(const char* format, ...)
{
    va_list args;
    printf("#");
    va_start(args, format);
    vprintf(format, args);
    va_end(args);
    printf("\n");
    fflush(stdout);
    _exit(CRITERION_SKIPPED);
}

__attribute__((weak)) const criterion_options* criterion_suite(const char* suite)
{
    static const criterion_options none;
    const criterion_test* test;
    for (test = criterion_first; test; test = test->next)
        if (!test->body && strcmp(test->suite, suite) == 0) return &test->options;
    return &none;
}

// Returns the child's wait status.
__attribute__((weak)) int criterion_run(const criterion_test* test)
{
    const criterion_options* suite = criterion_suite(test->suite);
    const double timeout = test->options.timeout > 0 ? test->options.timeout : suite->timeout;
    int status = 0;
    pid_t child;
    fflush(stdout);
    child = fork();
    if (child == 0) {
        if (timeout > 0) alarm((unsigned)(timeout * CRITERION_SLOWER) + 1);
        if (suite->init) suite->init();
        if (test->options.init) test->options.init();
        test->body();
        if (test->options.fini) test->options.fini();
        if (suite->fini) suite->fini();
        exit(0);
    }
    if (child < 0) return -1;
    while (waitpid(child, &status, 0) < 0) { }
    return status;
}

__attribute__((weak)) int criterion_wants(const criterion_test* test, int argc, char** argv)
{
    char name[256];
    int i;
    if (!test->body || test->options.disabled) return 0;
    snprintf(name, sizeof name, "%s/%s", test->suite, test->name);
    for (i = 1; i < argc; ++i)
        if (strncmp(argv[i], "--filter=", 9) == 0 && fnmatch(argv[i] + 9, name, 0) != 0) return 0;
    return 1;
}

__attribute__((weak)) int main(int argc, char** argv)
{
    const criterion_test* test;
    int number = 0, failed = 0;
    for (test = criterion_first; test; test = test->next) {
        int status, good, skipped;
        if (!criterion_wants(test, argc, argv)) continue;
        status = criterion_run(test);
        skipped = WIFEXITED(status) && WEXITSTATUS(status) == CRITERION_SKIPPED;
        if (test->options.signal)
            good = WIFSIGNALED(status) && WTERMSIG(status) == test->options.signal;
        else
            good = WIFEXITED(status) && WEXITSTATUS(status) == test->options.exit_code;
        failed += !good && !skipped;
        printf("%s %d - %s::%s%s\n", good || skipped ? "ok" : "not ok", ++number, test->suite,
               test->name, skipped ? " # SKIP" : "");
    }
    printf("1..%d\n", number);
    return failed != 0;
}

#define Test(suite_, name_, ...) \
    static void suite_##_##name_##_body(void); \
    __attribute__((constructor)) static void suite_##_##name_##_add(void) \
    { \
        static criterion_test test = { #suite_, #name_, suite_##_##name_##_body, \
                                       { __VA_ARGS__ }, NULL }; \
        criterion_add(&test); \
    } \
    static void suite_##_##name_##_body(void)

#define TestSuite(suite_, ...) \
    __attribute__((constructor)) static void suite_##_options_add(void) \
    { \
        static criterion_test test = { #suite_, "", NULL, { __VA_ARGS__ }, NULL }; \
        criterion_add(&test); \
    } \
    extern int suite_##_is_a_suite

#define CRITERION_CHECK(holds, what, ...) \
    ((holds) ? (void)0 : criterion_fail(__FILE__, __LINE__, what, " " __VA_ARGS__))

#define cr_assert(c, ...)           CRITERION_CHECK(c, #c, __VA_ARGS__)
#define cr_assert_not(c, ...)       CRITERION_CHECK(!(c), "not " #c, __VA_ARGS__)
#define cr_assert_fail(...)         CRITERION_CHECK(0, "fail", __VA_ARGS__)
#define cr_assert_null(a, ...)      CRITERION_CHECK((a) == NULL, #a " == NULL", __VA_ARGS__)
#define cr_assert_not_null(a, ...)  CRITERION_CHECK((a) != NULL, #a " != NULL", __VA_ARGS__)
#define cr_assert_eq(a, b, ...)     CRITERION_CHECK((a) == (b), #a " == " #b, __VA_ARGS__)
#define cr_assert_neq(a, b, ...)    CRITERION_CHECK((a) != (b), #a " != " #b, __VA_ARGS__)
#define cr_assert_lt(a, b, ...)     CRITERION_CHECK((a) < (b), #a " < " #b, __VA_ARGS__)
#define cr_assert_leq(a, b, ...)    CRITERION_CHECK((a) <= (b), #a " <= " #b, __VA_ARGS__)
#define cr_assert_gt(a, b, ...)     CRITERION_CHECK((a) > (b), #a " > " #b, __VA_ARGS__)
#define cr_assert_geq(a, b, ...)    CRITERION_CHECK((a) >= (b), #a " >= " #b, __VA_ARGS__)
#define cr_assert_float_eq(a, b, e, ...) \
    CRITERION_CHECK(fabs((double)(a) - (double)(b)) <= (double)(e), #a " ~ " #b, __VA_ARGS__)
#define cr_assert_str_eq(a, b, ...) \
    CRITERION_CHECK(strcmp((a), (b)) == 0, #a " is " #b, __VA_ARGS__)
#define cr_assert_str_neq(a, b, ...) \
    CRITERION_CHECK(strcmp((a), (b)) != 0, #a " is not " #b, __VA_ARGS__)
#define cr_assert_arr_eq(a, b, n, ...) \
    CRITERION_CHECK(memcmp((a), (b), (n)) == 0, #a " holds " #b, __VA_ARGS__)

// What Criterion goes on after ends the test here: it fails either way.
#define cr_expect(...)          cr_assert(__VA_ARGS__)
#define cr_expect_not(...)      cr_assert_not(__VA_ARGS__)
#define cr_expect_null(...)     cr_assert_null(__VA_ARGS__)
#define cr_expect_not_null(...) cr_assert_not_null(__VA_ARGS__)
#define cr_expect_eq(...)       cr_assert_eq(__VA_ARGS__)
#define cr_expect_neq(...)      cr_assert_neq(__VA_ARGS__)
#define cr_expect_lt(...)       cr_assert_lt(__VA_ARGS__)
#define cr_expect_leq(...)      cr_assert_leq(__VA_ARGS__)
#define cr_expect_gt(...)       cr_assert_gt(__VA_ARGS__)
#define cr_expect_geq(...)      cr_assert_geq(__VA_ARGS__)
#define cr_expect_float_eq(...) cr_assert_float_eq(__VA_ARGS__)
#define cr_expect_str_eq(...)   cr_assert_str_eq(__VA_ARGS__)
#define cr_expect_str_neq(...)  cr_assert_str_neq(__VA_ARGS__)
#define cr_expect_arr_eq(...)   cr_assert_arr_eq(__VA_ARGS__)
#define cr_skip_test(...) criterion_skip(" " __VA_ARGS__)
#define cr_skip(...)      criterion_skip(" " __VA_ARGS__)
#define cr_fatal(...)     CRITERION_CHECK(0, "fatal", __VA_ARGS__)
#define cr_log_info(...)  ((void)printf("# " __VA_ARGS__), (void)printf("\n"))
#define cr_log_warn(...)  cr_log_info(__VA_ARGS__)

#endif

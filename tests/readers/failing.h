/* Lets the allocations of reader.c fail: `fail_at(n)` the nth from then on, once. */
#include <stdlib.h>
#include <string.h>

static long until_failure;

__attribute__((visibility("default"))) void fail_at(long n) { until_failure = n; }

static int fails(void) { return until_failure > 0 && --until_failure == 0; }

static void *failing_calloc(size_t n, size_t size) { return fails() ? NULL : calloc(n, size); }
static void *failing_realloc(void *old, size_t size) { return fails() ? NULL : realloc(old, size); }
static char *failing_strdup(const char *text) { return fails() ? NULL : strdup(text); }
static char *failing_strndup(const char *text, size_t size) { return fails() ? NULL : strndup(text, size); }

#define calloc failing_calloc
#define realloc failing_realloc
#define strdup failing_strdup
#define strndup failing_strndup

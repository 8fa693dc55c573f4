// A library for LD_PRELOAD that shifts the time of day of a process by CLOCK_OFFSET_SECONDS.
//
// It replaces the functions with which the connector and its libraries read the time of day, and
// the one function that waits until a time of day (librdkafka uses it). libfaketime does not replace
// cnd_timedwait: each wait of librdkafka would take longer by the offset. The monotonic clock is not
// shifted.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/time.h>
#include <threads.h>
#include <time.h>

static time_t offset_seconds;

__attribute__((constructor)) static void read_offset(void) {
    const char *text = getenv("CLOCK_OFFSET_SECONDS");
    offset_seconds = text ? atol(text) : 0;
}

int clock_gettime(clockid_t clock, struct timespec *result) {
    static int (*original)(clockid_t, struct timespec *);
    if (!original)
        original = dlsym(RTLD_NEXT, "clock_gettime");
    int status = original(clock, result);
    if (status == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
        result->tv_sec += offset_seconds;
    return status;
}

int gettimeofday(struct timeval *restrict result, void *restrict timezone) {
    static int (*original)(struct timeval *, void *);
    if (!original)
        original = dlsym(RTLD_NEXT, "gettimeofday");
    int status = original(result, timezone);
    if (status == 0)
        result->tv_sec += offset_seconds;
    return status;
}

int cnd_timedwait(cnd_t *condition, mtx_t *mutex, const struct timespec *until) {
    static int (*original)(cnd_t *, mtx_t *, const struct timespec *);
    if (!original)
        original = dlsym(RTLD_NEXT, "cnd_timedwait");
    struct timespec unshifted = *until;
    unshifted.tv_sec -= offset_seconds;
    return original(condition, mutex, &unshifted);
}

/* cputime.h - seconds of processor time of this process: what tests of "linear, not quadratic" compare, because the machine may
 * be busy with other things. */
#ifndef TESTS_CPUTIME_H
#define TESTS_CPUTIME_H

#include <time.h>

static inline double cpu_now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

#endif

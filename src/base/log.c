/* log.c - lines and progress to the caller's callbacks. */
#include "base/log.h"

#include <stdarg.h>
#include <stdio.h>
#include <time.h>

void nb_log(const nb_host *h, nb_level level, const char *fmt, ...)
{
    char line[2048];
    va_list ap;

    if (!h || !h->log)
        return;
    va_start(ap, fmt);
    vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);
    h->log(h->user, level, line);
}

void nb_report_progress(const nb_host *h, const nb_progress *p)
{
    if (h && h->progress)
        h->progress(h->user, p);
}

bool nb_cancelled(const nb_host *h)
{
    return h && h->cancelled && h->cancelled(h->user);
}

double nb_now(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (double)ts.tv_sec + 1e-9 * (double)ts.tv_nsec;
}

/* log.h - how the library talks to its caller: log lines, progress, cancel. It never prints by itself. */
#ifndef NB_BASE_LOG_H
#define NB_BASE_LOG_H

#include <stdbool.h>
#include <stdint.h>

typedef enum nb_level { NB_LOG_ERROR, NB_LOG_WARN, NB_LOG_INFO, NB_LOG_DEBUG } nb_level;

typedef struct nb_progress {
    const char *what;     /* "quantize", "convert" ...               */
    const char *item;     /* current module or file; may be NULL     */
    const char *unit;     /* "modules", "bytes", "tokens"            */
    uint64_t done, total; /* total 0: unknown                        */
} nb_progress;

/* Callbacks of the caller; any may be NULL, and a NULL nb_host means silence. They are called from the thread that
 * made the library call, never from workers, except cancelled(), which may be called from any thread. */
typedef struct nb_host {
    void (*log)(void *user, nb_level level, const char *line);
    void (*progress)(void *user, const nb_progress *p);
    bool (*cancelled)(void *user); /* true: stop soon with NB_ECANCELED */
    void *user;
} nb_host;

void nb_log(const nb_host *h, nb_level level, const char *fmt, ...)
#if defined(__GNUC__)
    __attribute__((format(printf, 3, 4)))
#endif
    ;
void nb_report_progress(const nb_host *h, const nb_progress *p);
bool nb_cancelled(const nb_host *h);
/* Seconds on the monotonic clock. */
double nb_now(void);

#endif

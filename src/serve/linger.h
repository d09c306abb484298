/* linger.h - whether the next step waits a moment for clients that ask again as soon as they have their answer.
 *
 * Who comes back within a small part of a step after an answer would otherwise wait until the next step is over. Where clients mostly
 * do not come back so soon, only some steps wait, to notice when that changes. Pure: the times are the caller's. Not thread safe.
 * Source: spec serving 4.2. */
#ifndef NB_SERVE_LINGER_H
#define NB_SERVE_LINGER_H

#include <stdbool.h>
#include <stddef.h>

typedef struct nb_linger {
    double until;           /* who comes before it has come back at once */
    size_t n_ended, n_back; /* answers that the last step ended; requests that came back after it */
    size_t n_hurried;       /* steps that could have waited and did not */
    double rate;            /* share of clients that come back at once, of late */
    bool waits;             /* the next step does */
} nb_linger;

void nb_linger_init(nb_linger *l);
/* A step of step_s seconds is over, n answers ended with it. */
void nb_linger_step(nb_linger *l, size_t n, double step_s, double now);
/* A request came. */
void nb_linger_came(nb_linger *l, double now);
/* When the next step should begin; 0: at once. */
double nb_linger_until(const nb_linger *l);

#endif

/* linger.c - counting who comes back. */
#include "serve/linger.h"

enum {
    SHARE = 16,   /* of a step that may pass before the next one begins without a client who has just had an answer */
    TRY_EVERY = 4 /* steps where clients do not come back: one of so many waits all the same */
};

static const double worth = 0.25; /* the rate from which on every step waits */

void nb_linger_init(nb_linger *l)
{
    *l = (nb_linger){ .rate = 1 };
}

/* What the last round tells. Clients that were not waited for found the processors taken: only those that came anyway count. */
static void learn(nb_linger *l)
{
    if (l->n_ended > 0 && (l->waits || l->n_back > 0))
        l->rate = 0.8 * l->rate + 0.2 * (double)(l->n_back < l->n_ended ? l->n_back : l->n_ended) / (double)l->n_ended;
}

void nb_linger_step(nb_linger *l, size_t n, double step_s, double now)
{
    learn(l);
    l->until = now + step_s / SHARE;
    l->n_ended = n;
    l->n_back = 0;
    l->waits = n > 0 && (l->rate >= worth || ++l->n_hurried % TRY_EVERY == 0);
}

void nb_linger_came(nb_linger *l, double now)
{
    l->n_back += now <= l->until;
}

double nb_linger_until(const nb_linger *l)
{
    return l->waits && l->n_back < l->n_ended ? l->until : 0;
}

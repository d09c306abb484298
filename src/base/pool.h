/* pool.h - the only place where work is split over threads.
 *
 * A pool has n_threads - 1 sleeping workers; the calling thread is thread 0. Workers spin about 20-50 us, then
 * sleep on a futex-like condition; after two late wake-ups in a row they prefer sleeping (spec kernels 8).
 * Split outputs, never a sum: results must depend neither on the thread count nor on who computed what.
 * One pool serves one caller at a time (calls must not nest or overlap). Clean under ThreadSanitizer. */
#ifndef NB_BASE_POOL_H
#define NB_BASE_POOL_H

#include <stddef.h>

#include "base/err.h"

typedef struct nb_pool nb_pool;

/* fn(ctx, begin, end, thread): does items [begin, end); thread in 0 .. n_threads-1 picks scratch. */
typedef void nb_range_fn(void *ctx, size_t begin, size_t end, int thread);

/* n_threads <= 0: one per available core (sched affinity). Fails with NB_ENOMEM. */
nb_status nb_pool_open(nb_pool **out, int n_threads, nb_err *err);
void nb_pool_close(nb_pool *p);
int nb_pool_threads(const nb_pool *p); /* NULL counts as 1 */

/* Run fn over [0, n): pieces of `grain` items handed out dynamically (one atomic counter). NULL pool: inline. */
void nb_parallel_for(nb_pool *p, size_t n, size_t grain, nb_range_fn *fn, void *ctx);
/* The same with static contiguous shares: thread t gets [n*t/T, n*(t+1)/T). For m = 1 kernels and first touch. */
void nb_parallel_static(nb_pool *p, size_t n, nb_range_fn *fn, void *ctx);

/* Of the pool's threads use only the first n (n < 1: all again). From the caller's thread, between calls. The others sleep. */
void nb_pool_limit(nb_pool *p, int n);
/* The number of threads, among all, half of them, a quarter ... 1, with which step(ctx) is fastest: the most of them unless fewer are at
 * least a tenth faster. Seconds of one step with all and with that number. All threads are in use after it. */
int nb_pool_tune(nb_pool *p, void (*step)(void *ctx), void *ctx, double *all, double *best);

#endif

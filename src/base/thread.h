/* thread.h - threads of this library: a stack of known size, and no signal of the process ever runs on them. */
#ifndef NB_BASE_THREAD_H
#define NB_BASE_THREAD_H

#include <pthread.h>

#ifdef __SANITIZE_THREAD__
enum { NB_THREAD_STACK = 2 << 20 }; /* of the first half the sanitizer takes three quarters for itself */
#else
enum { NB_THREAD_STACK = 1 << 20 }; /* whatever ulimit -s says (hardening MM-06) */
#endif

/* As pthread_create, which it calls: 0, or the error's number. name (15 bytes at most) is what `top -H` shows. Signals stay with the caller's threads, but for faults of its own. */
int nb_thread_start(pthread_t *t, const char *name, void *(*run)(void *), void *arg);

#endif

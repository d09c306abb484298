/* thread.c - pthread_create with our attributes. */
#define _GNU_SOURCE /* pthread_setname_np */
#include "base/thread.h"

#include <signal.h>

int nb_thread_start(pthread_t *t, const char *name, void *(*run)(void *), void *arg)
{
    pthread_attr_t attr;
    sigset_t all, old;
    int rc = pthread_attr_init(&attr);

    if (rc != 0)
        return rc;
    sigfillset(&all);
    sigdelset(&all, SIGBUS);
    sigdelset(&all, SIGSEGV);
    sigdelset(&all, SIGFPE);
    sigdelset(&all, SIGILL);
    sigdelset(&all, SIGABRT);
    sigdelset(&all, SIGTRAP);
    pthread_sigmask(SIG_BLOCK, &all, &old);
    rc = pthread_attr_setstacksize(&attr, NB_THREAD_STACK);
    if (rc == 0)
        rc = pthread_create(t, &attr, run, arg);
    if (rc == 0)
        pthread_setname_np(*t, name);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    pthread_attr_destroy(&attr);
    return rc;
}

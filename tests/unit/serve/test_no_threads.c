/* test_no_threads.c - MM-09: the system refuses a thread, whichever it is: a sentence of the right class, no hang, nothing left. */
#define _GNU_SOURCE /* RTLD_NEXT */
#include "live.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>

static int refuse_in; /* the call that is refused, from 1; 0: none */

/* In front of the C library's, for the HTTP library too. */
__attribute__((visibility("default"))) int pthread_create(pthread_t *t, const pthread_attr_t *attr, void *(*run)(void *), void *arg)
{
    static int (*real)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);

    if (!real)
        *(void **)&real = dlsym(RTLD_NEXT, "pthread_create");
    if (refuse_in > 0 && --refuse_in == 0)
        return EAGAIN;
    return real(t, attr, run, arg);
}

static void test_refused(void **state)
{
    bool all = false;
    int failures = 0;

    (void)state;
    for (int k = 1; !all && k < 20; k++) {
        live x;
        nb_model_opts mo = { 0 };
        nb_err err = { 0 };
        nb_status rc;
        nb_buf b = { 0 };

        live_defaults(&x);
        refuse_in = k;
        rc = nb_pool_open(&x.pool, 3, &err);
        if (rc == NB_OK)
            rc = nb_load_kern(NULL, &mo.kern, &err);
        mo.pool = x.e.pool = x.pool;
        if (rc == NB_OK)
            rc = nb_load_store(&x.l, "models/pemberley-4m", NULL, &err);
        if (rc == NB_OK)
            rc = nb_load_text(&x.l, "models/pemberley-4m", &err);
        if (rc == NB_OK)
            rc = nb_server_open(&x.o, &x.s, &err);
        if (rc == NB_OK)
            rc = nb_load_model(&x.l, &mo, &err);
        if (rc == NB_OK)
            rc = nb_engine_open(x.l.model, &x.e, &x.m.engine, &err);
        if (rc == NB_OK) {
            x.m.tok = x.l.tok;
            x.m.defaults = (nb_sampling){ .temperature = 1, .top_p = 1, .repetition_penalty = 1 };
            x.m.vocab = nb_model_config(x.l.model)->vocab;
            rc = nb_server_ready(x.s, &x.m, &err);
        }
        all = refuse_in > 0; /* there were fewer threads than k */
        refuse_in = 0;
        if (all) {
            assert_int_equal(rc, NB_OK);
            assert_int_equal(live_ask(&x, "GET", "/health", "", NULL, &b, NULL), 200);
        } else {
            failures++;
            assert_int_equal(rc, NB_ENOMEM);
            assert_true(err.what[0]);
        }
        nb_buf_clear(&b);
        live_close(&x);
    }
    assert_true(all);
    assert_true(failures >= 7); /* two of the pool, the gate's, the library's, the engine's, two that prepare */
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_refused) };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

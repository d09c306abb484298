/* repair.c - convert --repair: codes and zero points as they would be without a fault that the tests of formats 8 prove. */
#include <string.h>

#include "job/relayout.h"

/* The fault that is to be repaired, as the tests of formats 8 prove it; GPTQ labels were settled while scanning. */
nb_status nb_relay_find_fault(nb_relay *j, nb_err *err)
{
    const bool zeros = j->o->repair == NB_REPAIR_ZEROS;
    const nb_linear *first = NULL;
    nb_order_test t = { 0 };
    nb_order_verdict v = { 0 };
    nb_status rc;

    if (j->o->repair == NB_REPAIR_NONE)
        return NB_OK;
    rc = nb_order_sample(j->in.store, j->in.scan.linears, j->in.scan.n_linears, j->o->pool, &first, &t, err);
    if (rc != NB_OK)
        return rc;
    if (first)
        v = nb_order_judge(first, &t);
    j->fault = (nb_order_verdict){ .columns = v.columns && !zeros, .zeros = v.zeros && !zeros, .offset = zeros ? v.offset : 0 };
    if (!j->fault.columns && !j->fault.zeros && j->fault.offset == 0 && !(zeros && j->in.scan.note[0]))
        return nb_fail(err, NB_EUNSUPPORTED, "conv.repair", "",
                       "the values do not prove that %s (mean offset %+.2f steps over %zu groups); nothing was written",
                       zeros ? "zero points are off by one" : "nibbles are in another order", v.mean, t.n_pairs);
    j->sum->n_repaired = j->in.scan.n_linears;
    return NB_OK;
}

/* Outputs of every word as the other order of columns has them; zero points alone where only they are wrong. */
static void reorder(const nb_linear *lin, nb_qlin *q, bool codes)
{
    size_t period;
    const uint8_t *order = nb_order_other(lin, &period);
    uint8_t old[8][4096];

    for (size_t o = 0; order && o + period <= q->n; o += period) {
        for (size_t at = 0; codes && at < q->k; at += sizeof old[0]) {
            const size_t m = q->k - at < sizeof old[0] ? q->k - at : sizeof old[0];
            for (size_t i = 0; i < period; i++)
                memcpy(old[i], q->codes + (o + i) * q->k + at, m);
            for (size_t i = 0; i < period; i++)
                memcpy(q->codes + (o + i) * q->k + at, old[order[i]], m);
        }
        for (size_t g = 0; g < q->n_groups; g++) {
            uint8_t z[8];
            for (size_t i = 0; i < period; i++)
                z[i] = q->zeros[(o + i) * q->n_groups + g];
            for (size_t i = 0; i < period; i++)
                q->zeros[(o + i) * q->n_groups + g] = z[order[i]];
        }
    }
}

void nb_relay_repair(const nb_relay *j, nb_qlin *q)
{
    const unsigned maxq = (1u << q->bits) - 1;

    if (j->fault.columns || j->fault.zeros)
        reorder(j->now->lin, q, j->fault.columns);
    if (j->fault.offset == 0)
        return;
    for (size_t i = 0; i < q->n * q->n_groups; i++) /* the wrap of the subtraction undone */
        q->zeros[i] = (uint8_t)((unsigned)(q->zeros[i] + j->fault.offset) & maxq);
}

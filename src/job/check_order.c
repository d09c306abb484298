/* check_order.c - statistics of decoded values against the declared layout: ORD-001 to ORD-004, ORD-008, ORD-009 (formats 7.6, 8).
 *
 * Sums over a sample of linears of the whole model; nothing is decided on one tensor alone. */
#include <math.h>
#include <string.h>

#include "job/check_priv.h"
#include "quant/convention.h"

static nb_status hit_order(nb_checker *c, const nb_linear *lin, const nb_order_verdict *v, nb_err *err)
{
    const char *file = lin->parts[0]->file, *name = lin->parts[0]->name;

    if (!v->columns)
        return NB_OK;
    if (lin->spec.bits == 8)
        return nb_rule_hit(c->report, err, "ORD-008", file, name,
                           "8-bit codes look interleaved; this layout has no public writer. Please report the producer.");
    return nb_rule_hit(
        c->report, err, "ORD-001", file, name,
        "The nibbles of qweight are in 0,1,2,3,4,5,6,7 order; awq-gemm stores output columns as 0,2,4,6,1,3,5,7. Reading it as "
        "declared would shuffle every group of 8 outputs.");
}

/* Zero points: packed in another order than the codes, or one too small or too large. */
static nb_status hit_zeros(nb_checker *c, const nb_linear *lin, const nb_order_test *t, const nb_order_verdict *v, nb_err *err)
{
    const char *file = lin->parts[0]->file;
    const double share = t->n_pairs ? 100.0 * (double)(v->mean > 0 ? t->n_over : t->n_under) / (double)t->n_pairs : 0;

    if (v->zeros)
        return nb_rule_hit(c->report, err, "ORD-004", file, lin->prefix, "qzeros and qweight of %s use different nibble orders.",
                           lin->prefix);
    if (v->offset == 0)
        return NB_OK;
    return nb_rule_hit(
        c->report, err, "ORD-002", file, lin->prefix,
        "Zero points appear to be stored %s: the decoded weights of %.0f%% of groups average %+.2f steps instead of about 0. "
        "AWQ stores the value that is subtracted, without adding or removing 1.",
        v->mean > 0 ? "-1" : "+1", share, v->mean);
}

nb_status nb_check_order(nb_checker *c, nb_err *err)
{
    const nb_linear *first = NULL;
    nb_order_test t = { 0 };
    nb_order_verdict v;
    nb_status rc = nb_order_sample(c->store, c->scan.linears, c->scan.n_linears, c->o->pool, &first, &t, err);

    if (rc != NB_OK && rc != NB_ENOMEM) { /* values that cannot be decoded are told elsewhere */
        nb_err_clear(err);
        return NB_OK;
    }
    if (rc != NB_OK || !first)
        return rc;
    v = nb_order_judge(first, &t);
    if ((rc = hit_order(c, first, &v, err)) != NB_OK || (rc = hit_zeros(c, first, &t, &v, err)) != NB_OK)
        return rc;
    if (t.n_square >= 2 && t.square[1] > 0 && t.square[0] >= 1.4 * t.square[1] &&
        (rc = nb_rule_hit(c->report, err, "ORD-003", first->parts[0]->file, first->prefix, "scales appear to be transposed.")) != NB_OK)
        return rc;
    if (v.wrapped)
        return nb_rule_hit(c->report, err, "ORD-009", first->parts[0]->file, first->prefix,
                           "Codes look signed; %s stores codes with an offset of %u.", first->format->name, 1u << (first->spec.bits - 1));
    return NB_OK;
}

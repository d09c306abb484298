/* fmt_awq_marlin.c - AWQ as serialized for the Marlin kernel (version "marlin"), 4 bit, symmetric: read only.
 *
 * Tiles of 16 inputs by 64 outputs and permuted scales (marlin.h); every zero point is 8 and none is stored. No program
 * writes this any more. Source: formats 2.5, 3.7 (AutoAWQ awq/modules/linear/marlin.py at 88e4c76). */
#include <inttypes.h>
#include <string.h>

#include "quant/awq.h"
#include "quant/formats.h"
#include "quant/marlin.h"
#include "quant/parts.h"

enum { P_QWEIGHT, P_SCALES };

static bool match(const nb_evidence *e)
{
    const nb_tensor *w = e->qweight, *s = e->scales;

    return w && s && !e->qzeros && w->rank == 2 && s->rank == 2 && nb_awq_is_word(w->dtype) && w->shape[1] % 2 == 0 &&
           w->shape[1] / 2 == s->shape[1];
}

static nb_status shape(nb_linear *lin, nb_err *err)
{
    const nb_tensor *w = lin->parts[P_QWEIGHT], *s = lin->parts[P_SCALES];
    char a[64], b[64];
    uint64_t n, k, g;
    nb_status rc = nb_check_parts(lin, err);

    if (rc != NB_OK)
        return rc;
    n = w->shape[1] / 2;
    if (w->shape[0] == 0 || n == 0 || w->shape[0] > SIZE_MAX / 64 || w->shape[1] > SIZE_MAX / 64)
        return nb_rule_hit(NULL, err, "SHP-016", w->file, w->name, "qweight is %" PRIu64 "x%" PRIu64 ", expected at least one tile.",
                           w->shape[0], w->shape[1]);
    k = w->shape[0] * 16;
    if (w->shape[1] % 128)
        return nb_rule_hit(NULL, err, "SHP-016", w->file, w->name, "qweight is %s: %" PRIu64 " outputs do not fill whole tiles of 64.",
                           nb_shape_str(a, sizeof a, w->shape, 2), n);
    if ((rc = nb_awq_check_bits(lin, err)) != NB_OK || (rc = nb_awq_check_group(lin, k, &g, err)) != NB_OK)
        return rc;
    if (s->shape[0] != k / g || s->shape[1] != n)
        return nb_rule_hit(NULL, err, "SHP-016", s->file, s->name, "scales is %s, expected %s.", nb_shape_str(a, sizeof a, s->shape, 2),
                           nb_shape_str(b, sizeof b, (const uint64_t[]){ k / g, n }, 2));
    if ((rc = nb_check_bias(lin, n, err)) != NB_OK)
        return rc;
    lin->n = (size_t)n;
    lin->k = (size_t)k;
    lin->g = (size_t)g;
    lin->spec.sym = true;
    lin->spec.scale_dtype = s->dtype;
    return NB_OK;
}

static nb_status unpack(const nb_linear *lin, size_t n0, nb_qlin *q, nb_err *err)
{
    const nb_status rc = nb_awq_check_stripe(lin, n0, q, err);

    if (rc != NB_OK)
        return rc;
    nb_marlin_unpack(lin->parts[P_QWEIGHT]->data, lin->n, lin->k, n0, q->n, q->codes);
    nb_marlin_scales(lin->parts[P_SCALES], n0, q);
    memset(q->zeros, 8, q->n * q->n_groups);
    q->bits = 4;
    return NB_OK;
}

const nb_format nb_fmt_awq_marlin = {
    .name = "awq-marlin",
    .method = "awq",
    .version = "marlin",
    .stripe = 8,
    .parts = { [P_QWEIGHT] = { "qweight", NB_DT_I32, "k/16 n*2", false, NB_PART_CODES, NB_STORE_ALWAYS },
               [P_SCALES] = { "scales", NB_DT_NONE, "k/g n", false, NB_PART_SCALES, NB_STORE_ALWAYS } },
    .match = match,
    .shape = shape,
    .unpack = unpack,
};

/* fmt_gptq_marlin.c - GPTQ serialized for the Marlin kernel (is_marlin_format, checkpoint_format marlin). Reading only.
 *
 * Tiles and permuted scales: marlin.h. Symmetric, 4 bit: every zero point is 8.
 * Source: formats 2.5, 3.12 (AutoGPTQ qlinear_marlin.py at 9f7d370); docs/formats/gptq.md. */
#include <inttypes.h>
#include <string.h>

#include "quant/formats.h"
#include "quant/marlin.h"
#include "quant/parts.h"

enum { P_B, P_S };

static bool match(const nb_evidence *e)
{
    return e->b && e->b->rank == 2 && (e->b->dtype == NB_DT_I32 || e->b->dtype == NB_DT_U32) && e->s && !e->qweight;
}

static nb_status shape(nb_linear *lin, nb_err *err)
{
    nb_status rc = nb_check_parts(lin, err);
    const nb_tensor *b = lin->parts[P_B], *s = lin->parts[P_S];
    char name[NB_ESC_CAP], found[64], want[64];
    uint64_t dims[2], k, n, g;

    if (rc != NB_OK)
        return rc;
    nb_esc(name, sizeof name, lin->prefix, strlen(lin->prefix));
    if (lin->spec.bits != 4)
        return nb_rule_hit(NULL, err, "CFG-004", b->file, name, "bits = %u is not usable (serialized Marlin has 4).", lin->spec.bits);
    if (b->shape[0] == 0 || b->shape[1] == 0 || b->shape[0] > SIZE_MAX / 64 || b->shape[1] % 128 != 0)
        return nb_rule_hit(NULL, err, "SHP-009", b->file, name, "%s: B is %s; Marlin tiles need inputs %% 16 = 0 and outputs %% 64 = 0.",
                           name, nb_shape_str(found, sizeof found, b->shape, 2));
    k = b->shape[0] * 16;
    n = b->shape[1] / 2;
    g = lin->spec.group_size < 0 || (uint64_t)lin->spec.group_size > k ? k : (uint64_t)lin->spec.group_size;
    if (k % g != 0)
        return nb_rule_hit(NULL, err, "SHP-004", b->file, name,
                           "%s: %" PRIu64 " inputs are not a multiple of group size %" PRIu64 ". \xe2\x86\x92 "
                           "Pad the layer or use a group size that divides it (%s).",
                           name, k, g, nb_fitting_groups(want, sizeof want, k));
    dims[0] = k / g;
    dims[1] = n;
    if (s->shape[0] != dims[0] || s->shape[1] != dims[1])
        return nb_rule_hit(NULL, err, "SHP-016", s->file, s->name, "scales is %s, expected %s.",
                           nb_shape_str(found, sizeof found, s->shape, 2), nb_shape_str(want, sizeof want, dims, 2));
    lin->k = (size_t)k;
    lin->n = (size_t)n;
    lin->g = (size_t)g;
    lin->spec.sym = true;
    lin->spec.scale_dtype = s->dtype;
    return nb_check_bias(lin, n, err);
}

static nb_status unpack(const nb_linear *lin, size_t n0, nb_qlin *q, nb_err *err)
{
    nb_status rc = nb_check_stripe(lin, n0, q, err);

    if (rc != NB_OK)
        return rc;
    nb_marlin_unpack(lin->parts[P_B]->data, lin->n, lin->k, n0, q->n, q->codes);
    memset(q->zeros, 8, q->n * q->n_groups);
    nb_marlin_scales(lin->parts[P_S], n0, q);
    q->bits = 4;
    return nb_get_g_idx(lin, NULL, q, err);
}

const nb_format nb_fmt_gptq_marlin = {
    .name = "gptq-marlin",
    .method = "gptq",
    .version = "marlin",
    .stripe = 64,
    .parts = { [P_B] = { "B", NB_DT_I32, "k/16 n*2", false, NB_PART_CODES, NB_STORE_ALWAYS },
               [P_S] = { "s", NB_DT_NONE, "k/g n", false, NB_PART_SCALES, NB_STORE_ALWAYS } },
    .match = match,
    .shape = shape,
    .unpack = unpack,
};

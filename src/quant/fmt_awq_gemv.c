/* fmt_awq_gemv.c - AWQ GEMV, 4 bit: one packed row per output, padded for the loads of its GPU kernel.
 *
 * Codes: output n is row n of qweight, input k at bits 4*(k % 8) of word k / 8. Zero points: row n of qzeros, group g at bits
 * 4*(g % 8) of word g / 8. Scales: row n. Both have room for 8 * nb_awq_zeros_width() groups; what stands behind the last
 * group is padding. Source: formats 3.3, 3.4 (AutoAWQ awq/modules/linear/gemv.py at 88e4c76); docs/formats/awq-gemv.md. */
#include <inttypes.h>
#include <string.h>

#include "base/bits.h"
#include "quant/awq.h"
#include "quant/bitpack.h"
#include "quant/formats.h"
#include "quant/parts.h"

enum { P_QWEIGHT, P_QZEROS, P_SCALES };

static bool match(const nb_evidence *e)
{
    const nb_tensor *w = e->qweight, *z = e->qzeros, *s = e->scales;

    return w && z && s && w->rank == 2 && z->rank == 2 && s->rank == 2 && nb_awq_is_word(w->dtype) && w->shape[0] == s->shape[0] &&
           z->shape[0] == w->shape[0] && s->shape[1] % 8 == 0 && s->shape[1] / 8 == z->shape[1];
}

/* Width of qzeros and scales against the padding rule. */
static nb_status check_widths(const nb_linear *lin, uint64_t n, uint64_t k, uint64_t g, nb_err *err)
{
    const nb_tensor *s = lin->parts[P_SCALES], *z = lin->parts[P_QZEROS];
    const uint64_t width = nb_awq_zeros_width(k, g), want[2] = { n, width };
    char a[64], b[64], name[NB_ESC_CAP];

    nb_esc(name, sizeof name, lin->prefix, strlen(lin->prefix));
    if (width == 0)
        return nb_rule_hit(NULL, err, "SHP-017", s->file, name,
                           "%s: the %s layout has no group size %" PRIu64 " (16, 32, 64, 128 and above).", name, lin->format->name, g);
    if (s->shape[0] != n)
        return nb_rule_hit(NULL, err, "SHP-016", s->file, s->name, "scales is %s, expected %s.",
                           nb_shape_str(a, sizeof a, s->shape, s->rank), nb_shape_str(b, sizeof b, (const uint64_t[]){ n, 8 * width }, 2));
    if (s->shape[1] != 8 * width)
        return nb_rule_hit(NULL, err, "SHP-007", s->file, s->name,
                           "padded scales width is %" PRIu64 ", expected %" PRIu64 " (= 8 \xc3\x97 zeros_width(%" PRIu64 ",%" PRIu64 ")).",
                           s->shape[1], 8 * width, k, g);
    if (z->shape[0] != n || z->shape[1] != width)
        return nb_rule_hit(NULL, err, "SHP-006", z->file, z->name, "qzeros is %s, expected %s.",
                           nb_shape_str(a, sizeof a, z->shape, z->rank), nb_shape_str(b, sizeof b, want, 2));
    return NB_OK;
}

static nb_status shape(nb_linear *lin, nb_err *err)
{
    const nb_tensor *w = lin->parts[P_QWEIGHT];
    uint64_t n, k, g;
    nb_status rc = nb_check_parts(lin, err);

    if (rc != NB_OK)
        return rc;
    n = w->shape[0];
    k = w->shape[1] * 8;
    if (n == 0 || k == 0 || w->shape[1] > SIZE_MAX / 64)
        return nb_rule_hit(NULL, err, "SHP-016", w->file, w->name,
                           "qweight is %" PRIu64 "x%" PRIu64 ", expected at least one output and one word.", n, w->shape[1]);
    if ((rc = nb_awq_check_bits(lin, err)) != NB_OK || (rc = nb_awq_check_group(lin, k, &g, err)) != NB_OK ||
        (rc = check_widths(lin, n, k, g, err)) != NB_OK || (rc = nb_check_bias(lin, n, err)) != NB_OK)
        return rc;
    lin->n = (size_t)n;
    lin->k = (size_t)k;
    lin->g = (size_t)g;
    lin->spec.scale_dtype = lin->parts[P_SCALES]->dtype;
    return NB_OK;
}

static nb_status unpack(const nb_linear *lin, size_t n0, nb_qlin *q, nb_err *err)
{
    const nb_tensor *w = lin->parts[P_QWEIGHT], *z = lin->parts[P_QZEROS], *s = lin->parts[P_SCALES];
    const nb_status rc = nb_awq_check_stripe(lin, n0, q, err);

    if (rc != NB_OK)
        return rc;
    for (size_t o = 0; o < q->n; o++) {
        if (q->codes)
            nb_unpack_codes(NB_PACK_STREAM, 4, w->data + (n0 + o) * (size_t)w->shape[1] * 4, 0, q->k, q->codes + o * q->k);
        nb_unpack_codes(NB_PACK_STREAM, 4, z->data + (n0 + o) * (size_t)z->shape[1] * 4, 0, q->n_groups, q->zeros + o * q->n_groups);
    }
    q->bits = 4;
    q->scale_dtype = s->dtype;
    nb_awq_read_floats(s, (nb_awq_at){ (size_t)s->shape[1], 1 }, n0, q->n, q->n_groups, q->scales);
    return NB_OK;
}

static uint64_t padding(const nb_linear *lin)
{
    const nb_tensor *z = lin->parts[P_QZEROS], *s = lin->parts[P_SCALES];
    const size_t gn = lin->k / lin->g, width = (size_t)s->shape[1], item = nb_dtype_info(s->dtype)->bits / 8;
    uint64_t bad = 0;

    for (size_t n = 0; n < lin->n; n++)
        for (size_t g = gn; g < width; g++) {
            static const unsigned char none[4];
            bad += memcmp(s->data + (n * width + g) * item, none, item) != 0;
            bad += (nb_le32(z->data + (n * (width / 8) + g / 8) * 4) >> 4 * (g % 8) & 15) != 0;
        }
    return bad;
}

static nb_status pack(const nb_qlin *q, size_t n0, size_t n, void *const out[NB_MAX_PARTS], nb_err *err)
{
    const size_t width = (size_t)nb_awq_zeros_width(q->k, q->g), item = nb_dtype_info(q->scale_dtype)->bits / 8;
    const nb_awq_at at = { 8 * width, 1 };
    nb_status rc = nb_awq_check_pack(q, n0, n, 4, err);
    uint8_t seen = 0;

    if (rc != NB_OK)
        return rc;
    if (n % 8 || q->k % 32)
        return nb_fail(err, NB_EUNSUPPORTED, "conv.shape", "CNV-050",
                       "awq-gemv needs outputs %% 8 = 0 and inputs %% 32 = 0, got %zu\xc3\x97%zu.", q->k, n);
    if (width == 0)
        return nb_fail(err, NB_EUNSUPPORTED, "conv.shape", "CNV-050", "awq-gemv has no group size %zu (16, 32, 64, 128 and above).", q->g);
    for (size_t i = 0; q->codes && i < q->n * q->k; i++)
        seen |= q->codes[i];
    for (size_t i = 0; i < q->n * q->n_groups; i++)
        seen |= q->zeros[i];
    if (seen > 15)
        return nb_fail(err, NB_EARG, "arg.codes", "", "codes or zero points above 15 do not fit 4 bits");
    for (size_t o = 0; o < q->n; o++) {
        unsigned char *zrow = (unsigned char *)out[P_QZEROS] + (n0 + o) * width * 4;
        if (q->codes)
            nb_pack_codes(NB_PACK_STREAM, 4, q->codes + o * q->k, q->k, (unsigned char *)out[P_QWEIGHT] + (n0 + o) * (q->k / 2));
        memset(zrow, 0, width * 4);
        nb_pack_codes(NB_PACK_STREAM, 4, q->zeros + o * q->n_groups, q->n_groups, zrow);
        memset((unsigned char *)out[P_SCALES] + (n0 + o) * 8 * width * item, 0, 8 * width * item);
    }
    return nb_awq_write_floats(q->scales, at, n0, q->n, q->n_groups, q->scale_dtype, out[P_SCALES], err);
}

static nb_json *config(const nb_qspec *spec, const char *const *skip, size_t n_skip)
{
    return nb_awq_config(spec, "gemv", false, skip, n_skip);
}

const nb_format nb_fmt_awq_gemv = {
    .name = "awq-gemv",
    .method = "awq",
    .version = "gemv",
    .stripe = 8,
    .words = NB_WORDS_BY_OUTPUT,
    .parts = { [P_QWEIGHT] = { "qweight", NB_DT_I32, "n k/8", false, NB_PART_CODES, NB_STORE_ALWAYS },
               [P_QZEROS] = { "qzeros", NB_DT_I32, "n z", false, NB_PART_ZEROS, NB_STORE_ALWAYS },
               [P_SCALES] = { "scales", NB_DT_NONE, "n 8*z", false, NB_PART_SCALES, NB_STORE_ALWAYS } },
    .match = match,
    .shape = shape,
    .unpack = unpack,
    .pack = pack,
    .padding = padding,
    .config = config,
};

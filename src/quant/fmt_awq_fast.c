/* fmt_awq_fast.c - AWQ GEMV_FAST and LLM_AWQ, 4 bit: 16-bit words of four codes of one output, zero points as float offsets.
 *
 * The codes of outputs 4r .. 4r+3 are row r of qweight. Within each 64 inputs of a row, output 4r+i has 16 words, eight for
 * inputs 0 .. 31 and eight for 32 .. 63; word j of eight holds
 *
 *   bits    15-12  11-8   7-4    3-0
 *   input   j+24   j+16   j+8    j
 *
 * scales and offsets are [8 * nb_awq_zeros_width(), n]; rows behind the last group are padding. The offset is -(scale * zero)
 * rounded to the type of the scales and is what such a model adds, so the hub keeps it beside the integer it came from.
 * LLM_AWQ has the same bytes under the name scaled_zeros.
 * Source: formats 2.3, 3.5 (AutoAWQ awq/modules/linear/gemv_fast.py at 88e4c76, llm-awq awq/quantize/qmodule.py at d6e797a);
 * docs/formats/awq-fast.md. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "base/bits.h"
#include "quant/awq.h"
#include "quant/formats.h"
#include "quant/parts.h"

enum { P_QWEIGHT, P_OFFSETS, P_SCALES };

static bool fast_codes(const nb_evidence *e)
{
    return e->qweight && e->qweight->rank == 2 && e->qweight->dtype == NB_DT_I16;
}

static bool match_fast(const nb_evidence *e)
{
    return fast_codes(e) && e->qzeros && !e->scaled_zeros;
}

static bool match_llm(const nb_evidence *e)
{
    return fast_codes(e) && e->scaled_zeros && !e->qzeros;
}

static nb_status check_floats(const nb_linear *lin, size_t part, uint64_t n, uint64_t k, uint64_t g, nb_err *err)
{
    const nb_tensor *t = lin->parts[part];
    const uint64_t width = nb_awq_zeros_width(k, g);
    const char *what = lin->format->parts[part].suffix;
    char a[64], b[64];

    if (t->shape[1] != n)
        return nb_rule_hit(NULL, err, part == P_SCALES ? "SHP-016" : "SHP-006", t->file, t->name, "%s is %s, expected %s.", what,
                           nb_shape_str(a, sizeof a, t->shape, t->rank), nb_shape_str(b, sizeof b, (const uint64_t[]){ 8 * width, n }, 2));
    if (t->shape[0] != 8 * width)
        return nb_rule_hit(NULL, err, "SHP-007", t->file, t->name,
                           "padded %s width is %" PRIu64 ", expected %" PRIu64 " (= 8 \xc3\x97 zeros_width(%" PRIu64 ",%" PRIu64 ")).",
                           what, t->shape[0], 8 * width, k, g);
    return NB_OK;
}

static nb_status shape(nb_linear *lin, nb_err *err)
{
    const nb_tensor *w = lin->parts[P_QWEIGHT];
    char name[NB_ESC_CAP];
    uint64_t n, k, g;
    nb_status rc = nb_check_parts(lin, err);

    if (rc != NB_OK)
        return rc;
    nb_esc(name, sizeof name, lin->prefix, strlen(lin->prefix));
    k = w->shape[1];
    if (w->shape[0] == 0 || k == 0 || w->shape[0] > SIZE_MAX / 64 || k > SIZE_MAX / 64)
        return nb_rule_hit(NULL, err, "SHP-016", w->file, w->name,
                           "qweight is %" PRIu64 "x%" PRIu64 ", expected at least one row and one input.", w->shape[0], k);
    n = w->shape[0] * 4;
    if (k % 64)
        return nb_rule_hit(NULL, err, "SHP-008", w->file, name,
                           "%s needs inputs %% 64 = 0 and outputs %% 4 = 0, got %" PRIu64 "\xc3\x97%" PRIu64 ".", lin->format->name, k, n);
    if ((rc = nb_awq_check_bits(lin, err)) != NB_OK || (rc = nb_awq_check_group(lin, k, &g, err)) != NB_OK)
        return rc;
    if (nb_awq_zeros_width(k, g) == 0)
        return nb_rule_hit(NULL, err, "SHP-017", w->file, name,
                           "%s: the %s layout has no group size %" PRIu64 " (16, 32, 64, 128 and above).", name, lin->format->name, g);
    if ((rc = check_floats(lin, P_SCALES, n, k, g, err)) != NB_OK || (rc = check_floats(lin, P_OFFSETS, n, k, g, err)) != NB_OK ||
        (rc = nb_check_bias(lin, n, err)) != NB_OK)
        return rc;
    lin->n = (size_t)n;
    lin->k = (size_t)k;
    lin->g = (size_t)g;
    lin->spec.scale_dtype = lin->parts[P_SCALES]->dtype;
    return NB_OK;
}

/* First word of the 16 of output n and inputs 64b .. 64b+63, in words. */
static size_t word_at(size_t n, size_t b, size_t k)
{
    return n / 4 * k + b * 64 + n % 4 * 16;
}

/* The integer behind offset = -(scale * zero), or -1 when none is near enough (VAL-011). */
static int zero_of(float scale, float offset)
{
    double x, z;

    if (scale == 0)
        return offset == 0 ? 0 : -1;
    x = -(double)offset / (double)scale;
    z = nearbyint(x);
    return z >= 0 && z <= 15 && fabs(x - z) <= 0x1p-7 * (z > 1 ? z : 1) ? (int)z : -1;
}

static nb_status unpack(const nb_linear *lin, size_t n0, nb_qlin *q, nb_err *err)
{
    const nb_tensor *s = lin->parts[P_SCALES], *z = lin->parts[P_OFFSETS];
    const unsigned char *w = lin->parts[P_QWEIGHT]->data;
    const nb_awq_at at = { 1, lin->n };
    nb_status rc = nb_awq_check_stripe(lin, n0, q, err);
    uint64_t bad = 0;

    if (rc != NB_OK || (rc = nb_qlin_init_offsets(q, err)) != NB_OK)
        return rc;
    for (size_t o = 0; o < q->n; o++)
        for (size_t b = 0; b < q->k / 64; b++) {
            uint8_t *to = q->codes + o * q->k + b * 64;
            for (size_t j = 0; j < 16; j++) {
                const unsigned v = nb_le16(w + 2 * (word_at(n0 + o, b, q->k) + j));
                for (size_t i = 0; i < 4; i++)
                    to[j / 8 * 32 + 8 * i + j % 8] = v >> 4 * i & 15;
            }
        }
    nb_awq_read_floats(s, at, n0, q->n, q->n_groups, q->scales);
    nb_awq_read_floats(z, at, n0, q->n, q->n_groups, q->offsets);
    for (size_t i = 0; i < q->n * q->n_groups; i++) {
        const int v = zero_of(q->scales[i], q->offsets[i]);
        bad += v < 0;
        q->zeros[i] = v < 0 ? 0 : (uint8_t)v;
    }
    q->bits = 4;
    q->scale_dtype = s->dtype;
    if (bad)
        return nb_rule_hit(NULL, err, "VAL-011", z->file, z->name,
                           "%s is not -scale \xc3\x97 integer for %" PRIu64 " groups; this is not a %s tensor.",
                           lin->format->parts[P_OFFSETS].suffix, bad, lin->format->name);
    return NB_OK;
}

static uint64_t padding(const nb_linear *lin)
{
    const size_t first = lin->k / lin->g * lin->n;
    uint64_t bad = 0;

    for (size_t p = P_OFFSETS; p <= P_SCALES; p++) {
        const nb_tensor *t = lin->parts[p];
        const size_t item = nb_dtype_info(t->dtype)->bits / 8, all = (size_t)t->n_bytes / item;
        static const unsigned char none[4];
        for (size_t i = first; i < all; i++)
            bad += memcmp(t->data + i * item, none, item) != 0;
    }
    return bad;
}

/* q->offsets, or -(scale * zero) rounded to the type of the scales. */
static nb_status pack_offsets(const nb_qlin *q, size_t n0, size_t n, unsigned char *out, nb_err *err)
{
    const size_t item = nb_dtype_info(q->scale_dtype)->bits / 8;

    if (q->offsets)
        return nb_awq_write_floats(q->offsets, (nb_awq_at){ 1, n }, n0, q->n, q->n_groups, q->scale_dtype, out, err);
    for (size_t o = 0; o < q->n; o++)
        for (size_t g = 0; g < q->n_groups; g++) {
            const size_t i = o * q->n_groups + g;
            const float v = -(q->scales[i] * (float)q->zeros[i]);
            unsigned char *to = out + (g * n + n0 + o) * item;
            if (!nb_from_f32(to, &v, q->scale_dtype, 1))
                return nb_fail(err, NB_EARG, "arg.dtype", "", "offsets cannot be stored as %s", nb_dtype_info(q->scale_dtype)->name);
            if (q->scales[i] != 0) { /* float16 ends at 65504 and is coarse below 6e-5 */
                float back;
                nb_to_f32(&back, to, q->scale_dtype, 1);
                if (zero_of(q->scales[i], back) != q->zeros[i])
                    return nb_fail(err, NB_ENUMERIC, "num.scale_inexact", "CNV-030",
                                   "the offset -%.9g * %u of output %zu, group %zu cannot be stored in %s", (double)q->scales[i],
                                   q->zeros[i], n0 + o, g, nb_dtype_info(q->scale_dtype)->name);
            }
        }
    return NB_OK;
}

static nb_status pack(const nb_qlin *q, size_t n0, size_t n, void *const out[NB_MAX_PARTS], nb_err *err)
{
    const size_t rows = 8 * (size_t)nb_awq_zeros_width(q->k, q->g), item = nb_dtype_info(q->scale_dtype)->bits / 8;
    nb_status rc = nb_awq_check_pack(q, n0, n, 4, err);
    unsigned char *w = out[P_QWEIGHT];
    uint8_t seen = 0;

    if (rc != NB_OK)
        return rc;
    if (q->k % 64 || n % 8)
        return nb_fail(err, NB_EUNSUPPORTED, "qt.shape", "SHP-008",
                       "this layout needs inputs %% 64 = 0 and outputs %% 8 = 0 to be written, got %zu\xc3\x97%zu.", q->k, n);
    if (rows == 0)
        return nb_fail(err, NB_EUNSUPPORTED, "conv.shape", "CNV-050", "this layout has no group size %zu (16, 32, 64, 128 and above).",
                       q->g);
    for (size_t i = 0; i < q->n * q->n_groups; i++)
        seen |= q->zeros[i];
    for (size_t o = 0; o < q->n; o++)
        for (size_t b = 0; b < q->k / 64; b++) {
            const uint8_t *from = q->codes + o * q->k + b * 64;
            for (size_t j = 0; j < 16; j++) {
                unsigned v = 0;
                for (size_t i = 0; i < 4; i++) {
                    const uint8_t c = from[j / 8 * 32 + 8 * i + j % 8];
                    v |= (unsigned)c << 4 * i;
                    seen |= c;
                }
                nb_put_le16(w + 2 * (word_at(n0 + o, b, q->k) + j), (uint16_t)v);
            }
        }
    if (seen > 15)
        return nb_fail(err, NB_EARG, "arg.codes", "", "codes or zero points above 15 do not fit 4 bits");
    for (size_t p = P_OFFSETS; p <= P_SCALES; p++)
        for (size_t g = q->n_groups; g < rows; g++)
            memset((unsigned char *)out[p] + (g * n + n0) * item, 0, q->n * item);
    if ((rc = nb_awq_write_floats(q->scales, (nb_awq_at){ 1, n }, n0, q->n, q->n_groups, q->scale_dtype, out[P_SCALES], err)) != NB_OK)
        return rc;
    return pack_offsets(q, n0, n, out[P_OFFSETS], err);
}

static nb_json *config_fast(const nb_qspec *spec, const char *const *skip, size_t n_skip)
{
    return nb_awq_config(spec, "gemv_fast", true, skip, n_skip);
}

static nb_json *config_llm(const nb_qspec *spec, const char *const *skip, size_t n_skip)
{
    return nb_awq_config(spec, "llm-awq", true, skip, n_skip);
}

const nb_format nb_fmt_awq_gemv_fast = {
    .name = "awq-gemv-fast",
    .method = "awq",
    .version = "gemv_fast",
    .stripe = 4,
    .offsets = true,
    .parts = { [P_QWEIGHT] = { "qweight", NB_DT_I16, "n/4 k", false, NB_PART_CODES, NB_STORE_ALWAYS },
               [P_OFFSETS] = { "qzeros", NB_DT_NONE, "8*z n", false, NB_PART_ZEROS, NB_STORE_ALWAYS },
               [P_SCALES] = { "scales", NB_DT_NONE, "8*z n", false, NB_PART_SCALES, NB_STORE_ALWAYS } },
    .match = match_fast,
    .shape = shape,
    .unpack = unpack,
    .pack = pack,
    .padding = padding,
    .config = config_fast,
};

const nb_format nb_fmt_llm_awq = {
    .name = "llm-awq",
    .method = "awq",
    .version = "llm-awq",
    .stripe = 4,
    .offsets = true,
    .parts = { [P_QWEIGHT] = { "qweight", NB_DT_I16, "n/4 k", false, NB_PART_CODES, NB_STORE_ALWAYS },
               [P_OFFSETS] = { "scaled_zeros", NB_DT_NONE, "8*z n", false, NB_PART_ZEROS, NB_STORE_ALWAYS },
               [P_SCALES] = { "scales", NB_DT_NONE, "8*z n", false, NB_PART_SCALES, NB_STORE_ALWAYS } },
    .match = match_llm,
    .shape = shape,
    .unpack = unpack,
    .pack = pack,
    .padding = padding,
    .config = config_llm,
};

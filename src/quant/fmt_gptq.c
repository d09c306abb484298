/* fmt_gptq.c - GPTQ: what AutoGPTQ and GPTQModel write as gptq (v1), gptq_v2 and gptq_p.
 *
 * Column n of qweight is one little-endian stream of the codes of output n along the inputs; a row of qzeros is one stream of
 * the zero points of a group along the outputs. Four bits:
 *
 *   qweight[r][n]   bits  31-28 27-24 23-20 19-16 15-12 11-8  7-4   3-0
 *                   input 8r+7  8r+6  8r+5  8r+4  8r+3  8r+2  8r+1  8r
 *
 * v1 stores zero point minus one, modulo 2^bits; v2 and gptq_p store it as it is. gptq_p splits blocks of 32 codes in bit planes,
 * which changes 3, 5, 6 and 7 bits only.
 * Source: formats 2.1, 2.4, 3.10, 3.11 (AutoGPTQ qlinear_cuda.py at 9f7d370, GPTQModel 7.3.4); docs/formats/gptq.md. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/bits.h"
#include "base/mem.h"
#include "quant/bitpack.h"
#include "quant/formats.h"
#include "quant/parts.h"

enum { P_QWEIGHT, P_QZEROS, P_SCALES, P_G_IDX };
enum { BLOCK = 32, COLS = 16 }; /* codes in a block; columns moved at a time: one cache line of words */

static bool is_word(const nb_tensor *t)
{
    return t && t->rank == 2 && (t->dtype == NB_DT_I32 || t->dtype == NB_DT_U32);
}

static bool match(const nb_evidence *e) /* [K*b/32, N], scales [Gn, N] */
{
    return is_word(e->qweight) && is_word(e->qzeros) && e->scales && e->scales->rank == 2 && e->qweight->shape[1] == e->scales->shape[1];
}

static bool no_match(const nb_evidence *e)
{
    (void)e;
    return false;
}

static nb_packing packing(const nb_format *f)
{
    return f == &nb_fmt_gptq_p ? NB_PACK_PLANAR : NB_PACK_STREAM;
}

static bool bits_fit(const nb_format *f, unsigned bits)
{
    return f == &nb_fmt_gptq_p || bits == 2 || bits == 3 || bits == 4 || bits == 8;
}

/* ---- shapes --------------------------------------------------------------------------------------------------- */

/* The width that the words tell: from g_idx, which has an entry per input, else from qzeros. 0: none fits. */
static unsigned width_of(const nb_linear *lin)
{
    const nb_tensor *w = lin->parts[P_QWEIGHT], *z = lin->parts[P_QZEROS], *g = lin->parts[P_G_IDX];
    const uint64_t words = g ? w->shape[0] : z->shape[1], codes = g ? g->shape[0] : w->shape[1];

    for (unsigned b = 2; b <= 8; b++)
        if (codes <= UINT64_MAX / 8 && words <= UINT64_MAX / 32 && codes * b == words * 32)
            return b;
    return 0;
}

static nb_status check_width(const nb_linear *lin, const char *name, nb_err *err)
{
    const nb_tensor *w = lin->parts[P_QWEIGHT];
    const unsigned found = width_of(lin), b = lin->spec.bits;
    const uint64_t rows = w->shape[0], n = w->shape[1];

    if (rows == 0 || n == 0 || rows > SIZE_MAX / 64 || n > SIZE_MAX / 64)
        return nb_rule_hit(NULL, err, "SHP-016", w->file, w->name,
                           "qweight is %" PRIu64 "x%" PRIu64 ", expected at least one word and one output.", rows, n);
    if (found && found != b)
        return nb_rule_hit(NULL, err, "CFG-006", w->file, name,
                           "Config says %u-bit, but %s.qweight has %" PRIu64 " words for %" PRIu64 " values, which only fits %u-bit.", b,
                           name, rows, rows * 32 / found, found);
    if (rows * 32 % b != 0 || n * b % 32 != 0 || (lin->format == &nb_fmt_gptq_p && (rows % b != 0 || n % 32 != 0)))
        return nb_rule_hit(NULL, err, "SHP-009", w->file, name, "%s: %" PRIu64 "x%" PRIu64 " does not fill whole words at %u bits.", name,
                           rows * 32 / b, n, b);
    return NB_OK;
}

static nb_status check_groups(const nb_linear *lin, const char *name, nb_err *err)
{
    const nb_tensor *s = lin->parts[P_SCALES], *z = lin->parts[P_QZEROS];
    const uint64_t gn = (uint64_t)(lin->k / lin->g + (lin->k % lin->g != 0)), rows = s->shape[0];
    const uint64_t want[2] = { gn, lin->n }, want_z[2] = { gn, (uint64_t)lin->n * lin->spec.bits / 32 };
    char a[64], b[64];

    nb_shape_str(a, sizeof a, s->shape, 2);
    nb_shape_str(b, sizeof b, want, 2);
    if (rows != gn || s->shape[1] != lin->n) {
        if (rows == lin->n && s->shape[1] == gn)
            return nb_rule_hit(NULL, err, "SHP-005", s->file, s->name, "scales look transposed: found %s, expected %s.", a, b);
        if (s->shape[1] == lin->n && rows && lin->k % rows == 0)
            return nb_rule_hit(NULL, err, "CFG-007", s->file, name,
                               "Config says group_size %" PRId64 " (%" PRIu64 " groups for %zu inputs), but scales has %" PRIu64
                               " rows: the tensors were made with group size %" PRIu64 ".",
                               lin->spec.group_size, gn, lin->k, rows, lin->k / rows);
        return nb_rule_hit(NULL, err, "SHP-016", s->file, s->name, "scales is %s, expected %s.", a, b);
    }
    if (z->shape[0] != want_z[0] || z->shape[1] != want_z[1])
        return nb_rule_hit(NULL, err, "SHP-006", z->file, z->name, "qzeros is %s, expected %s.", nb_shape_str(a, sizeof a, z->shape, 2),
                           nb_shape_str(b, sizeof b, want_z, 2));
    return NB_OK;
}

static nb_status shape(nb_linear *lin, nb_err *err)
{
    nb_status rc = nb_check_parts(lin, err);
    char name[NB_ESC_CAP];
    uint64_t k;

    if (rc != NB_OK)
        return rc;
    nb_esc(name, sizeof name, lin->prefix, strlen(lin->prefix));
    if (lin->format != &nb_fmt_gptq_p && lin->spec.bits >= 5 && lin->spec.bits <= 7) {
        lin->format = &nb_fmt_gptq_p; /* these widths have no other layout */
        lin->variant = NB_ZEROS_TRUE;
    }
    if ((rc = check_width(lin, name, err)) != NB_OK)
        return rc;
    k = lin->parts[P_QWEIGHT]->shape[0] * 32 / lin->spec.bits;
    lin->n = (size_t)lin->parts[P_QWEIGHT]->shape[1];
    lin->k = (size_t)k;
    lin->g = lin->spec.group_size < 0 || (uint64_t)lin->spec.group_size > k ? lin->k : (size_t)lin->spec.group_size;
    lin->spec.scale_dtype = lin->parts[P_SCALES]->dtype;
    if ((rc = check_groups(lin, name, err)) != NB_OK || (rc = nb_check_g_idx(lin, lin->parts[P_G_IDX], err)) != NB_OK)
        return rc;
    return nb_check_bias(lin, lin->n, err);
}

/* ---- reading -------------------------------------------------------------------------------------------------- */

/* Codes of outputs [n0, n0 + nc), nc <= COLS, into out[nc][k]. */
static void unpack_columns(const nb_linear *lin, size_t n0, size_t nc, uint8_t *out)
{
    const nb_tensor *t = lin->parts[P_QWEIGHT];
    const unsigned bits = lin->spec.bits;
    const nb_packing p = packing(lin->format);
    const size_t rows = (size_t)t->shape[0];
    unsigned char words[COLS][4 * 8];
    uint8_t last[BLOCK];

    for (size_t r = 0, k = 0; r < rows; r += bits, k += BLOCK) {
        const size_t nr = rows - r < bits ? rows - r : bits, left = lin->k - k;
        if (nr < bits)
            memset(words, 0, sizeof words);
        for (size_t i = 0; i < nr; i++)
            for (size_t c = 0; c < nc; c++)
                memcpy(&words[c][4 * i], t->data + ((r + i) * lin->n + n0 + c) * 4, 4);
        for (size_t c = 0; c < nc; c++) {
            if (left >= BLOCK) {
                nb_unpack32(p, bits, words[c], out + c * lin->k + k);
            } else {
                nb_unpack32(p, bits, words[c], last);
                memcpy(out + c * lin->k + k, last, left);
            }
        }
    }
}

/* What turns stored words or fields into true zero points (formats 3.10). */
static void true_zeros(const nb_linear *lin, size_t word0, unsigned char words[4 * 8], uint8_t z[BLOCK])
{
    static const uint32_t ones[9] = { [2] = 0x55555555u, [4] = 0x11111111u, [8] = 0x01010101u };
    static const uint32_t legacy[3] = { 0x24924924u, 0x92492492u, 0x49249249u };
    const unsigned bits = lin->spec.bits, maxq = (1u << bits) - 1;

    if (lin->variant == NB_ZEROS_WORD && ones[bits])
        for (unsigned i = 0; i < bits; i++)
            nb_put_le32(words + 4 * i, nb_le32(words + 4 * i) + ones[bits]);
    if (lin->variant == NB_ZEROS_LEGACY3 && bits == 3)
        for (unsigned i = 0; i < 3; i++)
            nb_put_le32(words + 4 * i, nb_le32(words + 4 * i) + legacy[(word0 + i) % 3]);
    nb_unpack32(packing(lin->format), bits, words, z);
    if (lin->variant == NB_ZEROS_FIELD || (lin->variant == NB_ZEROS_WORD && !ones[bits]))
        for (unsigned i = 0; i < BLOCK; i++)
            z[i] = (uint8_t)((z[i] + 1u) & maxq);
}

static void unpack_zeros(const nb_linear *lin, size_t n0, nb_qlin *q)
{
    const nb_tensor *t = lin->parts[P_QZEROS];
    const unsigned bits = lin->spec.bits;
    const size_t width = (size_t)t->shape[1];
    unsigned char words[4 * 8];
    uint8_t z[BLOCK];

    for (size_t g = 0; g < q->n_groups; g++)
        for (size_t o = 0; o < q->n;) {
            const size_t n = n0 + o, in = n % BLOCK, w0 = n / BLOCK * bits, left = width - w0;
            size_t m = BLOCK - in < q->n - o ? BLOCK - in : q->n - o;
            memset(words, 0, sizeof words);
            memcpy(words, t->data + (g * width + w0) * 4, (left < bits ? left : bits) * 4);
            true_zeros(lin, w0, words, z);
            for (size_t i = 0; i < m; i++)
                q->zeros[(o + i) * q->n_groups + g] = z[in + i];
            o += m;
        }
}

static nb_status unpack(const nb_linear *lin, size_t n0, nb_qlin *q, nb_err *err)
{
    nb_status rc = nb_check_stripe(lin, n0, q, err);

    if (rc != NB_OK)
        return rc;
    for (size_t o = 0; q->codes && o < q->n; o += COLS)
        unpack_columns(lin, n0 + o, q->n - o < COLS ? q->n - o : COLS, q->codes + o * lin->k);
    unpack_zeros(lin, n0, q);
    nb_get_scales(lin->parts[P_SCALES], n0, q);
    q->bits = lin->spec.bits;
    return nb_get_g_idx(lin, lin->parts[P_G_IDX], q, err);
}

/* ---- writing -------------------------------------------------------------------------------------------------- */

/* The mirror of unpack_columns: columns n0 .. n0 + nc of a qweight of n outputs. Returns the OR of all codes. */
static uint8_t pack_columns(nb_packing p, const nb_qlin *q, const uint8_t *in, size_t n0, size_t nc, size_t n, unsigned char *out)
{
    const size_t rows = (size_t)nb_packed_words(NB_PACK_STREAM, q->bits, q->k);
    unsigned char words[COLS][4 * 8];
    uint8_t last[BLOCK] = { 0 }, seen = 0;

    for (size_t r = 0, k = 0; r < rows; r += q->bits, k += BLOCK) {
        const size_t nr = rows - r < q->bits ? rows - r : q->bits, nk = q->k - k < BLOCK ? q->k - k : BLOCK;
        for (size_t c = 0; c < nc; c++) {
            const uint8_t *src = in + c * q->k + k;
            for (size_t i = 0; i < nk; i++)
                seen |= src[i];
            if (nk < BLOCK)
                src = memcpy(last, src, nk);
            nb_pack32(p, q->bits, src, words[c]);
        }
        for (size_t i = 0; i < nr; i++)
            for (size_t c = 0; c < nc; c++)
                memcpy(out + ((r + i) * n + n0 + c) * 4, &words[c][4 * i], 4);
    }
    return seen;
}

/* pack_columns for four bits and COLS columns: 64 inputs at a time, so that whole cache lines come in and go out. */
static uint8_t pack_nibbles(const nb_qlin *q, const uint8_t *in, size_t n0, size_t n, unsigned char *out)
{
    enum { WORDS = 8 };
    const size_t full = q->k / (8 * WORDS) * (8 * WORDS);
    uint32_t tile[WORDS][COLS];
    uint64_t seen = 0;

    for (size_t k = 0; k < full; k += 8 * WORDS) {
        for (size_t c = 0; c < COLS; c++)
            for (size_t r = 0; r < WORDS; r++) {
                uint64_t v = nb_le64(in + c * q->k + k + 8 * r);
                seen |= v;
                v = (v | v >> 4) & 0x00ff00ff00ff00ffu;
                v = (v | v >> 8) & 0x0000ffff0000ffffu;
                tile[r][c] = (uint32_t)(v | v >> 16);
            }
        for (size_t r = 0; r < WORDS; r++)
            for (size_t c = 0; c < COLS; c++)
                nb_put_le32(out + ((k / 8 + r) * n + n0 + c) * 4, tile[r][c]);
    }
    for (size_t k = full; k < q->k; k += 8)
        for (size_t c = 0; c < COLS; c++) {
            uint32_t w = 0;
            for (size_t i = 0; i < 8; i++) {
                seen |= in[c * q->k + k + i];
                w |= (in[c * q->k + k + i] & 15u) << 4 * i;
            }
            nb_put_le32(out + (k / 8 * n + n0 + c) * 4, w);
        }
    seen |= seen >> 32;
    seen |= seen >> 16;
    return (uint8_t)(seen | seen >> 8);
}

/* Zero points, in v1 minus one. Returns how many are 0 there, which v1 cannot hold. */
static size_t pack_zeros(nb_packing p, bool minus, const nb_qlin *q, size_t n0, size_t n, unsigned char *out, uint8_t *seen)
{
    const size_t width = n * q->bits / 32;
    const uint8_t maxq = (uint8_t)((1u << q->bits) - 1);
    unsigned char words[4 * 8];
    uint8_t z[BLOCK];
    size_t n_zero = 0;

    for (size_t g = 0; g < q->n_groups; g++)
        for (size_t o = 0; o < q->n; o += BLOCK) {
            const size_t m = q->n - o < BLOCK ? q->n - o : BLOCK;
            memset(z, 0, sizeof z);
            for (size_t i = 0; i < m; i++) {
                z[i] = q->zeros[(o + i) * q->n_groups + g];
                *seen |= z[i];
                n_zero += minus && z[i] == 0;
                z[i] = (uint8_t)(z[i] - minus) & maxq;
            }
            nb_pack32(p, q->bits, z, words);
            memcpy(out + (g * width + (n0 + o) / BLOCK * q->bits) * 4, words, m * q->bits / 32 * 4);
        }
    return n_zero;
}

static nb_status pack_as(const nb_format *f, const nb_qlin *q, size_t n0, size_t n, void *const out[NB_MAX_PARTS], nb_err *err)
{
    const nb_packing p = packing(f);
    uint8_t seen = 0;
    size_t n_zero;

    if (!bits_fit(f, q->bits))
        return nb_fail(err, NB_EUNSUPPORTED, "cfg.quant_bits", "CFG-004", "%u-bit codes have no %s layout. \xe2\x86\x92 Use gptq_p.",
                       q->bits, f->name);
    if (n0 % BLOCK || n0 > n || q->n > n - n0 || (q->n % BLOCK && n0 + q->n != n))
        return nb_fail(err, NB_EARG, "arg.stripe", "", "outputs %zu .. %zu of %zu are no stripe", n0, n0 + q->n, n);
    if (q->k % BLOCK || n % BLOCK) /* packers and loaders work in blocks of 32 */
        return nb_fail(err, NB_EFORMAT, "qt.shape", "SHP-009", "%zux%zu does not fill whole words at %u bits.", q->k, n, q->bits);
    if (q->k % q->g) /* most loaders reject a short last group (formats 3.10) */
        return nb_fail(err, NB_EFORMAT, "cfg.group_size", "SHP-004", "%zu inputs are not a multiple of group size %zu.", q->k, q->g);
    for (size_t o = 0; q->codes && o < q->n; o += COLS) {
        const uint8_t *codes = q->codes + o * q->k;
        const size_t nc = q->n - o < COLS ? q->n - o : COLS;
        seen |= q->bits == 4 && nc == COLS ? pack_nibbles(q, codes, n0 + o, n, out[P_QWEIGHT])
                                           : pack_columns(p, q, codes, n0 + o, nc, n, out[P_QWEIGHT]);
    }
    n_zero = pack_zeros(p, f == &nb_fmt_gptq, q, n0, n, out[P_QZEROS], &seen);
    if (seen >> q->bits)
        return nb_fail(err, NB_EARG, "arg.codes", "", "codes or zero points above %u do not fit %u bits", (1u << q->bits) - 1, q->bits);
    if (n_zero)
        return nb_fail(err, NB_EFORMAT, "conv.zero", "CNV-020",
                       "%zu zero points are 0 and cannot be stored in GPTQ v1. \xe2\x86\x92 Use --to gptq-v2.", n_zero);
    if (n0 == 0 && out[P_G_IDX])
        nb_put_g_idx(q, out[P_G_IDX]);
    return nb_put_scales(q, n0, n, out[P_SCALES], err);
}

static nb_status pack_v1(const nb_qlin *q, size_t n0, size_t n, void *const out[NB_MAX_PARTS], nb_err *err)
{
    return pack_as(&nb_fmt_gptq, q, n0, n, out, err);
}

static nb_status pack_v2(const nb_qlin *q, size_t n0, size_t n, void *const out[NB_MAX_PARTS], nb_err *err)
{
    return pack_as(&nb_fmt_gptq_v2, q, n0, n, out, err);
}

static nb_status pack_p(const nb_qlin *q, size_t n0, size_t n, void *const out[NB_MAX_PARTS], nb_err *err)
{
    return pack_as(&nb_fmt_gptq_p, q, n0, n, out, err);
}

/* ---- config --------------------------------------------------------------------------------------------------- */

/* "-:^model\.layers\.1\.mlp\.down_proj$": a pattern for exactly one module. Caller frees. */
static char *exact_pattern(const char *sign, const char *module)
{
    nb_buf b = { 0 };

    nb_buf_puts(&b, sign);
    nb_buf_putc(&b, '^');
    for (const char *s = module; *s; s++) {
        if (strchr(".^$*+?()[]{}|\\", *s))
            nb_buf_putc(&b, '\\');
        nb_buf_putc(&b, *s);
    }
    nb_buf_putc(&b, '$');
    if (b.failed) {
        nb_buf_clear(&b);
        return NULL;
    }
    return b.p;
}

static bool set_rule(nb_json *dynamic, const char *sign, const char *module, nb_json *value)
{
    char *key = exact_pattern(sign, module);
    bool ok;

    if (!key) {
        nb_json_free(value);
        return false;
    }
    ok = nb_json_set(dynamic, key, value);
    nb_free(key);
    return ok;
}

static nb_json *config_as(const char *version, const nb_qspec *spec, const char *const *skip, size_t n_skip)
{
    nb_json *o = nb_json_new_obj(), *dynamic = nb_json_new_obj();
    bool ok = o && dynamic, any = false;

    for (size_t i = 0; i < n_skip && ok; i++)
        if (strcmp(skip[i], "lm_head") != 0) { /* never quantized unless lm_head says so */
            ok = set_rule(dynamic, "-:", skip[i], nb_json_new_obj());
            any = true;
        }
    ok = ok && nb_json_set(o, "quant_method", nb_json_new_str("gptq")) && nb_json_set(o, "bits", nb_json_new_int(spec->bits)) &&
         nb_json_set(o, "group_size", nb_json_new_int(spec->group_size)) && nb_json_set(o, "desc_act", nb_json_new_bool(spec->desc_act)) &&
         nb_json_set(o, "sym", nb_json_new_bool(spec->sym)) && nb_json_set(o, "static_groups", nb_json_new_bool(false)) &&
         nb_json_set(o, "true_sequential", nb_json_new_bool(true)) && nb_json_set(o, "checkpoint_format", nb_json_new_str(version)) &&
         nb_json_set(o, "format", nb_json_new_str(version)) && nb_json_set(o, "lm_head", nb_json_new_bool(false)) &&
         nb_json_set(o, "pack_dtype", nb_json_new_str("int32"));
    if (ok && any) {
        ok = nb_json_set(o, "dynamic", dynamic);
        dynamic = NULL;
    }
    ok = ok && nb_json_set(o, "meta", nb_config_meta());
    nb_json_free(dynamic);
    if (!ok) {
        nb_json_free(o);
        return NULL;
    }
    return o;
}

static nb_json *config_v1(const nb_qspec *spec, const char *const *skip, size_t n_skip)
{
    return config_as("gptq", spec, skip, n_skip);
}

static nb_json *config_v2(const nb_qspec *spec, const char *const *skip, size_t n_skip)
{
    return config_as("gptq_v2", spec, skip, n_skip);
}

static nb_json *config_p(const nb_qspec *spec, const char *const *skip, size_t n_skip)
{
    return config_as("gptq_p", spec, skip, n_skip);
}

/* "dynamic" of GPTQModel; behind the "-:" entries that config() wrote. */
static bool override(nb_json *config, const char *module, const nb_qspec *spec)
{
    const nb_json *old = nb_json_get(config, "dynamic");
    nb_json *dynamic = old ? nb_json_copy(old) : nb_json_new_obj(), *v = nb_json_new_obj();
    bool ok = dynamic && v;

    ok = ok && nb_json_set(v, "bits", nb_json_new_int(spec->bits)) && nb_json_set(v, "group_size", nb_json_new_int(spec->group_size)) &&
         nb_json_set(v, "sym", nb_json_new_bool(spec->sym)) && nb_json_set(v, "desc_act", nb_json_new_bool(spec->desc_act));
    if (ok) {
        ok = set_rule(dynamic, "+:", module, v);
        v = NULL;
    }
    if (ok && strcmp(module, "lm_head") == 0)
        ok = nb_json_set(config, "lm_head", nb_json_new_bool(true));
    if (ok) {
        ok = nb_json_set(config, "dynamic", dynamic);
        dynamic = NULL;
    }
    nb_json_free(v);
    nb_json_free(dynamic);
    return ok;
}

#define GPTQ_PARTS                                                                                                                         \
    {                                                                                                                                      \
        [P_QWEIGHT] = { "qweight", NB_DT_I32, "k*b/32 n", false, NB_PART_CODES, NB_STORE_ALWAYS },                                         \
        [P_QZEROS] = { "qzeros", NB_DT_I32, "k/g n*b/32", false, NB_PART_ZEROS, NB_STORE_ALWAYS }, [P_SCALES] = { "scales",                \
                                                                                                                  NB_DT_NONE,              \
                                                                                                                  "k/g n",                 \
                                                                                                                  false,                   \
                                                                                                                  NB_PART_SCALES,          \
                                                                                                                  NB_STORE_ALWAYS },       \
        [P_G_IDX] = { "g_idx", NB_DT_I32, "k", true, NB_PART_G_IDX, NB_STORE_ALWAYS },                                                     \
    }

const nb_format nb_fmt_gptq = {
    .name = "gptq",
    .method = "gptq",
    .version = "gptq",
    .stripe = BLOCK,
    .words = NB_WORDS_BY_INPUT,
    .parts = GPTQ_PARTS,
    .match = match,
    .shape = shape,
    .unpack = unpack,
    .pack = pack_v1,
    .config = config_v1,
    .override = override,
};

const nb_format nb_fmt_gptq_v2 = {
    .name = "gptq_v2",
    .family = "gptq",
    .method = "gptq",
    .version = "gptq_v2",
    .stripe = BLOCK,
    .words = NB_WORDS_BY_INPUT,
    .parts = GPTQ_PARTS,
    .match = no_match,
    .shape = shape,
    .unpack = unpack,
    .pack = pack_v2,
    .config = config_v2,
    .override = override,
};

const nb_format nb_fmt_gptq_p = {
    .name = "gptq_p",
    .family = "gptq",
    .method = "gptq",
    .version = "gptq_p",
    .stripe = BLOCK,
    .words = NB_WORDS_BY_INPUT,
    .parts = GPTQ_PARTS,
    .match = no_match,
    .shape = shape,
    .unpack = unpack,
    .pack = pack_p,
    .config = config_p,
    .override = override,
};

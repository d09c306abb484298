/* fmt_awq_gemm.c - AWQ GEMM, 4 bit: what AutoAWQ writes as version "gemm".
 *
 * Word j of input row k holds the codes of outputs 8j .. 8j+7:
 *
 *   bits    31-28 27-24 23-20 19-16 15-12 11-8  7-4   3-0
 *   output   +7    +5    +3    +1    +6    +4    +2    +0
 *
 * Zero points are packed the same way, one row per group, and are the value subtracted.
 * Source: formats 2.2, 3.1 (AutoAWQ awq/modules/linear/gemm.py at 88e4c76); docs/formats/awq-gemm.md. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/bits.h"
#include "base/mem.h"
#include "quant/formats.h"

enum { P_QWEIGHT, P_QZEROS, P_SCALES };
enum { PER_WORD = 8 };             /* outputs in one word                                    */
enum { TILE_K = 64, TILE_W = 16 }; /* inputs x words moved at a time: one cache line per row */

static bool is_word(nb_dtype t)
{
    return t == NB_DT_I32 || t == NB_DT_U32;
}

static bool match(const nb_evidence *e)
{
    const nb_tensor *w = e->qweight, *s = e->scales;
    uint64_t b;

    if (!w || !s || w->rank != 2 || s->rank != 2 || !is_word(w->dtype) || s->shape[1] == 0 || w->shape[1] > UINT64_MAX / 32)
        return false;
    if (e->qzeros && (e->qzeros->rank != 2 || e->qzeros->shape[1] != w->shape[1])) /* small GEMV layers look alike otherwise */
        return false;
    b = w->shape[1] * 32 / s->shape[1];
    return w->shape[1] * 32 % s->shape[1] == 0 && b >= 2 && b <= 8 && s->shape[0] <= w->shape[0];
}

/* "16, 32, 64": the usual sizes that divide k, into out. */
static const char *fitting_groups(char *out, size_t cap, uint64_t k)
{
    static const unsigned usual[] = { 16, 32, 64, 128, 256 };
    size_t at = 0;

    out[0] = 0;
    for (size_t i = 0; i < NB_LEN(usual); i++)
        if (k % usual[i] == 0)
            at += (size_t)snprintf(out + at, cap - at, "%s%u", at ? ", " : "", usual[i]);
    snprintf(out + at, cap - at, "%s-1", at ? ", " : "");
    return out;
}

static nb_status check_rank(const nb_tensor *t, unsigned want, nb_err *err)
{
    if (t->rank == want)
        return NB_OK;
    return nb_rule_hit(NULL, err, "SHP-015", t->file, t->name, "%s has %u dimensions, expected %u.", strrchr(t->name, '.') + 1, t->rank,
                       want);
}

static nb_status check_types(const nb_linear *lin, nb_err *err)
{
    nb_status rc;

    for (size_t p = 0; p < 3; p++) {
        const nb_tensor *t = lin->parts[p];
        if (!t)
            continue;
        if ((rc = check_rank(t, 2, err)) != NB_OK)
            return rc;
        if (p == P_SCALES) {
            if (t->dtype != NB_DT_F16 && t->dtype != NB_DT_BF16 && t->dtype != NB_DT_F32)
                return nb_rule_hit(NULL, err, "SHP-002", t->file, t->name, "scales are %s; scales must be floating point.",
                                   nb_dtype_info(t->dtype)->st);
        } else if (!is_word(t->dtype)) {
            return nb_rule_hit(NULL, err, "SHP-001", t->file, t->name, "%s is %s, expected I32.", lin->format->parts[p].suffix,
                               nb_dtype_info(t->dtype)->st);
        }
    }
    return lin->bias ? check_rank(lin->bias, 1, err) : NB_OK;
}

/* Outputs: from the words where they agree with scales, else the fault decides which rule is broken. */
static nb_status find_outputs(const nb_linear *lin, uint64_t *n, nb_err *err)
{
    const nb_tensor *w = lin->parts[P_QWEIGHT], *s = lin->parts[P_SCALES];
    const uint64_t words = w->shape[1], cols = s->shape[1];
    char name[NB_ESC_CAP];

    nb_esc(name, sizeof name, lin->prefix, strlen(lin->prefix));

    if (words == 0 || words > SIZE_MAX / 32 || w->shape[0] == 0)
        return nb_rule_hit(NULL, err, "SHP-016", w->file, w->name,
                           "qweight is %" PRIu64 "x%" PRIu64 ", expected at least one input and one word.", w->shape[0], words);
    *n = words * PER_WORD;
    if (cols == *n)
        return NB_OK;
    if (cols && cols % PER_WORD && (cols / PER_WORD == words || (cols + PER_WORD - 1) / PER_WORD == words))
        return nb_rule_hit(NULL, err, "SHP-003", w->file, name,
                           "%s: %" PRIu64 " outputs cannot fill whole 32-bit words at %u bits (needs a multiple of %d).", name, cols,
                           lin->spec.bits, PER_WORD);
    if (cols && words * 32 % cols == 0 && words * 32 / cols >= 2 && words * 32 / cols <= 8 && words * 32 / cols != lin->spec.bits)
        return nb_rule_hit(NULL, err, "CFG-006", w->file, name,
                           "Config says %u-bit, but %s.qweight has %" PRIu64 " words for %" PRIu64 " values, which only fits %" PRIu64
                           "-bit.",
                           lin->spec.bits, name, words, cols, words * 32 / cols);
    return NB_OK; /* the shape of scales is judged with the groups */
}

static nb_status check_groups(const nb_linear *lin, uint64_t k, uint64_t n, nb_err *err)
{
    const nb_tensor *s = lin->parts[P_SCALES], *z = lin->parts[P_QZEROS];
    const uint64_t g = lin->spec.group_size < 0 ? k : (uint64_t)lin->spec.group_size;
    const uint64_t rows = s->shape[0];
    char list[64], a[64], b[64], name[NB_ESC_CAP];
    uint64_t want[2];

    nb_esc(name, sizeof name, lin->prefix, strlen(lin->prefix));
    if (g == 0 || k % g != 0)
        return nb_rule_hit(NULL, err, "SHP-004", s->file, name,
                           "%s: %" PRIu64 " inputs are not a multiple of group size %" PRIu64 ". \xe2\x86\x92 "
                           "Pad the layer or use a group size that divides it (%s).",
                           name, k, g, fitting_groups(list, sizeof list, k));
    want[0] = k / g;
    want[1] = n;
    nb_shape_str(a, sizeof a, s->shape, s->rank);
    nb_shape_str(b, sizeof b, want, 2);
    if (rows != want[0] || s->shape[1] != want[1]) {
        if (rows == want[1] && s->shape[1] == want[0])
            return nb_rule_hit(NULL, err, "SHP-005", s->file, s->name, "scales look transposed: found %s, expected %s.", a, b);
        if (s->shape[1] == n && rows && k % rows == 0)
            return nb_rule_hit(NULL, err, "CFG-007", s->file, name,
                               "Config says group_size %" PRId64 " (%" PRIu64 " groups for %" PRIu64 " inputs), but scales has %" PRIu64
                               " rows: the tensors were made with group size %" PRIu64 ".",
                               lin->spec.group_size, want[0], k, rows, k / rows);
        return nb_rule_hit(NULL, err, "SHP-016", s->file, s->name, "scales is %s, expected %s.", a, b);
    }
    want[1] = n / PER_WORD;
    if (z && (z->shape[0] != want[0] || z->shape[1] != want[1]))
        return nb_rule_hit(NULL, err, "SHP-006", z->file, z->name, "qzeros is %s, expected %s.",
                           nb_shape_str(a, sizeof a, z->shape, z->rank), nb_shape_str(b, sizeof b, want, 2));
    return NB_OK;
}

static nb_status shape(nb_linear *lin, nb_err *err)
{
    nb_status rc = check_types(lin, err);
    uint64_t n = 0, k;

    if (rc != NB_OK)
        return rc;
    k = lin->parts[P_QWEIGHT]->shape[0];
    if ((rc = find_outputs(lin, &n, err)) != NB_OK)
        return rc;
    if (lin->spec.bits != 4)
        return nb_fail(err, NB_EUNSUPPORTED, "cfg.quant_bits", "CFG-004",
                       "AWQ GEMM with %u bits is not read by this version (supported: 4). \xe2\x86\x92 Use a 4-bit export of the model.",
                       lin->spec.bits);
    if ((rc = check_groups(lin, k, n, err)) != NB_OK)
        return rc;
    if (lin->bias && lin->bias->shape[0] != n)
        return nb_rule_hit(NULL, err, "SHP-011", lin->bias->file, lin->bias->name, "bias has %" PRIu64 " values, expected %" PRIu64 ".",
                           lin->bias->shape[0], n);
    lin->n = (size_t)n;
    lin->k = (size_t)k;
    lin->g = lin->spec.group_size < 0 ? lin->k : (size_t)lin->spec.group_size;
    lin->spec.scale_dtype = lin->parts[P_SCALES]->dtype;
    return NB_OK;
}

/* Transpose an 8x8 matrix of bytes, row i in v[i]: three rounds of swapped blocks. */
static inline void transpose8(uint64_t v[8])
{
    for (int i = 0; i < 8; i += 2) {
        const uint64_t t = (v[i] >> 8 ^ v[i + 1]) & 0x00ff00ff00ff00ffu;
        v[i + 1] ^= t;
        v[i] ^= t << 8;
    }
    for (int i = 0; i < 8; i += i % 4 == 1 ? 3 : 1) {
        const uint64_t t = (v[i] >> 16 ^ v[i + 2]) & 0x0000ffff0000ffffu;
        v[i + 2] ^= t;
        v[i] ^= t << 16;
    }
    for (int i = 0; i < 4; i++) {
        const uint64_t t = (v[i] >> 32 ^ v[i + 4]) & 0x00000000ffffffffu;
        v[i + 4] ^= t;
        v[i] ^= t << 32;
    }
}

/* Byte i of a spread word is nibble 2i (i < 4) or 2(i-4)+1; with the order above that is output byte_out[i]. */
static const uint8_t byte_out[8] = { 0, 4, 1, 5, 2, 6, 3, 7 };

static inline uint64_t spread(uint32_t w)
{
    return (uint64_t)(w & 0x0f0f0f0fu) | (uint64_t)(w >> 4 & 0x0f0f0f0fu) << 32;
}

static inline uint32_t gather(uint64_t v)
{
    return (uint32_t)v | (uint32_t)(v >> 32) << 4;
}

/* Eight inputs of eight outputs: w[i * stride] is the word of input i; row o goes to out + o * pitch, 8 bytes each. */
static inline void unpack8x8(const uint32_t *w, size_t stride, uint8_t *out, size_t pitch)
{
    uint64_t v[8];

    for (int i = 0; i < 8; i++)
        v[i] = spread(w[(size_t)i * stride]);
    transpose8(v);
    for (int i = 0; i < 8; i++)
        nb_put_le64(out + byte_out[i] * pitch, v[i]);
}

/* Codes of words [0, nw) and inputs [0, nk): src points at the first word, row_bytes apart; out[8*nw rows][pitch]. */
static void unpack_tile(const unsigned char *src, size_t row_bytes, size_t nw, size_t nk, uint8_t *out, size_t pitch)
{
    uint32_t buf[TILE_K * TILE_W];
    const size_t full = nk & ~(size_t)7;

    for (size_t k = 0; k < nk; k++)
        for (size_t j = 0; j < nw; j++)
            buf[k * TILE_W + j] = nb_le32(src + k * row_bytes + 4 * j);
    for (size_t j = 0; j < nw; j++) {
        uint8_t *rows = out + PER_WORD * j * pitch;
        for (size_t k = 0; k < full; k += 8)
            unpack8x8(buf + k * TILE_W + j, TILE_W, rows + k, pitch);
        for (size_t k = full; k < nk; k++) {
            const uint64_t v = spread(buf[k * TILE_W + j]);
            for (size_t i = 0; i < 8; i++)
                rows[byte_out[i] * pitch + k] = (uint8_t)(v >> 8 * i);
        }
    }
}

/* rows x words of a packed tensor, beginning at word w0, into out[8*nw][rows]. */
static void unpack_matrix(const nb_tensor *t, size_t w0, size_t nw, uint8_t *out)
{
    const size_t rows = (size_t)t->shape[0], row_bytes = (size_t)t->shape[1] * 4;

    for (size_t k = 0; k < rows; k += TILE_K) {
        const size_t nk = rows - k < TILE_K ? rows - k : TILE_K;
        for (size_t j = 0; j < nw; j += TILE_W) {
            const size_t w = nw - j < TILE_W ? nw - j : TILE_W;
            unpack_tile(t->data + k * row_bytes + 4 * (w0 + j), row_bytes, w, nk, out + PER_WORD * j * rows + k, rows);
        }
    }
}

static nb_status unpack(const nb_linear *lin, size_t n0, nb_qlin *q, nb_err *err)
{
    const nb_tensor *s = lin->parts[P_SCALES];
    const size_t gn = lin->k / lin->g, item = nb_dtype_info(s->dtype)->bits / 8;
    float row[256];

    if (n0 % PER_WORD || q->n % PER_WORD || n0 > lin->n || q->n > lin->n - n0 || q->k != lin->k || q->g != lin->g)
        return nb_fail(err, NB_EARG, "arg.stripe", "", "outputs %zu .. %zu are no stripe of a linear with %zu outputs", n0, n0 + q->n,
                       lin->n);
    unpack_matrix(lin->parts[P_QWEIGHT], n0 / PER_WORD, q->n / PER_WORD, q->codes);
    if (lin->parts[P_QZEROS])
        unpack_matrix(lin->parts[P_QZEROS], n0 / PER_WORD, q->n / PER_WORD, q->zeros);
    else
        memset(q->zeros, 8, q->n * gn); /* formats 9: symmetric without qzeros */
    q->bits = 4;
    q->scale_dtype = s->dtype;
    for (size_t i = 0; i < gn; i++)
        for (size_t o = 0; o < q->n; o += NB_LEN(row)) {
            const size_t w = q->n - o < NB_LEN(row) ? q->n - o : NB_LEN(row);
            nb_to_f32(row, s->data + (i * lin->n + n0 + o) * item, s->dtype, w);
            for (size_t x = 0; x < w; x++)
                q->scales[(o + x) * gn + i] = row[x];
        }
    return NB_OK;
}

/* The mirror of unpack_matrix: in[8*nw][rows] into words w0 .. w0+nw of out[rows][width]. Returns the OR of all codes. */
static uint8_t pack_matrix(const uint8_t *in, size_t rows, size_t width, size_t w0, size_t nw, unsigned char *out)
{
    uint64_t seen = 0;

    for (size_t k = 0; k < rows; k += 8) {
        const size_t nk = rows - k < 8 ? rows - k : 8;
        for (size_t j = 0; j < nw; j++) {
            uint64_t v[8];
            for (size_t i = 0; i < 8; i++) {
                const uint8_t *src = in + (PER_WORD * j + byte_out[i]) * rows + k;
                v[i] = 0;
                for (size_t x = 0; x < nk; x++)
                    v[i] |= (uint64_t)src[x] << 8 * x;
                seen |= v[i];
            }
            transpose8(v);
            for (size_t x = 0; x < nk; x++)
                nb_put_le32(out + ((k + x) * width + w0 + j) * 4, gather(v[x]));
        }
    }
    seen |= seen >> 32;
    seen |= seen >> 16;
    return (uint8_t)(seen | seen >> 8);
}

static nb_status pack_scales(const nb_qlin *q, size_t n0, size_t n, unsigned char *out, nb_err *err)
{
    const size_t item = nb_dtype_info(q->scale_dtype)->bits / 8;
    float row[256], back[256];

    for (size_t i = 0; i < q->n_groups; i++)
        for (size_t o = 0; o < q->n; o += NB_LEN(row)) {
            const size_t w = q->n - o < NB_LEN(row) ? q->n - o : NB_LEN(row);
            unsigned char *to = out + (i * n + n0 + o) * item;
            for (size_t x = 0; x < w; x++)
                row[x] = q->scales[(o + x) * q->n_groups + i];
            if (!nb_from_f32(to, row, q->scale_dtype, w))
                return nb_fail(err, NB_EARG, "arg.dtype", "", "scales cannot be stored as %s", nb_dtype_info(q->scale_dtype)->name);
            nb_to_f32(back, to, q->scale_dtype, w);
            for (size_t x = 0; x < w; x++)
                if (!(back[x] == row[x]))
                    return nb_fail(err, NB_ENUMERIC, "num.scale_inexact", "CNV-030",
                                   "scale %.9g of output %zu, group %zu is not exact in %s", (double)row[x], n0 + o + x, i,
                                   nb_dtype_info(q->scale_dtype)->name);
        }
    return NB_OK;
}

static nb_status pack(const nb_qlin *q, size_t n0, size_t n, void *const out[NB_MAX_PARTS], nb_err *err)
{
    uint8_t seen;

    if (q->g_idx)
        return nb_fail(err, NB_EUNSUPPORTED, "conv.act_order", "CNV-010",
                       "the linear uses a reordered g_idx; AWQ has no g_idx. \xe2\x86\x92 Keep GPTQ/compressed-tensors, or re-quantize.");
    if (n % PER_WORD || n0 % PER_WORD || q->n % PER_WORD || n0 > n || q->n > n - n0 || q->k % q->g)
        return nb_fail(err, NB_EFORMAT, "qt.shape", "SHP-003",
                       "%zu outputs cannot fill whole 32-bit words at 4 bits (needs a multiple of %d).", n, PER_WORD);
    seen = pack_matrix(q->codes, q->k, n / PER_WORD, n0 / PER_WORD, q->n / PER_WORD, out[P_QWEIGHT]);
    seen |= pack_matrix(q->zeros, q->n_groups, n / PER_WORD, n0 / PER_WORD, q->n / PER_WORD, out[P_QZEROS]);
    if (seen > 15)
        return nb_fail(err, NB_EARG, "arg.codes", "", "codes or zero points above 15 do not fit 4 bits");
    return pack_scales(q, n0, n, out[P_SCALES], err);
}

static nb_json *config(const nb_qspec *spec, const char *const *skip, size_t n_skip)
{
    nb_json *o = nb_json_new_obj(), *list = nb_json_new_arr(), *meta = nb_json_new_obj(), *who = nb_json_new_arr();
    bool ok = o && list;

    for (size_t i = 0; i < n_skip && ok; i++)
        ok = nb_json_push(list, nb_json_new_str(skip[i]));
    ok = ok && nb_json_set(o, "quant_method", nb_json_new_str("awq")) && nb_json_set(o, "bits", nb_json_new_int(spec->bits)) &&
         nb_json_set(o, "group_size", nb_json_new_int(spec->group_size)) && nb_json_set(o, "zero_point", nb_json_new_bool(!spec->sym)) &&
         nb_json_set(o, "version", nb_json_new_str("gemm")) && nb_json_set(o, "format", nb_json_new_str("gemm"));
    if (ok) {
        ok = nb_json_set(o, "modules_to_not_convert", list);
        list = NULL;
    }
    ok = ok && nb_json_set(o, "lm_head", nb_json_new_bool(false)) && who && nb_json_push(who, nb_json_new_str("nibble:" NB_VERSION));
    if (ok && meta) {
        ok = nb_json_set(meta, "quantizer", who);
        who = NULL;
        ok = nb_json_set(o, "meta", meta) && ok;
        meta = NULL;
    } else {
        ok = false;
    }
    nb_json_free(list);
    nb_json_free(who);
    nb_json_free(meta);
    if (!ok) {
        nb_json_free(o);
        return NULL;
    }
    return o;
}

const nb_format nb_fmt_awq_gemm = {
    .name = "awq-gemm",
    .method = "awq",
    .version = "gemm",
    .stripe = PER_WORD,
    .parts = { [P_QWEIGHT] = { "qweight", NB_DT_I32, "k n/8", false },
               [P_QZEROS] = { "qzeros", NB_DT_I32, "k/g n/8", true }, /* absent only when symmetric: zero point 8 */
               [P_SCALES] = { "scales", NB_DT_NONE, "k/g n", false } },
    .match = match,
    .shape = shape,
    .unpack = unpack,
    .pack = pack,
    .config = config,
};

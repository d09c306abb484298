/* fmt_ct.c - compressed-tensors pack-quantized: what llm-compressor writes.
 *
 * A row of weight_packed is one little-endian stream of the codes of an output along the inputs; a column of weight_zero_point is
 * one stream of the zero points of a group along the outputs. Codes and zero points are stored with an offset of half:
 *
 *   weight_packed[n][w]   4 bit   31-28 27-24 23-20 19-16 15-12 11-8  7-4   3-0
 *                         input   8w+7  8w+6  8w+5  8w+4  8w+3  8w+2  8w+1  8w
 *
 * Before release 0.18 codes of 3, 5, 6 and 7 bits did not straddle words (variant NB_CT_ALIGNED), and before 0.10 zero points were
 * plain signed bytes. Both are told by shape and type.
 * Source: formats 2.1, 3.13 (compressed-tensors compressors/pack_quantized at 0.18.0); docs/formats/compressed-tensors.md. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/bits.h"
#include "base/mem.h"
#include "quant/bitpack.h"
#include "quant/formats.h"
#include "quant/parts.h"
#include "quant/qconfig.h"

enum { P_PACKED, P_SCALE, P_ZERO, P_SHAPE, P_G_IDX };
enum { BLOCK = 32 };

static bool match(const nb_evidence *e)
{
    return e->packed && e->packed->rank == 2 && (e->packed->dtype == NB_DT_I32 || e->packed->dtype == NB_DT_U32) && !e->qweight;
}

static nb_packing packing(const nb_linear *lin)
{
    return lin->variant == NB_CT_ALIGNED ? NB_PACK_ALIGNED : NB_PACK_STREAM;
}

/* ---- shapes --------------------------------------------------------------------------------------------------- */

static nb_status check_type(const nb_tensor *t, bool ok, const char *rule, const char *suffix, const char *want, nb_err *err)
{
    if (ok)
        return NB_OK;
    return nb_rule_hit(NULL, err, rule, t->file, t->name, "%s is %s, expected %s.", suffix, nb_dtype_info(t->dtype)->st, want);
}

/* Types and ranks; weight_scale and weight_zero_point may be [1] for one value per tensor, zero points I8. */
static nb_status check_types(const nb_linear *lin, nb_err *err)
{
    nb_linear strict = *lin;
    const nb_tensor *s = lin->parts[P_SCALE], *z = lin->parts[P_ZERO], *sh = lin->parts[P_SHAPE];
    nb_status rc;

    if (s->rank == 1 && s->shape[0] == 1)
        strict.parts[P_SCALE] = NULL;
    if (z && (z->dtype == NB_DT_I8 || z->rank == 1))
        strict.parts[P_ZERO] = NULL;
    strict.parts[P_SHAPE] = NULL;
    if ((rc = nb_check_parts(&strict, err)) != NB_OK)
        return rc;
    if (!strict.parts[P_SCALE] && s->dtype != NB_DT_F16 && s->dtype != NB_DT_BF16 && s->dtype != NB_DT_F32)
        return nb_rule_hit(NULL, err, "SHP-002", s->file, s->name, "scales are %s; scales must be floating point.",
                           nb_dtype_info(s->dtype)->st);
    if (z && !strict.parts[P_ZERO] && (rc = check_type(z, z->dtype == NB_DT_I8, "SHP-001", "weight_zero_point", "I8 or I32", err)) != NB_OK)
        return rc;
    if (sh && (sh->dtype != NB_DT_I64 || sh->rank != 1 || sh->shape[0] != 2))
        return nb_rule_hit(NULL, err, "SHP-012", sh->file, sh->name, "weight_shape is no I64 [2].");
    return NB_OK;
}

/* Inputs from weight_shape, or from the words where these tell; then which packing the word count fits. */
static nb_status find_inputs(nb_linear *lin, const char *name, uint64_t *k, nb_err *err)
{
    const nb_tensor *w = lin->parts[P_PACKED], *sh = lin->parts[P_SHAPE];
    const unsigned b = lin->spec.bits;
    const uint64_t n = w->shape[0], words = w->shape[1];
    uint64_t dense, aligned, said[2];
    char a[64];

    if (n == 0 || words == 0 || words > SIZE_MAX / 64 || n > SIZE_MAX / 64)
        return nb_rule_hit(NULL, err, "SHP-016", w->file, w->name,
                           "weight_packed is %" PRIu64 "x%" PRIu64 ", expected at least one output and one word.", n, words);
    if (!sh || !sh->data) {
        if (b != 2 && b != 4 && b != 8)
            return nb_rule_hit(NULL, err, "NAM-001", w->file, name, "%s has weight_packed but no weight_shape.", name);
        *k = words * (32 / b);
        return NB_OK;
    }
    said[0] = nb_le64(sh->data);
    said[1] = nb_le64(sh->data + 8);
    *k = said[1];
    dense = said[1] <= UINT64_MAX / 64 ? nb_packed_words(NB_PACK_STREAM, b, said[1]) : 0;
    aligned = nb_packed_words(NB_PACK_ALIGNED, b, said[1]);
    if (said[0] == n && words == dense && words == aligned && b != 2 && b != 4 && b != 8)
        return NB_OK; /* a few words: the version decided */
    if (said[0] == n && (words == dense || words == aligned)) {
        lin->variant = words == dense ? NB_CT_DENSE : NB_CT_ALIGNED;
        return NB_OK;
    }
    for (unsigned x = 2; x <= 8 && said[0] == n && said[1] <= UINT64_MAX / 64; x++)
        if (nb_packed_words(NB_PACK_STREAM, x, said[1]) == words)
            return nb_rule_hit(NULL, err, "CFG-006", w->file, name,
                               "Config says %u-bit, but %s.weight_packed has %" PRIu64 " words for %" PRIu64
                               " values, which only fits %u-bit.",
                               b, name, words, said[1], x);
    if (said[0] == n && b != 2 && b != 4 && b != 8)
        return nb_rule_hit(NULL, err, "VAL-014", w->file, w->name,
                           "weight_packed has %" PRIu64 " words; %u-bit needs %" PRIu64 " (dense) or %" PRIu64 " (older aligned packing).",
                           words, b, dense, aligned);
    return nb_rule_hit(NULL, err, "SHP-012", sh->file, sh->name, "weight_shape says %s, packed words fit [%" PRIu64 ", %" PRIu64 "].",
                       nb_shape_str(a, sizeof a, said, 2), n, words * (32 / b));
}

static nb_status check_scale(const nb_linear *lin, const char *name, uint64_t gn, nb_err *err)
{
    const nb_tensor *s = lin->parts[P_SCALE];
    const uint64_t want[2] = { lin->n, gn };
    char a[64], b[64];

    if (s->rank == 1 || (s->shape[0] == 1 && s->shape[1] == 1))
        return gn == 1 ? NB_OK
                       : nb_rule_hit(NULL, err, "CFG-007", s->file, name,
                                     "Config says group_size %" PRId64 " (%" PRIu64 " groups for %zu inputs), but the whole tensor has one "
                                     "scale.",
                                     lin->spec.group_size, gn, lin->k);
    if (s->shape[0] == want[0] && s->shape[1] == want[1])
        return NB_OK;
    nb_shape_str(a, sizeof a, s->shape, 2);
    nb_shape_str(b, sizeof b, want, 2);
    if (s->shape[1] == want[0] && s->shape[0] == want[1])
        return nb_rule_hit(NULL, err, "SHP-005", s->file, s->name, "scales look transposed: found %s, expected %s.", a, b);
    if (s->shape[0] == want[0] && s->shape[1] && lin->k % s->shape[1] == 0)
        return nb_rule_hit(NULL, err, "CFG-007", s->file, name,
                           "Config says group_size %" PRId64 " (%" PRIu64 " groups for %zu inputs), but weight_scale has %" PRIu64
                           " columns: the tensors were made with group size %" PRIu64 ".",
                           lin->spec.group_size, gn, lin->k, s->shape[1], lin->k / s->shape[1]);
    return nb_rule_hit(NULL, err, "SHP-016", s->file, s->name, "scales is %s, expected %s.", a, b);
}

static nb_status check_zero(const nb_linear *lin, uint64_t gn, nb_err *err)
{
    const nb_tensor *z = lin->parts[P_ZERO];
    uint64_t want[2] = { lin->n, gn };
    char a[64], b[64];

    if (!z || (z->dtype == NB_DT_I8 && gn == 1 && ((z->rank == 1 && z->shape[0] == 1) || (z->rank == 2 && z->shape[0] * z->shape[1] == 1))))
        return NB_OK;
    if (z->dtype != NB_DT_I8)
        want[0] = nb_packed_words(packing(lin), lin->spec.bits, lin->n);
    if (z->rank == 2 && z->shape[0] == want[0] && z->shape[1] == want[1])
        return NB_OK;
    return nb_rule_hit(NULL, err, "SHP-006", z->file, z->name, "weight_zero_point is %s, expected %s.",
                       nb_shape_str(a, sizeof a, z->shape, z->rank), nb_shape_str(b, sizeof b, want, 2));
}

static nb_status shape(nb_linear *lin, nb_err *err)
{
    nb_status rc = check_types(lin, err);
    char name[NB_ESC_CAP];
    uint64_t k = 0, gn;

    if (rc != NB_OK)
        return rc;
    nb_esc(name, sizeof name, lin->prefix, strlen(lin->prefix));
    if ((rc = find_inputs(lin, name, &k, err)) != NB_OK)
        return rc;
    lin->n = (size_t)lin->parts[P_PACKED]->shape[0];
    lin->k = (size_t)k;
    lin->g = lin->spec.group_size < 0 || (uint64_t)lin->spec.group_size > k ? lin->k : (size_t)lin->spec.group_size;
    gn = (uint64_t)(lin->k / lin->g + (lin->k % lin->g != 0));
    lin->spec.scale_dtype = lin->parts[P_SCALE]->dtype;
    if ((rc = check_scale(lin, name, gn, err)) != NB_OK || (rc = check_zero(lin, gn, err)) != NB_OK ||
        (rc = nb_check_g_idx(lin, lin->parts[P_G_IDX], err)) != NB_OK)
        return rc;
    return nb_check_bias(lin, lin->n, err);
}

/* ---- reading -------------------------------------------------------------------------------------------------- */

/* Packed zero points: one column per group, words of 32 outputs (or 32 div b when aligned) below each other. */
static void unpack_zero_words(const nb_linear *lin, size_t n0, nb_qlin *q)
{
    const nb_tensor *t = lin->parts[P_ZERO];
    const unsigned bits = lin->spec.bits;
    const nb_packing p = packing(lin);
    const size_t per = p == NB_PACK_ALIGNED ? 32 / bits : BLOCK, high = p == NB_PACK_ALIGNED ? 1 : bits;
    const size_t rows = (size_t)t->shape[0], gn = q->n_groups;
    unsigned char words[4 * 8];
    uint8_t z[BLOCK];

    for (size_t g = 0; g < gn; g++)
        for (size_t o = 0; o < q->n;) {
            const size_t n = n0 + o, in = n % per, r = n / per * high;
            const size_t m = per - in < q->n - o ? per - in : q->n - o;
            memset(words, 0, sizeof words);
            for (size_t i = 0; i < high && r + i < rows; i++)
                memcpy(words + 4 * i, t->data + ((r + i) * gn + g) * 4, 4);
            nb_unpack_codes(p, bits, words, in, m, z);
            for (size_t i = 0; i < m; i++)
                q->zeros[(o + i) * gn + g] = z[i];
            o += m;
        }
}

/* Unpacked signed zero points: [N, groups], or one for all. A value outside the range of the codes wraps, as it does when packed. */
static void unpack_zero_bytes(const nb_linear *lin, size_t n0, nb_qlin *q)
{
    const nb_tensor *t = lin->parts[P_ZERO];
    const unsigned half = 1u << (lin->spec.bits - 1), maxq = 2 * half - 1;
    const bool one = t->n_bytes == 1;

    for (size_t i = 0; i < q->n * q->n_groups; i++)
        q->zeros[i] = (uint8_t)((t->data[one ? 0 : n0 * q->n_groups + i] + half) & maxq);
}

static nb_status unpack(const nb_linear *lin, size_t n0, nb_qlin *q, nb_err *err)
{
    const nb_tensor *t = lin->parts[P_PACKED];
    const size_t row_bytes = (size_t)t->shape[1] * 4;
    nb_status rc = nb_check_stripe(lin, n0, q, err);

    if (rc != NB_OK)
        return rc;
    for (size_t o = 0; q->codes && o < q->n; o++)
        nb_unpack_codes(packing(lin), lin->spec.bits, t->data + (n0 + o) * row_bytes, 0, lin->k, q->codes + o * lin->k);
    if (!lin->parts[P_ZERO])
        memset(q->zeros, 1 << (lin->spec.bits - 1), q->n * q->n_groups);
    else if (lin->parts[P_ZERO]->dtype == NB_DT_I8)
        unpack_zero_bytes(lin, n0, q);
    else
        unpack_zero_words(lin, n0, q);
    nb_get_scales_by_output(lin->parts[P_SCALE], n0, q);
    q->bits = lin->spec.bits;
    return nb_get_g_idx(lin, lin->parts[P_G_IDX], q, err);
}

/* Rows of weight_packed with bits set behind the last code. */
static uint64_t padding(const nb_linear *lin)
{
    const nb_tensor *t = lin->parts[P_PACKED];
    const size_t words = (size_t)t->shape[1];
    const size_t used = lin->variant == NB_CT_ALIGNED ? 0 : lin->k * lin->spec.bits % 32; /* bits of the last word */
    uint64_t n = 0;

    for (size_t o = 0; used && o < lin->n; o++)
        n += nb_le32(t->data + ((o + 1) * words - 1) * 4) >> used != 0;
    return n;
}

/* ---- writing -------------------------------------------------------------------------------------------------- */

static uint8_t pack_zeros(const nb_qlin *q, size_t n0, unsigned char *out)
{
    unsigned char words[4 * 8];
    uint8_t z[BLOCK], seen = 0;

    for (size_t g = 0; g < q->n_groups; g++)
        for (size_t o = 0; o < q->n; o += BLOCK) {
            const size_t m = q->n - o < BLOCK ? q->n - o : BLOCK, r = (n0 + o) / BLOCK * q->bits;
            const size_t high = (size_t)nb_packed_words(NB_PACK_STREAM, q->bits, m);
            for (size_t i = 0; i < m; i++)
                seen |= z[i] = q->zeros[(o + i) * q->n_groups + g];
            nb_pack_codes(NB_PACK_STREAM, q->bits, z, m, words);
            for (size_t i = 0; i < high; i++)
                memcpy(out + ((r + i) * q->n_groups + g) * 4, words + 4 * i, 4);
        }
    return seen;
}

static nb_status pack(const nb_qlin *q, size_t n0, size_t n, void *const out[NB_MAX_PARTS], nb_err *err)
{
    const size_t row_bytes = (size_t)nb_packed_words(NB_PACK_STREAM, q->bits, q->k) * 4;
    const uint8_t half = (uint8_t)(1u << (q->bits - 1));
    uint8_t seen = 0;
    size_t n_off = 0;

    if (n0 % BLOCK || n0 > n || q->n > n - n0 || (q->n % BLOCK && n0 + q->n != n))
        return nb_fail(err, NB_EARG, "arg.stripe", "", "outputs %zu .. %zu of %zu are no stripe", n0, n0 + q->n, n);
    if (q->k % q->g)
        return nb_fail(err, NB_EFORMAT, "cfg.group_size", "SHP-004", "%zu inputs are not a multiple of group size %zu.", q->k, q->g);
    if (q->g_idx && !out[P_G_IDX])
        return nb_fail(err, NB_EARG, "arg.desc_act", "", "a reordered g_idx needs weight_g_idx");
    for (size_t i = 0; q->codes && i < q->n * q->k; i++)
        seen |= q->codes[i];
    for (size_t o = 0; q->codes && o < q->n; o++)
        nb_pack_codes(NB_PACK_STREAM, q->bits, q->codes + o * q->k, q->k, (unsigned char *)out[P_PACKED] + (n0 + o) * row_bytes);
    for (size_t i = 0; i < q->n * q->n_groups; i++)
        n_off += q->zeros[i] != half;
    if (out[P_ZERO])
        seen |= pack_zeros(q, n0, out[P_ZERO]);
    else if (n_off)
        return nb_fail(err, NB_EFORMAT, "conv.zero", "CNV-040", "symmetric %s has no zero points; %zu groups have a zero other than %d.",
                       nb_fmt_ct.name, n_off, half);
    if (seen >> q->bits)
        return nb_fail(err, NB_EARG, "arg.codes", "", "codes or zero points above %u do not fit %u bits", (1u << q->bits) - 1, q->bits);
    if (n0 == 0 && out[P_SHAPE]) {
        nb_put_le64(out[P_SHAPE], n);
        nb_put_le64((unsigned char *)out[P_SHAPE] + 8, q->k);
    }
    if (n0 == 0 && out[P_G_IDX])
        nb_put_g_idx(q, out[P_G_IDX]);
    return nb_put_scales_by_output(q, n0, n, out[P_SCALE], err);
}

/* ---- config --------------------------------------------------------------------------------------------------- */

/* {"targets": [target], "weights": {...}, ...}. NULL: no memory. */
static nb_json *new_group(const nb_qspec *spec, const char *target)
{
    nb_json *g = nb_json_new_obj(), *t = nb_json_new_arr(), *w = nb_json_new_obj();
    const bool channel = spec->group_size < 0;
    bool ok = g && t && w && nb_json_push(t, nb_json_new_str(target)) && nb_json_set(w, "num_bits", nb_json_new_int(spec->bits)) &&
              nb_json_set(w, "type", nb_json_new_str("int")) && nb_json_set(w, "symmetric", nb_json_new_bool(spec->sym)) &&
              nb_json_set(w, "strategy", nb_json_new_str(channel ? "channel" : "group")) &&
              nb_json_set(w, "group_size", channel ? nb_json_new_null() : nb_json_new_int(spec->group_size)) &&
              nb_json_set(w, "dynamic", nb_json_new_bool(false)) &&
              nb_json_set(w, "actorder", spec->desc_act ? nb_json_new_str("group") : nb_json_new_null());

    if (ok) {
        ok = nb_json_set(g, "targets", t);
        t = NULL;
        ok = nb_json_set(g, "weights", w) && ok;
        w = NULL;
    }
    ok = ok && nb_json_set(g, "input_activations", nb_json_new_null()) && nb_json_set(g, "output_activations", nb_json_new_null()) &&
         nb_json_set(g, "format", nb_json_new_str("pack-quantized"));
    nb_json_free(t);
    nb_json_free(w);
    if (!ok) {
        nb_json_free(g);
        return NULL;
    }
    return g;
}

static nb_json *config(const nb_qspec *spec, const char *const *skip, size_t n_skip)
{
    nb_json *o = nb_json_new_obj(), *ignore = nb_json_new_arr(), *groups = nb_json_new_obj();
    bool ok = o && ignore && groups && nb_json_set(groups, "group_0", new_group(spec, "Linear"));

    for (size_t i = 0; i < n_skip && ok; i++)
        ok = nb_json_push(ignore, nb_json_new_str(skip[i]));
    ok = ok && nb_json_set(o, "quant_method", nb_json_new_str("compressed-tensors")) &&
         nb_json_set(o, "format", nb_json_new_str("pack-quantized")) &&
         nb_json_set(o, "quantization_status", nb_json_new_str("compressed"));
    if (ok) {
        ok = nb_json_set(o, "config_groups", groups);
        groups = NULL;
        ok = nb_json_set(o, "ignore", ignore) && ok;
        ignore = NULL;
    }
    ok = ok && nb_json_set(o, "kv_cache_scheme", nb_json_new_null()) && nb_json_set(o, "global_compression_ratio", nb_json_new_null()) &&
         nb_json_set(o, "version", nb_json_new_str("0.18.0")); /* the first release whose words these are */
    nb_json_free(ignore);
    nb_json_free(groups);
    if (!ok) {
        nb_json_free(o);
        return NULL;
    }
    return o;
}

static bool same_spec(const nb_qspec *a, const nb_qspec *b)
{
    return a->bits == b->bits && a->group_size == b->group_size && a->sym == b->sym && a->desc_act == b->desc_act;
}

/* A module joins the first group with its values that does not target classes, or opens one. */
static bool override(nb_json *config, const char *module, const nb_qspec *spec)
{
    const nb_json *old = nb_json_get(config, "config_groups");
    nb_json *groups = nb_json_new_obj();
    char name[32];
    bool ok = groups != NULL, placed = false;

    for (size_t i = 0; ok && i < nb_json_len(old); i++) {
        const char *key;
        const nb_json *g = nb_json_member(old, i, &key);
        nb_qspec have = { 0 };
        nb_json *copy = nb_json_copy(g);
        nb_qconfig_args(nb_json_get(g, "weights"), &have);
        if (copy && i > 0 && !placed && same_spec(&have, spec)) {
            nb_json *t = nb_json_copy(nb_json_get(g, "targets"));
            ok = t && nb_json_push(t, nb_json_new_str(module));
            if (ok)
                ok = nb_json_set(copy, "targets", t);
            else
                nb_json_free(t);
            placed = true;
        }
        ok = nb_json_set(groups, key, copy) && ok;
    }
    snprintf(name, sizeof name, "group_%zu", nb_json_len(old));
    if (ok && !placed)
        ok = nb_json_set(groups, name, new_group(spec, module));
    if (!ok) {
        nb_json_free(groups);
        return false;
    }
    return nb_json_set(config, "config_groups", groups);
}

const nb_format nb_fmt_ct = {
    .name = "compressed-tensors",
    .method = "compressed-tensors",
    .version = "pack-quantized",
    .stripe = BLOCK,
    .words = NB_WORDS_BY_OUTPUT,
    .parts = { [P_PACKED] = { "weight_packed", NB_DT_I32, "n k*b/32", false, NB_PART_CODES, NB_STORE_ALWAYS },
               [P_SCALE] = { "weight_scale", NB_DT_NONE, "n k/g", false, NB_PART_SCALES, NB_STORE_ALWAYS },
               [P_ZERO] = { "weight_zero_point", NB_DT_I32, "n*b/32 k/g", true, NB_PART_ZEROS, NB_STORE_ASYM },
               [P_SHAPE] = { "weight_shape", NB_DT_I64, "2", true, NB_PART_OTHER, NB_STORE_ALWAYS },
               [P_G_IDX] = { "weight_g_idx", NB_DT_I32, "k", true, NB_PART_G_IDX, NB_STORE_ACT_ORDER } },
    .match = match,
    .shape = shape,
    .unpack = unpack,
    .pack = pack,
    .padding = padding,
    .pads_bits = true,
    .config = config,
    .override = override,
};

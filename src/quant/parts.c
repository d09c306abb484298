/* parts.c - see parts.h. */
#include "quant/parts.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/bits.h"
#include "base/mem.h"

static nb_status check_rank(const nb_tensor *t, unsigned want, nb_err *err)
{
    if (t->rank == want)
        return NB_OK;
    return nb_rule_hit(NULL, err, "SHP-015", t->file, t->name, "%s has %u dimensions, expected %u.", strrchr(t->name, '.') + 1, t->rank,
                       want);
}

static unsigned rank_of(const nb_part *p)
{
    unsigned n = 1;

    for (const char *s = p->shape; *s; s++)
        n += *s == ' ';
    return n;
}

static bool type_fits(const nb_tensor *t, nb_dtype want)
{
    return t->dtype == want || (want == NB_DT_I32 && t->dtype == NB_DT_U32);
}

nb_status nb_check_parts(const nb_linear *lin, nb_err *err)
{
    nb_status rc;

    for (size_t p = 0; p < NB_MAX_PARTS; p++) {
        const nb_tensor *t = lin->parts[p];
        const nb_part *part = &lin->format->parts[p];
        if (!t)
            continue;
        if (part->dtype == NB_DT_NONE) {
            if (t->dtype != NB_DT_F16 && t->dtype != NB_DT_BF16 && t->dtype != NB_DT_F32)
                return nb_rule_hit(NULL, err, "SHP-002", t->file, t->name, "scales are %s; scales must be floating point.",
                                   nb_dtype_info(t->dtype)->st);
        } else if (part->role == NB_PART_G_IDX ? t->dtype != NB_DT_I32 && t->dtype != NB_DT_I64 : !type_fits(t, part->dtype)) {
            return nb_rule_hit(NULL, err, part->role == NB_PART_G_IDX ? "SHP-010" : "SHP-001", t->file, t->name, "%s is %s, expected %s.",
                               part->suffix, nb_dtype_info(t->dtype)->st, nb_dtype_info(part->dtype)->st);
        }
        if ((rc = check_rank(t, rank_of(part), err)) != NB_OK)
            return rc;
    }
    return lin->bias ? check_rank(lin->bias, 1, err) : NB_OK;
}

nb_status nb_check_bias(const nb_linear *lin, uint64_t n, nb_err *err)
{
    if (!lin->bias || lin->bias->shape[0] == n)
        return NB_OK;
    return nb_rule_hit(NULL, err, "SHP-011", lin->bias->file, lin->bias->name, "bias has %" PRIu64 " values, expected %" PRIu64 ".",
                       lin->bias->shape[0], n);
}

const char *nb_fitting_groups(char *out, size_t cap, uint64_t k)
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

nb_status nb_check_stripe(const nb_linear *lin, size_t n0, const nb_qlin *q, nb_err *err)
{
    if (n0 > lin->n || q->n > lin->n - n0 || q->k != lin->k || q->g != lin->g)
        return nb_fail(err, NB_EARG, "arg.stripe", "", "outputs %zu .. %zu are no stripe of a linear with %zu outputs", n0, n0 + q->n,
                       lin->n);
    return NB_OK;
}

/* ---- scales --------------------------------------------------------------------------------------------------- */

void nb_get_scales(const nb_tensor *t, size_t n0, nb_qlin *q)
{
    const size_t item = nb_dtype_info(t->dtype)->bits / 8, n = (size_t)t->shape[1];
    float row[256];

    for (size_t i = 0; i < q->n_groups; i++)
        for (size_t o = 0; o < q->n; o += NB_LEN(row)) {
            const size_t w = q->n - o < NB_LEN(row) ? q->n - o : NB_LEN(row);
            nb_to_f32(row, t->data + (i * n + n0 + o) * item, t->dtype, w);
            for (size_t x = 0; x < w; x++)
                q->scales[(o + x) * q->n_groups + i] = row[x];
        }
    q->scale_dtype = t->dtype;
}

void nb_get_scales_by_output(const nb_tensor *t, size_t n0, nb_qlin *q)
{
    const size_t item = nb_dtype_info(t->dtype)->bits / 8;

    q->scale_dtype = t->dtype;
    if (t->rank == 2 && t->shape[0] > 1) {
        nb_to_f32(q->scales, t->data + n0 * q->n_groups * item, t->dtype, q->n * q->n_groups);
        return;
    }
    for (size_t o = 0; o < q->n; o++) /* one row for all outputs */
        nb_to_f32(q->scales + o * q->n_groups, t->data, t->dtype, q->n_groups);
}

static nb_status inexact(const nb_qlin *q, size_t o, size_t group, nb_err *err)
{
    return nb_fail(err, NB_ENUMERIC, "num.scale_inexact", "CNV-030", "scale %.9g of output %zu, group %zu is not exact in %s",
                   (double)q->scales[o * q->n_groups + group], o, group, nb_dtype_info(q->scale_dtype)->name);
}

/* w scales as stored; false when one changes, *at is its place. */
static bool store(unsigned char *to, const float *from, nb_dtype t, size_t w, size_t *at)
{
    float back[256];

    *at = 0;
    if (!nb_from_f32(to, from, t, w) || !nb_to_f32(back, to, t, w))
        return false;
    for (; *at < w; ++*at)
        if (!(back[*at] == from[*at]))
            return false;
    return true;
}

nb_status nb_put_scales(const nb_qlin *q, size_t n0, size_t n, unsigned char *out, nb_err *err)
{
    const size_t item = nb_dtype_info(q->scale_dtype)->bits / 8;
    float row[256];
    size_t at;

    for (size_t i = 0; i < q->n_groups; i++)
        for (size_t o = 0; o < q->n; o += NB_LEN(row)) {
            const size_t w = q->n - o < NB_LEN(row) ? q->n - o : NB_LEN(row);
            for (size_t x = 0; x < w; x++)
                row[x] = q->scales[(o + x) * q->n_groups + i];
            if (!store(out + (i * n + n0 + o) * item, row, q->scale_dtype, w, &at))
                return inexact(q, o + at, i, err);
        }
    return NB_OK;
}

nb_status nb_put_scales_by_output(const nb_qlin *q, size_t n0, size_t n, unsigned char *out, nb_err *err)
{
    const size_t item = nb_dtype_info(q->scale_dtype)->bits / 8, all = q->n * q->n_groups;
    size_t at;

    (void)n;
    for (size_t i = 0; i < all; i += 256) {
        const size_t w = all - i < 256 ? all - i : 256;
        if (!store(out + (n0 * q->n_groups + i) * item, q->scales + i, q->scale_dtype, w, &at))
            return inexact(q, (i + at) / q->n_groups, (i + at) % q->n_groups, err);
    }
    return NB_OK;
}

/* ---- g_idx ---------------------------------------------------------------------------------------------------- */

static int64_t entry(const nb_tensor *t, size_t i)
{
    return t->dtype == NB_DT_I64 ? (int64_t)nb_le64(t->data + 8 * i) : (int32_t)nb_le32(t->data + 4 * i);
}

/* Members of each group: exactly g, the last one what is left. */
static nb_status check_counts(const nb_linear *lin, const nb_tensor *t, nb_err *err)
{
    const size_t gn = lin->k / lin->g + (lin->k % lin->g != 0);
    size_t *count = nb_calloc(gn, sizeof *count);
    nb_status rc = NB_OK;

    if (!count)
        return nb_enomem(err, "the groups of a linear");
    for (size_t i = 0; i < lin->k; i++)
        count[entry(t, i)]++;
    for (size_t x = 0; rc == NB_OK && x < gn; x++) {
        const size_t want = x + 1 < gn ? lin->g : lin->k - x * lin->g;
        if (count[x] != want)
            rc = nb_rule_hit(NULL, err, "VAL-007", t->file, t->name, "g_idx gives group %zu %zu inputs instead of %zu.", x, count[x], want);
    }
    nb_free(count);
    return rc;
}

nb_status nb_check_g_idx(nb_linear *lin, const nb_tensor *t, nb_err *err)
{
    const size_t gn = lin->k / lin->g + (lin->k % lin->g != 0);
    bool natural = true, zero = true, unset = true;

    lin->act_order = false;
    if (!t || !t->data)
        return NB_OK;
    if (t->shape[0] != lin->k)
        return nb_rule_hit(NULL, err, "SHP-010", t->file, t->name, "g_idx has %" PRIu64 " entries, expected %zu.", t->shape[0], lin->k);
    for (size_t i = 0; i < lin->k; i++) {
        const int64_t v = entry(t, i);
        natural = natural && v == (int64_t)(i / lin->g);
        zero = zero && v == 0;
        unset = unset && v == -1;
    }
    if (natural || unset || (zero && !lin->spec.desc_act))
        return NB_OK;
    for (size_t i = 0; i < lin->k; i++) {
        const int64_t v = entry(t, i);
        if (v < 0 || v >= (int64_t)gn)
            return nb_rule_hit(NULL, err, "VAL-006", t->file, t->name, "g_idx[%zu] = %" PRId64 " points outside the %zu groups.", i, v, gn);
    }
    lin->act_order = true;
    return check_counts(lin, t, err);
}

nb_status nb_get_g_idx(const nb_linear *lin, const nb_tensor *t, nb_qlin *q, nb_err *err)
{
    if (!lin->act_order) {
        nb_free(q->g_idx);
        q->g_idx = NULL;
        return NB_OK;
    }
    if (!q->g_idx && nb_qlin_init_gidx(q, err) != NB_OK)
        return NB_ENOMEM;
    for (size_t i = 0; i < lin->k; i++)
        q->g_idx[i] = (uint32_t)entry(t, i);
    return NB_OK;
}

void nb_put_g_idx(const nb_qlin *q, unsigned char *out)
{
    for (size_t i = 0; i < q->k; i++)
        nb_put_le32(out + 4 * i, q->g_idx ? q->g_idx[i] : (uint32_t)(i / q->g));
}

nb_json *nb_config_meta(void)
{
    nb_json *meta = nb_json_new_obj(), *who = nb_json_new_arr();
    bool ok = meta && who && nb_json_push(who, nb_json_new_str("nibble:" NB_VERSION));

    if (ok) {
        ok = nb_json_set(meta, "quantizer", who);
        who = NULL;
    }
    nb_json_free(who);
    if (!ok) {
        nb_json_free(meta);
        return NULL;
    }
    return meta;
}

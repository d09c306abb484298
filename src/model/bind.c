/* bind.c - plan + store -> packed weights, stripe by stripe, each matrix by the threads that will read it. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/cpu.h"
#include "model/weights.h"
#include "quant/words.h"

/* Rows of a stripe that a thread unpacks at a time; scales of one that it packs from stored words, and rows at most. */
enum { STRIPE = NB_STRIP, WIDE_SCALES = 1 << 17, WIDE_ROWS = 64 * NB_STRIP };

/* ---- packing one op ------------------------------------------------------------------------------------------- */

typedef struct pack_job {
    const nb_model *m;
    const nb_fused *f;
    const nb_source *src;
    size_t n_parts;
    nb_err *errs; /* [threads] */
} pack_job;

/* What stored offsets add to (code - zero) * scale, for one strip that begins at packed row `row`. The sum is exact: both
 * terms are multiples of the last place of a 16-bit scale, and nearly cancel. */
static void pack_fix(const nb_mat *m, size_t row, const nb_qlin *q)
{
    float *out = m->fix + row / NB_STRIP * m->q4.n_groups * NB_STRIP;

    for (size_t g = 0; g < m->q4.n_groups; g++)
        for (size_t r = 0; r < NB_STRIP; r++) {
            const size_t i = r * q->n_groups + g * m->q4.g / q->g;
            out[g * NB_STRIP + r] = r < q->n && q->offsets ? q->offsets[i] + q->scales[i] * (float)q->zeros[i] : 0;
        }
}

/* Are the codes of this part packed from the words they are stored in, without a byte a code between? */
static bool by_words(const nb_mat *m, const nb_source *s)
{
    return m->kind == NB_MAT_Q4 && s->q && nb_words_fit(s->q) && !m->q4.perm && !m->has_fix && m->q4.k % m->q4.g == 0;
}

/* Rows that a thread takes at a time of such a part. The more, the longer the pieces of rows of stored words that it reads. */
static size_t wide_rows(const nb_source *s)
{
    const size_t n_groups = (s->k + s->q->g - 1) / s->q->g, fit = WIDE_SCALES / n_groups / NB_STRIP * NB_STRIP;

    if (s->q->format->words == NB_WORDS_BY_OUTPUT) /* through a tile */
        return NB_STRIP;
    return fit < NB_STRIP ? NB_STRIP : fit < WIDE_ROWS ? fit : WIDE_ROWS;
}

/* Strips [s0, s1) of a part, the first strip of the part being `first`. */
static bool pack_words(const pack_job *j, const nb_mat *m, size_t part, size_t s0, size_t s1, float *scratch, nb_err *err)
{
    const nb_source *s = &j->src[part];
    const nb_tensor *t = s->q->parts[0];
    const size_t first = j->f->part_row[part] / NB_STRIP, row0 = j->f->part_row[part] - m->strip0 * NB_STRIP;
    const size_t step = wide_rows(s) / NB_STRIP;
    nb_q4 dst = m->q4;
    nb_qlin q = { 0 };
    bool ok = nb_qlin_init_grid(&q, (s1 - s0 < step ? s1 - s0 : step) * NB_STRIP, s->k, s->q->g, s->q->spec.bits, err) == NB_OK;

    for (size_t i = s0; i < s1 && ok; i += step) {
        const size_t n0 = (i - first) * NB_STRIP, rows = (s1 - i < step ? s1 - i : step) * NB_STRIP;
        nb_words all = { t->data, (size_t)t->shape[1] * 4, s->q->format->words != NB_WORDS_AWQ }, w;

        q.n = s->n - n0 < rows ? s->n - n0 : rows;
        ok = s->q->format->unpack(s->q, n0, &q, err) == NB_OK;
        if (s->q->format->words == NB_WORDS_BY_OUTPUT)
            w = (nb_words){ nb_words_get(s->q, 0, s->k / 8, n0, q.n, (unsigned char *)scratch), 4 * q.n, true };
        else
            w = nb_words_at(&all, 0, n0);
        if (ok)
            j->m->kern->pack_words(&dst, row0, n0, &q, &w);
    }
    nb_qlin_clear(&q);
    return ok;
}

static bool pack_part(const pack_job *j, const nb_mat *m, size_t part, size_t n0, nb_qlin *q, float *scratch, nb_err *err)
{
    const nb_source *s = &j->src[part];
    const size_t row0 = j->f->part_row[part] - m->strip0 * NB_STRIP;
    const size_t rows = s->n - n0 < STRIPE ? s->n - n0 : STRIPE;

    if (m->kind == NB_MAT_Q8 && !s->q) {
        const float *src = nb_source_rows(j->m->store, s, NB_DT_F32, n0, rows, scratch, err);
        nb_q8 dst = m->q4;
        if (!src)
            return false;
        q->n = rows;
        nb_codes_round(q, src);
        j->m->kern->pack_q8(&dst, row0, n0, q, NULL);
    } else if (m->kind != NB_MAT_DENSE) {
        nb_q4 dst = m->q4;
        q->n = rows;
        if (s->q->format->unpack(s->q, n0, q, err) != NB_OK)
            return false;
        (m->kind == NB_MAT_Q8 ? j->m->kern->pack_q8 : j->m->kern->pack_q4)(&dst, row0, n0, q, m->q4.perm);
        if (m->has_fix)
            pack_fix(m, row0 + n0, q);
    } else {
        nb_dense dst = m->dense;
        const void *src = scratch;
        if (s->q) { /* widened */
            q->n = rows;
            if (s->q->format->unpack(s->q, n0, q, err) != NB_OK)
                return false;
            nb_qlin_dequant(q, scratch);
        } else if (!(src = nb_source_rows(j->m->store, s, m->dense.dtype, n0, rows, scratch, err))) {
            return false;
        }
        j->m->kern->pack_dense(&dst, row0 + n0, src, rows);
    }
    return true;
}

/* Strips [begin, end) of the op. */
static void pack_range(void *ctx, size_t begin, size_t end, int thread)
{
    const pack_job *j = ctx;
    nb_err *err = &j->errs[thread];
    float *scratch = nb_alloc_array(j->f->k, STRIPE * sizeof *scratch);
    bool ok = scratch || nb_enomem(err, "packing a matrix") == NB_OK;

    for (size_t i = 0; i < j->f->n_mats && ok; i++) {
        const nb_mat *m = &j->f->mats[i];
        nb_qlin q = { 0 };

        for (size_t p = m->part0; p < m->part0 + m->n_parts; p++) {
            const size_t first = j->f->part_row[p] / NB_STRIP;
            const nb_linear *lin = j->src[p].q;
            const bool here = first < end && first + (j->src[p].n + NB_STRIP - 1) / NB_STRIP > begin;
            if (ok && here && by_words(m, &j->src[p])) {
                const size_t last = first + (j->src[p].n + NB_STRIP - 1) / NB_STRIP;
                ok = pack_words(j, m, p, first > begin ? first : begin, last < end ? last : end, scratch, err);
                continue;
            }
            if (ok && here && lin && (q.g != lin->g || q.bits != lin->spec.bits)) {
                nb_qlin_clear(&q);
                ok = nb_qlin_init(&q, STRIPE, lin->k, lin->g, lin->spec.bits, err) == NB_OK;
            }
            if (ok && here && !lin && m->kind == NB_MAT_Q8 && !q.codes)
                ok = nb_qlin_init(&q, STRIPE, m->q4.k, m->q4.g, 8, err) == NB_OK;
            for (size_t n0 = 0; n0 < j->src[p].n && ok; n0 += STRIPE)
                if (first + n0 / NB_STRIP >= begin && first + n0 / NB_STRIP < end)
                    ok = pack_part(j, m, p, n0, &q, scratch, err);
        }
        nb_qlin_clear(&q);
    }
    nb_free(scratch);
}

nb_status nb_first_error(const nb_err *errs, size_t n, nb_err *err)
{
    for (size_t i = 0; i < n; i++) {
        if (errs[i].code != NB_OK) {
            if (err && err->code == NB_OK)
                *err = errs[i];
            return errs[i].code;
        }
    }
    return NB_OK;
}

static void drop_source(nb_store *s, const nb_source *src)
{
    if (src->w)
        nb_store_drop(s, src->w);
    for (size_t i = 0; src->q && i < NB_MAX_PARTS; i++)
        if (src->q->parts[i])
            nb_store_drop(s, src->q->parts[i]);
}

static nb_status pack_bias(nb_model *m, nb_fused *f, const nb_source *src, size_t n_parts, nb_arena *mem, nb_err *err)
{
    for (size_t i = 0; i < n_parts; i++) {
        nb_status rc;

        if (!src[i].bias)
            continue;
        if (!f->bias)
            f->bias = nb_arena_calloc(mem, f->n_strips * NB_STRIP, sizeof *f->bias);
        if (!f->bias)
            return nb_enomem(err, "a bias");
        const size_t step = src[i].bias_step ? (size_t)src[i].bias_step : 1, span = (src[i].n - 1) * step + 1;
        float *b = step > 1 ? nb_arena_calloc(mem, span, sizeof *b) : f->bias + f->part_row[i];
        rc = b ? nb_store_read_f32(m->store, src[i].bias, src[i].bias_at, span, b, err) : nb_enomem(err, "a bias");
        if (rc != NB_OK)
            return rc;
        for (size_t r = 0; step > 1 && r < src[i].n; r++)
            f->bias[f->part_row[i] + r] = b[r * step];
    }
    return NB_OK;
}

/* Give the matrices of f their places from *at on, pack, advance *at. */
static nb_status pack_op(nb_model *m, nb_fused *f, const nb_source *src, size_t n_parts, unsigned char **at, nb_arena *mem, nb_err *err)
{
    const size_t threads = (size_t)nb_pool_threads(m->pool);
    pack_job j = { .m = m, .f = f, .src = src, .n_parts = n_parts, .errs = nb_calloc(threads, sizeof(nb_err)) };
    nb_status rc;

    if (!j.errs)
        return nb_enomem(err, "packing a matrix");
    for (size_t i = 0; i < f->n_mats; i++) {
        nb_mat *mat = &f->mats[i];
        mat->q4.base = mat->dense.base = *at;
        *at += (nb_mat_bytes(mat) + 63) / 64 * 64;
        mat->fix = mat->has_fix ? (float *)(void *)*at : NULL;
        *at += nb_mat_fix_bytes(mat);
    }
    nb_parallel_static(m->pool, f->n_strips, pack_range, &j);
    rc = nb_first_error(j.errs, threads, err);
    nb_free(j.errs);
    if (rc == NB_OK)
        rc = pack_bias(m, f, src, n_parts, mem, err);
    for (size_t i = 0; i < n_parts; i++)
        if (src[i].rs == 0) /* else other parts lie in the same tensor */
            drop_source(m->store, &src[i]);
    return rc;
}

/* ---- layers --------------------------------------------------------------------------------------------------- */

void nb_pack_clear(nb_pack_list *lp)
{
    nb_free(lp->items);
    *lp = (nb_pack_list){ 0 };
}

nb_status nb_pack_add(nb_pack_list *lp, nb_fused *f, const nb_source *src, size_t n, nb_err *err)
{
    if (lp->n == lp->cap) {
        const size_t cap = lp->cap ? 2 * lp->cap : 8;
        nb_pack_item *p = nb_realloc(lp->items, cap * sizeof *p);
        if (!p)
            return nb_enomem(err, "the plan of a layer");
        lp->items = p;
        lp->cap = cap;
    }
    lp->items[lp->n] = (nb_pack_item){ .f = f, .n_parts = n };
    memcpy(lp->items[lp->n++].src, src, n * sizeof *src);
    return NB_OK;
}

/* Router, experts, shared expert and its gate. l NULL: check only. */
static nb_status plan_moe(const nb_model *m, size_t layer, nb_layer *l, nb_pack_list *lp, nb_err *err)
{
    const size_t E = m->cfg.moe.n_experts, n = E + (m->cfg.moe.shared_ff > 0);
    nb_ffn_source src;
    nb_source one;
    nb_status rc = nb_moe_router(&m->plan, m->store, layer, &one, err);

    if (rc == NB_OK)
        rc = nb_pack_add(lp, l ? &l->moe.router : NULL, &one, 1, err);
    if (rc == NB_OK && l && !(l->moe.ffn = nb_arena_calloc(&l->mem, n, sizeof *l->moe.ffn)))
        rc = nb_enomem(err, "the experts");
    for (size_t e = 0; e < n && rc == NB_OK; e++) {
        nb_ffn *f = l ? &l->moe.ffn[e] : NULL;
        rc = nb_moe_ffn(&m->plan, m->store, m->scan, layer, e, &src, err);
        if (rc == NB_OK)
            rc = nb_pack_add(lp, f ? &f->gu : NULL, src.gu, src.n_gu, err);
        if (rc == NB_OK)
            rc = nb_pack_add(lp, f ? &f->down : NULL, &src.down, 1, err);
        if (f) {
            f->ff = e < E ? m->cfg.moe.ff : m->cfg.moe.shared_ff;
            f->up_off = src.n_gu == 1 ? f->ff : (f->ff + NB_STRIP - 1) / NB_STRIP * NB_STRIP;
        }
    }
    for (int leave = 0; leave < 2 && m->cfg.moe.latent && rc == NB_OK; leave++) {
        rc = nb_moe_latent(&m->plan, m->store, m->scan, layer, leave != 0, &one, err);
        if (rc == NB_OK)
            rc = nb_pack_add(lp, !l ? NULL : leave ? &l->moe.leave : &l->moe.enter, &one, 1, err);
    }
    if (rc == NB_OK && m->cfg.moe.shared_ff > 0)
        rc = nb_moe_gate(&m->plan, m->store, layer, &one, err);
    if (rc == NB_OK && m->cfg.moe.shared_ff > 0 && one.w)
        rc = nb_pack_add(lp, l ? &l->moe.gate : NULL, &one, 1, err);
    return rc;
}

/* The output projection, group by group. */
static nb_status plan_groups(const nb_model *m, size_t layer, nb_layer *l, nb_pack_list *lp, nb_err *err)
{
    const size_t n = m->cfg.v4.groups;
    nb_status rc = NB_OK;
    nb_source src;

    if (l && !(l->groups = nb_arena_calloc(&l->mem, n, sizeof *l->groups)))
        return nb_enomem(err, "the output projection");
    for (size_t g = 0; g < n && rc == NB_OK; g++) {
        rc = nb_v4_group(&m->plan, m->store, layer, g, &src, err);
        if (rc == NB_OK)
            rc = nb_pack_add(lp, l ? &l->groups[g] : NULL, &src, 1, err);
    }
    return rc;
}

static nb_status plan_layer(const nb_model *m, size_t layer, nb_layer *l, nb_pack_list *lp, nb_err *err)
{
    *lp = (nb_pack_list){ 0 };
    for (size_t i = 0; i < m->plan.n_ops; i++) {
        const nb_op *op = &m->plan.ops[i];
        nb_source src[3];
        nb_status rc = NB_OK;
        size_t n;

        if (!nb_plan_runs(&m->plan, op, layer))
            continue;
        if (op->kind == NB_OP_LINEAR && !m->lazy && nb_plan_stored_at(&m->plan, layer, op->roles[0]) != layer)
            continue; /* packed with that layer */
        if (op->kind == NB_OP_LINEAR) {
            rc = nb_source_op(&m->plan, m->store, m->scan, layer, op, src, &n, err);
            if (rc == NB_OK)
                rc = nb_pack_add(lp, l ? &l->ops[op->roles[0]] : NULL, src, n, err);
            if (rc == NB_OK)
                lp->items[lp->n - 1].plain = true;
        } else if (op->kind == NB_OP_MOE) {
            rc = plan_moe(m, layer, l, lp, err);
        } else if (op->kind == NB_OP_GROUPS) {
            rc = plan_groups(m, layer, l, lp, err);
        }
        if (rc != NB_OK)
            return rc;
    }
    return NB_OK;
}

/* A vector of n values; per head weights may be stored as a matrix of one row a head. */
static nb_status find_vec(const nb_model *m, const char *name, size_t n, bool any_rank, const nb_tensor **out, nb_err *err)
{
    char got[128];
    uint64_t total = 1;
    const nb_tensor *t = *out = nb_store_find(m->store, name);

    if (!t)
        return nb_fail(err, NB_EFORMAT, "cfg.missing_tensor", "", "tensor \"%s\" is missing", name);
    if (t->rank == 2 && m->cfg.qk == NB_QK_PER_HEAD && t->shape[1] == m->cfg.head_dim && t->shape[0] == n / m->cfg.head_dim)
        return NB_OK;
    for (unsigned i = 0; any_rank && i < t->rank; i++)
        total *= t->shape[i];
    if (any_rank ? total != n : t->rank != 1 || t->shape[0] != n)
        return nb_fail(err, NB_EFORMAT, "cfg.shape_mismatch", "", "tensor \"%s\" is %s, the configuration needs [%zu]", name,
                       nb_shape_str(got, sizeof got, t->shape, t->rank), n);
    return NB_OK;
}

static nb_status bind_vec(const nb_model *m, const char *name, size_t n, bool any_rank, nb_arena *mem, float **out, nb_err *err)
{
    const nb_tensor *t;
    nb_status rc = find_vec(m, name, n, any_rank, &t, err);

    if (rc != NB_OK)
        return rc;
    *out = nb_arena_calloc(mem, n, sizeof **out);
    return *out ? nb_store_read_f32(m->store, t, 0, n, *out, err) : nb_enomem(err, "a norm vector");
}

nb_status nb_bind_vec(const nb_model *m, const char *name, size_t n, nb_arena *mem, float **out, nb_err *err)
{
    return bind_vec(m, name, n, false, mem, out, err);
}

void nb_add_one(float *v, size_t n)
{
    for (size_t i = 0; i < n; i++)
        v[i] += 1;
}

nb_status nb_turn(float *v, size_t n, size_t channels, nb_err *err)
{
    float *copy = nb_alloc_array(n * channels, sizeof *copy);

    if (!copy)
        return nb_enomem(err, "a vector of a mixer");
    memcpy(copy, v, n * channels * sizeof *v);
    for (size_t c = 0; c < channels; c++)
        for (size_t i = 0; i < n; i++)
            v[i * channels + c] = copy[c * n + i];
    nb_free(copy);
    return NB_OK;
}

/* What scales the input of a router with its width; convolutions tap by tap; Mamba-1's decays by state, as what multiplies the time step. */
static nb_status arrange(const nb_model *m, size_t layer, nb_vec vec, float *v, size_t n, nb_err *err)
{
    const nb_mix_cfg *x = &m->cfg.mix;
    nb_status rc = NB_OK;

    for (size_t i = 0; vec == NB_VEC_ROUTER_NORM && i < n; i++)
        v[i] = (float)((double)v[i] / sqrt((double)m->cfg.d_model));
    if (vec == NB_VEC_HYPER1 || vec == NB_VEC_HYPER2)
        return nb_turn(v, m->cfg.v4.streams * m->cfg.d_model, n / (m->cfg.v4.streams * m->cfg.d_model), err);
    if (vec >= NB_VEC_CONV && vec <= NB_VEC_CONV_V)
        return nb_turn(v, x->taps, n / x->taps, err);
    if (vec != NB_VEC_A_LOG || nb_plan_mixer(&m->plan, layer) != NB_MIX_SSM1)
        return NB_OK;
    rc = nb_turn(v, x->key_dim, x->value_dim, err);
    for (size_t i = 0; i < n; i++)
        v[i] = -expf(v[i]);
    return rc;
}

/* A vector of a layer, check only (out NULL) or read. */
static nb_status layer_vec(const nb_model *m, size_t layer, nb_vec vec, nb_arena *mem, float **out, nb_err *err)
{
    const size_t n = nb_plan_has_vec(&m->plan, layer, vec) ? nb_plan_vec_size_at(&m->plan, layer, vec) : 0,
                 parts = nb_plan_vec_parts(&m->plan, vec);
    float *v = out &&n > 0 ? *out = nb_arena_calloc(mem, n, sizeof **out) : NULL;
    char name[192];
    nb_status rc = out && n > 0 && !v ? nb_enomem(err, "a norm vector") : NB_OK;

    for (size_t i = 0; i < parts && n > 0 && rc == NB_OK; i++) {
        const nb_tensor *t;
        rc = find_vec(m, nb_plan_vec_part(&m->plan, layer, vec, i, name, sizeof name), n / parts, vec >= NB_VEC_CONV, &t, err);
        if (rc == NB_OK && v)
            rc = nb_store_read_f32(m->store, t, 0, n / parts, v + i * (n / parts), err);
    }
    if (v && rc == NB_OK)
        rc = arrange(m, layer, vec, v, n, err);
    if (v && m->cfg.norm == NB_NORM_LN1 && (vec == NB_VEC_N1 || vec == NB_VEC_N2))
        nb_add_one(v, n);
    return rc;
}

/* Every tensor of every layer is there and has its shape: said before the first byte is packed. */
static nb_status check_layers(const nb_model *m, const nb_host *host, nb_err *err)
{
    size_t n_wide = 0;

    for (size_t l = 0; l < m->cfg.n_layers; l++) {
        nb_pack_list lp = { 0 };
        nb_source latent;
        nb_status rc = NB_OK;

        for (int v = 0; v < NB_VEC_COUNT && rc == NB_OK; v++)
            rc = layer_vec(m, l, (nb_vec)v, NULL, NULL, err);
        if (rc == NB_OK)
            rc = plan_layer(m, l, NULL, &lp, err);
        if (rc == NB_OK && nb_plan_has_op(&m->plan, l, NB_OP_ABSORB))
            rc = nb_latent_find(m, l, &latent, err);
        for (size_t r = 0; r < lp.n; r++)
            for (size_t i = 0; i < lp.items[r].n_parts; i++)
                n_wide += lp.items[r].src[i].widen;
        nb_pack_clear(&lp);
        if (rc != NB_OK)
            return rc;
    }
    if (n_wide)
        nb_log(host, NB_LOG_INFO, "%zu linears have groups of odd sizes; they are held as 32-bit floats", n_wide);
    return NB_OK;
}

static void free_layer(nb_layer *l)
{
    if (l->block)
        nb_huge_free(l->block, l->block_bytes);
    if (l->latent.block)
        nb_huge_free(l->latent.block, l->latent.bytes);
    nb_arena_clear(&l->mem);
    *l = (nb_layer){ 0 };
}

/* What the executor's buffers for quantized inputs must hold. */
static void note_groups(nb_model *m, const nb_fused *f)
{
    for (size_t i = 0; i < f->n_mats; i++) {
        if (f->mats[i].kind == NB_MAT_DENSE)
            continue;
        if (m->act_g == 0 || f->mats[i].q4.g < m->act_g)
            m->act_g = f->mats[i].q4.g;
        m->n_acts = f->n_mats > m->n_acts ? f->n_mats : m->n_acts;
    }
}

/* Lay out all matrices of lp in one block and pack them. */
nb_status nb_pack_layer(nb_model *m, nb_layer *l, nb_pack_list *lp, nb_err *err)
{
    unsigned char *at;
    nb_status rc = NB_OK;
    size_t total = 0;

    for (size_t r = 0; r < lp->n; r++) {
        nb_pack_item *it = &lp->items[r];
        for (size_t i = 0; i < it->n_parts && rc == NB_OK; i++)
            rc = nb_source_probe(&it->src[i], &l->mem, err);
        if (rc != NB_OK)
            return rc;
        if (!nb_fused_layout(it->f, it->src, it->n_parts, m->f32))
            return nb_fail(err, NB_EUNSUPPORTED, "cfg.group_size", "", "%zu inputs in groups of %zu cannot be packed", it->src[0].k,
                           it->src[0].q ? it->src[0].q->g : 0);
        if (m->codes && it->plain)
            (void)nb_fused_codes(it->f, it->src, it->n_parts, m->codes);
        total += it->f->bytes + 3 * 64;
        note_groups(m, it->f);
    }
    if (lp->n == 0) { /* a layer that does nothing */
        l->bound = true;
        return NB_OK;
    }
    l->block_bytes = total;
    l->block = nb_huge_alloc(total);
    if (!l->block)
        return nb_enomem(err, "packed weights");
    at = l->block;
    for (size_t r = 0; r < lp->n && rc == NB_OK; r++)
        rc = pack_op(m, lp->items[r].f, lp->items[r].src, lp->items[r].n_parts, &at, &l->mem, err);
    l->bound = rc == NB_OK;
    return rc;
}

static nb_status read_correction(const nb_model *m, size_t layer, nb_layer *l, nb_err *err)
{
    const nb_tensor *t = l->moe.ffn ? nb_moe_correction(&m->plan, m->store, layer) : NULL;

    return t ? bind_vec(m, t->name, m->cfg.moe.n_experts + m->cfg.moe.n_identity, true, &l->mem, &l->moe.correction, err) : NB_OK;
}

/* Matrices that an earlier layer holds. */
static void borrow(nb_model *m, size_t layer)
{
    const nb_plan *p = &m->plan;

    for (size_t i = 0; i < p->n_ops && !m->lazy; i++) {
        const nb_role role = p->ops[i].roles[0];
        if (p->ops[i].kind == NB_OP_LINEAR && nb_plan_runs(p, &p->ops[i], layer) && nb_plan_stored_at(p, layer, role) != layer)
            m->layers[layer].ops[role] = m->layers[nb_plan_stored_at(p, layer, role)].ops[role];
    }
}

nb_status nb_model_bind_layer(nb_model *m, size_t layer, nb_err *err)
{
    nb_pack_list lp;
    nb_layer *l;
    nb_status rc;

    if (layer >= m->cfg.n_layers)
        return nb_fail(err, NB_EARG, "model.layer", "", "layer %zu of %zu", layer, m->cfg.n_layers);
    l = &m->layers[layer];
    if (l->bound)
        return NB_OK;
    if (m->embed_from) /* rows of it were read where they are stored */
        nb_store_drop(m->store, m->embed_from);
    rc = plan_layer(m, layer, l, &lp, err);
    for (int v = 0; v < NB_VEC_COUNT && rc == NB_OK; v++)
        rc = layer_vec(m, layer, (nb_vec)v, &l->mem, &l->vec[v], err);
    if (rc == NB_OK)
        rc = nb_pack_layer(m, l, &lp, err);
    nb_pack_clear(&lp);
    if (rc == NB_OK)
        borrow(m, layer);
    if (rc == NB_OK)
        rc = read_correction(m, layer, l, err);
    if (rc == NB_OK)
        rc = nb_v4_table(m, layer, &l->mem, &l->moe.by_token, err);
    if (rc == NB_OK && nb_plan_has_op(&m->plan, layer, NB_OP_ABSORB))
        rc = nb_latent_bind(m, layer, &l->mem, &l->latent, err);
    if (rc == NB_OK)
        rc = nb_store_still(m->store, err);
    if (rc != NB_OK)
        free_layer(l);
    return rc;
}

void nb_model_unbind_layer(nb_model *m, size_t layer)
{
    if (layer < m->cfg.n_layers)
        free_layer(&m->layers[layer]);
}

size_t nb_model_hold_codes(nb_model *m, size_t g)
{
    const size_t was = m->codes;

    m->codes = g;
    return was;
}

/* ---- open, close ---------------------------------------------------------------------------------------------- */

nb_status nb_model_open(nb_store *store, const nb_json *cfg_json, const nb_scan *scan, const nb_model_opts *o, nb_model **out, nb_err *err)
{
    nb_model *m = nb_calloc(1, sizeof *m);
    nb_status rc;

    *out = NULL;
    if (!m)
        return nb_enomem(err, "the model");
    m->store = store;
    m->scan = scan;
    m->kern = o->kern ? o->kern : nb_kern_pick(nb_cpu_features());
    m->pool = o->pool;
    m->lazy = o->lazy;
    m->headless = o->lazy && o->headless;
    m->f32 = o->f32;
    m->codes = o->codes;
    if ((rc = nb_config_parse(cfg_json, &m->cfg, err)) != NB_OK) {
        nb_config_nearest(cfg_json, store, err);
        goto done;
    }
    if ((rc = nb_plan_build(&m->cfg, store, &m->plan, err)) != NB_OK)
        goto done;
    m->layers = nb_calloc(m->cfg.n_layers, sizeof *m->layers);
    if (!m->layers) {
        rc = nb_enomem(err, "the layers");
        goto done;
    }
    if ((rc = check_layers(m, o->host, err)) != NB_OK || (rc = nb_bind_top(m, o->host, err)) != NB_OK)
        goto done;
    for (size_t l = 0; l < m->cfg.n_layers && rc == NB_OK && !m->lazy; l++) {
        nb_progress p = { .what = "load", .unit = "layers", .done = l, .total = m->cfg.n_layers };
        nb_report_progress(o->host, &p);
        rc = nb_cancelled(o->host) ? nb_fail(err, NB_ECANCELED, "canceled", "", "stopped while loading") : nb_model_bind_layer(m, l, err);
    }
    if (rc == NB_OK) {
        *out = m;
        m = NULL;
    }
done:
    nb_err_at(err, store->path, NULL);
    nb_model_close(m);
    return rc;
}

void nb_model_close(nb_model *m)
{
    if (!m)
        return;
    for (size_t l = 0; m->layers && l < m->cfg.n_layers; l++)
        free_layer(&m->layers[l]);
    nb_free(m->layers);
    free_layer(&m->top);
    if (m->embed_bytes)
        nb_huge_free((void *)(uintptr_t)m->embed, m->embed_bytes);
    if (m->layer_embed)
        nb_huge_free(m->layer_embed, m->layer_bytes);
    nb_plan_clear(&m->plan);
    nb_config_clear(&m->cfg);
    nb_free(m);
}

const nb_config *nb_model_config(const nb_model *m)
{
    return &m->cfg;
}

const nb_plan *nb_model_plan(const nb_model *m)
{
    return &m->plan;
}

const nb_kern *nb_model_kern(const nb_model *m)
{
    return m->kern;
}

uint64_t nb_model_bytes(const nb_model *m)
{
    uint64_t n = m->embed_bytes + m->layer_bytes + m->top.block_bytes;

    for (size_t l = 0; l < m->cfg.n_layers; l++)
        n += m->layers[l].block_bytes + m->layers[l].latent.bytes;
    return n;
}

/* The experts of one token, all alike, and what every token reads. */
static uint64_t moe_step_bytes(const nb_config *c, const nb_moe *w)
{
    uint64_t n = w->router.bytes + w->gate.bytes + w->enter.bytes + w->leave.bytes;

    if (!w->ffn)
        return 0;
    n += c->moe.n_active * (w->ffn[0].gu.bytes + w->ffn[0].down.bytes);
    return c->moe.shared_ff ? n + w->ffn[c->moe.n_experts].gu.bytes + w->ffn[c->moe.n_experts].down.bytes : n;
}

uint64_t nb_model_step_bytes(const nb_model *m)
{
    uint64_t n = m->top.ops[NB_TOP_HEAD].bytes;

    for (size_t l = 0; l < m->cfg.n_layers; l++)
        for (size_t r = 0; r < NB_ROLE_COUNT; r++)
            n += m->layers[l].ops[r].bytes;
    for (size_t l = 0; l < m->cfg.n_layers; l++)
        for (size_t g = 0; m->layers[l].groups && g < m->cfg.v4.groups; g++)
            n += m->layers[l].groups[g].bytes;
    for (size_t l = 0; l < m->cfg.n_layers; l++)
        n += m->layers[l].latent.bytes;
    for (size_t l = 0; m->cfg.moe.sparse && l < m->cfg.n_layers; l++)
        n += moe_step_bytes(&m->cfg, &m->layers[l].moe);
    return n;
}

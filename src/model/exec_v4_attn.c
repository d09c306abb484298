/* exec_v4_attn.c - attention of DeepSeek-V4: the keys of a window, and entries that whole windows of tokens have become.
 *
 * The rows of an open window are kept as state; the token that completes it makes an entry, in the page where it lies. A row attends
 * to the keys it sees, oldest first, then to its entries, oldest first, gathered as if they were all: its bits depend on nothing
 * else. An entry that two windows make: the first half of the channels of the earlier one, the second half of its own. Source: spec
 * models-2026 S4.10. */
#include <math.h>
#include <string.h>

#include "model/exec_cpu.h"

#define PAD64(n) (((n) + 63) / 64 * 64)

enum { CHUNK = 64 }; /* entries that are scored together */

static float *row_of(const nb_xcpu *x, nb_slot s, size_t r)
{
    return x->slot[s] + r * x->m->plan.slot_width[s];
}

static size_t position(const nb_xcpu *x, size_t r)
{
    return x->b->pos[x->row0 + r];
}

static size_t most(size_t a, size_t b)
{
    return a > b ? a : b;
}

nb_status nb_xcpu_v4_open(nb_xcpu *x, nb_err *err)
{
    const nb_config *c = &x->m->cfg;
    size_t entries = 0, mix = 0;

    if (!c->v4.on)
        return NB_OK;
    if (x->o.kv_dtype == NB_DT_I8)
        return nb_fail(err, NB_EUNSUPPORTED, "exec.kv", "", "%s caches entries of many tokens, in 16 or 32 bits; use f16 or f32",
                       c->model_type);
    for (size_t l = 0; l < c->n_layers; l++) {
        const bool csa = nb_plan_mixer(&x->m->plan, l) == NB_MIX_CSA;
        const size_t rate = nb_plan_rate(&x->m->plan, l), all = rate ? x->o.n_pages * NB_PAGE / rate : 0;
        entries = most(entries, csa && all > c->index_top ? c->index_top : all);
        mix = most(mix, (csa ? 4 : 2) * rate * most(c->head_dim, c->index_dim) + 2 * most(c->head_dim, c->index_dim));
        x->mark_floats = most(x->mark_floats, csa ? PAD64(all + CHUNK) + c->index_dim * CHUNK + CHUNK : 0);
    }
    const size_t pages = (c->sliding_window + entries + NB_PAGE - 1) / NB_PAGE;

    x->gather_bytes = PAD64(pages * nb_kv_head_bytes(c->kv_dim, x->o.kv_dtype));
    x->mix_floats = PAD64(mix + 16);
    nb_free_aligned(x->mix);
    x->mix = nb_alloc_aligned(64, (size_t)x->threads * x->mix_floats * sizeof(float));
    x->picked = nb_alloc_array((size_t)x->threads, most(c->index_top, 1) * sizeof *x->picked);
    x->in_order = nb_alloc_array(pages, sizeof *x->in_order);
    x->gathered = nb_alloc_aligned(64, (size_t)x->threads * x->gather_bytes);
    x->marks = nb_alloc_aligned(64, (size_t)x->threads * most(x->mark_floats, 1) * sizeof *x->marks);
    if (!x->mix || !x->picked || !x->in_order || !x->gathered || !x->marks)
        return nb_enomem(err, "compressed entries");
    for (size_t i = 0; i < pages; i++)
        x->in_order[i] = (uint32_t)i;
    return NB_OK;
}

typedef struct v4_job {
    const nb_xcpu *x;
    size_t l;
} v4_job;

/* Where entry w of a sequence lies; its key, where entries are chosen. */
static unsigned char *entry_at(const nb_xcpu *x, const nb_seq_view *s, size_t l, size_t w, bool key)
{
    const nb_config *c = &x->m->cfg;
    const size_t rate = nb_plan_rate(&x->m->plan, l), last = (w + 1) * rate - 1, es = nb_dtype_info(x->o.kv_dtype)->bits / 8;
    const size_t n = nb_plan_page_entries(&x->m->plan, l), i = last % NB_PAGE / rate;
    unsigned char *page = x->kv + x->kv_of[l].side + s->pages[last / NB_PAGE] * x->kv_of[l].side_page;

    return page + (key ? n * c->head_dim + i * c->index_dim : i * c->head_dim) * es;
}

/* ---- entries -------------------------------------------------------------------------------------------------- */

/* One kind of entry: where its tokens lie, how wide it is. */
typedef struct kind {
    nb_slot slot;
    size_t rate, dim, width; /* width: channels of a token, dim or twice that */
    const float *ape, *norm;
    float *state; /* values [rate][width], weights [rate][width], then [2][rate][dim] of the window before */
    bool key;
} kind;

static kind kind_of(const v4_job *j, const nb_block *s, bool key)
{
    const nb_config *c = &j->x->m->cfg;
    float *const *vec = j->x->m->layers[j->l].vec;
    const size_t rate = nb_plan_rate(&j->x->m->plan, j->l);
    kind k = { .slot = key ? NB_SLOT_ICOMP : NB_SLOT_COMP, .rate = rate, .dim = key ? c->index_dim : c->head_dim, .key = key };

    k.width = nb_plan_entry_channels(&j->x->m->plan, j->l, key);
    k.ape = vec[key ? NB_VEC_ICOMP_APE : NB_VEC_COMP_APE];
    k.norm = vec[key ? NB_VEC_ICOMP_NORM : NB_VEC_COMP_NORM];
    k.state = nb_xcpu_state(j->x, s, j->l) + (key ? PAD64(rate * 6 * c->head_dim) : 0);
    return k;
}

/* The window at hand becomes entry w: per channel a softmax over its tokens. */
static void make_entry(const v4_job *j, const nb_block *s, const kind *k, size_t w, float *scratch)
{
    const nb_xcpu *x = j->x;
    const nb_layer_rope which = nb_rope_layer(&x->m->cfg, j->l);
    const bool two = k->width > k->dim;
    const size_t n = two && w > 0 ? 2 * k->rate : k->rate, half = x->half[which], at = w * k->rate,
                 es = nb_dtype_info(x->o.kv_dtype)->bits / 8;
    const float *now = k->state, *before = now + 2 * k->rate * k->width;
    float *e = scratch, *top = e + n * k->dim, *y = top + k->dim;

    for (size_t i = 0; i < n; i++) { /* tokens of the window before, then its own */
        const bool old = n > k->rate && i < k->rate;
        const float *g = old ? before + (k->rate + i) * k->dim : now + (k->rate + i % k->rate) * k->width + (two ? k->dim : 0);
        memcpy(e + i * k->dim, g, k->dim * sizeof *e);
        for (size_t c = 0; c < k->dim; c++)
            top[c] = i == 0 || g[c] > top[c] ? g[c] : top[c];
    }
    for (size_t i = 0; i < n; i++)
        for (size_t c = 0; c < k->dim; c++)
            e[i * k->dim + c] -= top[c];
    x->kern->exp_sum(e, e, 0, n * k->dim);
    memset(y, 0, k->dim * sizeof *y);
    memset(top, 0, k->dim * sizeof *top); /* now the sums */
    for (size_t i = 0; i < n; i++) {
        const bool old = n > k->rate && i < k->rate;
        const float *v = old ? before + i * k->dim : now + i % k->rate * k->width + (two ? k->dim : 0);
        for (size_t c = 0; c < k->dim; c++) {
            y[c] += v[c] * e[i * k->dim + c];
            top[c] += e[i * k->dim + c];
        }
    }
    for (size_t c = 0; c < k->dim; c++)
        y[c] /= top[c];
    x->kern->rmsnorm(y, y, k->norm, 0, (float)x->m->cfg.norm_eps, k->dim);
    x->kern->rope_pair(y + k->dim - 2 * half, x->cs[which] + at * half, x->sn[which] + at * half, 2 * half);
    unsigned char *to = entry_at(x, s->seq, j->l, w, k->key);
    for (size_t c = 0; c < k->dim; c++)
        nb_from_f32(to + c * es, y + c, x->o.kv_dtype, 1);
}

/* The rows of one sequence. */
static void add_rows(const v4_job *j, const nb_block *s, bool key, float *scratch)
{
    const nb_xcpu *x = j->x;
    const kind k = kind_of(j, s, key);
    float *values = k.state, *weights = values + k.rate * k.width, *before = weights + k.rate * k.width;

    if (s->pos == 0)
        memset(k.state, 0, (2 * k.width + (k.width > k.dim ? 2 * k.dim : 0)) * k.rate * sizeof *k.state);
    for (size_t i = 0; i < s->m; i++) {
        const float *in = row_of(x, k.slot, s->row + i), *gate = in + PAD64(k.width);
        const size_t t = (s->pos + i) % k.rate;

        memcpy(values + t * k.width, in, k.width * sizeof *in);
        for (size_t c = 0; c < k.width; c++)
            weights[t * k.width + c] = gate[c] + k.ape[t * k.width + c];
        if (t + 1 < k.rate)
            continue;
        make_entry(j, s, &k, (s->pos + i) / k.rate, scratch);
        for (size_t n = 0; k.width > k.dim && n < k.rate; n++) {
            memcpy(before + n * k.dim, values + n * k.width, k.dim * sizeof *in);
            memcpy(before + (k.rate + n) * k.dim, weights + n * k.width, k.dim * sizeof *in);
        }
    }
}

static void entry_tasks(void *ctx, size_t begin, size_t end, int thread)
{
    const v4_job *j = ctx;
    const size_t kinds = nb_plan_mixer(&j->x->m->plan, j->l) == NB_MIX_CSA ? 2 : 1;

    for (size_t i = begin; i < end; i++)
        add_rows(j, &j->x->spans[i / kinds], i % kinds == 1, j->x->mix + (size_t)thread * j->x->mix_floats);
}

void nb_xcpu_entries(nb_xcpu *x, size_t l, const nb_op *op)
{
    v4_job j = { x, l };

    (void)op;
    nb_parallel_for(x->rows == 1 ? NULL : x->o.pool, x->n_spans * (nb_plan_mixer(&x->m->plan, l) == NB_MIX_CSA ? 2 : 1), 1, entry_tasks,
                    &j);
    nb_xcpu_states_done(x, l);
}

/* ---- choosing ------------------------------------------------------------------------------------------------- */

/* Scores of n entries for row r, whose queries are in IQ: models-2026 S4.3 with other keys. */
static void score_entries(const v4_job *j, const nb_seq_view *s, size_t r, size_t n, float *score)
{
    const nb_xcpu *x = j->x;
    const nb_config *c = &x->m->cfg;
    const float *w = row_of(x, NB_SLOT_ICOMP, r) + 2 * PAD64(2 * c->index_dim);
    const float scale = 1 / sqrtf((float)c->index_dim), each = 1 / sqrtf((float)c->index_heads);
    const size_t es = nb_dtype_info(x->o.kv_dtype)->bits / 8;
    float *keys = score + x->mark_floats - c->index_dim * CHUNK - CHUNK, *part = keys + c->index_dim * CHUNK;

    for (size_t e0 = 0; e0 < n; e0 += CHUNK) {
        float *to = score + e0;
        memset(keys, 0, c->index_dim * CHUNK * sizeof *keys);
        for (size_t e = e0; e < n && e < e0 + CHUNK; e++) {
            const unsigned char *from = entry_at(x, s, j->l, e, true);
            for (size_t d = 0; d < c->index_dim; d++)
                nb_to_f32(keys + d * CHUNK + e - e0, from + d * es, x->o.kv_dtype, 1);
        }
        memset(to, 0, CHUNK * sizeof *to);
        for (size_t h = 0; h < c->index_heads; h++) {
            memset(part, 0, CHUNK * sizeof *part);
            for (size_t d = 0; d < c->index_dim; d++)
                x->kern->axpy(part, keys + d * CHUNK, row_of(x, NB_SLOT_IQ, r)[h * c->index_dim + d], CHUNK);
            for (size_t i = 0; i < CHUNK; i++)
                part[i] = part[i] > 0 ? part[i] * scale : 0;
            x->kern->axpy(to, part, w[h] * each, CHUNK);
        }
    }
}

/* Entries that row r attends to, ascending: how many; NULL in *which: the first ones. */
static size_t choose(const v4_job *j, const nb_seq_view *s, size_t r, int thread, const uint32_t **which)
{
    const nb_xcpu *x = j->x;
    const nb_config *c = &x->m->cfg;
    const size_t rate = nb_plan_rate(&x->m->plan, j->l), n = rate ? (position(x, r) + 1) / rate : 0, half = x->half[NB_ROPE_MAIN];
    uint32_t *out = x->picked + (size_t)thread * c->index_top;
    float *score = x->marks + (size_t)thread * x->mark_floats;

    *which = NULL;
    if (nb_plan_mixer(&x->m->plan, j->l) != NB_MIX_CSA || n <= c->index_top)
        return n;
    for (size_t h = 0; h < c->index_heads; h++)
        x->kern->rope_pair(row_of(x, NB_SLOT_IQ, r) + (h + 1) * c->index_dim - 2 * half, x->row_cs[NB_ROPE_MAIN][r],
                           x->row_sn[NB_ROPE_MAIN][r], 2 * half);
    score_entries(j, s, r, n, score);
    nb_xcpu_pick(score, n, c->index_top, out);
    *which = out;
    return c->index_top;
}

/* ---- attention ------------------------------------------------------------------------------------------------ */

static void put_rows(void *ctx, size_t begin, size_t end, int thread)
{
    const v4_job *j = ctx;
    const nb_xcpu *x = j->x;
    const nb_kv_place *at = &x->kv_of[j->l];

    (void)thread;
    for (size_t r = begin; r < end; r++) {
        const nb_seq_view *s = &x->b->seqs[x->b->seq[x->row0 + r]];
        const float *kv = row_of(x, NB_SLOT_LORA, r) + x->m->plan.kva_off;
        const size_t page = (at->near ? s->near : s->pages)[position(x, r) / NB_PAGE];
        x->kern->kv_put(NULL, nb_xcpu_kv(x, j->l, 0) + page * at->page, x->o.kv_dtype, position(x, r) % NB_PAGE, x->m->cfg.kv_dim, kv, kv);
    }
}

static void attend_rows(void *ctx, size_t begin, size_t end, int thread)
{
    const v4_job *j = ctx;
    const nb_xcpu *x = j->x;
    const nb_config *c = &x->m->cfg;
    const nb_kv_place *at = &x->kv_of[j->l];
    const size_t bytes = c->kv_dim * (nb_dtype_info(x->o.kv_dtype)->bits / 8);
    unsigned char *to = x->gathered + (size_t)thread * x->gather_bytes;

    for (size_t r = begin; r < end; r++) {
        const nb_block one = { .seq = &x->b->seqs[x->b->seq[x->row0 + r]], .row = r, .m = 1, .pos = position(x, r) };
        nb_attn t = nb_xcpu_attn_task(x, j->l, &one, 0);
        const size_t first = one.pos + 1 > c->sliding_window ? one.pos + 1 - c->sliding_window : 0;
        const uint32_t *which;
        const size_t n = choose(j, one.seq, r, thread, &which);
        unsigned char *dst = to;

        for (size_t p = first; p <= one.pos; p++, dst += bytes)
            memcpy(dst, nb_xcpu_kv(x, j->l, 0) + t.pages[p / NB_PAGE] * at->page + p % NB_PAGE * bytes, bytes);
        for (size_t i = 0; i < n; i++, dst += bytes)
            memcpy(dst, entry_at(x, one.seq, j->l, which ? which[i] : i, false), bytes);
        t.v = to;
        t.pages = x->in_order;
        t.page_stride = NB_PAGE * bytes;
        t.window = 0;
        t.pos = one.pos - first + n;
        x->kern->attn(&t, x->scratch + (size_t)thread * x->scratch_floats);
    }
}

void nb_xcpu_attn_v4(nb_xcpu *x, size_t l)
{
    v4_job j = { x, l };
    nb_pool *pool = x->rows == 1 ? NULL : x->o.pool;

    nb_parallel_for(pool, x->rows, 1, put_rows, &j);
    nb_parallel_for(pool, x->rows, 1, attend_rows, &j);
}

/* exec_index.c - sparse attention: a small key of every token is cached; each row's best ones say which keys it attends to.
 *
 * score of key j = sum over heads ascending of weight * relu(scale * (q . k_j)), every product an fma chain over components
 * ascending. Equal scores: the earlier key. A row's keys are gathered in ascending order and attended to as if they were all:
 * its bits depend on nothing else. Source: spec models-2026 S4.3. */
#include <math.h>
#include <string.h>

#include "model/exec_cpu.h"

#define PAD64(n) (((n) + 63) / 64 * 64)

static float *row_of(const nb_xcpu *x, nb_slot s, size_t r)
{
    return x->slot[s] + r * x->m->plan.slot_width[s];
}

/* Keys that choose are not quantized. */
static nb_dtype key_type(const nb_xcpu *x)
{
    return x->o.kv_dtype == NB_DT_F32 ? NB_DT_F32 : NB_DT_F16;
}

nb_status nb_xcpu_index_open(nb_xcpu *x, nb_err *err)
{
    const nb_config *c = &x->m->cfg;
    const size_t pages = (c->index_top + NB_PAGE - 1) / NB_PAGE;
    size_t bytes;

    if (!c->index_top || c->v4.on)
        return NB_OK;
    if (!nb_mul_size(x->o.max_m, c->index_top * sizeof *x->picked, &bytes))
        return nb_fail(err, NB_EARG, "exec.size", "", "batches of %zu rows are too large", x->o.max_m);
    x->gather_bytes = PAD64(pages * nb_kv_head_bytes(c->kv_dim, x->o.kv_dtype));
    x->mark_floats = PAD64(x->o.n_pages * NB_PAGE) + PAD64(c->index_dim * NB_PAGE) + NB_PAGE;
    x->picked = nb_alloc(bytes);
    x->in_order = nb_alloc_array(pages, sizeof *x->in_order);
    x->gathered = nb_alloc_aligned(64, (size_t)x->threads * x->gather_bytes);
    x->marks = nb_alloc_aligned(64, (size_t)x->threads * x->mark_floats * sizeof *x->marks);
    if (!x->picked || !x->in_order || !x->gathered || !x->marks)
        return nb_enomem(err, "the choice of keys");
    for (size_t i = 0; i < pages; i++)
        x->in_order[i] = (uint32_t)i;
    return NB_OK;
}

static size_t position(const nb_xcpu *x, size_t r)
{
    return x->b->pos[x->row0 + r];
}

bool nb_xcpu_picks(const nb_xcpu *x)
{
    bool any = false;

    for (size_t r = 0; x->m->cfg.index_top && !x->m->cfg.v4.on && r < x->rows && !any; r++)
        any = position(x, r) >= x->m->cfg.index_top;
    return any;
}

/* ---- choosing ------------------------------------------------------------------------------------------------- */

typedef struct index_job {
    nb_xcpu *x;
    size_t l;
} index_job;

static unsigned char *keys_of(const nb_xcpu *x, size_t l, uint32_t page)
{
    return x->kv + x->kv_of[l].base + page * x->kv_of[l].page + x->kv_of[l].index;
}

/* Norm and rotation of row r; its key into the cache. */
static void put_key(const index_job *j, size_t r)
{
    const nb_xcpu *x = j->x;
    const nb_config *c = &x->m->cfg;
    float *const *vec = x->m->layers[j->l].vec;
    void (*rotate)(float *, const float *, const float *, size_t) = c->index_pairs ? x->kern->rope_pair : x->kern->rope_half;
    const float *cs = x->row_cs[NB_ROPE_MAIN][r], *sn = x->row_sn[NB_ROPE_MAIN][r];
    const nb_seq_view *s = &x->b->seqs[x->b->seq[x->row0 + r]];
    const size_t at = position(x, r) % NB_PAGE, es = nb_dtype_info(key_type(x))->bits / 8;
    float *q = row_of(x, NB_SLOT_IQ, r), *k = row_of(x, NB_SLOT_IK, r);
    unsigned char *to = keys_of(x, j->l, s->pages[position(x, r) / NB_PAGE]);

    x->kern->layernorm(k, k, vec[NB_VEC_INDEX_NORM], vec[NB_VEC_INDEX_BIAS], 1e-6f, c->index_dim);
    rotate(k, cs, sn, c->mla.rope);
    for (size_t h = 0; h < c->index_heads; h++)
        rotate(q + h * c->index_dim, cs, sn, c->mla.rope);
    for (size_t d = 0; d < c->index_dim; d++)
        nb_from_f32(to + (d * NB_PAGE + at) * es, k + d, key_type(x), 1);
}

static void put_keys(void *ctx, size_t begin, size_t end, int thread)
{
    (void)thread;
    for (size_t r = begin; r < end; r++)
        put_key(ctx, r);
}

/* Scores of all keys up to row r's own. */
static void score_keys(const index_job *j, size_t r, float *score, float *keys, float *part)
{
    const nb_xcpu *x = j->x;
    const nb_config *c = &x->m->cfg;
    const nb_seq_view *s = &x->b->seqs[x->b->seq[x->row0 + r]];
    const float *q = row_of(x, NB_SLOT_IQ, r), *w = row_of(x, NB_SLOT_IK, r) + PAD64(c->index_dim);
    const float scale = 1 / sqrtf((float)c->index_dim), each = 1 / sqrtf((float)c->index_heads);

    for (size_t p = 0; p <= position(x, r) / NB_PAGE; p++) {
        float *to = score + p * NB_PAGE;
        nb_to_f32(keys, keys_of(x, j->l, s->pages[p]), key_type(x), c->index_dim * NB_PAGE);
        memset(to, 0, NB_PAGE * sizeof *to);
        for (size_t h = 0; h < c->index_heads; h++) {
            memset(part, 0, NB_PAGE * sizeof *part);
            for (size_t d = 0; d < c->index_dim; d++)
                x->kern->axpy(part, keys + d * NB_PAGE, q[h * c->index_dim + d], NB_PAGE);
            for (size_t i = 0; i < NB_PAGE; i++)
                part[i] = part[i] > 0 ? part[i] * scale : 0;
            x->kern->axpy(to, part, w[h] * each, NB_PAGE);
        }
    }
}

/* Larger floats as larger integers. */
static uint32_t rank_of(float v)
{
    uint32_t u;

    memcpy(&u, &v, sizeof u);
    return u & 0x80000000u ? ~u : u | 0x80000000u;
}

/* The k largest of v[n], n > k, as ascending indices; of equals the first. By the bytes of the k-th, from the top. */
void nb_xcpu_pick(const float *v, size_t n, size_t k, uint32_t *out)
{
    uint32_t prefix = 0, mask = 0;
    size_t left = k, found = 0;

    for (int shift = 24; shift >= 0; shift -= 8) {
        size_t count[256] = { 0 };
        uint32_t b = 255;
        for (size_t i = 0; i < n; i++)
            if ((rank_of(v[i]) & mask) == prefix)
                count[rank_of(v[i]) >> shift & 255]++;
        while (count[b] < left)
            left -= count[b--];
        prefix |= b << shift;
        mask |= 255u << shift;
    }
    for (size_t i = 0; i < n && found < k; i++) {
        const uint32_t rank = rank_of(v[i]);
        if (rank > prefix || (rank == prefix && left > 0)) {
            left -= rank == prefix;
            out[found++] = (uint32_t)i;
        }
    }
}

static void pick_rows(void *ctx, size_t begin, size_t end, int thread)
{
    const index_job *j = ctx;
    const nb_config *c = &j->x->m->cfg;
    float *score = j->x->marks + (size_t)thread * j->x->mark_floats, *keys = score + PAD64(j->x->o.n_pages * NB_PAGE);

    for (size_t r = begin; r < end; r++) {
        if (position(j->x, r) < c->index_top)
            continue;
        score_keys(j, r, score, keys, keys + PAD64(c->index_dim * NB_PAGE));
        nb_xcpu_pick(score, position(j->x, r) + 1, c->index_top, j->x->picked + r * c->index_top);
    }
}

void nb_xcpu_index(nb_xcpu *x, size_t l, const nb_op *op)
{
    index_job j = { x, l };
    nb_pool *pool = x->rows == 1 ? NULL : x->o.pool;

    (void)op;
    nb_parallel_for(pool, x->rows, 1, put_keys, &j);
    if (nb_xcpu_picks(x))
        nb_parallel_for(pool, x->rows, 1, pick_rows, &j);
}

/* ---- attention over the chosen -------------------------------------------------------------------------------- */

static void attend_rows(void *ctx, size_t begin, size_t end, int thread)
{
    const index_job *j = ctx;
    const nb_xcpu *x = j->x;
    const nb_config *c = &x->m->cfg;
    const size_t bytes = c->kv_dim * (nb_dtype_info(x->o.kv_dtype)->bits / 8), page = nb_kv_head_bytes(c->kv_dim, x->o.kv_dtype);
    unsigned char *to = x->gathered + (size_t)thread * x->gather_bytes;

    for (size_t r = begin; r < end; r++) {
        const nb_block one = { .seq = &x->b->seqs[x->b->seq[x->row0 + r]], .row = r, .m = 1, .pos = position(x, r) };
        nb_attn t = nb_xcpu_attn_task(x, j->l, &one, 0);

        if (one.pos >= c->index_top) {
            for (size_t i = 0; i < c->index_top; i++) {
                const uint32_t at = x->picked[r * c->index_top + i];
                const unsigned char *from = t.v + t.pages[at / NB_PAGE] * t.page_stride;
                unsigned char *dst = to + i / NB_PAGE * page;
                memcpy(dst + i % NB_PAGE * bytes, from + at % NB_PAGE * bytes, bytes);
                if (x->o.kv_dtype == NB_DT_I8) /* its scale, behind the page */
                    memcpy(dst + NB_PAGE * bytes + i % NB_PAGE * 4, from + NB_PAGE * bytes + at % NB_PAGE * 4, 4);
            }
            t.v = to;
            t.pages = x->in_order;
            t.page_stride = page;
            t.pos = c->index_top - 1;
        }
        x->kern->attn(&t, x->scratch + (size_t)thread * x->scratch_floats);
    }
}

void nb_xcpu_attn_picked(nb_xcpu *x, size_t l)
{
    index_job j = { x, l };

    nb_parallel_for(x->rows == 1 ? NULL : x->o.pool, x->rows, 1, attend_rows, &j);
}

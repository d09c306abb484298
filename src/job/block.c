/* block.c - the walk's view of one decoder block. */
#include "job/block.h"

#include <string.h>

#include "base/mem.h"
#include "solve/solve_awq.h"
#include "solve/solve_rtn.h"

/* ---- sizes ---- */

void nb_block_sizes(const nb_plan *p, size_t rows, size_t len, nb_block_need *need)
{
    memset(need, 0, sizeof *need);
    need->chunk_rows = len < NB_BLOCK_CHUNK ? NB_BLOCK_CHUNK / len : 1;
    need->chunk_rows = need->chunk_rows < rows ? need->chunk_rows : rows;
    need->chunk = need->chunk_rows * len;
    for (size_t l = 0; l < p->cfg->n_layers; l++)
        for (int r = 0; r < NB_ROLE_COUNT; r++)
            if (p->has_role[r]) {
                size_t n, k;
                nb_plan_linear_size_at(p, l, (nb_role)r, &n, &k);
                need->linear = n * k > need->linear ? n * k : need->linear;
            }
    for (size_t op = 0; op < p->n_ops; op++) {
        if (p->ops[op].kind == NB_OP_ABSORB) {
            size_t n, k;
            nb_mod_size(p, 0, NB_MOD_KVB, &n, &k);
            need->linear = n * k > need->linear ? n * k : need->linear;
        }
        if (p->ops[op].kind == NB_OP_MOE) {
            const size_t ff = p->cfg->moe.ff > p->cfg->moe.shared_ff ? p->cfg->moe.ff : p->cfg->moe.shared_ff, d = p->cfg->d_model;
            need->full[op] = true;
            need->expert_k = ff > d ? ff : d;
            need->linear = 2 * ff * d > need->linear ? 2 * ff * d : need->linear;
            need->linear = d * p->cfg->moe.n_experts > need->linear ? d * p->cfg->moe.n_experts : need->linear; /* the router */
        }
    }
    need->w = need->linear;
}

nb_block_cost nb_block_bytes(const nb_plan *p, const nb_block_need *need, size_t rows, size_t len, bool replay_original)
{
    const uint64_t tokens = (uint64_t)rows * len, width = p->cfg->d_model + nb_plan_carry(p);
    nb_block_cost c = { 0 };

    c.bytes = nb_capture_bytes(p, rows * len, need->chunk, need->full, need->gram, &c.spill);
    c.bytes += 4 * (need->chunk * width + need->w + need->linear) - c.spill;
    c.spill += 4 * tokens * width * (replay_original ? 2 : 1);
    if (need->expert_k)
        c.bytes += 4 * tokens + 8 * (uint64_t)need->expert_k * (NB_BLOCK_EXEC_ROWS + NB_BLOCK_SAMPLE + 2);
    for (int i = 0; i < NB_SLOT_COUNT; i++) /* rows inside the executor, keys and values of a chunk */
        c.bytes += 4 * (uint64_t)p->slot_width[i] * (i == NB_SLOT_QKV ? NB_BLOCK_EXEC_ROWS + need->chunk : NB_BLOCK_EXEC_ROWS);
    c.idle = c.bytes;
    return c;
}

/* ---- open ---- */

nb_status nb_block_stopped(nb_err *err)
{
    return nb_fail(err, NB_ECANCELED, "canceled", "", "stopped on request");
}

nb_status nb_block_each(nb_block *b, size_t rows, nb_chunk_fn *fn, void *user, nb_err *err)
{
    nb_status rc = NB_OK;

    for (size_t r = 0; rc == NB_OK && r < rows; r += b->rows.max_rows) {
        const size_t n = rows - r < b->rows.max_rows ? rows - r : b->rows.max_rows;
        const nb_batch batch = nb_rows_batch(&b->rows, b->calib->ids + r * b->calib->len, n);
        rc = nb_cancelled(b->host) ? nb_block_stopped(err) : fn(user, &batch, r * b->calib->len, err);
        nb_block_settle(b);
    }
    return rc;
}

void nb_block_settle(const nb_block *b)
{
    nb_spill_settle(&b->h_mem);
    nb_spill_settle(&b->h_next_mem);
    nb_capture_settle(&b->cap);
}

static nb_status embed_chunk(void *user, const nb_batch *batch, size_t at, nb_err *err)
{
    nb_block *b = user;

    return nb_exec_embed(b->exec, batch, b->h + at * b->width, err);
}

/* What the inputs of one expert at a time need. */
static nb_status open_experts(nb_block *b, const nb_block_need *need, nb_err *err)
{
    const size_t k = need->expert_k;
    bool ok = k > 0;

    if (!ok)
        return NB_OK;
    b->taken = nb_alloc_array(b->tokens, sizeof *b->taken);
    b->act = nb_alloc_array(NB_BLOCK_EXEC_ROWS, 2 * k * sizeof *b->act);
    for (int i = 0; i < 2; i++) {
        b->expert[i].xsum = nb_alloc_array(k, sizeof *b->expert[i].xsum);
        b->expert[i].sample = nb_alloc_array(NB_BLOCK_SAMPLE, k * sizeof *b->expert[i].sample);
        ok = ok && b->expert[i].xsum && b->expert[i].sample;
    }
    return ok && b->taken && b->act ? NB_OK : nb_enomem(err, "calibration activations; fewer rows need less (--calib-rows)");
}

nb_status nb_block_open(nb_block *b, const nb_block_in *in, const nb_block_need *need, nb_err *err)
{
    static const char activations[] = "calibration activations; fewer rows need less (--calib-rows)";
    nb_exec_opts eo = { .pool = in->pool, .kv_layers = 1, .kv_dtype = NB_DT_F32, .carry = true, .a8 = in->a8 };
    nb_status rc = NB_OK;

    memset(b, 0, sizeof *b);
    b->model = in->model;
    b->plan = nb_model_plan(in->model);
    b->store = in->store;
    b->calib = in->calib;
    b->pool = in->pool;
    b->host = in->host;
    b->all_experts = in->all_experts;
    b->to_head = in->to_head;
    b->d = b->plan->cfg->d_model;
    b->width = b->d + nb_plan_carry(b->plan);
    b->tokens = in->calib->rows * in->calib->len;
    b->run = nb_alloc_array(need->chunk, b->width * sizeof *b->run);
    b->need_w = need->w;
    b->need_tmp = need->linear;
    rc = b->run ? nb_block_hold(b, err) : nb_enomem(err, activations);
    if (rc == NB_OK)
        rc = nb_spill_open(&b->h_mem, in->calib->spill, b->tokens, b->width, activations, err);
    if (rc == NB_OK && in->replay_original)
        rc = nb_spill_open(&b->h_next_mem, in->calib->spill, b->tokens, b->width, activations, err);
    b->h = b->h_mem.p;
    b->h_next = b->h_next_mem.p;
    if (rc == NB_OK)
        rc = open_experts(b, need, err);
    if (rc == NB_OK)
        rc = nb_rows_init(&b->rows, in->calib->len, need->chunk_rows, err);
    if (rc == NB_OK)
        rc = nb_capture_init(&b->cap, b->plan, b->tokens, need->chunk, need->full, need->gram, in->calib->spill,
                             in->a8 ? nb_model_kern(in->model) : NULL, in->pool, err);
    if (rc == NB_OK) {
        eo.max_m = need->chunk < NB_BLOCK_EXEC_ROWS ? need->chunk : NB_BLOCK_EXEC_ROWS;
        eo.n_pages = b->rows.n_pages;
        eo.n_states = b->rows.max_rows;
        rc = nb_exec_cpu_open(in->model, &eo, &b->exec, err);
    }
    if (rc == NB_OK && !in->calib->resumed)
        rc = nb_block_each(b, in->calib->rows, embed_chunk, b, err);
    if (rc != NB_OK)
        nb_block_clear(b);
    return rc;
}

void nb_block_clear(nb_block *b)
{
    nb_exec_close(b->exec);
    nb_capture_clear(&b->cap);
    nb_rows_clear(&b->rows);
    for (int i = 0; i < 2; i++) {
        nb_free(b->expert[i].xsum);
        nb_free(b->expert[i].sample);
        nb_gram_clear(&b->expert[i].gram);
    }
    nb_free(b->taken);
    nb_free(b->act);
    nb_spill_close(&b->h_mem);
    nb_spill_close(&b->h_next_mem);
    nb_free(b->run);
    nb_block_release(b);
    memset(b, 0, sizeof *b);
}

/* ---- capture ---- */

nb_status nb_block_bind(nb_block *b, size_t layer, nb_err *err)
{
    b->layer = layer;
    b->captured = false;
    return nb_model_bind_layer(b->model, layer, err);
}

static nb_status capture_chunk(void *user, const nb_batch *batch, size_t at, nb_err *err)
{
    nb_block *b = user;
    nb_status rc;

    memcpy(b->run, b->h + at * b->width, batch->m * b->width * sizeof *b->run);
    nb_exec_set_tap(b->exec, nb_capture_tap, &b->cap);
    rc = nb_exec_layers(b->exec, batch, b->run, b->layer, b->layer + 1, err);
    nb_exec_set_tap(b->exec, NULL, NULL);
    if (rc == NB_OK && b->h_next && !b->captured)
        memcpy(b->h_next + at * b->width, b->run, batch->m * b->width * sizeof *b->run);
    return rc == NB_OK ? nb_capture_add(&b->cap, b->pool, batch->m, err) : rc;
}

nb_status nb_block_capture(nb_block *b, nb_err *err)
{
    nb_status rc;

    nb_capture_reset(&b->cap, b->plan, b->layer);
    rc = nb_block_each(b, b->calib->rows, capture_chunk, b, err);
    b->captured = true;
    return rc;
}

static nb_status span_chunk(void *user, const nb_batch *batch, size_t at, nb_err *err)
{
    nb_block *b = user;
    nb_input *in = nb_capture_at(&b->cap, b->cap.only);
    nb_status rc = nb_exec_span(b->exec, batch, b->layer, 0, in->op, b->h + at * b->width, in->chunk, err);

    in->in_chunk = batch->m;
    return rc == NB_OK ? nb_capture_add(&b->cap, b->pool, batch->m, err) : rc;
}

nb_status nb_block_capture_op(nb_block *b, size_t op, nb_err *err)
{
    const nb_plan *p = b->plan;
    const nb_slot slot = p->ops[op].in;
    nb_status rc;

    b->cap.only = op;
    if (b->width > b->d || op == 0 || p->ops[op].kind != NB_OP_LINEAR || p->ops[0].in != NB_SLOT_X || p->ops[op - 1].out != slot ||
        p->slot_len[slot] != nb_capture_of(&b->cap, op)->k || (b->h_next && !b->captured)) {
        rc = nb_block_capture(b, err);
    } else {
        nb_capture_reset(&b->cap, b->plan, b->layer);
        rc = nb_block_each(b, b->calib->rows, span_chunk, b, err);
    }
    b->cap.only = SIZE_MAX; /* the next capture is one of all ops */
    return rc;
}

/* ---- experts ---- */

/* Its tokens, in order. The shared one sees all. */
static size_t tokens_of(nb_block *b, const nb_input *in, size_t e)
{
    const bool all = b->all_experts || e >= b->plan->cfg->moe.n_experts;
    size_t n = 0;

    for (size_t t = 0; t < in->tokens; t++) {
        bool mine = all;
        for (size_t i = 0; i < in->n_chosen && !mine; i++)
            mine = in->chosen[t * in->n_chosen + i] == e;
        if (mine)
            b->taken[n++] = (uint32_t)t;
    }
    return n;
}

static nb_status reset_expert(nb_input *x, size_t op, size_t k, size_t n, nb_gram_init_fn *gram, nb_err *err)
{
    x->op = op;
    x->k = k;
    x->tokens = n;
    x->n_sample = 0;
    memset(x->xsum, 0, k * sizeof *x->xsum);
    nb_gram_clear(&x->gram);
    return gram ? gram(&x->gram, k, err) : NB_OK;
}

nb_status nb_block_expert(nb_block *b, size_t e, int which, const float *s, nb_gram_init_fn *gram, nb_err *err)
{
    const nb_moe_cfg *c = &b->plan->cfg->moe;
    const size_t op = nb_mod_op(b->plan, b->layer, nb_mod_in_expert(e, NB_ROLE_DOWN)), k = which == 0         ? b->d
                                                                                           : e < c->n_experts ? c->ff
                                                                                                              : c->shared_ff;
    const nb_input *in = nb_capture_of(&b->cap, op);
    nb_input *x = &b->expert[which];
    float *rows = b->act, *act = b->act + NB_BLOCK_EXEC_ROWS * b->d;
    const size_t n = in ? tokens_of(b, in, e) : 0, stride = (n + NB_BLOCK_SAMPLE - 1) / NB_BLOCK_SAMPLE;
    nb_status rc = reset_expert(x, op, k, n, gram, err);

    for (size_t t = 0; rc == NB_OK && t < n; t += NB_BLOCK_EXEC_ROWS) {
        const size_t m = n - t < NB_BLOCK_EXEC_ROWS ? n - t : NB_BLOCK_EXEC_ROWS;
        const float *v = which == 0 ? rows : act;

        for (size_t r = 0; r < m; r++) {
            const float *from = in->full + b->taken[t + r] * b->d;
            for (size_t i = 0; i < b->d; i++)
                rows[r * b->d + i] = s ? from[i] / s[i] : from[i];
        }
        if (which == 1)
            rc = nb_exec_ffn(b->exec, b->layer, e, rows, m, act, err);
        if (rc == NB_OK)
            nb_awq_xsum(b->pool, v, k, m, k, x->xsum);
        for (size_t r = 0; rc == NB_OK && r < m; r++)
            if ((t + r) % stride == 0)
                memcpy(x->sample + x->n_sample++ * k, v + r * k, k * sizeof *v);
        if (rc == NB_OK && gram)
            rc = nb_gram_add(&x->gram, b->pool, v, k, m, err);
    }
    return rc;
}

const nb_input *nb_block_input(const nb_block *b, nb_mod mod)
{
    if (nb_mod_expert(mod) != NB_NO_EXPERT)
        return &b->expert[nb_mod_role(mod) == NB_ROLE_DOWN];
    return nb_capture_of(&b->cap, nb_mod_op(b->plan, b->layer, mod));
}

/* ---- weights ---- */

void nb_block_release_tmp(nb_block *b)
{
    nb_free(b->tmp);
    b->tmp = NULL;
}

void nb_block_release(nb_block *b)
{
    nb_free(b->w);
    b->w = NULL;
    nb_block_release_tmp(b);
}

nb_status nb_block_hold(nb_block *b, nb_err *err)
{
    if (!b->w)
        b->w = nb_alloc_array(b->need_w, sizeof *b->w);
    if (!b->tmp)
        b->tmp = nb_alloc_array(b->need_tmp, sizeof *b->tmp);
    return b->w && b->tmp ? NB_OK : nb_enomem(err, "a linear");
}

nb_status nb_read_linear(nb_store *s, const nb_plan *p, size_t layer, nb_mod mod, float *w, nb_err *err)
{
    nb_stored at;
    nb_status rc = nb_stored_find(p, s, layer, mod, &at, err);

    if (rc != NB_OK)
        return rc;
    rc = nb_stored_read(p, s, layer, mod, w, err);
    if (rc == NB_OK)
        rc = nb_rtn_finite(w, at.n * at.k, err);
    nb_store_drop(s, at.w);
    nb_err_at(err, at.w->file, at.w->name);
    return rc;
}

nb_status nb_block_read(nb_block *b, nb_mod mod, float *w, nb_err *err)
{
    return nb_read_linear(b->store, b->plan, b->layer, mod, w, err);
}

nb_status nb_input_error(nb_pool *pool, const nb_input *in, const float *w, const float *v, size_t n, double *norm, double *e, nb_err *err)
{
    const size_t step = in->n_sample > NB_BLOCK_JUDGE ? in->n_sample / NB_BLOCK_JUDGE : 1;

    return nb_output_error(pool, w, v, n, in->k, in->n_sample ? in->sample : NULL, in->k * step, in->n_sample / step, norm, e, err);
}

nb_status nb_block_error(nb_block *b, nb_mod mod, const float *w, const float *v, double *norm, double *e, nb_err *err)
{
    size_t n, k;

    nb_mod_size(b->plan, b->layer, mod, &n, &k);
    return nb_input_error(b->pool, nb_block_input(b, mod), w, v, n, norm, e, err);
}

/* ---- replay ---- */

static nb_status replay_chunk(void *user, const nb_batch *batch, size_t at, nb_err *err)
{
    nb_block *b = user;

    return nb_exec_layers(b->exec, batch, b->h + at * b->width, b->layer, b->layer + 1, err);
}

bool nb_block_goes_on(const nb_block *b)
{
    return b->to_head || b->layer + 1 < b->plan->cfg->n_layers;
}

nb_status nb_block_replay(nb_block *b, nb_err *err)
{
    nb_status rc = NB_OK;

    if (b->h_next) {
        const nb_spill t = b->h_mem;
        b->h_mem = b->h_next_mem;
        b->h_next_mem = t;
        b->h = b->h_mem.p;
        b->h_next = b->h_next_mem.p;
    } else if (nb_block_goes_on(b)) {
        rc = nb_block_each(b, b->calib->rows, replay_chunk, b, err);
    }
    nb_model_unbind_layer(b->model, b->layer);
    return rc;
}

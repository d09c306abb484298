/* block.c - the walk's view of one decoder block. */
#include "job/block.h"

#include <string.h>

#include "base/mem.h"
#include "solve/solve_rtn.h"

/* ---- sizes ---- */

void nb_block_sizes(const nb_plan *p, size_t rows, size_t len, nb_block_need *need)
{
    memset(need, 0, sizeof *need);
    need->chunk_rows = len < NB_BLOCK_CHUNK ? NB_BLOCK_CHUNK / len : 1;
    need->chunk_rows = need->chunk_rows < rows ? need->chunk_rows : rows;
    need->chunk = need->chunk_rows * len;
    for (int r = 0; r < NB_ROLE_COUNT; r++)
        if (p->has_role[r]) {
            size_t n, k;
            nb_plan_linear_size(p, (nb_role)r, &n, &k);
            need->linear = n * k > need->linear ? n * k : need->linear;
        }
    need->w = need->linear;
}

nb_block_cost nb_block_bytes(const nb_plan *p, const nb_block_need *need, size_t rows, size_t len, bool replay_original)
{
    const uint64_t tokens = (uint64_t)rows * len, d = p->cfg->d_model;
    nb_block_cost c = { 0 };

    c.bytes = nb_capture_bytes(p, rows * len, need->chunk, need->full, need->gram, &c.spill);
    c.bytes += 4 * (need->chunk * d + need->w + need->linear) - c.spill;
    c.spill += 4 * tokens * d * (replay_original ? 2 : 1);
    for (int i = 0; i < NB_SLOT_COUNT; i++) /* rows inside the executor, keys and values of a chunk */
        c.bytes += 4 * (uint64_t)p->slot_width[i] * (i == NB_SLOT_QKV ? NB_BLOCK_EXEC_ROWS + need->chunk : NB_BLOCK_EXEC_ROWS);
    return c;
}

/* ---- open ---- */

nb_status nb_block_stopped(nb_err *err)
{
    return nb_fail(err, NB_ECANCELED, "canceled", "", "stopped on request; nothing was written");
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

    return nb_exec_embed(b->exec, batch, b->h + at * b->d, err);
}

nb_status nb_block_open(nb_block *b, const nb_block_in *in, const nb_block_need *need, nb_err *err)
{
    static const char activations[] = "calibration activations; fewer rows need less (--calib-rows)";
    nb_exec_opts eo = { .pool = in->pool, .kv_layers = 1, .kv_dtype = NB_DT_F32 };
    nb_status rc = NB_OK;

    memset(b, 0, sizeof *b);
    b->model = in->model;
    b->plan = nb_model_plan(in->model);
    b->store = in->store;
    b->calib = in->calib;
    b->pool = in->pool;
    b->host = in->host;
    b->d = b->plan->cfg->d_model;
    b->tokens = in->calib->rows * in->calib->len;
    b->run = nb_alloc_array(need->chunk, b->d * sizeof *b->run);
    b->w = nb_alloc_array(need->w, sizeof *b->w);
    b->tmp = nb_alloc_array(need->linear, sizeof *b->tmp);
    if (!b->run || !b->w || !b->tmp)
        rc = nb_enomem(err, activations);
    if (rc == NB_OK)
        rc = nb_spill_open(&b->h_mem, in->calib->spill, b->tokens, b->d, activations, err);
    if (rc == NB_OK && in->replay_original)
        rc = nb_spill_open(&b->h_next_mem, in->calib->spill, b->tokens, b->d, activations, err);
    b->h = b->h_mem.p;
    b->h_next = b->h_next_mem.p;
    if (rc == NB_OK)
        rc = nb_rows_init(&b->rows, in->calib->len, need->chunk_rows, err);
    if (rc == NB_OK)
        rc = nb_capture_init(&b->cap, b->plan, b->tokens, need->chunk, need->full, need->gram, in->calib->spill, err);
    if (rc == NB_OK) {
        eo.max_m = need->chunk < NB_BLOCK_EXEC_ROWS ? need->chunk : NB_BLOCK_EXEC_ROWS;
        eo.n_pages = b->rows.n_pages;
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
    nb_spill_close(&b->h_mem);
    nb_spill_close(&b->h_next_mem);
    nb_free(b->run);
    nb_free(b->w);
    nb_free(b->tmp);
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

    memcpy(b->run, b->h + at * b->d, batch->m * b->d * sizeof *b->run);
    nb_exec_set_tap(b->exec, nb_capture_tap, &b->cap);
    rc = nb_exec_layers(b->exec, batch, b->run, b->layer, b->layer + 1, err);
    nb_exec_set_tap(b->exec, NULL, NULL);
    if (rc == NB_OK && b->h_next && !b->captured)
        memcpy(b->h_next + at * b->d, b->run, batch->m * b->d * sizeof *b->run);
    return rc == NB_OK ? nb_capture_add(&b->cap, b->pool, batch->m, err) : rc;
}

nb_status nb_block_capture(nb_block *b, nb_err *err)
{
    nb_status rc;

    nb_capture_reset(&b->cap);
    rc = nb_block_each(b, b->calib->rows, capture_chunk, b, err);
    b->captured = true;
    return rc;
}

static nb_status span_chunk(void *user, const nb_batch *batch, size_t at, nb_err *err)
{
    nb_block *b = user;
    nb_input *in = nb_capture_at(&b->cap, b->cap.only);
    nb_status rc = nb_exec_span(b->exec, batch, b->layer, 0, in->op, b->h + at * b->d, in->chunk, err);

    return rc == NB_OK ? nb_capture_add(&b->cap, b->pool, batch->m, err) : rc;
}

nb_status nb_block_capture_op(nb_block *b, size_t op, nb_err *err)
{
    const nb_plan *p = b->plan;
    const nb_slot slot = p->ops[op].in;

    b->cap.only = op;
    if (op == 0 || p->ops[0].in != NB_SLOT_X || p->ops[op - 1].out != slot || p->slot_len[slot] != nb_capture_of(&b->cap, op)->k ||
        (b->h_next && !b->captured))
        return nb_block_capture(b, err);
    nb_capture_reset(&b->cap);
    return nb_block_each(b, b->calib->rows, span_chunk, b, err);
}

/* ---- weights ---- */

nb_status nb_read_linear(nb_store *s, const nb_plan *p, size_t layer, nb_role role, float *w, nb_err *err)
{
    char name[256];
    const nb_tensor *t;
    size_t n, k;
    nb_status rc;

    nb_plan_linear(p, layer, role, name, sizeof name - 8);
    strcat(name, ".weight");
    nb_plan_linear_size(p, role, &n, &k);
    t = nb_store_find(s, name);
    if (!t)
        return nb_fail(err, NB_EINTERNAL, "internal", "", "tensor \"%s\" disappeared", name);
    rc = nb_store_read_f32(s, t, 0, (uint64_t)n * k, w, err);
    if (rc == NB_OK)
        rc = nb_rtn_finite(w, n * k, err);
    nb_err_at(err, t->file, name);
    return rc;
}

nb_status nb_block_read(nb_block *b, nb_role role, float *w, nb_err *err)
{
    return nb_read_linear(b->store, b->plan, b->layer, role, w, err);
}

nb_status nb_block_error(nb_block *b, nb_role role, const float *w, const float *v, double *e, nb_err *err)
{
    const nb_input *in = nb_capture_of(&b->cap, nb_plan_op_of(b->plan, role));
    size_t n, k;

    nb_plan_linear_size(b->plan, role, &n, &k);
    return nb_output_error(b->pool, w, v, n, k, in->sample, in->k, b->cap.n_sample, e, err);
}

/* ---- replay ---- */

static nb_status replay_chunk(void *user, const nb_batch *batch, size_t at, nb_err *err)
{
    nb_block *b = user;

    return nb_exec_layers(b->exec, batch, b->h + at * b->d, b->layer, b->layer + 1, err);
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
    } else if (b->layer + 1 < b->plan->cfg->n_layers) {
        rc = nb_block_each(b, b->calib->rows, replay_chunk, b, err);
    }
    nb_model_unbind_layer(b->model, b->layer);
    return rc;
}

/* gptq_walk.c - one pass through a block for both models. */
#include "job/gptq_walk.h"

#include <string.h>

#include "base/mem.h"
#include "base/wide.h"

/* ---- which plans ---- */

/* Is the residual and the input of op `at` all that the ops from there on read? Only of plain ones. */
static bool can_part(const nb_plan *p, size_t at)
{
    bool written[NB_SLOT_COUNT] = { false };

    written[NB_SLOT_X] = written[p->ops[at].in] = true;
    for (size_t i = at; i < p->n_ops; i++) {
        const nb_op *op = &p->ops[i];
        if (!nb_op_is_plain(op->kind) || !written[op->in] || op->when != NB_WHEN_ALWAYS || (op->kind == NB_OP_ADD && !written[op->out]))
            return false;
        written[op->out] = true;
    }
    return true;
}

bool nb_gptq_walk_can(const nb_plan *p)
{
    if (p->n_ops == 0 || p->ops[0].in != NB_SLOT_X)
        return false;
    for (size_t op = 0; op < p->n_ops; op++)
        if (p->ops[op].kind == NB_OP_LINEAR) {
            size_t n, k;
            nb_plan_linear_size(p, p->ops[op].roles[0], &n, &k);
            if (k != p->slot_len[p->ops[op].in] || op == 0 || p->ops[op - 1].out != p->ops[op].in || !can_part(p, op))
                return false;
        }
    return can_part(p, 0);
}

bool nb_gptq_walk_adds(const nb_plan *p, size_t op)
{
    return op + 1 < p->n_ops && p->ops[op + 1].kind == NB_OP_ADD && p->ops[op + 1].in == p->ops[op].out;
}

/* The first LINEAR op at or behind `op`; n_ops when there is none. */
static size_t next_linear(const nb_plan *p, size_t op)
{
    while (op < p->n_ops && p->ops[op].kind != NB_OP_LINEAR)
        op++;
    return op;
}

/* Floats a token of the inputs of op `op`: whole cache lines, so that whatever follows is aligned, too. */
static size_t width(const nb_plan *p, size_t op)
{
    return (p->slot_len[p->ops[op].in] + 15) / 16 * 16;
}

/* The inputs of one linear and of the next, of one model. */
static size_t room_floats(const nb_plan *p)
{
    size_t most = 0, last = 0;

    for (size_t op = next_linear(p, 0); op < p->n_ops; op = next_linear(p, op + 1)) {
        most = last + width(p, op) > most ? last + width(p, op) : most;
        last = width(p, op);
    }
    return most;
}

size_t nb_gptq_walk_floats(const nb_plan *p, bool paired)
{
    if (!nb_gptq_walk_can(p))
        return 0;
    return room_floats(p) * (paired ? 2 : 1) + (paired ? p->cfg->d_model : 0);
}

/* ---- one step ---- */

struct step {
    nb_gptq_walk *w;
    nb_walker *m;
    size_t to;
    float *next;  /* [tokens][inputs of op `to`], NULL at the end of the block */
    nb_input *in; /* what is summed up there, or NULL */
    const nb_gptq_pair *pair;
    float *lack, *diff;      /* [chunk][d] what the outputs of this linear still lack; [chunk][k] x' - x. Of the head: its inputs x, x' */
    float *bias;             /* [d] what this linear adds to the residual for no input at all */
    nb_turned turned, other; /* inputs now; what they, or the outputs, lack */
};

/* out = a - b of n numbers */
NB_WIDE static void subtract(float *restrict out, const float *restrict a, const float *restrict b, size_t n)
{
    for (size_t i = 0; i < n; i++)
        out[i] = a[i] - b[i];
}

/* v = (v - bias) once */
NB_WIDE static void take_bias(float *restrict v, const float *restrict bias, float once, size_t n)
{
    for (size_t i = 0; i < n; i++)
        v[i] = (v[i] - bias[i]) * once;
}

/* h' - h + w (x' - x) of one chunk: the linear as it still is, and the addition behind it, on the differences. Where that addition
 * scales, so that the linear's outputs count once. */
static nb_status find_lack(const struct step *s, const nb_batch *batch, const float *x, size_t at, nb_err *err)
{
    nb_block *b = s->w->b;
    const float once = 1.0f / b->plan->ops[s->to + 1].gain;
    nb_status rc;
    const size_t d = b->d, k = s->in->k, m = batch->m;

    subtract(s->lack, s->w->orig.h + at * d, b->h + at * d, m * d);
    subtract(s->diff, s->w->orig.act + at * k, x, m * k);
    rc = nb_exec_part(b->exec, batch, b->layer, s->to, s->to + 2, s->lack, s->diff, NULL, err);
    for (size_t t = 0; rc == NB_OK && t < m; t++)
        take_bias(s->lack + t * d, s->bias, once, d);
    return rc;
}

static nb_status find_bias(const struct step *s, nb_err *err)
{
    nb_block *b = s->w->b;
    nb_batch one = nb_rows_batch(&b->rows, b->calib->ids, 1);

    one.m = 1;
    memset(s->diff, 0, s->in->k * sizeof *s->diff);
    return nb_exec_part(b->exec, &one, b->layer, s->to, s->to + 2, s->bias, s->diff, NULL, err);
}

/* Of m tokens from `at` on: inputs x, and x0 of the original model where those are paired. */
static void add_moments(struct step *s, const float *x, const float *x0, size_t at, size_t m)
{
    nb_block *b = s->w->b;
    nb_input *in = s->in;
    const nb_kern *kern = nb_model_kern(b->model);
    const size_t stride = b->cap.stride, k = in->k;

    for (size_t r = (stride - at % stride) % stride; r < m; r += stride)
        memcpy(in->sample + (at + r) / stride * k, x + r * k, k * sizeof *x);
    in->tokens += m;
    in->n_sample = (in->tokens + stride - 1) / stride;
    for (size_t t = 0; t < m; t += NB_MOMENTS_TOKENS) {
        const size_t n = m - t < NB_MOMENTS_TOKENS ? m - t : NB_MOMENTS_TOKENS;

        nb_turned_set(&s->turned, b->pool, x + t * k, NULL, n);
        nb_moments_gram(&in->gram, kern, b->pool, &s->turned);
        if (s->pair && s->pair->d) {
            nb_turned_set(&s->other, b->pool, x0 + t * k, x + t * k, n);
            nb_moments_cross(s->pair->d, kern, b->pool, &s->other, &s->turned);
        }
        if (s->pair && s->pair->r) {
            nb_turned_set(&s->other, b->pool, s->lack + t * b->d, NULL, n);
            nb_moments_cross(s->pair->r, kern, b->pool, &s->other, &s->turned);
        }
    }
}

static nb_status step_chunk(void *user, const nb_batch *batch, size_t at, nb_err *err)
{
    struct step *s = user;
    nb_block *b = s->w->b;
    const nb_plan *p = b->plan;
    const float *act = s->m->at > 0 ? s->m->act + at * p->slot_len[p->ops[s->m->at].in] : NULL;
    float *x = s->next ? s->next + at * p->slot_len[p->ops[s->to].in] : NULL;
    nb_status rc = nb_exec_part(b->exec, batch, b->layer, s->m->at, s->to, s->m->h + at * b->d, act, x, err);

    if (rc == NB_OK && s->in && s->pair && s->pair->r)
        rc = find_lack(s, batch, x, at, err);
    if (rc == NB_OK && s->in)
        add_moments(s, x, s->w->paired ? s->w->orig.act + at * s->in->k : NULL, at, batch->m);
    nb_spill_settle(&s->w->orig_mem);
    nb_spill_settle(&s->w->orig.room);
    nb_spill_settle(&s->w->now.room);
    return rc;
}

/* Where the inputs of op `to` go: the end of the room that those the model stands before do not use. */
static float *next_inputs(const struct step *s)
{
    const nb_walker *m = s->m;
    const size_t all = m->room.bytes / sizeof *m->room.p;

    return m->act == m->room.p ? m->room.p + (all - s->w->b->tokens * width(s->w->b->plan, s->to)) : m->room.p;
}

/* Bring one model to op `s->to`. */
static nb_status step(struct step *s, nb_err *err)
{
    nb_block *b = s->w->b;
    nb_status rc;

    if (s->m->at == s->to)
        return NB_OK;
    s->next = s->to < b->plan->n_ops ? next_inputs(s) : NULL;
    rc = nb_block_each(b, b->calib->rows, step_chunk, s, err);
    s->m->act = s->next;
    s->m->at = s->to;
    return rc;
}

static nb_status step_original(nb_gptq_walk *w, size_t to, nb_err *err)
{
    struct step s = { .w = w, .m = &w->orig, .to = to };

    return w->paired ? step(&s, err) : NB_OK;
}

/* ---- the walk ---- */

static nb_status embed_chunk(void *user, const nb_batch *batch, size_t at, nb_err *err)
{
    nb_gptq_walk *w = user;

    return nb_exec_embed(w->b->exec, batch, w->orig.h + at * w->b->d, err);
}

struct through {
    nb_gptq_walk *w;
    size_t layer;
};

static nb_status layer_chunk(void *user, const nb_batch *batch, size_t at, nb_err *err)
{
    const struct through *t = user;
    nb_block *b = t->w->b;

    return nb_exec_layers(b->exec, batch, t->w->orig.h + at * b->d, t->layer, t->layer + 1, err);
}

nb_status nb_gptq_walk_reach(nb_gptq_walk *w, nb_block *b, bool paired, size_t layer, nb_err *err)
{
    struct through t = { .w = w };
    nb_status rc;

    w->b = b;
    w->paired = paired;
    w->now.h = b->h;
    if (!paired || w->orig.h)
        return NB_OK;
    rc = nb_spill_open(&w->orig_mem, b->calib->spill, b->tokens, b->d,
                       "what the original model computes; --gptaq 0 does without, fewer rows need less (--calib-rows)", err);
    w->orig.h = w->orig_mem.p;
    if (rc == NB_OK)
        rc = nb_block_each(b, b->calib->rows, embed_chunk, w, err);
    for (; rc == NB_OK && t.layer < layer; t.layer++) { /* a job that goes on where it was stopped */
        rc = nb_model_bind_layer(b->model, t.layer, err);
        if (rc == NB_OK)
            rc = nb_block_each(b, b->calib->rows, layer_chunk, &t, err);
        nb_model_unbind_layer(b->model, t.layer);
    }
    return rc;
}

/* Taken once for all layers: fresh memory has to be cleared. */
static nb_status need_room(const nb_gptq_walk *w, nb_walker *m, nb_err *err)
{
    const nb_block *b = w->b;

    m->at = 0;
    m->act = NULL;
    if (m->room.p)
        return NB_OK;
    return nb_spill_open(&m->room, b->calib->spill, b->tokens, room_floats(b->plan),
                         "inputs of a linear; fewer rows need less (--calib-rows)", err);
}

nb_status nb_gptq_walk_start(nb_gptq_walk *w, nb_err *err)
{
    nb_status rc = need_room(w, &w->now, err);

    w->now.h = w->b->h;
    if (rc == NB_OK && w->paired)
        rc = need_room(w, &w->orig, err);
    return rc == NB_OK ? step_original(w, next_linear(w->b->plan, 0), err) : rc;
}

/* Room for the moments of one input. */
static nb_status need_moments(struct step *s, nb_err *err)
{
    nb_block *b = s->w->b;
    const size_t chunk = b->cap.chunk_tokens, most = chunk < NB_MOMENTS_TOKENS ? chunk : NB_MOMENTS_TOKENS;
    nb_status rc = nb_turned_open(&s->turned, b->pool, s->in->k, most, true, err);

    if (rc == NB_OK && s->pair)
        rc = nb_turned_open(&s->other, b->pool, s->pair->r ? b->d : s->in->k, most, false, err);
    if (rc != NB_OK || !s->pair || !s->pair->r)
        return rc;
    s->lack = nb_alloc_array(chunk, b->d * sizeof *s->lack);
    s->diff = nb_alloc_array(chunk, s->in->k * sizeof *s->diff);
    s->bias = nb_calloc(b->d, sizeof *s->bias);
    return s->lack && s->diff && s->bias ? find_bias(s, err) : nb_enomem(err, "the inputs of a linear");
}

static void leave_moments(struct step *s)
{
    nb_turned_close(&s->turned);
    nb_turned_close(&s->other);
    nb_free(s->bias);
    nb_free(s->diff);
    nb_free(s->lack);
}

nb_status nb_gptq_walk_to(nb_gptq_walk *w, nb_input *in, const nb_gptq_pair *pair, nb_err *err)
{
    struct step s = { .w = w, .m = &w->now, .to = in->op, .in = in, .pair = w->paired ? pair : NULL };
    nb_status rc = step_original(w, in->op, err);

    in->tokens = 0;
    if (rc == NB_OK)
        rc = need_moments(&s, err);
    if (rc == NB_OK)
        rc = step(&s, err);
    leave_moments(&s);
    return rc == NB_OK ? step_original(w, next_linear(w->b->plan, in->op + 1), err) : rc;
}

/* ---- the head ---- */

struct final {
    float *to;
    size_t k;
};

static void keep_final(void *user, const nb_tap *t)
{
    const struct final *f = user;

    for (size_t r = 0; t->kind == NB_TAP_FINAL && r < t->m; r++)
        memcpy(f->to + (t->row0 + r) * f->k, t->x + r * t->ld, f->k * sizeof *f->to);
}

/* What the head reads of m rows h. */
static nb_status final_rows(nb_block *b, const float *h, size_t m, size_t k, float *out, nb_err *err)
{
    struct final f = { out, k };
    nb_status rc;

    nb_exec_set_tap(b->exec, keep_final, &f);
    rc = nb_exec_head(b->exec, h, m, NULL, err);
    nb_exec_set_tap(b->exec, NULL, NULL);
    return rc;
}

static nb_status head_chunk(void *user, const nb_batch *batch, size_t at, nb_err *err)
{
    struct step *s = user;
    nb_block *b = s->w->b;
    nb_status rc = final_rows(b, b->h + at * b->d, batch->m, s->in->k, s->lack, err);

    if (rc == NB_OK && s->pair)
        rc = final_rows(b, s->w->orig.h + at * b->d, batch->m, s->in->k, s->diff, err);
    if (rc == NB_OK)
        add_moments(s, s->lack, s->diff, at, batch->m);
    nb_spill_settle(&s->w->orig_mem);
    return rc;
}

nb_status nb_gptq_walk_head(nb_gptq_walk *w, nb_input *in, const nb_gptq_pair *pair, nb_err *err)
{
    struct step s = { .w = w, .in = in, .pair = w->paired ? pair : NULL };
    nb_status rc = need_moments(&s, err);

    in->tokens = 0;
    s.lack = nb_alloc_array(w->b->cap.chunk_tokens, in->k * sizeof *s.lack);
    s.diff = nb_alloc_array(w->b->cap.chunk_tokens, in->k * sizeof *s.diff);
    if (rc == NB_OK && (!s.lack || !s.diff))
        rc = nb_enomem(err, "the inputs of the head");
    if (rc == NB_OK)
        rc = nb_block_each(w->b, w->b->calib->rows, head_chunk, &s, err);
    leave_moments(&s);
    return rc;
}

nb_status nb_gptq_walk_end(nb_gptq_walk *w, nb_err *err)
{
    struct step s = { .w = w, .m = &w->now, .to = w->b->plan->n_ops };
    nb_status rc = NB_OK;

    if (nb_block_goes_on(w->b)) {
        rc = step_original(w, s.to, err);
        if (rc == NB_OK && !w->b->h_next)
            rc = step(&s, err);
    }
    return rc;
}

void nb_gptq_walk_clear(nb_gptq_walk *w)
{
    nb_spill_close(&w->now.room);
    nb_spill_close(&w->orig.room);
    nb_spill_close(&w->orig_mem);
    memset(w, 0, sizeof *w);
}

/* calib.c - batches of rows, captured inputs. */
#include "job/calib.h"

#include <string.h>

#include "base/mem.h"
#include "solve/solve_awq.h"

/* ---- batches of whole rows ---- */

nb_status nb_rows_init(nb_rows *r, size_t len, size_t max_rows, nb_err *err)
{
    const size_t per = (len + NB_PAGE - 1) / NB_PAGE, m = len * max_rows;

    memset(r, 0, sizeof *r);
    r->len = len;
    r->max_rows = max_rows;
    r->n_pages = per * max_rows;
    r->pos = nb_alloc_array(m, sizeof *r->pos);
    r->seq = nb_alloc_array(m, sizeof *r->seq);
    r->pages = nb_alloc_array(r->n_pages, sizeof *r->pages);
    r->views = nb_calloc(max_rows, sizeof *r->views);
    if (!r->pos || !r->seq || !r->pages || !r->views) {
        nb_rows_clear(r);
        return nb_enomem(err, "a batch of calibration rows");
    }
    for (size_t i = 0; i < m; i++) {
        r->pos[i] = (uint32_t)(i % len);
        r->seq[i] = (uint32_t)(i / len);
    }
    for (size_t i = 0; i < r->n_pages; i++)
        r->pages[i] = (uint32_t)i;
    for (size_t i = 0; i < max_rows; i++) {
        r->views[i].pages = r->pages + i * per;
        r->views[i].n_pages = per;
        r->views[i].state = (uint32_t)i;
    }
    return NB_OK;
}

void nb_rows_clear(nb_rows *r)
{
    nb_free(r->pos);
    nb_free(r->seq);
    nb_free(r->pages);
    nb_free(r->views);
    memset(r, 0, sizeof *r);
}

nb_batch nb_rows_batch(const nb_rows *r, const int32_t *ids, size_t rows)
{
    return (nb_batch){ .m = rows * r->len, .token = ids, .pos = r->pos, .seq = r->seq, .seqs = r->views, .n_seqs = rows };
}

/* ---- captured inputs ---- */

/* Inputs of op `op` in a layer; 0: not one whose inputs are kept. */
static size_t layer_inputs(const nb_plan *p, size_t layer, size_t op)
{
    size_t n, k;

    if (p->ops[op].kind == NB_OP_MOE)
        return p->cfg->d_model;
    if (p->ops[op].kind == NB_OP_ABSORB)
        return p->cfg->mla.kv_rank;
    if (p->ops[op].kind != NB_OP_LINEAR)
        return 0;
    nb_plan_linear_size_at(p, layer, p->ops[op].roles[0], &n, &k);
    return k;
}

/* The most of any layer that runs it. */
static size_t op_inputs(const nb_plan *p, size_t op)
{
    size_t most = 0;

    for (size_t l = 0; l < p->cfg->n_layers; l++) {
        const size_t k = nb_plan_runs(p, &p->ops[op], l) ? layer_inputs(p, l, op) : 0;
        most = k > most ? k : most;
    }
    return most;
}

static size_t sample_stride(size_t tokens)
{
    return tokens / 512 ? tokens / 512 : 1;
}

uint64_t nb_capture_bytes(const nb_plan *p, size_t tokens, size_t chunk_tokens, const bool *full, const bool *gram, uint64_t *spill)
{
    const size_t stride = sample_stride(tokens), n_sample = (tokens + stride - 1) / stride;
    uint64_t sum = 0;

    *spill = 0;

    for (size_t op = 0; op < p->n_ops; op++) {
        const uint64_t k = op_inputs(p, op);
        sum += k ? k * (8 + 4 * (uint64_t)(n_sample + chunk_tokens)) : 0;
        *spill += full[op] ? 4 * k * tokens : 0;
        sum += gram[op] ? nb_gram_half_bytes(k) : 0;
        sum += p->ops[op].kind == NB_OP_MOE ? 4 * (uint64_t)tokens * p->cfg->moe.n_active : 0;
    }
    return sum + *spill;
}

nb_status nb_capture_init(nb_capture *c, const nb_plan *p, size_t tokens, size_t chunk_tokens, const bool *full, const bool *gram,
                          const char *spill, const nb_kern *codes, nb_pool *pool, nb_err *err)
{
    const size_t turned = chunk_tokens < NB_MOMENTS_TOKENS ? chunk_tokens : NB_MOMENTS_TOKENS;
    size_t most = 0; /* inputs with moments */
    nb_status rc = NB_OK;

    memset(c, 0, sizeof *c);
    c->spill = spill;
    c->codes = codes;
    c->only = SIZE_MAX;
    c->tokens = tokens;
    c->chunk_tokens = chunk_tokens;
    c->stride = sample_stride(tokens);
    c->n_sample = (tokens + c->stride - 1) / c->stride;
    for (size_t op = 0; rc == NB_OK && op < p->n_ops && c->n_in < NB_LEN(c->in); op++) {
        nb_input *in = &c->in[c->n_in];

        if (op_inputs(p, op) == 0)
            continue;
        c->n_in++;
        in->op = op;
        in->k = op_inputs(p, op);
        in->n_chosen = p->ops[op].kind == NB_OP_MOE ? p->cfg->moe.n_active : 0;
        in->chosen = in->n_chosen ? nb_alloc_array(tokens, in->n_chosen * sizeof *in->chosen) : NULL;
        in->xsum = nb_calloc(in->k, sizeof *in->xsum);
        in->sample = nb_alloc_array(c->n_sample, in->k * sizeof *in->sample);
        in->chunk = nb_alloc_array(chunk_tokens, in->k * sizeof *in->chunk);
        if (!in->xsum || !in->sample || !in->chunk || (in->n_chosen && !in->chosen))
            rc = nb_enomem(err, "captured inputs; fewer calibration rows need less (--calib-rows)");
        if (rc == NB_OK && full[op])
            rc =
                nb_spill_open(&in->full_mem, spill, tokens, in->k, "captured inputs; fewer calibration rows need less (--calib-rows)", err);
        in->full = in->full_mem.p;
        if (rc == NB_OK && gram[op])
            rc = nb_gram_init_half(&in->gram, in->k, err);
        most = gram[op] && in->k > most ? in->k : most;
    }
    if (rc == NB_OK && codes && most > 0)
        rc = nb_turned_open(&c->turned, pool, most, turned, true, err);
    if (rc != NB_OK)
        nb_capture_clear(c);
    return rc;
}

void nb_capture_clear(nb_capture *c)
{
    for (size_t i = 0; i < c->n_in; i++) {
        nb_free(c->in[i].xsum);
        nb_free(c->in[i].sample);
        nb_spill_close(&c->in[i].full_mem);
        nb_free(c->in[i].chunk);
        nb_free(c->in[i].chosen);
        nb_gram_clear(&c->in[i].gram);
    }
    nb_turned_close(&c->turned);
    memset(c, 0, sizeof *c);
}

void nb_capture_reset(nb_capture *c, const nb_plan *p, size_t layer)
{
    c->done = 0;
    for (size_t i = 0; i < c->n_in; i++) {
        nb_input *in = &c->in[i];
        if (nb_plan_runs(p, &p->ops[in->op], layer))
            in->k = layer_inputs(p, layer, in->op);
        memset(in->xsum, 0, in->k * sizeof *in->xsum);
        if (in->gram.sum)
            nb_gram_reset(&in->gram, in->k);
        in->tokens = in->n_sample = in->in_chunk = 0;
    }
}

void nb_capture_settle(const nb_capture *c)
{
    for (size_t i = 0; i < c->n_in; i++)
        nb_spill_settle(&c->in[i].full_mem);
}

void nb_capture_tap(void *capture, const nb_tap *t)
{
    nb_capture *c = capture;

    if (t->kind != NB_TAP_OP_IN || (c->only != SIZE_MAX && t->op != c->only))
        return;
    for (size_t i = 0; i < c->n_in; i++) {
        nb_input *in = &c->in[i];
        if (in->op != t->op)
            continue;
        for (size_t r = 0; r < t->m && t->row0 + r < c->chunk_tokens; r++)
            memcpy(in->chunk + (t->row0 + r) * in->k, t->x + r * t->ld, in->k * sizeof *in->chunk);
        for (size_t r = 0; r < t->m && in->chosen && c->done + t->row0 + r < c->tokens; r++)
            memcpy(in->chosen + (c->done + t->row0 + r) * in->n_chosen, t->chosen + r * in->n_chosen, in->n_chosen * sizeof *in->chosen);
        in->in_chunk = t->row0 + t->m;
        return;
    }
}

/* The chunk of m tokens of one input to its moments. */
static nb_status add_moments(nb_capture *c, nb_input *in, nb_pool *pool, size_t m, nb_err *err)
{
    if (!c->codes || !in->gram.half)
        return nb_gram_add(&in->gram, pool, in->chunk, in->k, m, err);
    nb_turned_as(&c->turned, in->k);
    for (size_t t = 0; t < m; t += NB_MOMENTS_TOKENS) {
        nb_turned_set(&c->turned, pool, in->chunk + t * in->k, NULL, m - t < NB_MOMENTS_TOKENS ? m - t : NB_MOMENTS_TOKENS);
        nb_moments_gram(&in->gram, c->codes, pool, &c->turned);
    }
    return NB_OK;
}

nb_status nb_capture_add(nb_capture *c, nb_pool *pool, size_t m, nb_err *err)
{
    for (size_t i = 0; i < c->n_in; i++) {
        nb_input *in = &c->in[i];
        nb_status rc;

        if ((c->only != SIZE_MAX && in->op != c->only) || in->in_chunk == 0)
            continue;
        in->in_chunk = 0;
        in->tokens += m;
        in->n_sample = (in->tokens + c->stride - 1) / c->stride;
        nb_awq_xsum(pool, in->chunk, in->k, m, in->k, in->xsum);
        for (size_t r = (c->stride - c->done % c->stride) % c->stride; r < m; r += c->stride)
            memcpy(in->sample + (c->done + r) / c->stride * in->k, in->chunk + r * in->k, in->k * sizeof *in->sample);
        if (in->full)
            memcpy(in->full + c->done * in->k, in->chunk, m * in->k * sizeof *in->full);
        if (in->gram.sum) {
            rc = add_moments(c, in, pool, m, err);
            if (rc != NB_OK)
                return rc;
        }
    }
    c->done += m;
    return NB_OK;
}

nb_input *nb_capture_at(nb_capture *c, size_t op)
{
    for (size_t i = 0; i < c->n_in; i++)
        if (c->in[i].op == op)
            return &c->in[i];
    return NULL;
}

const nb_input *nb_capture_of(const nb_capture *c, size_t op)
{
    for (size_t i = 0; i < c->n_in; i++)
        if (c->in[i].op == op)
            return &c->in[i];
    return NULL;
}

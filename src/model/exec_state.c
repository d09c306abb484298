/* exec_state.c - the pool of states: what recurrent and convolution layers keep of a sequence. Source: spec models-2026 S6. */
#include <string.h>

#include "model/exec_cpu.h"

#define PAD64(n) (((n) + 63) / 64 * 64)

nb_status nb_xcpu_states_open(nb_xcpu *x, nb_err *err)
{
    const nb_plan *p = &x->m->plan;
    const size_t n_layers = p->cfg->n_layers, n_states = x->o.n_states ? x->o.n_states : 1;
    size_t n = 0, floats = 0, most = 0;

    x->state_off = nb_calloc(n_layers, sizeof *x->state_off);
    if (!x->state_off)
        return nb_enomem(err, "states");
    for (size_t l = 0; l < n_layers; l++) {
        const size_t each = nb_plan_state(p, l);
        x->state_off[l] = each == 0 ? SIZE_MAX : x->o.kv_layers ? 0 : floats;
        floats += each;
        most = each > most ? each : most;
        n += each > 0;
    }
    if (n == 0)
        return NB_OK;
    x->state_layers = x->o.kv_layers ? 1 : n;
    x->state_head = PAD64(x->state_layers * sizeof(uint32_t));
    x->state_stride = x->state_head + (x->o.kv_layers ? most : floats) * sizeof(float);
    if (!nb_mul_size(x->state_stride, n_states, &x->states_bytes))
        return nb_fail(err, NB_EARG, "exec.size", "", "%zu states are too large", n_states);
    x->states = nb_huge_alloc(x->states_bytes);
    x->mix_floats = PAD64(NB_RECUR_TILE * (5 * p->cfg->mix.key_dim + p->cfg->mix.value_dim + 2));
    x->mix = nb_alloc_aligned(64, (size_t)x->threads * x->mix_floats * sizeof(float));
    if (!x->states || !x->mix)
        return nb_enomem(err, "states");
    for (size_t i = 0; i < n_states; i++)
        memset(x->states + i * x->state_stride, 0, x->state_head);
    return NB_OK;
}

size_t nb_xcpu_state_bytes(const nb_exec *x)
{
    return ((const nb_xcpu *)x)->state_stride;
}

unsigned char *nb_xcpu_state_at(nb_exec *base, size_t slot)
{
    nb_xcpu *x = (nb_xcpu *)base;

    return x->states + slot * x->state_stride;
}

void nb_xcpu_state_claim(nb_exec *base, size_t slot, uint32_t tokens)
{
    uint32_t *n = (uint32_t *)(void *)nb_xcpu_state_at(base, slot);

    for (size_t i = 0; i < ((nb_xcpu *)base)->state_layers; i++)
        n[i] = tokens;
}

/* Tokens that layer l has seen, in a slot. */
static uint32_t *tokens_of(const nb_xcpu *x, size_t slot, size_t l)
{
    size_t i = 0;

    for (size_t j = 0; x->state_layers > 1 && j < l; j++)
        i += x->state_off[j] != SIZE_MAX;
    return (uint32_t *)(void *)(x->states + slot * x->state_stride) + i;
}

float *nb_xcpu_state(const nb_xcpu *x, const nb_block *span, size_t l)
{
    unsigned char *slot = x->states + span->seq->state * x->state_stride;

    return (float *)(void *)(slot + x->state_head) + x->state_off[l];
}

nb_pool *nb_xcpu_mix_pool(const nb_xcpu *x)
{
    const nb_mix_cfg *c = &x->m->cfg.mix;

    return x->rows * c->heads * c->key_dim * c->value_dim < NB_INLINE_MACS ? NULL : x->o.pool;
}

void nb_xcpu_heads(const nb_xcpu *x, nb_range_fn *fn, void *ctx)
{
    const size_t n = x->n_spans * x->m->cfg.mix.heads;

    if (x->rows == x->n_spans)
        nb_parallel_static(nb_xcpu_mix_pool(x), n, fn, ctx);
    else
        nb_parallel_for(nb_xcpu_mix_pool(x), n, 1, fn, ctx);
}

void nb_xcpu_states_done(nb_xcpu *x, size_t l)
{
    for (size_t i = 0; i < x->n_spans; i++)
        *tokens_of(x, x->spans[i].seq->state, l) = (uint32_t)(x->spans[i].pos + x->spans[i].m);
}

nb_status nb_xcpu_states_check(const nb_xcpu *x, const nb_batch *b, size_t l0, size_t l1, nb_err *err)
{
    const size_t n_states = x->o.n_states ? x->o.n_states : 1;

    for (size_t i = 0; x->states && i < b->m; i++) {
        const uint32_t slot = b->seqs[b->seq[i]].state;
        if (i > 0 && b->seq[i] == b->seq[i - 1])
            continue;
        if (slot >= n_states)
            return nb_fail(err, NB_EARG, "exec.state", "", "row %zu names state %u of %zu", i, (unsigned)slot, n_states);
        for (size_t j = 0; j < i; j++)
            if (b->seqs[b->seq[j]].state == slot)
                return nb_fail(err, NB_EARG, "exec.state", "", "rows %zu and %zu share state %u", j, i, (unsigned)slot);
        for (size_t l = l0; l < l1 && b->pos[i] > 0; l++)
            if (x->state_off[l] != SIZE_MAX && *tokens_of(x, slot, l) != b->pos[i])
                return nb_fail(err, NB_EARG, "exec.state", "", "position %u of row %zu follows %u tokens in its state", (unsigned)b->pos[i],
                               i, (unsigned)*tokens_of(x, slot, l));
    }
    return NB_OK;
}

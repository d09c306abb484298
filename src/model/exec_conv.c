/* exec_conv.c - causal depthwise convolutions over the tokens of a sequence; the last inputs are its state, [taps - 1][channels].
 *
 * Every channel alone: y = bias, then += weight * input, oldest input first, each rounded. Source: spec models-2026 S4.4, S4.7. */
#include <string.h>

#include "model/exec_cpu.h"

enum { BLOCK = 128, MOST_TAPS = 64 }; /* channels of one task; taps of any configuration */

typedef struct conv_job {
    const nb_xcpu *x;
    const nb_op *op;
    size_t l, channels, per_span;
    const nb_run *runs;
    size_t n_runs;
    const float *w[3]; /* [taps][its channels]: of all, or of q, k, v */
    size_t n_w[3];
    const float *bias;
} conv_job;

static float *row_of(const nb_xcpu *x, nb_slot s, size_t r)
{
    return x->slot[s] + r * x->m->plan.slot_width[s];
}

/* Weight of a tap from channel c on. */
static const float *weight(const conv_job *j, size_t tap, size_t c)
{
    size_t i = 0;

    while (c >= j->n_w[i])
        c -= j->n_w[i++];
    return j->w[i] + tap * j->n_w[i] + c;
}

/* Channels that weights of channel c are stored with. */
static size_t stride(const conv_job *j, size_t c)
{
    size_t i = 0;

    while (c >= j->n_w[i])
        c -= j->n_w[i++];
    return j->n_w[i];
}

/* n channels from `to` on, whose inputs lie at `from` in a row. The last `taps` inputs go round in a ring. */
static void convolve(const conv_job *j, const nb_block *s, size_t from, size_t to, size_t n)
{
    const nb_xcpu *x = j->x;
    const size_t taps = x->m->cfg.mix.taps, past = taps - 1, C = j->channels;
    const bool gated = j->op->kind == NB_OP_SHORT;
    float *state = nb_xcpu_state(x, s, j->l), ring[MOST_TAPS][BLOCK], y[BLOCK], one[BLOCK];
    const float *u[MOST_TAPS];

    for (size_t i = 0; i < n; i++)
        one[i] = 1;
    for (size_t i = 0; i < past; i++)
        if (s->pos == 0)
            memset(ring[i], 0, n * sizeof *state);
        else
            memcpy(ring[i], state + i * C + to, n * sizeof *state);
    for (size_t r = 0; r < s->m; r++) {
        const float *in = row_of(x, j->op->in, s->row + r) + from;
        float *out = row_of(x, j->op->out, s->row + r) + to, *now = ring[(r + past) % taps];

        memcpy(now, in, n * sizeof *in);
        for (size_t i = 0; gated && i < n; i++) /* B, C, u side by side */
            now[i] *= in[2 * C + i];
        for (size_t t = 0; t < taps; t++)
            u[t] = ring[(r + t) % taps];
        x->kern->conv(y, j->bias ? j->bias + to : NULL, weight(j, 0, to), stride(j, to), u, taps, n);
        if (gated)
            for (size_t i = 0; i < n; i++)
                out[i] = in[C + i] * y[i];
        else
            x->kern->silu_mul(out, y, one, n);
    }
    for (size_t i = 0; i < past; i++)
        memcpy(state + i * C + to, ring[(s->m + i) % taps], n * sizeof *state);
}

static void run_blocks(void *ctx, size_t begin, size_t end, int thread)
{
    const conv_job *j = ctx;

    (void)thread;
    for (size_t i = begin; i < end; i++) {
        const nb_block *s = &j->x->spans[i / j->per_span];
        size_t b = i % j->per_span, k = 0;
        while (b >= (j->runs[k].n + BLOCK - 1) / BLOCK)
            b -= (j->runs[k++].n + BLOCK - 1) / BLOCK;
        const nb_run *run = &j->runs[k];
        const size_t c = b * BLOCK;
        convolve(j, s, run->from + c, run->to + c, run->n - c < BLOCK ? run->n - c : BLOCK);
    }
}

void nb_xcpu_conv(nb_xcpu *x, size_t l, const nb_op *op)
{
    const nb_plan *p = &x->m->plan;
    const size_t taps = p->cfg->mix.taps, C = nb_plan_conv_state(p, l) / (taps - 1);
    const nb_run all = { 0, 0, C };
    float *const *vec = x->m->layers[l].vec;
    conv_job j = { .x = x, .op = op, .l = l, .channels = C, .runs = p->runs, .n_runs = p->n_runs, .bias = vec[NB_VEC_CONV_BIAS] };

    if (op->kind == NB_OP_SHORT) {
        j.runs = &all;
        j.n_runs = 1;
    }
    for (size_t i = 0; i < 3; i++) {
        j.w[i] = vec[NB_VEC_CONV + i];
        j.n_w[i] = nb_plan_vec_size(p, (nb_vec)(NB_VEC_CONV + i)) / taps;
    }
    for (size_t i = 0; i < j.n_runs; i++)
        j.per_span += (j.runs[i].n + BLOCK - 1) / BLOCK;
    nb_parallel_for(x->rows * C < NB_INLINE_MACS / 8 ? NULL : x->o.pool, x->n_spans * j.per_span, 1, run_blocks, &j);
    if (op->kind == NB_OP_SHORT)
        nb_xcpu_states_done(x, l);
}

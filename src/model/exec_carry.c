/* exec_carry.c - what goes from layer to layer beside the residual, when layers run one at a time: the other residual streams, the
 * experts' branch of a layer in two halves, the keys that an earlier layer chose, keys and values that later layers read. */
#include <string.h>

#include "model/exec_cpu.h"

/* Does a later layer read the keys and values of this one? */
static bool gives_kv(const nb_config *c, size_t l)
{
    bool yes = false;

    for (size_t n = l + 1; c->dims && n < c->n_layers && !yes; n++)
        yes = c->dims[n].kv_from == l;
    return yes;
}

/* Floats of the keys and values of a layer. */
static size_t kv_floats(const nb_config *c, size_t l)
{
    const nb_dims d = nb_config_dims(c, l);

    return 2 * d.kv_heads * d.kv_dim;
}

/* Floats of all residual streams beside the one in X. */
static size_t stream_floats(const nb_config *c)
{
    return (c->n_streams + c->v4.streams) * c->d_model;
}

/* Keys that a layer chose for those behind it. */
static size_t choices(const nb_config *c)
{
    return c->v4.on ? 0 : c->index_top;
}

/* Where they begin behind the parts that every layer has; those of layer n_layers: the end. */
static size_t kv_begin(const nb_config *c, size_t l)
{
    size_t at = stream_floats(c) + (c->halves ? c->d_model : 0) + choices(c);

    for (size_t i = 0; i < l; i++)
        at += gives_kv(c, i) ? kv_floats(c, i) : 0;
    return at;
}

size_t nb_plan_carry(const nb_plan *p)
{
    const nb_config *c = p->cfg;
    bool shared = false;

    for (size_t l = 0; c->mixer && l < c->n_layers; l++)
        shared = shared || c->mixer[l] == NB_MIX_SHARED;
    return shared || stream_floats(c) || c->halves ? kv_begin(c, c->n_layers) : 0;
}

static float *row_of(const nb_xcpu *x, nb_slot s, size_t r)
{
    return x->slot[s] + r * x->m->plan.slot_width[s];
}

/* Keys and values of row r between a slot and [head][key, value]. */
static void move_kv(const nb_xcpu *x, size_t l, size_t r, float *kv, bool out)
{
    const nb_dims d = nb_config_dims(&x->m->cfg, l);
    const nb_heads p = nb_plan_att(&x->m->plan, l);

    for (size_t i = 0; i < 2 * d.kv_heads; i++) {
        float *in = row_of(x, x->m->plan.att_in, r) + p.off[1 + i % 2] + i / 2 * p.step[1 + i % 2], *to = kv + i * d.kv_dim;
        memcpy(out ? to : in, out ? in : to, d.kv_dim * sizeof *in);
    }
}

void nb_xcpu_carry_in(nb_xcpu *x, size_t l, const float *rows, size_t ld)
{
    const nb_config *c = &x->m->cfg;
    const size_t streams = stream_floats(c), chosen = choices(c), keep = c->halves ? c->d_model : 0;
    const size_t from = nb_config_dims(c, l).kv_from;
    const nb_item it = { .l = from };

    for (size_t r = 0; l > 0 && r < x->rows; r++) { /* the first layer begins with the embedding */
        const float *y = rows + r * ld;
        if (streams)
            memcpy(row_of(x, NB_SLOT_STREAMS, r), y, streams * sizeof *y);
        if (keep)
            memcpy(row_of(x, NB_SLOT_KEEP, r), y + streams, keep * sizeof *y);
        if (chosen)
            memcpy(x->picked + r * chosen, y + streams + keep, chosen * sizeof *x->picked);
        if (from != l) {
            move_kv(x, from, r, (float *)y + kv_begin(c, from), false);
            nb_xcpu_put_kv(x, &it, r);
        }
    }
}

void nb_xcpu_carry_out(const nb_xcpu *x, size_t l, float *rows, size_t ld)
{
    const nb_config *c = &x->m->cfg;
    const size_t streams = stream_floats(c), chosen = choices(c), keep = c->halves ? c->d_model : 0;

    for (size_t r = 0; r < x->rows; r++) {
        float *y = rows + r * ld;
        if (streams)
            memcpy(y, row_of(x, NB_SLOT_STREAMS, r), streams * sizeof *y);
        if (keep)
            memcpy(y + streams, row_of(x, NB_SLOT_KEEP, r), keep * sizeof *y);
        if (chosen && x->b->pos[x->row0 + r] >= chosen)
            memcpy(y + streams + keep, x->picked + r * chosen, chosen * sizeof *x->picked);
        if (gives_kv(c, l))
            move_kv(x, l, r, y + kv_begin(c, l), true);
    }
}

/* exec_shared.c - blocks that several layers run: what they read, and the low-rank paths of each use. Source: spec models-2026 S4.6. */
#include <string.h>

#include "model/exec_cpu.h"

static float *row_of(const nb_xcpu *x, nb_slot s, size_t r)
{
    return x->slot[s] + r * x->m->plan.slot_width[s];
}

void nb_xcpu_pair(nb_xcpu *x, const nb_item *it, size_t r)
{
    const nb_config *c = &x->m->cfg;
    float *y = row_of(x, it->op->out, r);

    memcpy(y, row_of(x, it->op->in, r), c->d_model * sizeof *y);
    memcpy(y + c->d_model, row_of(x, NB_SLOT_FIRST, r), c->d_model * sizeof *y);
    x->kern->rmsnorm(y, y, it->layer->vec[NB_VEC_PAIR_NORM], 0, (float)c->norm_eps, 2 * c->d_model);
}

void nb_xcpu_plus(nb_xcpu *x, const nb_item *it, size_t r)
{
    size_t n, k;

    nb_plan_linear_size_at(&x->m->plan, it->l, it->op->roles[0], &n, &k);
    x->kern->add(row_of(x, it->op->out, r) + nb_plan_role_off(&x->m->plan, it->op->roles[0]), row_of(x, it->op->in, r), n);
}

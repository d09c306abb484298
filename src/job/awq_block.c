/* awq_block.c - AWQ on one decoder block: what it takes, and the weights that are left to round. */
#include <string.h>

#include "base/mem.h"
#include "job/awq_priv.h"
#include "solve/solve_refine.h"

static nb_grid grid_of(const nb_qmod *m)
{
    return (nb_grid){ .g = m->spec.group_size < 0 ? m->at.k : (size_t)m->spec.group_size,
                      .bits = m->spec.bits,
                      .sym = m->spec.sym,
                      .stored = m->spec.scale_dtype };
}

size_t nb_awq_id(const nb_awq_block *b, nb_mod mod)
{
    return mod < NB_MOD_KVB ? mod : b->n_ids - 1 - (mod - NB_MOD_KVB);
}

const nb_qmod *nb_awq_mod(const nb_awq_block *b, nb_mod mod)
{
    return nb_qmods_find(b->o.mods, b->base.layer, mod);
}

bool nb_awq_quantized(const nb_awq_block *b, nb_mod mod)
{
    const nb_qmod *m = nb_awq_mod(b, mod);

    return m && m->quantized;
}

/* ---- what is written anew ---- */

static nb_status add_mod(const nb_qmods *t, size_t layer, nb_mod mod, nb_qwrites *out, nb_err *err)
{
    const nb_qmod *m = nb_qmods_find(t, layer, mod);

    return m && m->quantized ? NB_OK : nb_qwrites_add(out, (nb_qwrite){ .kind = NB_QWRITE_DENSE, .layer = layer, .mod = mod }, err);
}

static nb_status add_pred(const nb_qmods *t, size_t layer, nb_mod pred, nb_qwrites *out, nb_err *err)
{
    const nb_qmod *m = nb_qmods_find(t, layer, pred);
    nb_status rc = add_mod(t, layer, pred, out, err);

    if (rc == NB_OK && m && m->at.bias)
        rc = nb_qwrites_add(out, (nb_qwrite){ .kind = NB_QWRITE_BIAS, .layer = layer, .mod = pred }, err);
    return rc;
}

/* One grid for all quantized members of a group. *any: there are some. */
static nb_status common_grid(const nb_qmods *t, size_t layer, const nb_scale_group *g, nb_grid *out, bool *any, nb_err *err)
{
    const nb_qmod *first = NULL;

    for (size_t i = 0; i < g->n_mods; i++) {
        const nb_qmod *m = nb_qmods_find(t, layer, g->mods[i]);
        if (!m || !m->quantized)
            continue;
        first = first ? first : m;
        if (m->spec.bits != first->spec.bits || m->spec.sym != first->spec.sym || grid_of(m).g != grid_of(first).g)
            return nb_fail(err, NB_EARG, "quantize.dynamic", "",
                           "%s and %s read the same input and are scaled together, but their bits, group size or grid differ; give both "
                           "the same, or use gptq or rtn",
                           first->at.name, m->at.name);
    }
    *any = first != NULL;
    if (first)
        *out = grid_of(first);
    return NB_OK;
}

/* Groups that are of no use, or whose fold has no place to go. */
static bool useless(const nb_qmods *t, size_t layer, const nb_scale_group *g, bool any)
{
    const nb_qmod *pred = g->vec == NB_VEC_NONE ? nb_qmods_find(t, layer, g->pred) : NULL;

    return !any || (pred && pred->at.bias_part);
}

static nb_status group_writes(const nb_plan *p, const nb_qmods *t, size_t layer, const nb_scale_group *g, nb_qwrites *out, nb_err *err)
{
    nb_grid grid;
    bool any;
    nb_status rc = common_grid(t, layer, g, &grid, &any, err);

    if (rc != NB_OK || useless(t, layer, g, any))
        return rc;
    for (size_t i = 0; i < g->n_mods && rc == NB_OK; i++)
        rc = add_mod(t, layer, g->mods[i], out, err);
    if (rc == NB_OK && g->vec == NB_VEC_NONE)
        return add_pred(t, layer, g->pred, out, err);
    if (rc == NB_OK)
        rc = nb_qwrites_add(out, (nb_qwrite){ .kind = NB_QWRITE_VEC, .layer = layer, .vec = g->vec }, err);
    if (rc == NB_OK && nb_plan_vec_bias(p, g->vec) != NB_VEC_NONE)
        rc = nb_qwrites_add(out, (nb_qwrite){ .kind = NB_QWRITE_VEC, .layer = layer, .vec = nb_plan_vec_bias(p, g->vec) }, err);
    return rc;
}

nb_status nb_awq_writes(const nb_plan *p, const nb_store *s, const nb_awq_opts *o, nb_qwrites *out, nb_err *err)
{
    nb_status rc = NB_OK;

    for (size_t l = 0; l < p->cfg->n_layers && rc == NB_OK; l++) {
        nb_scale_groups gs;
        rc = nb_scale_groups_find(p, s, l, o->shared_v, &gs, err);
        for (size_t i = 0; rc == NB_OK && i < gs.n; i++)
            rc = group_writes(p, o->mods, l, &gs.g[i], out, err);
        nb_scale_groups_clear(&gs);
    }
    return rc;
}

/* ---- sizes ---- */

/* What the groups of all layers need. */
typedef struct sizes {
    nb_block_need need;
    size_t span;         /* widths of the inspected spans of one group, together */
    size_t out;          /* of one span */
    size_t gram;         /* most inputs of a linear of an expert that is looked at alone */
    size_t look;         /* floats in w while scales are searched */
    size_t inputs;       /* most of one linear */
    uint64_t sums, kept; /* second moments of all inputs; of one, while the others are shelved */
    double macs;         /* of one layer */
} sizes;

static double span_macs(const nb_plan *p, const nb_span *s, double attn)
{
    const nb_moe_cfg *m = &p->cfg->moe;
    double work = 0;

    for (size_t op = s->op; op < s->end; op++) {
        for (size_t r = 0; p->ops[op].kind == NB_OP_LINEAR && r < 3 && p->ops[op].roles[r] != NB_ROLE_NONE; r++) {
            size_t n, k;
            nb_plan_linear_size(p, p->ops[op].roles[r], &n, &k);
            work += (double)n * (double)k;
        }
        work += p->ops[op].kind == NB_OP_ATTN ? attn : 0;
        work += p->ops[op].kind == NB_OP_MOE ? 3.0 * (double)p->cfg->d_model * (double)(m->n_active * m->ff + m->shared_ff) : 0;
    }
    return work;
}

bool nb_awq_by_moments(const nb_awq_opts *o, const nb_scale_group *g)
{
    if (g->n_spans == 0)
        return true;
    for (size_t i = 0; i < g->n_mods; i++)
        if (o->inspect || nb_mod_expert(g->mods[i]) != NB_NO_EXPERT || g->mods[i] >= NB_MOD_KVB)
            return false;
    return true;
}

static void size_group(const nb_plan *p, size_t layer, const nb_awq_opts *o, const nb_scale_group *g, double t, double attn, sizes *z)
{
    size_t total = 0, width = 0, floats, n, k;
    bool experts = false;

    for (size_t i = 0; i < g->n_mods; i++) {
        nb_mod_size(p, layer, g->mods[i], &n, &k);
        total += n * k;
        experts = experts || nb_mod_expert(g->mods[i]) != NB_NO_EXPERT;
    }
    if (nb_awq_by_moments(o, g) && !o->inspect && total > 2 * NB_AWQ_LOSS_ROWS * g->k) /* what losses look at */
        floats = 2 * NB_AWQ_LOSS_ROWS * g->k;
    else
        floats = experts ? z->need.linear : total;
    z->look = floats > z->look ? floats : z->look;
    z->need.w = floats > z->need.w ? floats : z->need.w;
    if (nb_awq_by_moments(o, g)) {
        const double tokens = experts ? t * (double)p->cfg->moe.n_active / (double)p->cfg->moe.n_experts : 0;
        const double rows = (double)total / (double)g->k;
        z->gram = experts && g->k > z->gram ? g->k : z->gram;
        z->need.gram[g->op] = z->need.gram[g->op] || !experts;
        z->macs += tokens * (double)g->k * (double)g->k / 2;
        z->macs += NB_AWQ_RATIOS * (rows < 2 * NB_AWQ_LOSS_ROWS ? rows : 1.5 * NB_AWQ_LOSS_ROWS) * (double)g->k * (double)g->k;
        return;
    }
    z->need.full[g->op] = true;
    for (size_t i = 0; i < g->n_spans; i++) {
        const size_t w = p->slot_len[p->ops[g->spans[i].end - 1].out];
        width += w;
        z->out = w > z->out ? w : z->out;
        z->macs += (NB_AWQ_RATIOS + 1) * t * span_macs(p, &g->spans[i], attn);
    }
    z->span = width > z->span ? width : z->span;
}

static nb_status find_sizes(const nb_plan *p, const nb_store *s, const nb_awq_opts *o, size_t rows, size_t len, sizes *z, nb_err *err)
{
    const double t = (double)rows * (double)len, attn = (double)p->slot_len[NB_SLOT_ATT] * (double)len * 2;
    nb_status rc = NB_OK;
    double most = 0, moments = 0;
    uint64_t half;

    *z = (sizes){ 0 };
    nb_block_sizes(p, rows, len, &z->need);
    for (size_t op = 0; op < p->n_ops; op++)
        if (p->ops[op].kind == NB_OP_LINEAR) {
            size_t most_k = 0;
            for (size_t l = 0; l < p->cfg->n_layers; l++) {
                size_t n, k;
                nb_plan_linear_size_at(p, l, p->ops[op].roles[0], &n, &k);
                most_k = nb_plan_runs(p, &p->ops[op], l) && k > most_k ? k : most_k;
            }
            z->need.gram[op] = true;
            half = nb_gram_half_bytes(most_k);
            z->sums += half;
            z->inputs = most_k > z->inputs ? most_k : z->inputs;
            z->kept = half > z->kept ? half : z->kept;
            moments += t * (o->a8 ? NB_BLOCK_CODES : 1) * (double)most_k * (double)most_k / 2;
        }
    for (size_t l = 0; l < p->cfg->n_layers && rc == NB_OK; l++) {
        nb_scale_groups gs;
        z->macs = moments;
        rc = nb_scale_groups_find(p, s, l, o->shared_v, &gs, err);
        for (size_t i = 0; rc == NB_OK && i < gs.n; i++)
            size_group(p, l, o, &gs.g[i], t, attn, z);
        nb_scale_groups_clear(&gs);
        most = z->macs > most ? z->macs : most;
    }
    z->macs = most;
    return rc;
}

nb_status nb_awq_block_cost(const nb_plan *p, const nb_store *s, const nb_awq_opts *o, size_t rows, size_t len, nb_block_cost *out,
                            nb_err *err)
{
    const double t = (double)rows * (double)len, attn = (double)p->slot_len[NB_SLOT_ATT] * (double)len * 2; /* at half the speed */
    double layer = 0, clip = 0, refine = 0;
    uint64_t searching, solving, own, most = 0, biggest = 0, sum = 0;
    sizes z;
    nb_status rc = find_sizes(p, s, o, rows, len, &z, err);

    if (rc != NB_OK)
        return rc;
    *out = nb_block_bytes(p, &z.need, rows, len, o->replay_original);
    out->spill += 4 * (uint64_t)rows * len * z.span;
    own = 8 * (uint64_t)rows * len + 4 * (uint64_t)z.need.chunk * z.out +
          8 * (uint64_t)NB_AWQ_TEST_ROWS * len * (p->cfg->d_model + nb_plan_carry(p));
    own += z.gram ? nb_gram_half_bytes(z.gram) : 0;
    own += o->a8 ? nb_turned_bytes(z.inputs, z.need.chunk < NB_MOMENTS_TOKENS ? z.need.chunk : NB_MOMENTS_TOKENS, true) : 0;
    out->bytes += own - z.sums; /* moments stand below */
    out->idle = out->bytes;
    for (size_t i = 0; i < o->mods->n; i++) {
        const uint64_t w = (uint64_t)o->mods->mods[i].at.n * o->mods->mods[i].at.k;
        if (o->mods->mods[i].mod == NB_MOD_HEAD)
            continue;
        sum = i == o->mods->first[o->mods->mods[i].layer] ? w : sum + w;
        most = w > most ? w : most;
        biggest = sum > biggest ? sum : biggest;
    }
    if (o->a8) /* the layer in f32 while all moments are shelved, without tmp */
        out->whole = out->bytes - 4 * (uint64_t)z.need.linear + z.sums / 2 + 4 * biggest;
    /* moments and w while scales are searched; or one input's moments, the others shelved, w and codes (which the job counts) */
    searching = z.sums + 4 * (uint64_t)z.look;
    solving = z.kept + (z.sums - z.kept) / 2 + 4 * (uint64_t)z.need.w + 3 * most;
    out->bytes += (searching > solving ? searching : solving) - 3 * most - 4 * (uint64_t)z.need.w;
    for (size_t i = 0; i < o->mods->n; i++) {
        const nb_qmod *m = &o->mods->mods[i];
        const double w = (double)m->at.n * (double)m->at.k / (double)p->cfg->n_layers;
        layer += w;
        refine += m->quantized && o->refine ? 1.5 * w * (double)m->at.k : 0;
        clip += m->quantized && nb_role_clips(nb_mod_role(m->mod)) ? w * (double)o->clip * (double)grid_of(m).g : 0;
    }
    out->macs = z.macs + 2 * t * (layer * (o->a8 ? NB_BLOCK_CODES : 1) + attn) + clip + refine + 4 * NB_BLOCK_JUDGE * layer;
    return NB_OK;
}

/* ---- open ---- */

static nb_status take_buffers(nb_awq_block *b, const sizes *z, nb_err *err)
{
    const size_t test = NB_AWQ_TEST_ROWS * b->base.calib->len * b->base.width;
    nb_status rc = nb_spill_open(&b->ref_mem, b->base.calib->spill, b->base.tokens, z->span, "outputs of a block", err);

    if (rc != NB_OK)
        return rc;
    b->ref = b->ref_mem.p;
    b->n_ids = NB_ROLE_COUNT + 4 * (b->base.plan->cfg->moe.n_experts + 1) + 3;
    b->as_input = nb_alloc_array(b->n_ids, sizeof *b->as_input);
    b->as_pred = nb_alloc_array(b->n_ids, sizeof *b->as_pred);
    b->out = nb_alloc_array(z->need.chunk, z->out * sizeof *b->out);
    b->part = nb_alloc_array(b->base.tokens, sizeof *b->part);
    b->test[0] = nb_alloc_array(test, sizeof **b->test);
    b->test[1] = nb_alloc_array(test, sizeof **b->test);
    if (!b->as_input || !b->as_pred || !b->out || !b->part || !b->test[0] || !b->test[1])
        return nb_enomem(err, "calibration activations; fewer rows need less (--calib-rows)");
    return NB_OK;
}

nb_status nb_awq_block_open(nb_awq_block **out, nb_model *m, nb_store *s, const nb_calib *c, const nb_awq_opts *o, nb_pool *pool,
                            const nb_host *host, nb_err *err)
{
    const nb_block_in in = { .model = m,
                             .store = s,
                             .calib = c,
                             .pool = pool,
                             .host = host,
                             .replay_original = o->replay_original,
                             .a8 = o->a8,
                             .all_experts = o->all_experts,
                             .to_head = o->to_head };
    const nb_qspec spec = { .bits = o->bits, .group_size = o->group_size, .sym = o->sym, .scale_dtype = o->scale_dtype };
    nb_awq_block *b = nb_calloc(1, sizeof *b);
    nb_status rc = NB_OK;
    sizes z;

    *out = NULL;
    if (!b)
        return nb_enomem(err, "the AWQ block");
    b->o = *o;
    if (!o->mods)
        rc = nb_qmods_open(&b->own, nb_model_plan(m), s, &spec, NULL, NULL, err);
    b->o.mods = o->mods ? o->mods : &b->own;
    if (rc == NB_OK)
        rc = find_sizes(nb_model_plan(m), s, &b->o, c->rows, c->len, &z, err);
    if (rc == NB_OK)
        memcpy(b->sums, z.need.gram, sizeof b->sums);
    if (rc == NB_OK)
        rc = nb_block_open(&b->base, &in, &z.need, err);
    if (rc == NB_OK)
        rc = take_buffers(b, &z, err);
    if (rc == NB_OK)
        *out = b;
    else
        nb_awq_block_close(b);
    return rc;
}

static void forget_layer(nb_awq_block *b)
{
    nb_scale_groups_clear(&b->layout);
    nb_arena_clear(&b->mem);
    b->groups = NULL;
    b->n_groups = 0;
}

void nb_awq_block_close(nb_awq_block *b)
{
    if (!b)
        return;
    forget_layer(b);
    nb_block_clear(&b->base);
    nb_qmods_clear(&b->own);
    nb_spill_close(&b->ref_mem);
    nb_free(b->as_input);
    nb_free(b->as_pred);
    nb_free(b->out);
    nb_free(b->part);
    nb_free(b->test[0]);
    nb_free(b->test[1]);
    nb_free(b);
}

nb_block *nb_awq_block_base(nb_awq_block *b)
{
    return &b->base;
}

/* ---- a layer ---- */

static float *copy_vec(nb_awq_block *b, nb_vec vec, size_t k)
{
    size_t n;
    const float *v = vec == NB_VEC_NONE ? NULL : nb_model_vec(b->base.model, b->base.layer, vec, &n);
    float *out = v ? nb_arena_alloc(&b->mem, k * sizeof *out) : NULL;

    return out ? memcpy(out, v, k * sizeof *out) : NULL;
}

static nb_status open_group(nb_awq_block *b, nb_awq_group *g, nb_err *err)
{
    const size_t k = g->g->k, index = (size_t)(g - b->groups);
    const nb_vec bias = g->g->vec == NB_VEC_NONE ? NB_VEC_NONE : nb_plan_vec_bias(b->base.plan, g->g->vec);
    bool any, ok;
    nb_status rc = common_grid(b->o.mods, b->base.layer, g->g, &g->grid, &any, err);

    if (rc != NB_OK)
        return rc;
    g->state = useless(b->o.mods, b->base.layer, g->g, any) ? NB_FOLD_OFF : NB_FOLD_ON;
    g->s = nb_arena_calloc(&b->mem, k, sizeof *g->s);
    g->norm = nb_arena_calloc(&b->mem, k, sizeof *g->norm);
    g->beta = nb_arena_calloc(&b->mem, k, sizeof *g->beta);
    g->norm0 = copy_vec(b, g->g->vec, k);
    g->beta0 = copy_vec(b, bias, k);
    ok = g->s && g->norm && g->beta && (g->norm0 || g->g->vec == NB_VEC_NONE) && (g->beta0 || bias == NB_VEC_NONE);
    for (size_t i = 0; i < g->g->n_mods; i++)
        b->as_input[nb_awq_id(b, g->g->mods[i])] = (int32_t)index;
    if (g->g->vec == NB_VEC_NONE)
        b->as_pred[nb_awq_id(b, g->g->pred)] = (int32_t)index;
    return ok ? NB_OK : nb_enomem(err, "scales");
}

nb_status nb_awq_block_capture(nb_awq_block *b, size_t layer, nb_err *err)
{
    nb_status rc = nb_block_bind(&b->base, layer, err);

    forget_layer(b);
    memset(b->divided, 0, sizeof b->divided);
    b->expert = NB_NO_EXPERT;
    memset(b->as_input, 0xff, b->n_ids * sizeof *b->as_input);
    memset(b->as_pred, 0xff, b->n_ids * sizeof *b->as_pred);
    if (rc == NB_OK)
        rc = nb_scale_groups_find(b->base.plan, b->base.store, layer, b->o.shared_v, &b->layout, err);
    if (rc == NB_OK && !(b->groups = nb_arena_calloc(&b->mem, b->layout.n + 1, sizeof *b->groups)))
        rc = nb_enomem(err, "scales");
    b->n_groups = rc == NB_OK ? b->layout.n : 0;
    for (size_t i = 0; i < b->n_groups && rc == NB_OK; i++) {
        b->groups[i].g = &b->layout.g[i];
        rc = open_group(b, &b->groups[i], err);
    }
    for (size_t i = 0; i < b->base.cap.n_in; i++)
        nb_gram_clear(&b->base.cap.in[i].gram);
    nb_capture_reset(&b->base.cap, b->base.plan, layer); /* the sizes of this layer's inputs */
    for (size_t i = 0; i < b->base.cap.n_in && rc == NB_OK; i++) {
        nb_input *in = &b->base.cap.in[i];
        if (b->sums[in->op])
            rc = nb_gram_init_half(&in->gram, in->k, err);
    }
    nb_block_release(&b->base);
    if (rc == NB_OK)
        rc = nb_block_capture(&b->base, err);
    return rc == NB_OK ? nb_block_hold(&b->base, err) : rc;
}

size_t nb_awq_block_groups(const nb_awq_block *b, const nb_awq_group **groups)
{
    *groups = b->groups;
    return b->n_groups;
}

const nb_awq_group *nb_awq_block_group_of(const nb_awq_block *b, nb_mod mod)
{
    const int32_t i = b->as_input[nb_awq_id(b, mod)];

    return i >= 0 && b->groups[i].state == NB_FOLD_ON ? &b->groups[i] : NULL;
}

nb_fold_state nb_awq_block_state(const nb_awq_block *b, nb_mod mod)
{
    const int32_t i = b->as_input[nb_awq_id(b, mod)];

    return i >= 0 ? b->groups[i].state : NB_FOLD_ON;
}

/* ---- final weights ---- */

/* A member of a group that failed its search is rounded plainly, without clipping, and so is an expert that few tokens reach
 * (spec quantizers 3.9). */
static bool clips(const nb_awq_block *b, nb_mod mod)
{
    const nb_fold_state state = nb_awq_block_state(b, mod);
    const nb_input *in = nb_block_input(&b->base, mod);

    if (state == NB_FOLD_NO_LOSS || state == NB_FOLD_CHANGES || state == NB_FOLD_FEW)
        return false;
    return b->o.clip > 0 && nb_role_clips(nb_mod_role(mod)) && in->n_sample > 0 && !nb_awq_block_few(b, mod);
}

/* The inputs of an expert, both at once, while its weights are still unrounded: those of down come through folded matrices, and
 * are brought back to what they were before the fold. */
static nb_status find_inputs(nb_awq_block *b, nb_mod mod, nb_err *err)
{
    const uint32_t e = nb_mod_expert(mod);
    const nb_awq_group *in = e == NB_NO_EXPERT ? NULL : nb_awq_block_group_of(b, NB_MOD_ROUTER);
    const nb_awq_group *down = e == NB_NO_EXPERT ? NULL : nb_awq_block_group_of(b, nb_mod_in_expert(e, NB_ROLE_DOWN));
    nb_input *x = &b->base.expert[1];
    nb_status rc;

    if (e == NB_NO_EXPERT || e == b->expert)
        return NB_OK;
    rc = nb_block_expert(&b->base, e, 0, NULL, false, err);
    if (rc == NB_OK)
        rc = nb_block_expert(&b->base, e, 1, in ? in->s : NULL, false, err);
    for (size_t r = 0; rc == NB_OK && down && r < x->n_sample; r++)
        for (size_t i = 0; i < x->k; i++)
            x->sample[r * x->k + i] *= down->s[i];
    b->expert = e;
    return rc;
}

size_t nb_awq_block_tokens(const nb_awq_block *b, nb_mod mod)
{
    return nb_block_input(&b->base, mod)->tokens;
}

bool nb_awq_block_few(const nb_awq_block *b, nb_mod mod)
{
    const size_t n = nb_awq_block_tokens(b, mod);

    return nb_mod_expert(mod) != NB_NO_EXPERT && (n == 0 || n < b->o.least_tokens);
}

/* Second moments of what a linear reads, as it reads it now: behind the fold. *out NULL: only samples are known (experts). */
static nb_status moments_of(nb_awq_block *b, nb_mod mod, float **out, nb_err *err)
{
    const size_t op = nb_mod_op(b->base.plan, b->base.layer, mod);
    nb_input *in = nb_mod_expert(mod) == NB_NO_EXPERT ? nb_capture_at(&b->base.cap, op) : NULL;
    const nb_awq_group *g = nb_awq_block_group_of(b, mod);
    float *c;

    *out = NULL;
    if (!in || !in->gram.sum || in->gram.tokens == 0)
        return NB_OK;
    *out = c = nb_gram_take(&in->gram);
    if (!c)
        return nb_enomem(err, "the second moments of one input");
    for (size_t i = 0; g && !b->divided[op] && i < in->k; i++)
        for (size_t j = 0; j < in->k; j++)
            c[i * in->k + j] /= g->s[i] * g->s[j];
    b->divided[op] = true;
    return NB_OK;
}

/* The moments go with the last linear that reads the input. */
static void leave_moments(nb_awq_block *b, nb_mod mod)
{
    const nb_qmod *m = nb_awq_mod(b, mod), *end = b->o.mods->mods + b->o.mods->first[b->base.layer + 1];
    const size_t op = nb_mod_op(b->base.plan, b->base.layer, mod);
    nb_input *in = nb_mod_expert(mod) == NB_NO_EXPERT ? nb_capture_at(&b->base.cap, op) : NULL;

    if (!in || !m)
        return;
    for (m++; m < end; m++)
        if (m->quantized && nb_mod_op(b->base.plan, b->base.layer, m->mod) == op)
            return;
    nb_gram_clear(&in->gram);
}

/* Clip the folded weights in w. */
static nb_status clip(nb_awq_block *b, nb_mod mod, const nb_grid *grid, size_t n, size_t k, nb_err *err)
{
    const nb_awq_group *g = nb_awq_block_group_of(b, mod);
    const nb_input *in = nb_block_input(&b->base, mod);
    float *c;
    const nb_status rc = moments_of(b, mod, &c, err);

    if (rc != NB_OK)
        return rc;
    if (c)
        return nb_awq_clip_moments(b->base.pool, grid, b->base.w, n, k, c, NULL, b->o.clip, NULL, NULL, err);
    return nb_awq_clip(b->base.pool, grid, b->base.w, n, k, in->sample, in->k, in->n_sample, g ? g->s : NULL, b->o.clip, NULL, NULL, err);
}

nb_status nb_awq_block_take(nb_awq_block *b, nb_mod mod, float **w, double *before, nb_err *err)
{
    const nb_qmod *m = nb_awq_mod(b, mod);
    const nb_grid grid = grid_of(m);
    const size_t n = m->at.n, k = m->at.k;
    nb_status rc = find_inputs(b, mod, err);

    if (rc == NB_OK)
        rc = nb_block_read(&b->base, mod, b->base.w, err);
    if (rc != NB_OK)
        return rc;
    nb_rtn_pseudo(b->base.pool, &grid, b->base.w, NULL, n, k, b->base.tmp);
    rc = nb_block_error(&b->base, mod, b->base.w, b->base.tmp, NULL, before, err);
    if (rc != NB_OK)
        return rc;
    nb_awq_fold_weights(b, mod, b->base.w, false);
    if (clips(b, mod))
        rc = clip(b, mod, &grid, n, k, err);
    *w = b->base.w;
    return rc;
}

nb_status nb_awq_block_folded(nb_awq_block *b, nb_mod mod, float *w, nb_err *err)
{
    const nb_status rc = nb_block_read(&b->base, mod, w, err);

    if (rc == NB_OK)
        nb_awq_fold_weights(b, mod, w, false);
    return rc;
}

nb_status nb_awq_block_refine(nb_awq_block *b, nb_mod mod, nb_qlin *q, nb_err *err)
{
    const nb_fold_state state = nb_awq_block_state(b, mod);
    float *h = NULL, *diag, damp = 0;
    const size_t k = q->k;
    nb_refine_result res;
    nb_status rc = NB_OK;

    if (b->o.refine > 0 && state != NB_FOLD_NO_LOSS && state != NB_FOLD_CHANGES)
        rc = moments_of(b, mod, &h, err);
    if (!h)
        return rc;
    diag = nb_alloc_array(k, sizeof *diag);
    rc = diag ? nb_awq_block_folded(b, mod, b->base.tmp, err) : nb_enomem(err, "the refinement of a linear");
    if (rc == NB_OK) {
        for (size_t i = 0; i < k; i++)
            damp += h[i * k + i] * (float)NB_AWQ_REFINE_DAMP / (float)k;
        for (size_t i = 0; i < k; i++) {
            diag[i] = h[i * k + i];
            h[i * k + i] += diag[i] > 0.0f ? damp : 0.0f;
        }
        rc = nb_refine(b->base.pool, b->o.refine, h, b->base.tmp, q, &res, err);
        for (size_t i = 0; i < k; i++)
            h[i * k + i] = diag[i];
    }
    nb_free(diag);
    return rc;
}

nb_status nb_awq_block_put(nb_awq_block *b, nb_mod mod, const nb_qlin *q, float *w, double *after, nb_err *err)
{
    nb_model *m = b->base.model;
    nb_status rc = q ? nb_model_set_codes(m, b->base.layer, mod, q, b->base.tmp, err) : nb_model_set_linear(m, b->base.layer, mod, w, err);

    if (rc == NB_OK)
        rc = nb_block_read(&b->base, mod, b->base.tmp, err);
    if (rc != NB_OK)
        return rc;
    nb_awq_fold_weights(b, mod, w, true);
    leave_moments(b, mod);
    return nb_block_error(&b->base, mod, b->base.tmp, w, NULL, after, err);
}

nb_status nb_awq_block_replay(nb_awq_block *b, nb_err *err)
{
    return nb_block_replay(&b->base, err);
}

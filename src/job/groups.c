/* groups.c - scaling groups from the plan of a layer. */
#include "job/groups.h"

typedef struct finder {
    const nb_plan *p;
    const nb_store *s;
    size_t layer;
    bool shared_v;
    nb_scale_groups *out;
    size_t cap;
    nb_mod *mods; /* of the layer */
    size_t n_mods;
} finder;

/* ---- the plan, read backwards and forwards ---- */

static bool runs(const finder *f, size_t op)
{
    return nb_plan_runs(f->p, &f->p->ops[op], f->layer);
}

/* The op before `at` that wrote `slot`; n_ops when it comes from outside the layer. */
static size_t writer_of(const finder *f, size_t at, nb_slot slot)
{
    for (size_t i = at; i-- > 0;)
        if (f->p->ops[i].out == slot && runs(f, i))
            return i;
    return f->p->n_ops;
}

/* Does an op read what is already in its output? */
static bool adds_up(const nb_op *op)
{
    return op->kind == NB_OP_ADD || op->kind == NB_OP_SCALE || op->kind == NB_OP_OGATE || op->kind == NB_OP_HYPER_OUT;
}

/* Does it end a branch of the block? */
static bool joins(const nb_op *op)
{
    return op->kind == NB_OP_ADD || op->kind == NB_OP_HYPER_OUT;
}

/* One past the last linear before the next residual add. */
static size_t span_end(const finder *f, size_t op)
{
    size_t end = op + 1;

    for (size_t i = op + 1; i < f->p->n_ops && !joins(&f->p->ops[i]); i++)
        if (f->p->ops[i].kind == NB_OP_LINEAR && runs(f, i))
            end = i + 1;
    return end;
}

/* ---- members ---- */

static nb_scale_group *new_group(finder *f, size_t op, size_t k, size_t room)
{
    nb_scale_group *g;

    if (f->out->n == f->cap)
        return NULL;
    g = &f->out->g[f->out->n];
    *g = (nb_scale_group){ .op = op, .k = k, .vec = NB_VEC_NONE };
    g->mods = nb_arena_calloc(&f->out->mem, room, sizeof *g->mods);
    return g->mods ? g : NULL;
}

static bool member(const finder *f, nb_scale_group *g, nb_mod mod)
{
    size_t n, k;

    nb_mod_size(f->p, f->layer, mod, &n, &k);
    if (k != g->k)
        return false;
    g->mods[g->n_mods++] = mod;
    return true;
}

/* All that reads the input of a MOE op. */
static bool expert_members(const finder *f, nb_scale_group *g)
{
    const nb_moe_cfg *m = &f->p->cfg->moe;
    nb_stored at;
    bool ok = m->latent == 0 && m->n_identity == 0;

    if (ok && m->router != NB_ROUTE_GEMMA4) /* that one has a norm of its own */
        ok = member(f, g, NB_MOD_ROUTER);
    for (size_t i = 0; i < f->n_mods && ok; i++)
        if (nb_mod_expert(f->mods[i]) != NB_NO_EXPERT && nb_mod_role(f->mods[i]) != NB_ROLE_DOWN)
            ok = member(f, g, f->mods[i]);
    if (ok && m->shared_ff > 0 && f->p->cfg->arch->moe.shared == NB_SHARED_GATED)
        ok = nb_stored_find(f->p, f->s, f->layer, NB_MOD_SHARED_GATE, &at, NULL) == NB_OK && member(f, g, NB_MOD_SHARED_GATE);
    return ok;
}

/* Everything that reads what op `src` wrote joins g. false: something does that cannot take scales. */
static bool all_readers(const finder *f, size_t src, nb_scale_group *g)
{
    const nb_plan *p = f->p;
    const nb_slot slot = p->ops[src].out;

    for (size_t i = src + 1; i < p->n_ops; i++) {
        const nb_op *op = &p->ops[i];
        bool ok = true;

        if (!runs(f, i))
            continue;
        if (op->in == slot) {
            if (op->kind == NB_OP_MOE)
                ok = expert_members(f, g);
            else if (op->kind != NB_OP_LINEAR)
                return false;
            for (size_t r = 0; op->kind == NB_OP_LINEAR && r < 3 && op->roles[r] != NB_ROLE_NONE && ok; r++)
                ok = member(f, g, op->roles[r]);
            if (!ok || g->n_spans == NB_MAX_SPANS)
                return false;
            g->spans[g->n_spans++] = (nb_span){ i, op->kind == NB_OP_MOE ? i + 1 : span_end(f, i) };
        }
        if (op->out == slot)
            return !adds_up(op);
    }
    return slot != NB_SLOT_X; /* what is left there leaves the layer */
}

/* ---- predecessors ---- */

static bool from_norm(finder *f, size_t op, size_t src)
{
    const nb_plan *p = f->p;
    const nb_vec vec = p->ops[src].vec;
    const size_t k = vec == NB_VEC_NONE ? 0 : nb_plan_vec_size_at(p, f->layer, vec);
    nb_scale_group *g;

    for (size_t i = src + 1; i < op; i++) /* found with its first reader */
        if (runs(f, i) && p->ops[i].in == p->ops[src].out)
            return true;
    if (k == 0)
        return true;
    g = new_group(f, op, k, f->n_mods + 2);
    if (!g)
        return false;
    g->vec = vec;
    if (!all_readers(f, src, g))
        return true;
    if (p->slot_len[p->ops[op].in] != k) /* other things lie in the slot: only the linears are looked at */
        g->n_spans = 0;
    f->out->n++;
    return true;
}

/* rows NULL: input i comes from row row0 + i. */
static bool from_linear(finder *f, size_t op, nb_mod mod, nb_mod pred, size_t row0, const uint32_t *rows, bool root)
{
    size_t n, k;
    nb_scale_group *g;

    nb_mod_size(f->p, f->layer, mod, &n, &k);
    g = new_group(f, op, k, 1);
    if (!g)
        return false;
    g->pred = pred;
    g->row0 = row0;
    g->rows = rows;
    g->root = root;
    nb_mod_size(f->p, f->layer, pred, &n, &k);
    if ((rows || n >= row0 + g->k) && member(f, g, mod))
        f->out->n++;
    return true;
}

/* up, or the second half of gate and up, or the first matrix of a plain MLP before relu. */
static bool from_up(finder *f, size_t op, size_t src)
{
    const nb_plan *p = f->p;
    const size_t in = writer_of(f, src, p->ops[src].in);
    const nb_act_kind act = p->cfg->act;
    nb_role up = NB_ROLE_NONE;
    size_t n, k;

    for (size_t r = 0; in < p->n_ops && p->ops[in].kind == NB_OP_LINEAR && r < 3; r++)
        if (p->ops[in].roles[r] == NB_ROLE_UP || p->ops[in].roles[r] == NB_ROLE_GATE_UP)
            up = p->ops[in].roles[r];
    if (up == NB_ROLE_NONE)
        return true;
    if (p->ops[src].kind == NB_OP_ACT && (p->has_act_scale || (act != NB_ACT_RELU && act != NB_ACT_RELU2)))
        return true;
    nb_mod_size(p, f->layer, up, &n, &k);
    return from_linear(f, op, p->ops[op].roles[0], up, up == NB_ROLE_GATE_UP ? n / 2 : 0, NULL,
                       p->ops[src].kind == NB_OP_ACT && act == NB_ACT_RELU2);
}

/* The linear that holds v: between it and attention only things that leave v alone. n_ops: there is none. */
static size_t linear_of_v(const finder *f, size_t at)
{
    const nb_plan *p = f->p;

    for (;;) {
        const nb_op *op = &p->ops[at];
        switch (op->kind) {
        case NB_OP_LINEAR:
            return at;
        case NB_OP_OGATE:
            at = writer_of(f, at, op->out);
            break;
        case NB_OP_ATTN:
        case NB_OP_PACK:
        case NB_OP_ALIBI:
        case NB_OP_ROPE:
        case NB_OP_QKNORM:
        case NB_OP_GROW:
            at = writer_of(f, at, op->in);
            break;
        default:
            return p->n_ops;
        }
        if (at == p->n_ops)
            return at;
    }
}

/* Rows of v by input of o, head by head. */
static bool from_v(finder *f, size_t op, size_t src)
{
    const nb_plan *p = f->p;
    const nb_config *c = p->cfg;
    const size_t at = linear_of_v(f, src), heads = c->n_heads, kv = nb_config_dims(c, f->layer).kv_heads, rep = kv ? heads / kv : 0;
    const nb_heads place = nb_plan_qkv(p, f->layer);
    nb_role v = NB_ROLE_NONE;
    size_t n, k, dim, step, off;
    uint32_t *rows;

    for (size_t r = 0; at < p->n_ops && r < 3; r++)
        if (p->ops[at].roles[r] == NB_ROLE_V || p->ops[at].roles[r] == NB_ROLE_QKV)
            v = p->ops[at].roles[r];
    if (v == NB_ROLE_NONE || rep == 0 || (rep > 1 && !f->shared_v))
        return true;
    nb_mod_size(p, f->layer, p->ops[op].roles[0], &n, &k);
    dim = k / heads;
    off = v == NB_ROLE_V ? 0 : place.off[2];
    step = v == NB_ROLE_V ? dim : place.step[2];
    nb_mod_size(p, f->layer, v, &n, &(size_t){ 0 });
    if (dim * heads != k || off + (kv - 1) * step + dim > n || (v == NB_ROLE_V && n != kv * dim))
        return true;
    rows = nb_arena_calloc(&f->out->mem, k, sizeof *rows);
    if (!rows)
        return false;
    for (size_t i = 0; i < k; i++)
        rows[i] = (uint32_t)(off + i / dim / rep * step + i % dim);
    n = f->out->n;
    if (!from_linear(f, op, p->ops[op].roles[0], v, 0, rows, false))
        return false;
    if (f->out->n > n)
        f->out->g[n].tied = rep > 1;
    return true;
}

/* Experts: each one's down behind its own up; without a gate, behind the square of relu. */
static bool from_experts(finder *f, size_t op)
{
    const nb_moe_cfg *m = &f->p->cfg->moe;
    const nb_act_kind act = f->p->cfg->act;
    bool ok = true;

    if (m->limit > 0 || m->clip > 0 || (m->plain && act != NB_ACT_RELU && act != NB_ACT_RELU2))
        return true;
    for (size_t i = 1; i < f->n_mods && ok; i++) {
        const nb_mod mod = f->mods[i], up = f->mods[i - 1];
        if (nb_mod_expert(mod) != NB_NO_EXPERT && nb_mod_role(mod) == NB_ROLE_DOWN && nb_mod_expert(up) == nb_mod_expert(mod)) {
            size_t n, k;
            nb_mod_size(f->p, f->layer, up, &n, &k);
            ok = from_linear(f, op, mod, up, nb_mod_role(up) == NB_ROLE_GATE_UP ? n / 2 : 0, NULL, m->plain && act == NB_ACT_RELU2);
        }
    }
    return ok;
}

/* A linear that alone reads what another op has normed: kv_b inside the LATENT op, the output of a mixer. */
static bool from_vec(finder *f, size_t op, nb_mod mod, nb_vec vec)
{
    const size_t k = nb_plan_vec_size_at(f->p, f->layer, vec);
    nb_scale_group *g = k > 0 ? new_group(f, op, k, 1) : NULL;

    if (!g)
        return k == 0;
    g->vec = vec;
    if (member(f, g, mod))
        f->out->n++;
    return true;
}

/* The output of a mixer: behind its norm; behind the second part of a short convolution's input, which multiplies it. */
static bool from_mixer(finder *f, size_t op, size_t src)
{
    const nb_op_kind kind = f->p->ops[src].kind;

    if (kind == NB_OP_SHORT)
        return from_linear(f, op, NB_ROLE_MIX_OUT, NB_ROLE_MIX_IN, f->p->cfg->d_model, NULL, false);
    return kind == NB_OP_SSM_NORM || kind == NB_OP_LINATT ? from_vec(f, op, NB_ROLE_MIX_OUT, NB_VEC_MIX_NORM) : true;
}

static bool find_at(finder *f, size_t op)
{
    const nb_plan *p = f->p;
    const nb_op *o = &p->ops[op];
    const size_t src = writer_of(f, op, o->in);
    bool ok = true;

    if (o->kind == NB_OP_ABSORB)
        return from_vec(f, op, NB_MOD_KVB, NB_VEC_KVA);
    if (o->kind != NB_OP_LINEAR && o->kind != NB_OP_MOE)
        return true;
    if (p->cfg->uses && o->kind == NB_OP_LINEAR && nb_mod_stays(p, o->roles[0])) /* of blocks that other layers run too */
        return true;
    if (o->kind == NB_OP_LINEAR && o->roles[0] == NB_ROLE_MIX_OUT)
        return src == p->n_ops || from_mixer(f, op, src);
    if (src < p->n_ops && p->ops[src].kind == NB_OP_NORM)
        ok = from_norm(f, op, src);
    else if (src < p->n_ops && o->kind == NB_OP_LINEAR && o->roles[1] == NB_ROLE_NONE)
        ok = p->ops[src].kind == NB_OP_ACT_MUL || p->ops[src].kind == NB_OP_ACT ? from_up(f, op, src) : from_v(f, op, src);
    return ok && o->kind == NB_OP_MOE ? from_experts(f, op) : ok;
}

nb_status nb_scale_groups_find(const nb_plan *p, const nb_store *s, size_t layer, bool shared_v, nb_scale_groups *out, nb_err *err)
{
    finder f = { .p = p, .s = s, .layer = layer, .shared_v = shared_v, .out = out };
    bool ok;

    *out = (nb_scale_groups){ 0 };
    f.n_mods = nb_layer_mods(p, s, layer, NULL, 0);
    f.cap = p->n_ops + f.n_mods;
    f.mods = nb_arena_calloc(&out->mem, f.n_mods + 1, sizeof *f.mods);
    out->g = nb_arena_calloc(&out->mem, f.cap + 1, sizeof *out->g);
    ok = f.mods && out->g;
    if (ok)
        nb_layer_mods(p, s, layer, f.mods, f.n_mods);
    for (size_t op = 0; op < p->n_ops && ok; op++)
        if (runs(&f, op))
            ok = find_at(&f, op);
    if (ok)
        return NB_OK;
    nb_scale_groups_clear(out);
    return nb_enomem(err, "the scaling groups");
}

void nb_scale_groups_clear(nb_scale_groups *gs)
{
    nb_arena_clear(&gs->mem);
    *gs = (nb_scale_groups){ 0 };
}

bool nb_role_clips(nb_role role)
{
    return role != NB_ROLE_Q && role != NB_ROLE_K && role != NB_ROLE_QKV;
}

/* Mixers without softmax in the plan: their ops, slots, sizes and states. Source: spec models-2026 S3.3, S4.4 to S4.9, S6. */
#include "base/mem.h"
#include "model/plan_priv.h"

#define PAD64(n) (((n) + 63) / 64 * 64)

bool nb_plan_has_mixer(const nb_config *c, nb_mixer m)
{
    for (size_t l = 0; c->mixer && l < c->n_layers; l++)
        if (c->mixer[l] == m)
            return true;
    return false;
}

/* Channels of the convolution of a kind. */
static size_t channels(const nb_config *c, nb_mixer m)
{
    const nb_mix_cfg *x = &c->mix;

    switch (m) {
    case NB_MIX_DELTA:
    case NB_MIX_KDA:
        return 2 * x->key_heads * x->key_dim + x->heads * x->value_dim;
    case NB_MIX_SSM:
        return x->heads * x->value_dim + 2 * x->key_heads * x->key_dim;
    case NB_MIX_SSM1:
        return x->value_dim;
    case NB_MIX_CONV:
        return c->d_model;
    default:
        return 0;
    }
}

/* Values that the mixer gives to its output projection. */
static size_t outputs(const nb_config *c, nb_mixer m)
{
    return m == NB_MIX_CONV ? c->d_model : c->mix.heads * c->mix.value_dim;
}

/* ---- sizes ---------------------------------------------------------------------------------------------------- */

/* The kind whose linears have names of mixers: a model has one beside attention. */
static nb_mixer kind_of(const nb_config *c)
{
    for (int m = NB_MIX_ATTN + 1; m < NB_MIX_NONE; m++)
        if (nb_plan_has_mixer(c, (nb_mixer)m))
            return (nb_mixer)m;
    return NB_MIX_NONE;
}

static size_t in_rows(const nb_config *c, nb_mixer m)
{
    const nb_mix_cfg *x = &c->mix;

    switch (m) {
    case NB_MIX_DELTA:
        return channels(c, m) + (x->grouped ? x->heads * x->value_dim : 0);
    case NB_MIX_SSM:
        return outputs(c, m) + channels(c, m) + x->heads;
    case NB_MIX_SSM1:
        return 2 * x->value_dim;
    case NB_MIX_CONV:
        return 3 * c->d_model;
    default:
        return 3 * outputs(c, m); /* lightning */
    }
}

bool nb_plan_mix_linear(const nb_plan *p, nb_role role, size_t *n, size_t *k)
{
    const nb_config *c = p->cfg;
    const nb_mix_cfg *x = &c->mix;
    const nb_mixer m = kind_of(c);

    *k = c->d_model;
    switch (role) {
    case NB_ROLE_OGATE:
        *n = c->n_heads * c->head_dim;
        return true;
    case NB_ROLE_MIX_IN:
        *n = in_rows(c, m);
        return true;
    case NB_ROLE_MIX_Q:
    case NB_ROLE_MIX_K:
        *n = x->key_heads * x->key_dim;
        return true;
    case NB_ROLE_MIX_V:
    case NB_ROLE_MIX_Z:
        *n = outputs(c, m);
        if (m == NB_MIX_KDA && role == NB_ROLE_MIX_Z)
            *k = x->value_dim;
        return true;
    case NB_ROLE_MIX_ZA:
    case NB_ROLE_MIX_AA:
        *n = x->value_dim;
        return true;
    case NB_ROLE_MIX_BA:
        *n = 2 * x->heads;
        return true;
    case NB_ROLE_MIX_B:
        *n = x->heads;
        return true;
    case NB_ROLE_MIX_A:
        *n = m == NB_MIX_KDA ? x->heads * x->key_dim : x->heads;
        if (m == NB_MIX_KDA)
            *k = x->value_dim;
        return true;
    case NB_ROLE_MIX_X:
        *n = x->rank + 2 * x->key_dim;
        *k = x->value_dim;
        return true;
    case NB_ROLE_MIX_DT:
        *n = x->value_dim;
        *k = x->rank;
        return true;
    case NB_ROLE_MIX_OUT:
        *n = c->d_model;
        *k = outputs(c, m);
        return true;
    default:
        return false;
    }
}

size_t nb_plan_mix_vec(const nb_plan *p, nb_vec vec)
{
    const nb_config *c = p->cfg;
    const nb_mix_cfg *x = &c->mix;
    const nb_mixer m = kind_of(c);
    const bool apart = p->has_role[NB_ROLE_MIX_Q];

    switch (vec) {
    case NB_VEC_CONV:
        return x->taps * (apart ? x->key_heads * x->key_dim : channels(c, m));
    case NB_VEC_CONV_K:
        return apart ? x->taps * x->key_heads * x->key_dim : 0;
    case NB_VEC_CONV_V:
        return apart ? x->taps * outputs(c, m) : 0;
    case NB_VEC_CONV_BIAS:
        return x->conv_bias ? channels(c, m) : 0;
    case NB_VEC_A_LOG:
        return m == NB_MIX_SSM1 ? x->value_dim * x->key_dim : m == NB_MIX_LIGHTNING || m == NB_MIX_CONV ? 0 : x->heads;
    case NB_VEC_DT_BIAS:
        return m == NB_MIX_KDA ? x->heads * x->key_dim : m == NB_MIX_DELTA || m == NB_MIX_SSM ? x->heads : 0;
    case NB_VEC_SKIP:
        return m == NB_MIX_SSM ? x->heads : m == NB_MIX_SSM1 ? x->value_dim : 0;
    case NB_VEC_MIX_NORM:
        if (m == NB_MIX_SSM1 || m == NB_MIX_CONV || x->no_norm)
            return 0;
        return m == NB_MIX_SSM || m == NB_MIX_LIGHTNING ? outputs(c, m) : x->value_dim;
    case NB_VEC_DT_NORM:
        return m == NB_MIX_SSM1 ? x->rank : 0;
    case NB_VEC_B_NORM:
    case NB_VEC_C_NORM:
        return m == NB_MIX_SSM1 ? x->key_dim : 0;
    default:
        return 0;
    }
}

/* ---- states --------------------------------------------------------------------------------------------------- */

nb_mixer nb_plan_mixer(const nb_plan *p, size_t layer)
{
    return p->cfg->mixer ? (nb_mixer)p->cfg->mixer[layer] : NB_MIX_ATTN;
}

size_t nb_plan_conv_state(const nb_plan *p, size_t layer)
{
    const size_t n = channels(p->cfg, nb_plan_mixer(p, layer));

    return n ? (p->cfg->mix.taps - 1) * n : 0;
}

size_t nb_plan_state(const nb_plan *p, size_t layer)
{
    const nb_mix_cfg *x = &p->cfg->mix;
    const nb_mixer m = nb_plan_mixer(p, layer);

    if (m == NB_MIX_CSA || m == NB_MIX_HCA)
        return nb_plan_v4_state(p, layer);
    if (m == NB_MIX_ATTN || m >= NB_MIX_NONE)
        return 0;
    return PAD64(nb_plan_conv_state(p, layer)) + (m == NB_MIX_CONV ? 0 : PAD64(x->heads * x->key_dim * x->value_dim));
}

size_t nb_plan_states(const nb_plan *p)
{
    size_t n = 0;

    for (size_t l = 0; l < p->cfg->n_layers; l++)
        n += nb_plan_state(p, l);
    return n;
}

/* ---- ops ------------------------------------------------------------------------------------------------------ */

static void emit(nb_plan *p, nb_mixer m, nb_op op)
{
    op.mixers = 1u << m;
    nb_plan_emit(p, op);
}

static void linear(nb_plan *p, nb_mixer m, nb_slot in, nb_slot out, nb_role a, nb_role b, nb_role c)
{
    emit(p, m, (nb_op){ .kind = NB_OP_LINEAR, .in = in, .out = out, .roles = { a, b, c } });
}

static void one(nb_plan *p, nb_mixer m, nb_slot in, nb_slot out, nb_role a)
{
    linear(p, m, in, out, a, NB_ROLE_NONE, NB_ROLE_NONE);
}

static void step(nb_plan *p, nb_mixer m, nb_op_kind kind, nb_slot in, nb_slot out)
{
    emit(p, m, (nb_op){ .kind = kind, .in = in, .out = out });
}

static void emit_delta(nb_plan *p, nb_slot in)
{
    const nb_mixer m = NB_MIX_DELTA;
    const bool apart = p->cfg->names->roles[NB_ROLE_MIX_Q] != NULL;

    if (p->cfg->mix.grouped) {
        one(p, m, in, NB_SLOT_MIX, NB_ROLE_MIX_IN);
        one(p, m, in, NB_SLOT_RATE, NB_ROLE_MIX_BA);
    } else {
        if (apart) {
            linear(p, m, in, NB_SLOT_MIX, NB_ROLE_MIX_Q, NB_ROLE_MIX_K, NB_ROLE_MIX_V);
            one(p, m, in, NB_SLOT_GATE, NB_ROLE_MIX_Z);
        } else {
            linear(p, m, in, NB_SLOT_MIX, NB_ROLE_MIX_IN, NB_ROLE_MIX_Z, NB_ROLE_NONE);
        }
        linear(p, m, in, NB_SLOT_RATE, NB_ROLE_MIX_B, NB_ROLE_MIX_A, NB_ROLE_NONE);
    }
    step(p, m, NB_OP_CONV, NB_SLOT_MIX, NB_SLOT_CONV);
    step(p, m, NB_OP_DELTA, NB_SLOT_CONV, NB_SLOT_MIXED);
}

static void emit_kda(nb_plan *p, nb_slot in)
{
    const nb_mixer m = NB_MIX_KDA;

    linear(p, m, in, NB_SLOT_MIX, NB_ROLE_MIX_Q, NB_ROLE_MIX_K, NB_ROLE_MIX_V);
    one(p, m, in, NB_SLOT_RATE, NB_ROLE_MIX_B);
    one(p, m, in, NB_SLOT_LORA, NB_ROLE_MIX_AA);
    one(p, m, NB_SLOT_LORA, NB_SLOT_STEP, NB_ROLE_MIX_A);
    one(p, m, in, NB_SLOT_LORA, NB_ROLE_MIX_ZA);
    one(p, m, NB_SLOT_LORA, NB_SLOT_GATE, NB_ROLE_MIX_Z);
    step(p, m, NB_OP_CONV, NB_SLOT_MIX, NB_SLOT_CONV);
    step(p, m, NB_OP_DELTA, NB_SLOT_CONV, NB_SLOT_MIXED);
}

static void emit_ssm(nb_plan *p, nb_slot in)
{
    one(p, NB_MIX_SSM, in, NB_SLOT_MIX, NB_ROLE_MIX_IN);
    step(p, NB_MIX_SSM, NB_OP_PARTS, NB_SLOT_MIX, NB_SLOT_MIX);
    step(p, NB_MIX_SSM, NB_OP_CONV, NB_SLOT_MIX, NB_SLOT_CONV);
    step(p, NB_MIX_SSM, NB_OP_SSM, NB_SLOT_CONV, NB_SLOT_MIXED);
    step(p, NB_MIX_SSM, NB_OP_SSM_NORM, NB_SLOT_MIXED, NB_SLOT_MIXED);
}

static void emit_ssm1(nb_plan *p, nb_slot in)
{
    one(p, NB_MIX_SSM1, in, NB_SLOT_MIX, NB_ROLE_MIX_IN);
    step(p, NB_MIX_SSM1, NB_OP_CONV, NB_SLOT_MIX, NB_SLOT_CONV);
    one(p, NB_MIX_SSM1, NB_SLOT_CONV, NB_SLOT_STEP, NB_ROLE_MIX_X);
    step(p, NB_MIX_SSM1, NB_OP_DT_NORM, NB_SLOT_STEP, NB_SLOT_STEP);
    one(p, NB_MIX_SSM1, NB_SLOT_STEP, NB_SLOT_RATE, NB_ROLE_MIX_DT);
    step(p, NB_MIX_SSM1, NB_OP_SSM1, NB_SLOT_CONV, NB_SLOT_MIXED);
}

void nb_plan_emit_mixers(nb_plan *p, nb_slot in)
{
    const nb_mixer m = kind_of(p->cfg);

    switch (m) {
    case NB_MIX_DELTA:
        emit_delta(p, in);
        break;
    case NB_MIX_KDA:
        emit_kda(p, in);
        break;
    case NB_MIX_SSM:
        emit_ssm(p, in);
        break;
    case NB_MIX_SSM1:
        emit_ssm1(p, in);
        break;
    case NB_MIX_CONV:
        one(p, m, in, NB_SLOT_MIX, NB_ROLE_MIX_IN);
        step(p, m, NB_OP_SHORT, NB_SLOT_MIX, NB_SLOT_MIXED);
        break;
    case NB_MIX_LIGHTNING:
        one(p, m, in, NB_SLOT_MIX, NB_ROLE_MIX_IN);
        one(p, m, in, NB_SLOT_GATE, NB_ROLE_MIX_Z);
        step(p, m, NB_OP_LINATT, NB_SLOT_MIX, NB_SLOT_MIXED);
        break;
    default:
        return;
    }
    one(p, m, NB_SLOT_MIXED, NB_SLOT_PROJ, NB_ROLE_MIX_OUT);
}

/* ---- slots ---------------------------------------------------------------------------------------------------- */

static void add_run(nb_plan *p, size_t from, size_t n)
{
    const size_t to = p->n_runs ? p->runs[p->n_runs - 1].to + p->runs[p->n_runs - 1].n : 0;

    p->runs[p->n_runs++] = (nb_run){ from, to, n };
}

/* Where the channels lie; qwen3_next stores them by key head, but convolves all q, all k, all v. */
static void size_runs(nb_plan *p, nb_mixer m)
{
    const nb_mix_cfg *x = &p->cfg->mix;
    const size_t q = x->key_heads * x->key_dim, v = x->heads * x->value_dim;

    if (x->grouped) {
        const size_t r = x->heads / x->key_heads * x->value_dim, each = 2 * x->key_dim + 2 * r;
        for (size_t part = 0; part < 3; part++)
            for (size_t h = 0; h < x->key_heads; h++)
                add_run(p, h * each + part * x->key_dim, part < 2 ? x->key_dim : r);
    } else if (p->has_role[NB_ROLE_MIX_Q]) {
        add_run(p, 0, q);
        add_run(p, PAD64(q), q);
        add_run(p, 2 * PAD64(q), v);
    } else if (m == NB_MIX_SSM) {
        add_run(p, v, channels(p->cfg, m));
    } else if (m != NB_MIX_CONV) {
        add_run(p, 0, channels(p->cfg, m));
    }
}

static size_t most(size_t a, size_t b)
{
    return a > b ? a : b;
}

void nb_plan_size_mixers(nb_plan *p)
{
    const nb_config *c = p->cfg;
    const nb_mix_cfg *x = &c->mix;
    const nb_mixer m = kind_of(c);
    size_t *len = p->slot_len;
    const size_t v = outputs(c, m), q = x->key_heads * x->key_dim;

    if (m == NB_MIX_NONE)
        return;
    size_runs(p, m);
    len[NB_SLOT_MIXED] = v;
    len[NB_SLOT_MIX] = p->has_role[NB_ROLE_MIX_Q] ? 2 * PAD64(q) + v : in_rows(c, m);
    len[NB_SLOT_CONV] = m == NB_MIX_CONV ? 0 : channels(c, m);
    p->a_off = PAD64(x->heads);
    if (m == NB_MIX_DELTA) {
        len[NB_SLOT_RATE] = x->grouped ? 2 * x->heads : p->a_off + x->heads;
        if (!p->has_role[NB_ROLE_MIX_Q] && !x->grouped) {
            p->z_off = PAD64(channels(c, m));
            len[NB_SLOT_MIX] = p->z_off + v;
        }
    } else if (m == NB_MIX_SSM) {
        p->a_off = v + channels(c, m);
    } else if (m == NB_MIX_SSM1) {
        len[NB_SLOT_STEP] = x->rank + 2 * x->key_dim;
        len[NB_SLOT_RATE] = x->value_dim;
        p->z_off = x->value_dim;
    } else if (m == NB_MIX_KDA) {
        len[NB_SLOT_RATE] = x->heads;
        len[NB_SLOT_STEP] = x->heads * x->key_dim;
        len[NB_SLOT_LORA] = most(len[NB_SLOT_LORA], x->value_dim);
    }
    if (p->has_role[NB_ROLE_MIX_Z] && (m != NB_MIX_DELTA || p->has_role[NB_ROLE_MIX_Q]))
        len[NB_SLOT_GATE] = most(len[NB_SLOT_GATE], v);
}

/* Rotary settings of config.json: spec models 8.2, 8.4. */
#include "model/config_read.h"

static nb_status get_factors(const nb_cfg_reader *r, nb_config *c, const nb_json *R, const char *key, const double **out)
{
    const nb_json *v = nb_json_get(R, key);
    const size_t half = nb_rope_dims(c) / 2;
    double *f;

    if (nb_json_typeof(v) != NB_JARR || nb_json_len(v) != half)
        return nb_fail(r->err, NB_EFORMAT, "cfg.value", "", "\"%s\" has %zu entries, expected %zu (half the rotary size)", key,
                       nb_json_len(v), half);
    f = nb_arena_calloc(c->mem, half, sizeof *f);
    if (!f)
        return nb_enomem(r->err, "rope factors");
    for (size_t i = 0; i < half; i++) {
        f[i] = nb_json_num(nb_json_at(v, i), NAN);
        if (!(f[i] > 0 && isfinite(f[i])))
            return nb_cfg_bad(r, key, nb_json_at(v, i), "positive numbers");
    }
    *out = f;
    return NB_OK;
}

static nb_status get_rope_kind(const nb_cfg_reader *r, const nb_json *R, unsigned quirks, nb_rope *out)
{
    static const struct {
        const char *name;
        nb_rope_kind kind;
    } kinds[] = { { "default", NB_ROPE_DEFAULT }, { "linear", NB_ROPE_LINEAR }, { "dynamic", NB_ROPE_DYNAMIC },
                  { "llama3", NB_ROPE_LLAMA3 },   { "yarn", NB_ROPE_YARN },     { "longrope", NB_ROPE_LONGROPE },
                  { "su", NB_ROPE_LONGROPE },     { "mrope", NB_ROPE_DEFAULT }, { "proportional", NB_ROPE_PROPORTIONAL } };
    const nb_json *type = nb_json_get(R, "rope_type");

    if (!type || nb_json_is_null(type))
        type = nb_json_get(R, "type");
    if (!type || nb_json_is_null(type))
        return NB_OK;
    for (size_t i = 0; i < NB_LEN(kinds); i++) {
        if (strcmp(nb_json_str(type, ""), kinds[i].name) == 0) {
            out->kind = kinds[i].kind;
            if (out->kind == NB_ROPE_YARN && quirks & NB_Q_YARN_LONG)
                out->kind = NB_ROPE_LONGROPE;
            if (out->kind == NB_ROPE_DYNAMIC && quirks & NB_Q_ROPE_ALPHA && nb_json_num(nb_json_get(R, "alpha"), 0) != 0)
                out->kind = NB_ROPE_ALPHA;
            return NB_OK;
        }
    }
    return nb_cfg_unsupported(r, "rope_type", type, "default, linear, dynamic, llama3, yarn, longrope, proportional");
}

/* Scaling keys of R; theta, partial and orig_context are known. */
static nb_status get_rope_scaling(const nb_cfg_reader *r, nb_config *c, const nb_json *R, nb_rope *p)
{
    const bool need =
        p->kind != NB_ROPE_DEFAULT && p->kind != NB_ROPE_PROPORTIONAL && p->kind != NB_ROPE_LONGROPE && p->kind != NB_ROPE_ALPHA;
    nb_status rc;

    p->factor = p->kind == NB_ROPE_PROPORTIONAL ? 1 : (double)c->context / (double)p->orig_context;
    p->attention_factor = NAN;
    if ((rc = nb_cfg_num(r, R, "factor", 0, 1e30, false, &p->factor)) != NB_OK ||
        (rc = nb_cfg_num(r, R, "low_freq_factor", 0, 1e30, false, &p->low_freq_factor)) != NB_OK ||
        (rc = nb_cfg_num(r, R, "high_freq_factor", 0, 1e30, false, &p->high_freq_factor)) != NB_OK ||
        (rc = nb_cfg_num(r, R, "beta_fast", 0, 1e30, false, &p->beta_fast)) != NB_OK ||
        (rc = nb_cfg_num(r, R, "beta_slow", 0, 1e30, false, &p->beta_slow)) != NB_OK ||
        (rc = nb_cfg_num(r, R, "attention_factor", 0, 1e30, false, &p->attention_factor)) != NB_OK ||
        (rc = nb_cfg_num(r, R, "alpha", 0, 1e30, false, &p->alpha)) != NB_OK ||
        (c->arch->quirks & NB_Q_MSCALE && ((rc = nb_cfg_num(r, R, "short_mscale", 0, 1e30, false, &p->short_mscale)) != NB_OK ||
                                           (rc = nb_cfg_num(r, R, "long_mscale", 0, 1e30, false, &p->long_mscale)) != NB_OK)) ||
        (rc = nb_cfg_num(r, R, "mscale", 0, 1e30, true, &p->mscale)) != NB_OK ||
        (rc = nb_cfg_num(r, R, "mscale_all_dim", 0, 1e30, true, &p->mscale_all_dim)) != NB_OK ||
        (rc = nb_cfg_bool(r, "truncate", nb_json_get(R, "truncate"), &p->truncate)) != NB_OK)
        return rc;
    p->has_attention_factor = !isnan(p->attention_factor);
    if (need && p->kind != NB_ROPE_YARN && nb_json_is_null(nb_json_get(R, "factor")))
        return nb_cfg_bad(r, "factor", nb_json_get(R, "factor"), "a number above 0 for this rope type");
    if (p->kind == NB_ROPE_LLAMA3 && !(p->high_freq_factor > p->low_freq_factor))
        return nb_cfg_bad(r, "high_freq_factor", nb_json_get(R, "high_freq_factor"), "more than low_freq_factor");
    if (p->kind == NB_ROPE_LONGROPE) {
        rc = get_factors(r, c, R, "long_factor", &p->long_factor);
        if (rc == NB_OK)
            rc = get_factors(r, c, R, "short_factor", &p->short_factor);
    }
    return rc;
}

/* One record R into p. theta: when no key says it; the outer keys count only if `outer`. */
static nb_status read_rope(const nb_cfg_reader *r, nb_config *c, const nb_json *R, double theta, bool outer, nb_rope *p)
{
    static const char *const orig[] = { "original_max_position_embeddings", NULL };
    nb_status rc;
    size_t n;

    if (R && !nb_json_is_null(R) && nb_json_typeof(R) != NB_JOBJ)
        return nb_cfg_bad(r, "rope_scaling", R, "an object or null");
    *p = (nb_rope){ .theta = theta,
                    .partial = c->rope_dim            ? ((double)c->rope_dim + 0.25) / (double)c->head_dim
                               : c->arch->partial > 0 ? c->arch->partial
                                                      : 1,
                    .back = (c->arch->quirks & NB_Q_ROPE_BACK) != 0,
                    .low_freq_factor = 1,
                    .high_freq_factor = 4,
                    .beta_fast = 32,
                    .beta_slow = 1,
                    .truncate = true };
    if ((rc = get_rope_kind(r, R, c->arch->quirks, p)) != NB_OK ||
        (outer && ((rc = nb_cfg_num(r, r->in, "rotary_emb_base", 0, 1e30, false, &p->theta)) != NB_OK ||
                   (rc = nb_cfg_num(r, r->in, "rope_theta", 0, 1e30, false, &p->theta)) != NB_OK)) ||
        (rc = nb_cfg_num(r, R, "rope_theta", 0, 1e30, false, &p->theta)) != NB_OK ||
        (rc = nb_cfg_num(r, r->in, "rotary_pct", 0, 1, false, &p->partial)) != NB_OK ||
        (rc = nb_cfg_num(r, r->in, "partial_rotary_factor", 0, 1, false, &p->partial)) != NB_OK ||
        (rc = nb_cfg_num(r, R, "partial_rotary_factor", 0, 1, false, &p->partial)) != NB_OK)
        return rc;
    if (c->mla.on) /* the rotated part has its own key */
        p->partial = 1;
    n = (size_t)((double)c->head_dim * p->partial);
    if (p->kind == NB_ROPE_PROPORTIONAL)
        n = c->global_head_dim ? c->global_head_dim : c->head_dim;
    if (n < 2 || n % 2 != 0)
        return nb_fail(r->err, NB_EFORMAT, "cfg.value", "", "the rotary size is %zu (head_dim %zu times %g), expected an even number", n,
                       c->head_dim, p->partial);
    rc = nb_cfg_size(&(nb_cfg_reader){ R, R, r->err }, orig, (int64_t)1 << 53, c->context, &n);
    if (rc == NB_OK) /* the outer key wins */
        rc = nb_cfg_size(r, orig, (int64_t)1 << 53, n, &n);
    if (rc != NB_OK)
        return rc;
    p->orig_context = n;
    if (c->arch->quirks & (NB_Q_LLAMA3_OR | NB_Q_YARN_OR) && nb_json_len(R) == 0) {
        const nb_arch *a = c->arch;
        p->kind = a->quirks & NB_Q_YARN_OR ? NB_ROPE_YARN : NB_ROPE_LLAMA3;
        p->orig_context = (uint64_t)a->rope_orig;
        p->factor = a->rope_factor;
        p->low_freq_factor = a->rope_low;
        p->high_freq_factor = a->rope_high;
        p->mscale = p->mscale_all_dim = 1;
        return NB_OK;
    }
    if (c->arch->quirks & NB_Q_OSS && nb_json_len(R) == 0) { /* what the released models say */
        p->kind = NB_ROPE_YARN;
        p->orig_context = 4096;
        p->truncate = false;
        p->factor = 32;
        return NB_OK;
    }
    return get_rope_scaling(r, c, R, p);
}

/* Windowed layers of LAYERS_LOCAL: their record, or plain rope by the key of Gemma 3 or the theta of the other layers. */
static nb_status get_local(const nb_cfg_reader *r, nb_config *c, const nb_json *R, bool by_type)
{
    const double theta = c->arch->local_theta > 0 ? c->arch->local_theta : by_type ? c->arch->theta : c->rope.theta;
    nb_rope *p = &c->rope_local;
    nb_status rc = read_rope(r, c, by_type ? R : NULL, theta, false, p);

    if (rc == NB_OK && !by_type)
        rc = nb_cfg_num(r, r->in, "rope_local_base_freq", 0, 1e30, false, &p->theta);
    if (rc == NB_OK && (p->kind == NB_ROPE_DYNAMIC || p->kind == NB_ROPE_LONGROPE ||
                        (p->partial != c->rope.partial && c->rope.kind != NB_ROPE_PROPORTIONAL)))
        rc = nb_cfg_unsupported(r, "rope_parameters", R, "dynamic and longrope, and other partial_rotary_factor, for full layers only");
    return rc;
}

nb_status nb_cfg_rope(const nb_cfg_reader *r, nb_config *c)
{
    const nb_json *R = nb_json_get(r->in, "rope_scaling");
    const nb_json *full, *local;
    bool by_type;
    nb_status rc;

    if (nb_json_len(R) == 0)
        R = nb_json_get(r->in, "rope_parameters");
    full = nb_json_get(R, "full_attention") ? nb_json_get(R, "full_attention") : nb_json_get(R, "compress");
    local = nb_json_get(R, "sliding_attention") ? nb_json_get(R, "sliding_attention") : nb_json_get(R, "main");
    by_type = full || local;
    if (by_type && c->arch->rope != NB_LAYERS_LOCAL)
        return nb_cfg_unsupported(r, "rope_parameters", R, "one record for all layers of this architecture");
    if (c->arch->rope == NB_LAYERS_NONE || c->alibi) {
        c->rope = (nb_rope){ .partial = 1, .theta = 1 };
        return NB_OK;
    }
    rc = read_rope(r, c, by_type ? full : R, c->arch->theta, !by_type, &c->rope);
    if (rc == NB_OK && c->mla.on && c->rope.kind == NB_ROPE_YARN) /* m squared: section 8.5 */
        c->attn_scale *= pow(nb_rope_mscale(c->rope.factor, c->rope.mscale_all_dim), 2);
    return rc != NB_OK || c->arch->rope != NB_LAYERS_LOCAL ? rc : get_local(r, c, local, by_type);
}

/* no_rope_layers: 1 where a layer is rotated, name notwithstanding. Read before the windows, which may follow from it. */
static nb_status get_rope_list(const nb_cfg_reader *r, nb_config *c, uint8_t *of)
{
    static const char *const every[] = { "no_rope_layer_interval", NULL };
    const nb_json *list = nb_json_get(r->in, "no_rope_layers");
    size_t n;
    nb_status rc = nb_cfg_size(r, every, (int64_t)1 << 31, 4, &n);

    if (rc != NB_OK)
        return rc;
    if (nb_json_len(list) > 0 && nb_json_len(list) != c->n_layers)
        return nb_fail(r->err, NB_EFORMAT, "cfg.value", "", "\"no_rope_layers\" has %zu entries, expected one for each of %zu layers",
                       nb_json_len(list), c->n_layers);
    for (size_t l = 0; l < c->n_layers; l++) {
        const bool on = nb_json_len(list) > 0 ? nb_json_int(nb_json_at(list, l), 1) != 0 : (l + 1) % n != 0;
        of[l] = on ? NB_ROPE_MAIN : NB_ROPE_OFF;
    }
    return NB_OK;
}

/* before: only the rule that windows need; else those that need the windows. */
nb_status nb_cfg_rope_layers(const nb_cfg_reader *r, nb_config *c, bool before)
{
    const nb_rope_rule rule = c->alibi ? NB_LAYERS_NONE : c->arch->rope;
    uint8_t *of;

    if (rule == NB_LAYERS_ALL || (rule == NB_LAYERS_LIST) != before || (rule == NB_LAYERS_WINDOW2 && !c->windowed))
        return NB_OK;
    of = nb_arena_calloc(c->mem, c->n_layers, 1);
    if (!of)
        return nb_enomem(r->err, "the layer kinds");
    c->rope_of = of;
    if (rule == NB_LAYERS_LIST)
        return get_rope_list(r, c, of);
    for (size_t l = 0; l < c->n_layers; l++) {
        const bool w = c->windowed && c->windowed[l];
        of[l] = rule == NB_LAYERS_LOCAL ? (w ? NB_ROPE_LOCAL : NB_ROPE_MAIN) : rule != NB_LAYERS_NONE && w ? NB_ROPE_MAIN : NB_ROPE_OFF;
    }
    return NB_OK;
}

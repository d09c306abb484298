/* nearest.c - an architecture that is not in the table: the row whose tensor names and shapes come closest, and what differs. */
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "model/plan.h"

enum { MAX_STEMS = 64, MAX_STEM = 96 };

/* What one row expects of the layers, and how far the store is from it. */
typedef struct look {
    const nb_store *s;
    const nb_plan *p;
    char layer[128];                     /* what the names of the layer begin with        */
    char stems[MAX_STEMS][MAX_STEM];     /* names without the layer and without the leaf */
    size_t n_stems, layer_no;            /* of this layer */
    size_t expected, far, hints;         /* over the layers; hints: what a checkpoint may have either way */
    char more[160], less[160], odd[160]; /* stored but not expected; expected but not stored; of another shape */
} look;

/* Add a name to a list of a message, once, as long as there is room. */
static void note(char *list, size_t cap, const char *name, size_t n)
{
    char shown[NB_ESC_CAP];
    const size_t at = strlen(list);

    nb_esc(shown, sizeof shown, name, n);
    if (!strstr(list, shown) && at + strlen(shown) + 3 < cap)
        snprintf(list + at, cap - at, "%s%s", at ? ", " : "", shown);
}

/* Length of a name without its last part. */
static size_t stem_len(const char *name)
{
    const char *dot = strrchr(name, '.');

    return dot ? (size_t)(dot - name) : strlen(name);
}

static bool any_leaf(const look *k, const char *stem)
{
    static const char *const leaves[] = { "weight", "qweight", "weight_packed", "bias" };
    char name[288];

    for (size_t i = 0; i < NB_LEN(leaves); i++) {
        snprintf(name, sizeof name, "%s%s.%s", k->layer, stem, leaves[i]);
        if (nb_store_find(k->s, name))
            return true;
    }
    return false;
}

/* `full` begins with the layer's prefix; its first n bytes are the stem. */
static void expect(look *k, const char *full, size_t n, bool stored)
{
    const size_t skip = strlen(k->layer);

    if (n <= skip || n - skip >= MAX_STEM || k->n_stems == MAX_STEMS)
        return;
    memcpy(k->stems[k->n_stems], full + skip, n - skip);
    k->stems[k->n_stems++][n - skip] = '\0';
    k->expected++;
    if (!stored) {
        k->far++;
        note(k->less, sizeof k->less, full + skip, n - skip);
    }
}

static void expect_linear(look *k, size_t layer, nb_role role)
{
    char full[256], name[272];
    const nb_tensor *t;
    size_t n, in;

    nb_plan_linear(k->p, layer, role, full, sizeof full);
    if (strncmp(full, k->layer, strlen(k->layer)) != 0) /* stored with another one */
        return;
    expect(k, full, strlen(full), any_leaf(k, full + strlen(k->layer)));
    snprintf(name, sizeof name, "%s.weight", full);
    t = nb_store_find(k->s, name);
    nb_plan_linear_size_at(k->p, layer, role, &n, &in);
    if (t && t->rank == 2 && (k->p->cfg->transposed ? t->shape[0] != in || t->shape[1] != n : t->shape[0] != n || t->shape[1] != in)) {
        k->far++;
        note(k->odd, sizeof k->odd, full + strlen(k->layer), strlen(full) - strlen(k->layer));
    }
    if (k->p->cfg->mla.on || (role != NB_ROLE_Q && role != NB_ROLE_QKV))
        return;
    snprintf(name, sizeof name, "%s.bias", full);
    if (k->p->cfg->attn_bias != (nb_store_find(k->s, name) != NULL)) {
        k->hints++;
        note(k->p->cfg->attn_bias ? k->less : k->more, sizeof k->less, name + strlen(k->layer), strlen(name) - strlen(k->layer));
    }
}

static bool within(const char *text, size_t n, const char *word)
{
    const char *at = strstr(text, word);

    return at && at + strlen(word) <= text + n;
}

static bool of_experts(const char *rest, size_t n)
{
    return within(rest, n, "expert") || within(rest, n, "moe") || within(rest, n, "router") || within(rest, n, "mlp.gate") ||
           within(rest, n, "shared") || within(rest, n, "feed_forward.gate") || within(rest, n, "mixer.gate") ||
           within(rest, n, "latent") || strncmp(rest, "ffn.gate.", 9) == 0 || strstr(rest, "expert_bias") ||
           strstr(rest, "e_score_correction");
}

/* Tables that hold nothing to compute with: rotations, masks, scales beside an activation. */
static bool of_no_weight(const char *rest, size_t n)
{
    return within(rest, n, "rotary_emb") || within(rest, n, "mlp.act") || strstr(rest, "_decay") || strstr(rest, "slope_rate") ||
           strcmp(rest + n, ".masked_bias") == 0 || (!memchr(rest, '.', n) && within(rest, n, "att") && strcmp(rest + n, ".bias") == 0);
}

/* Of a half of the layer that is not looked at. */
static bool of_other_half(const look *k, const char *rest)
{
    const size_t halves = k->p->cfg->halves;
    char own[32];

    snprintf(own, sizeof own, ".%zu.", k->layer_no % (halves ? halves : 1));
    return halves && !strstr(rest, own) && !of_experts(rest, stem_len(rest));
}

static bool is_expected(const look *k, const char *rest, bool whole)
{
    for (size_t j = 0; j < k->n_stems; j++) {
        const size_t m = strlen(k->stems[j]);
        if (strncmp(rest, k->stems[j], m) == 0 && (rest[m] == '\0' || (!whole && rest[m] == '.')))
            return true;
    }
    return false;
}

/* Stored tensors of the layer that nobody expects. */
static void look_around(look *k, bool sparse)
{
    const size_t skip = strlen(k->layer);
    bool experts = false;
    const char *last = "";
    size_t last_n = 0;

    for (size_t i = 0; i < k->s->n_tensors; i++) {
        const char *name = k->s->tensors[i].name, *rest = name + skip;
        if (strncmp(name, k->layer, skip) != 0 || of_other_half(k, rest))
            continue;
        const size_t n = stem_len(rest);
        const bool norm_bias = strcmp(rest + n, ".bias") == 0 && (within(rest, n, "norm") || within(rest, n, "ln_"));
        const bool again = !norm_bias && n == last_n && strncmp(last, rest, n) == 0;
        experts = experts || within(rest, n, "expert") || within(rest, n, "moe");
        if (!again && !of_no_weight(rest, n) && !is_expected(k, rest, norm_bias) && !(sparse && of_experts(rest, n))) {
            k->far++;
            note(k->more, sizeof k->more, rest, strcmp(rest + n, ".weight") == 0 ? n : strlen(rest));
        }
        if (!norm_bias) {
            last = rest;
            last_n = n;
        }
    }
    if (sparse && !experts) {
        k->far++;
        note(k->less, sizeof k->less, "experts", 7);
    }
}

static void look_at(look *k, size_t layer)
{
    const nb_config *c = k->p->cfg;
    const bool sparse = c->moe.sparse && (c->moe.sparse[layer] || c->halves);
    char name[288];

    nb_plan_layer(k->p, layer, k->layer, sizeof k->layer);
    k->n_stems = 0;
    k->layer_no = layer;
    for (size_t i = 0; i < k->p->n_ops; i++)
        for (size_t j = 0; j < 3 && k->p->ops[i].kind == NB_OP_LINEAR && nb_plan_runs(k->p, &k->p->ops[i], layer); j++)
            if (k->p->ops[i].roles[j] != NB_ROLE_NONE)
                expect_linear(k, layer, k->p->ops[i].roles[j]);
            else
                break;
    for (int v = 0; v < NB_VEC_COUNT; v++) {
        if (!nb_plan_has_vec(k->p, layer, (nb_vec)v))
            continue;
        nb_plan_vec(k->p, layer, (nb_vec)v, name, sizeof name);
        const bool whole = v >= NB_VEC_N1_BIAS; /* a name that is no stem, or whose stem is that of the weight */
        const char *each = nb_plan_vec_parts(k->p, (nb_vec)v) > 1 ? strstr(name, ".norms") : NULL;
        expect(k, name, each ? (size_t)(each - name) : whole ? strlen(name) : stem_len(name), nb_store_find(k->s, name) != NULL);
    }
    if (nb_plan_has_op(k->p, layer, NB_OP_GROUPS)) {
        snprintf(name, sizeof name, "%sattn.wo_a", k->layer);
        expect(k, name, strlen(name), any_leaf(k, name + strlen(k->layer)));
    }
    if (nb_plan_has_op(k->p, layer, NB_OP_ABSORB)) {
        nb_plan_kv_b(k->p, layer, name, sizeof name);
        expect(k, name, strlen(name), any_leaf(k, name + strlen(k->layer)));
    }
    look_around(k, sparse);
}

/* Compare with one row; false when its configuration cannot be read from this one. */
static bool try_row(const nb_arch *a, const nb_store *s, const nb_json *in, look *k)
{
    nb_json *j = nb_json_copy(in);
    nb_config c;
    nb_plan p;
    nb_err quiet = { 0 };
    bool ok;

    *k = (look){ .s = s };
    ok = j && nb_json_set(j, "model_type", nb_json_new_str(a->type)) && nb_config_parse(j, &c, &quiet) == NB_OK;
    nb_json_free(j);
    if (!ok)
        return false;
    ok = nb_plan_build(&c, s, &p, &quiet) == NB_OK;
    if (ok) {
        k->p = &p;
        look_at(k, 0);
        if (c.n_layers > 1)
            look_at(k, c.n_layers - 1);
        k->hints += a->eps_key && !(a->quirks & NB_Q_EPS_FIXED) && !nb_json_get(in, a->eps_key);
        k->p = NULL;
    }
    nb_plan_clear(&p);
    nb_config_clear(&c);
    return ok;
}

static void tell(const nb_arch *a, const look *k, nb_err *err)
{
    char *const what = err->what;
    const size_t cap = sizeof err->what;
    size_t at = strlen(what);

    for (const char *list = strstr(what, "; supported: "); list; list = strstr(list + 1, "; supported: ")) /* the last one is ours */
        at = (size_t)(list - what);
    at += (size_t)snprintf(what + at, cap - at, "; its tensors are nearest to %s (%s)", a->type, a->cls);
    if (k->more[0] && at < cap)
        at += (size_t)snprintf(what + at, cap - at, ", but it also has %s", k->more);
    if (k->less[0] && at < cap)
        at += (size_t)snprintf(what + at, cap - at, "%s lacks %s", k->more[0] ? ", and" : ", but it", k->less);
    if (k->odd[0] && at < cap)
        at +=
            (size_t)snprintf(what + at, cap - at, "%s other shapes of %s", k->more[0] || k->less[0] ? ", and has" : ", but it has", k->odd);
    if (k->far == 0 && at < cap)
        snprintf(what + at, cap - at, "%s; if it computes the same, set \"model_type\" to \"%s\" in config.json",
                 k->more[0] || k->less[0] ? "" : " and differ in no name or shape", a->type);
}

void nb_config_nearest(const nb_json *root, const nb_store *s, nb_err *err)
{
    const nb_json *text = nb_json_get(root, "text_config"), *in = nb_json_typeof(text) == NB_JOBJ ? text : root;
    look *k = nb_calloc(2, sizeof *k);
    const nb_arch *best = NULL;

    if (!k || !err || strcmp(err->cls, "cfg.arch") != 0 || nb_json_typeof(in) != NB_JOBJ) {
        nb_free(k);
        return;
    }
    for (size_t i = 0; i < nb_arch_count(); i++) {
        if (!try_row(nb_arch_at(i), s, in, &k[1]) || k[1].far * 3 > k[1].expected)
            continue;
        if (best && k[1].far * 2 + k[1].hints >= k[0].far * 2 + k[0].hints)
            continue;
        best = nb_arch_at(i);
        k[0] = k[1];
    }
    if (best)
        tell(best, &k[0], err);
    nb_free(k);
}

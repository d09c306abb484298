/* qrules.c - see qrules.h. */
#include "quant/qrules.h"

#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "quant/rx.h"

enum { MAX_WORK = 1 << 28 }; /* steps of patterns over all modules of a model: below a second */

typedef struct rule {
    const char *entry;    /* as written                                      */
    const char *name;     /* without "re:": what an exact rule compares with */
    nb_rx *rx;            /* NULL: exact                                     */
    bool anywhere;        /* pattern may match in the middle                 */
    bool exclude;         /* not quantized                                   */
    const nb_json *value; /* overrides, or the args of a config group        */
} rule;

struct nb_qrules {
    const nb_qconfig *cfg;
    rule *rules; /* first match wins */
    size_t n, cap;
    const nb_json *exact; /* extra_config: exact names come before its patterns */
    const nb_json *only;  /* modules_in_block_to_quantize, or NULL              */
    bool targets;         /* a module that no rule covers is not quantized      */
    const char *field;
    uint64_t work;
};

typedef struct build {
    nb_qrules *r;
    nb_report *report;
    nb_err *err;
} build;

/* ---- reading values ------------------------------------------------------------------------------------------- */

static nb_status refuse(const build *b, nb_status code, const char *cls, const char *field, const char *entry, const char *reason)
{
    char text[NB_ESC_CAP];

    nb_esc(text, sizeof text, entry, strlen(entry));
    if (b->report)
        return nb_rule_hit(b->report, b->err, "CFG-016", b->r->cfg->source, field, "%s rule \"%s\": %s.", field, text, reason);
    nb_fail(b->err, code, cls, "CFG-016", "%s rule \"%s\": %s.", field, text, reason);
    nb_err_at(b->err, b->r->cfg->source, field);
    return code;
}

/* bits, group_size, sym, desc_act of GPTQModel and AutoRound. NULL: fine; else what is wrong. */
static const char *apply(const nb_json *v, nb_qspec *spec)
{
    const nb_json *bits = nb_json_get(v, "bits"), *g = nb_json_get(v, "group_size"), *sym = nb_json_get(v, "sym");
    const int64_t b = nb_json_int(bits, nb_json_is_null(bits) ? spec->bits : 0);
    const int64_t n = nb_json_int(g, nb_json_is_null(g) ? spec->group_size : 0);

    if (b < 2 || b > 8)
        return "bits are not an integer from 2 to 8";
    if (n == 0 || n < -1 || n > 1 << 24)
        return "group_size is neither -1 nor a positive integer";
    spec->bits = (unsigned)b;
    spec->group_size = n;
    spec->sym = nb_json_bool(sym, spec->sym);
    spec->desc_act = nb_json_bool(nb_json_get(v, "desc_act"), spec->desc_act);
    return NULL;
}

/* ---- compiling ------------------------------------------------------------------------------------------------ */

static nb_status push(const build *b, rule x)
{
    nb_qrules *r = b->r;

    if (r->n == r->cap) {
        const size_t cap = r->cap ? 2 * r->cap : 32;
        rule *p = cap > SIZE_MAX / sizeof *p ? NULL : nb_realloc(r->rules, cap * sizeof *p);
        if (!p) {
            nb_rx_free(x.rx);
            return nb_enomem(b->err, "the rules of the quantization config");
        }
        r->rules = p;
        r->cap = cap;
    }
    r->rules[r->n++] = x;
    return NB_OK;
}

/* Add a rule whose name is a pattern, or an exact name. */
static nb_status add(const build *b, const char *field, rule x, bool pattern)
{
    nb_err why = { 0 };
    nb_status rc;

    if (!pattern)
        return push(b, x);
    rc = nb_rx_new(x.name, strlen(x.name), &x.rx, &why);
    if (rc == NB_ENOMEM)
        return nb_enomem(b->err, "a pattern");
    return rc == NB_OK ? push(b, x) : refuse(b, rc, why.cls, field, x.entry, why.what);
}

/* GPTQModel: "-:" rules stand in front whatever their place; then the first match (formats 6.5). */
static nb_status add_dynamic(const build *b)
{
    const nb_json *d = b->r->cfg->dynamic;
    nb_status rc = NB_OK;

    for (int pass = 0; pass < 2; pass++)
        for (size_t i = 0; rc == NB_OK && i < nb_json_len(d); i++) {
            const char *key, *wrong;
            const nb_json *v = nb_json_member(d, i, &key);
            nb_qspec spec = b->r->cfg->spec;
            const bool minus = strncmp(key, "-:", 2) == 0, plus = strncmp(key, "+:", 2) == 0;
            if (minus == (pass == 1))
                continue;
            if (!minus && (wrong = apply(v, &spec)))
                rc = refuse(b, NB_EFORMAT, "cfg.quant_rule", "dynamic", key, wrong);
            else
                rc = add(b, "dynamic", (rule){ .entry = key, .name = key + (minus || plus ? 2 : 0), .exclude = minus, .value = v }, true);
        }
    return rc;
}

/* AutoRound: exact names, then keys that look like patterns, found anywhere. 16 bits and more: not quantized. */
static nb_status add_extra(const build *b)
{
    const nb_json *x = b->r->exact;
    nb_status rc = NB_OK;

    for (size_t i = 0; rc == NB_OK && i < nb_json_len(x); i++) {
        const char *key, *wrong;
        const nb_json *v = nb_json_member(x, i, &key);
        nb_qspec spec = b->r->cfg->spec;
        const bool plain = nb_json_int(nb_json_get(v, "bits"), 0) >= 16;
        if (!plain && (wrong = apply(v, &spec)))
            rc = refuse(b, NB_EFORMAT, "cfg.quant_rule", "extra_config", key, wrong);
        else if (strpbrk(key, "*+?^$()[]{}|\\"))
            rc = add(b, "extra_config", (rule){ .entry = key, .name = key, .anywhere = true, .exclude = plain, .value = v }, true);
    }
    return rc;
}

/* One list of compressed-tensors: class names, module paths, "re:" patterns. */
static nb_status add_list(const build *b, const char *field, const nb_json *list, bool exclude, const nb_json *value, bool classes)
{
    nb_status rc = NB_OK;

    for (size_t i = 0; rc == NB_OK && i < nb_json_len(list); i++) {
        const char *e = nb_json_str(nb_json_at(list, i), NULL);
        const bool re = e && strncmp(e, "re:", 3) == 0, cls = e && strcmp(e, "Linear") == 0;
        if (!e)
            rc = refuse(b, NB_EFORMAT, "cfg.quant_rule", field, "", "an entry is no string");
        else if (cls == classes)
            rc = add(b, field, (rule){ .entry = e, .name = cls ? NULL : e + (re ? 3 : 0), .exclude = exclude, .value = value }, re);
    }
    return rc;
}

static nb_status add_groups(const build *b)
{
    const nb_json *groups = nb_json_get(b->r->cfg->root, "config_groups");
    nb_status rc = add_list(b, "ignore", nb_json_get(b->r->cfg->root, "ignore"), true, NULL, false);

    for (int classes = 0; classes < 2; classes++) /* names are more exact than classes */
        for (size_t i = 0; rc == NB_OK && i < nb_json_len(groups); i++) {
            const char *key;
            const nb_json *g = nb_json_member(groups, i, &key);
            rc = add_list(b, "targets", nb_json_get(g, "targets"), false, nb_json_get(g, "weights"), classes != 0);
        }
    b->r->targets = true;
    return rc;
}

nb_status nb_qrules_open(const nb_qconfig *c, nb_report *report, nb_qrules **out, nb_err *err)
{
    nb_qrules *r = nb_calloc(1, sizeof *r);
    const build b = { r, report, err };
    const nb_json *only = nb_json_get(c->root, "modules_in_block_to_quantize");
    nb_status rc = NB_OK;

    *out = NULL;
    if (!r)
        return nb_enomem(err, "the rules of the quantization config");
    r->cfg = c;
    if (nb_json_is_null(only))
        only = nb_json_get(c->root, "inside_layer_modules");
    if (strcmp(c->method, "compressed-tensors") == 0) {
        r->field = "ignore";
        rc = add_groups(&b);
    } else if (c->dynamic) {
        r->field = "dynamic";
        rc = add_dynamic(&b);
    } else if (nb_json_typeof(nb_json_get(c->root, "extra_config")) == NB_JOBJ) {
        r->field = "extra_config";
        r->exact = nb_json_get(c->root, "extra_config");
        rc = add_extra(&b);
    } else if (nb_json_len(only)) {
        r->field = "modules_in_block_to_quantize";
        r->only = only;
    }
    if (rc != NB_OK) {
        nb_qrules_close(r);
        return rc;
    }
    *out = r;
    return NB_OK;
}

void nb_qrules_close(nb_qrules *r)
{
    if (!r)
        return;
    for (size_t i = 0; i < r->n; i++)
        nb_rx_free(r->rules[i].rx);
    nb_free(r->rules);
    nb_free(r);
}

const char *nb_qrules_field(const nb_qrules *r)
{
    return r->field;
}

/* ---- asking --------------------------------------------------------------------------------------------------- */

/* Does the path end in one of the suffixes of a list, or list of lists? */
static bool listed(const nb_json *list, const char *module, int depth)
{
    const size_t n = strlen(module);

    for (size_t i = 0; i < nb_json_len(list); i++) {
        const nb_json *v = nb_json_at(list, i);
        const char *s = nb_json_str(v, NULL);
        const size_t m = s ? strlen(s) : 0;
        if (nb_json_typeof(v) == NB_JARR && depth < 4 && listed(v, module, depth + 1))
            return true;
        if (m && m <= n && strcmp(module + n - m, s) == 0 && (m == n || module[n - m - 1] == '.'))
            return true;
    }
    return false;
}

static bool matches(nb_qrules *r, const rule *x, const char *module, size_t n)
{
    if (x->rx)
        return nb_rx_match(x->rx, module, n, x->anywhere, &r->work);
    r->work++;
    return !x->name || strcmp(x->name, module) == 0; /* without a name: the class Linear */
}

static const rule *first_match(nb_qrules *r, const char *module)
{
    const size_t n = strlen(module);

    for (size_t i = 0; i < r->n && r->work < MAX_WORK; i++)
        if (matches(r, &r->rules[i], module, n))
            return &r->rules[i];
    return NULL;
}

nb_status nb_qrules_spec(nb_qrules *r, const char *module, nb_qspec *spec, const char **excluded, nb_err *err)
{
    const nb_json *exact = nb_json_get(r->exact, module);
    const rule *x;

    *spec = r->cfg->spec;
    *excluded = NULL;
    if (r->only) {
        *excluded = listed(r->only, module, 0) ? NULL : "";
        return NB_OK;
    }
    if (exact) {
        if (nb_json_int(nb_json_get(exact, "bits"), 0) >= 16)
            *excluded = module;
        else
            apply(exact, spec);
        return NB_OK;
    }
    x = first_match(r, module);
    if (r->work >= MAX_WORK)
        return nb_fail(err, NB_ELIMIT, "limit.quant_rules", "",
                       "matching %zu rules of %s with the modules of the model takes too long. \xe2\x86\x92 Use fewer or simpler patterns.",
                       r->n, r->field ? r->field : "the config");
    if (x && x->exclude)
        *excluded = x->entry;
    else if (x && r->targets)
        nb_qconfig_args(x->value, spec);
    else if (x)
        apply(x->value, spec);
    else if (r->targets)
        *excluded = "";
    return NB_OK;
}

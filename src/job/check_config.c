/* check_config.c - rules about config.json and the quantization config that need no tensor bytes (formats 7.1, 7.2). */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "job/check_priv.h"

static nb_status check_files(nb_checker *c, nb_err *err)
{
    static const char *const names[] = { "tokenizer.json", "generation_config.json" };
    const nb_err *w = nb_hfdir_warning(c->dir);

    if (w && nb_report_add(c->report, NB_SEV_WARN, w->cls, w->rule, w->file, w->subject, "", "%s", w->what) != NB_OK)
        return nb_enomem(err, "the report");
    for (size_t i = 0; i < NB_LEN(names); i++) {
        const char *p;
        size_t n;
        nb_status rc = nb_hfdir_file(c->dir, names[i], &p, &n, err);
        if (rc != NB_OK)
            return rc;
        if (!p && (rc = nb_rule_hit(c->report, err, "FIL-010", names[i], NULL,
                                    "%s is missing; the model can be inspected and converted but not chatted with.", names[i])) != NB_OK)
            return rc;
    }
    return NB_OK;
}

static nb_status check_nested(nb_checker *c, nb_err *err)
{
    static const char *const keys[] = { "text_config", "llm_config", "language_config" };

    if (!c->qjson || nb_json_get(c->config, "quantization_config"))
        return NB_OK;
    for (size_t i = 0; i < NB_LEN(keys); i++)
        if (nb_json_get(nb_json_get(c->config, keys[i]), "quantization_config"))
            return nb_rule_hit(c->report, err, "CFG-002", "config.json", keys[i],
                               "quantization_config is nested under %s; some servers do not look there. \xe2\x86\x92 "
                               "Copy it to the top level of config.json.",
                               keys[i]);
    return NB_OK;
}

static nb_status differ(nb_checker *c, const char *other, const char *field, const char *a, const char *b, nb_err *err)
{
    if (strcmp(a, b) == 0)
        return NB_OK;
    return nb_rule_hit(c->report, err, "CFG-009", other, field, "%s and %s disagree on %s (%s vs %s); using %s.", c->qsource, other, field,
                       a, b, c->qsource);
}

/* The side files of a model against the config that is used. */
static nb_status check_sources(nb_checker *c, nb_err *err)
{
    static const char *const names[] = { "quantize_config.json", "quant_config.json" };

    for (size_t i = 0; c->has_qcfg && i < NB_LEN(names); i++) {
        nb_qconfig q;
        nb_json *root = NULL;
        nb_err quiet = { 0 };
        const char *p;
        char a[64], b[64];
        size_t n;
        nb_status rc;

        if (strcmp(names[i], c->qsource) == 0)
            continue;
        if ((rc = nb_hfdir_file(c->dir, names[i], &p, &n, err)) != NB_OK)
            return rc;
        if (!p)
            continue;
        rc = nb_json_parse(p, n, "cfg", 0, &root, &quiet);
        if (rc == NB_OK)
            rc = nb_qconfig_parse(root, names[i], NULL, &q, &quiet);
        if (rc != NB_OK) {
            nb_err_at(&quiet, names[i], NULL);
            rc = nb_report_add(c->report, NB_SEV_WARN, quiet.cls, quiet.rule, names[i], quiet.subject, "", "%s", quiet.what);
        } else {
            snprintf(a, sizeof a, "%u", c->qcfg.spec.bits);
            snprintf(b, sizeof b, "%u", q.spec.bits);
            rc = differ(c, names[i], "bits", a, b, err);
            snprintf(a, sizeof a, "%" PRId64, c->qcfg.spec.group_size);
            snprintf(b, sizeof b, "%" PRId64, q.spec.group_size);
            if (rc == NB_OK)
                rc = differ(c, names[i], "group_size", a, b, err);
            if (rc == NB_OK)
                rc = differ(c, names[i], "quant_method", c->qcfg.method, q.method, err);
            if (rc == NB_OK && c->qcfg.layout && q.layout && strcmp(c->qcfg.method, q.method) == 0)
                rc = differ(c, names[i], "format", c->qcfg.layout, q.layout, err);
            if (rc == NB_OK)
                rc = differ(c, names[i], "zero_point", c->qcfg.spec.sym ? "false" : "true", q.spec.sym ? "false" : "true", err);
        }
        nb_json_free(root);
        if (rc != NB_OK)
            return rc;
    }
    return NB_OK;
}

/* Rule values of GPTQModel's `dynamic`: objects of known keys. */
static nb_status check_dynamic(nb_checker *c, nb_err *err)
{
    static const char *const known[] = { "bits", "group_size", "sym", "desc_act", "mse", "damp_percent" };
    const nb_json *d = c->has_qcfg ? c->qcfg.dynamic : NULL;

    for (size_t i = 0; i < nb_json_len(d); i++) {
        const char *key, *field;
        const nb_json *v = nb_json_member(d, i, &key);
        char name[NB_ESC_CAP], text[NB_ESC_CAP];
        nb_status rc = NB_OK;

        nb_esc(name, sizeof name, key, strlen(key));
        if (nb_json_typeof(v) != NB_JOBJ && !nb_json_is_null(v))
            rc = nb_rule_hit(c->report, err, "CFG-016", c->qsource, "dynamic", "dynamic rule \"%s\": the value is no object.", name);
        for (size_t m = 0; rc == NB_OK && m < nb_json_len(v); m++) {
            bool ok = false;
            nb_json_member(v, m, &field);
            for (size_t x = 0; x < NB_LEN(known); x++)
                ok = ok || strcmp(known[x], field) == 0;
            if (!ok)
                rc = nb_rule_hit(c->report, err, "CFG-016", c->qsource, "dynamic", "dynamic rule \"%s\": unknown override %s.", name,
                                 nb_esc(text, sizeof text, field, strlen(field)));
        }
        if (rc != NB_OK)
            return rc;
    }
    return NB_OK;
}

/* Comparing every entry with every module is bounded work; a longer list is left out with a warning (hardening CF-23). */
static nb_status check_skip_count(nb_checker *c, nb_err *err)
{
    enum { MAX_COMPARES = 1 << 24 };
    const size_t n = c->has_qcfg ? nb_json_len(c->qcfg.skip) : 0;

    (void)err;
    c->use_skips = c->has_qcfg && n <= MAX_COMPARES / (c->store->n_tensors + 1);
    if (!n || c->use_skips)
        return NB_OK;
    return nb_report_add(c->report, NB_SEV_WARN, "limit.quant_rules", "", c->qsource, "modules_to_not_convert", "",
                         "%zu entries for %zu tensors; the list was not compared with the modules.", n, c->store->n_tensors);
}

/* Does any tensor name hold this text? */
static const nb_tensor *tensor_with(const nb_store *s, const char *text)
{
    for (size_t i = 0; i < s->n_tensors; i++)
        if (strstr(s->tensors[i].name, text))
            return &s->tensors[i];
    return NULL;
}

/* Entries that would match with another beginning: the tensors were renamed, the config was not. */
static nb_status check_prefix(nb_checker *c, nb_err *err)
{
    for (size_t i = 0; c->use_skips && i < nb_json_len(c->qcfg.skip); i++) {
        const char *e = nb_json_str(nb_json_at(c->qcfg.skip, i), ""), *tail = strstr(e, "layers.");
        const nb_tensor *t;
        char a[NB_ESC_CAP], b[NB_ESC_CAP];
        if (!tail || tail == e || tensor_with(c->store, e) || !(t = tensor_with(c->store, tail)))
            continue;
        nb_esc(a, sizeof a, t->name, (size_t)(strstr(t->name, tail) - t->name));
        nb_esc(b, sizeof b, e, (size_t)(tail - e));
        return nb_rule_hit(c->report, err, "NAM-007", c->qsource, "modules_to_not_convert",
                           "Tensor names start with %s, config rules with %s; rules will not match.", a, b);
    }
    return NB_OK;
}

/* Exclusion entries against modules that are packed: CFG-015 where every reader agrees on the match, CFG-017 where only
 * readers that compare substrings do. One finding per entry and kind. */
static nb_status check_skips(nb_checker *c, nb_err *err)
{
    const char *told[64];
    size_t n_told = 0;

    for (size_t i = 0; c->use_skips && i < c->scan.n_linears; i++) {
        const nb_linear *lin = &c->scan.linears[i];
        bool whole, seen = false;
        const char *e = nb_qconfig_skip(&c->qcfg, lin->prefix, &whole);
        char entry[NB_ESC_CAP], name[NB_ESC_CAP];
        nb_status rc;

        for (size_t x = 0; e && x < n_told; x++)
            seen = seen || told[x] == e;
        if (!e || seen)
            continue;
        if (n_told < NB_LEN(told))
            told[n_told++] = e;
        nb_esc(entry, sizeof entry, e, strlen(e));
        nb_esc(name, sizeof name, lin->prefix, strlen(lin->prefix));
        if (whole)
            rc = nb_rule_hit(
                c->report, err, "CFG-015", lin->parts[0]->file, name,
                "%s is quantized in the files, but modules_to_not_convert entry \"%s\" says the opposite. Loaders that trust the "
                "config will look for %s.weight.",
                name, entry, name);
        else
            rc = nb_rule_hit(c->report, err, "CFG-017", c->qsource, "modules_to_not_convert",
                             "\"%s\" also matches %s; vLLM would skip it. \xe2\x86\x92 Use full module paths.", entry, name);
        if (rc != NB_OK)
            return rc;
    }
    return NB_OK;
}

/* The other kinds of exclusion (dynamic, ignore, extra_config ...) against modules that are packed. One finding per entry. */
static nb_status check_rules(nb_checker *c, nb_err *err)
{
    const char *told[64];
    size_t n_told = 0;

    for (size_t i = 0; c->rules && i < c->scan.n_linears; i++) {
        const nb_linear *lin = &c->scan.linears[i];
        char entry[NB_ESC_CAP], name[NB_ESC_CAP];
        const char *e;
        nb_qspec spec;
        bool seen = false;
        nb_status rc = nb_qrules_spec(c->rules, lin->prefix, &spec, &e, err);

        for (size_t x = 0; e && x < n_told; x++)
            seen = seen || told[x] == e;
        if (rc != NB_OK)
            return rc;
        if (!e || seen)
            continue;
        if (n_told < NB_LEN(told))
            told[n_told++] = e;
        nb_esc(entry, sizeof entry, e, strlen(e));
        nb_esc(name, sizeof name, lin->prefix, strlen(lin->prefix));
        if (*e)
            rc = nb_rule_hit(c->report, err, "CFG-015", lin->parts[0]->file, name,
                             "%s is quantized in the files, but %s entry \"%s\" says the opposite. Loaders that trust the config will "
                             "look for %s.weight.",
                             name, nb_qrules_field(c->rules), entry, name);
        else
            rc = nb_rule_hit(c->report, err, "CFG-015", lin->parts[0]->file, name,
                             "%s is quantized in the files, but no entry of %s covers it. Loaders that trust the config will look for "
                             "%s.weight.",
                             name, strcmp(nb_qrules_field(c->rules), "ignore") == 0 ? "targets" : nb_qrules_field(c->rules), name);
        if (rc != NB_OK)
            return rc;
    }
    return NB_OK;
}

static nb_status check_head(nb_checker *c, nb_err *err)
{
    const bool packed = nb_scan_find(&c->scan, "lm_head") != NULL;
    const nb_tensor *plain = nb_store_find(c->store, "lm_head.weight");
    nb_status rc = NB_OK;

    if (c->has_qcfg && c->scan.n_linears && c->qcfg.has_lm_head && c->qcfg.lm_head != packed)
        rc = nb_rule_hit(c->report, err, "CFG-018", c->qsource, "lm_head", "lm_head is declared %s but stored %s.",
                         c->qcfg.lm_head ? "quantized" : "unquantized",
                         packed  ? "quantized"
                         : plain ? "unquantized"
                                 : "not at all");
    if (rc != NB_OK || !(packed || plain))
        return rc;
    if (nb_json_bool(nb_json_get(c->config, "tie_word_embeddings"), false)) {
        const nb_tensor *embed = nb_store_find(c->store, "model.embed_tokens.weight");
        if (plain && embed && plain->data && embed->data && plain->n_bytes == embed->n_bytes && plain->dtype == embed->dtype &&
            memcmp(plain->data, embed->data, (size_t)plain->n_bytes) == 0)
            return NB_OK; /* the same matrix written twice (formats 3.10) */
        rc = nb_rule_hit(c->report, err, "CFG-019", "config.json", "tie_word_embeddings",
                         "tie_word_embeddings is true, but lm_head is stored separately%s; loaders that tie the weights will ignore it.",
                         packed ? " (quantized)" : "");
    }
    return rc;
}

static nb_status check_dtype(nb_checker *c, nb_err *err)
{
    const char *torch = nb_json_str(nb_json_get(c->config, "dtype"), nb_json_str(nb_json_get(c->config, "torch_dtype"), ""));

    if (c->scan.n_linears == 0 || strcmp(c->scan.format->method, "awq") != 0 || nb_dtype_from_torch(torch) != NB_DT_BF16 ||
        c->scan.linears[0].spec.scale_dtype != NB_DT_F16)
        return NB_OK;
    return nb_rule_hit(c->report, err, "CFG-021", "config.json", "dtype",
                       "dtype is bfloat16 but scales are float16; older AWQ loaders accept only \"dtype\": \"float16\".");
}

nb_status nb_check_config(nb_checker *c, nb_err *err)
{
    static nb_status (*const stages[])(nb_checker *, nb_err *) = {
        check_files,  check_nested, check_sources, check_dynamic, check_skip_count,
        check_prefix, check_skips,  check_rules,   check_head,    check_dtype,
    };
    nb_status rc = NB_OK;

    for (size_t i = 0; rc == NB_OK && i < NB_LEN(stages); i++)
        rc = stages[i](c, err);
    return rc;
}

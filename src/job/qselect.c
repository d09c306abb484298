/* qselect.c - overrides and exclusions. */
#include "job/qselect.h"

#include <string.h>

#include "base/map.h"
#include "base/mem.h"
#include "quant/qrules.h"
#include "quant/rx.h"

typedef struct ignored {
    char *text;
    nb_rx *rx;
    bool used;
} ignored;

struct nb_qselect {
    nb_json *root; /* a quantization config with the overrides */
    nb_qconfig cfg;
    nb_qrules *rules; /* NULL: no overrides */
    ignored *ignore;
    size_t n_ignore;
    uint64_t work;
    nb_err err; /* the first of the rule */
};

static const char source[] = "--dynamic";

static nb_status read_dynamic(const char *text, nb_json **out, nb_err *err)
{
    const char *p = text;

    while (*p == ' ' || *p == '\n' || *p == '\t' || *p == '\r')
        p++;
    if (*p == '{')
        return nb_json_parse(text, strlen(text), "quantize.dynamic", 0, out, err);
    return nb_json_parse_file(text, 16u << 20, "quantize.dynamic", out, err);
}

/* As the config of a quantized model would hold them. */
static nb_status open_rules(nb_qselect *s, const char *text, const nb_qspec *spec, nb_err *err)
{
    nb_json *dynamic = NULL, *o;
    nb_status rc = read_dynamic(text, &dynamic, err);
    bool ok;

    if (rc != NB_OK)
        return rc;
    if (nb_json_typeof(dynamic) != NB_JOBJ) {
        nb_json_free(dynamic);
        return nb_fail(err, NB_EARG, "quantize.dynamic", "",
                       "--dynamic takes an object: {\"+:PATTERN\": {\"bits\": 8}, \"-:PATTERN\": {}}");
    }
    o = s->root = nb_json_new_obj();
    ok = nb_json_set(o, "quant_method", nb_json_new_str("gptq")) && nb_json_set(o, "bits", nb_json_new_int(spec->bits)) &&
         nb_json_set(o, "group_size", nb_json_new_int(spec->group_size)) && nb_json_set(o, "sym", nb_json_new_bool(spec->sym)) &&
         nb_json_set(o, "desc_act", nb_json_new_bool(spec->desc_act));
    if (!nb_json_set(o, "dynamic", dynamic) || !ok) /* takes dynamic in any case */
        return nb_enomem(err, "the overrides");
    rc = nb_qconfig_parse(s->root, source, NULL, &s->cfg, err);
    return rc == NB_OK ? nb_qrules_open(&s->cfg, NULL, &s->rules, err) : rc;
}

static nb_status open_ignored(nb_qselect *s, const char *const *ignore, size_t n, nb_err *err)
{
    s->ignore = nb_calloc(n + 1, sizeof *s->ignore);
    if (!s->ignore)
        return nb_enomem(err, "the patterns to ignore");
    for (; s->n_ignore < n; s->n_ignore++) {
        ignored *i = &s->ignore[s->n_ignore];
        const size_t len = strlen(ignore[s->n_ignore]);
        nb_err why = { 0 };
        char esc[NB_ESC_CAP];
        nb_status rc = nb_rx_new(ignore[s->n_ignore], len, &i->rx, &why);

        if (rc != NB_OK)
            return nb_fail(err, rc, why.cls, "CFG-016", "--ignore \"%s\": %s", nb_esc(esc, sizeof esc, ignore[s->n_ignore], len), why.what);
        i->text = nb_strndup(ignore[s->n_ignore], len);
        if (!i->text) {
            nb_rx_free(i->rx);
            return nb_enomem(err, "the patterns to ignore");
        }
    }
    return NB_OK;
}

nb_status nb_qselect_open(nb_qselect **out, const char *dynamic, const char *const *ignore, size_t n, const nb_qspec *spec, nb_err *err)
{
    nb_qselect *s;
    nb_status rc = NB_OK;

    *out = NULL;
    if (!dynamic && n == 0)
        return NB_OK;
    s = nb_calloc(1, sizeof *s);
    if (!s)
        return nb_enomem(err, "the overrides");
    if (dynamic)
        rc = open_rules(s, dynamic, spec, err);
    if (rc == NB_OK)
        rc = open_ignored(s, ignore, n, err);
    if (rc == NB_OK)
        *out = s;
    else
        nb_qselect_close(s);
    return rc;
}

void nb_qselect_close(nb_qselect *s)
{
    if (!s)
        return;
    for (size_t i = 0; i < s->n_ignore; i++) {
        nb_rx_free(s->ignore[i].rx);
        nb_free(s->ignore[i].text);
    }
    nb_free(s->ignore);
    nb_qrules_close(s->rules);
    nb_json_free(s->root);
    nb_free(s);
}

bool nb_qselect_rule(void *user, const nb_qmod *m, nb_qspec *spec)
{
    nb_qselect *s = user;
    const nb_dtype scales = spec->scale_dtype;
    const char *excluded = NULL;
    bool quantized = true;

    if (!s)
        return true;
    for (size_t i = 0; i < s->n_ignore; i++)
        if (nb_rx_match(s->ignore[i].rx, m->at.name, strlen(m->at.name), true, &s->work)) {
            s->ignore[i].used = true;
            quantized = false;
        }
    if (s->rules && s->err.code == NB_OK)
        nb_qrules_spec(s->rules, m->at.name, spec, &excluded, &s->err);
    spec->scale_dtype = scales;
    return quantized && !excluded;
}

nb_status nb_qselect_check(const nb_qselect *s, nb_err *err)
{
    char esc[NB_ESC_CAP];

    if (!s)
        return NB_OK;
    if (s->err.code != NB_OK) {
        *err = s->err;
        return s->err.code;
    }
    for (size_t i = 0; i < s->n_ignore; i++)
        if (!s->ignore[i].used)
            return nb_fail(err, NB_EARG, "quantize.dynamic", "", "--ignore \"%s\" matches no linear of the model",
                           nb_esc(esc, sizeof esc, s->ignore[i].text, strlen(s->ignore[i].text)));
    return NB_OK;
}

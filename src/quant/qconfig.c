/* qconfig.c - quantization_config, quantize_config.json, quant_config.json in one normal form (formats 6). */
#include <ctype.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "quant/qconfig.h"

/* Method and version -> layout. "" is "not said"; the first row of a method is its default. */
static const struct {
    const char *method, *version, *layout;
} declared[] = {
    { "awq", "", "awq-gemm" },
    { "awq", "gemm", "awq-gemm" },
    { "awq", "exllama", "awq-gemm" }, /* run-time choices of the loader; the file is gemm */
    { "awq", "exllamav2", "awq-gemm" },
    { "awq", "ipex", "awq-gemm" },
    { "awq", "gemv", "awq-gemv" },
    { "awq", "gemv_fast", "awq-gemv-fast" },
    { "awq", "llm-awq", "llm-awq" },
    { "awq", "marlin", "awq-marlin" },
    { "gptq", "", "gptq" },
    { "gptq", "gptq", "gptq" },
    { "gptq", "gptq_v2", "gptq" },
    { "gptq", "gptq_p", "gptq" },
    { "gptq", "marlin", "gptq-marlin" },
    { "gptq", "bitblas", "bitblas" },
    { "gptq", "gemm", "awq-gemm" }, /* GPTQModel's RTN exports: the tensors are AWQ (formats 3.16) */
    { "gptq", "gemv", "awq-gemv" },
    { "gptq", "gemv_fast", "awq-gemv-fast" },
    { "gptq", "llm-awq", "llm-awq" },
    { "compressed-tensors", "", "compressed-tensors" },
    { "compressed-tensors", "pack-quantized", "compressed-tensors" },
    { "compressed-tensors", "mixed-precision", "compressed-tensors" },
    { "compressed-tensors", "nvfp4-pack-quantized", "nvfp4" },
    { "auto-round", "", "gptq" },
    { "auto-round", "auto_round", "gptq" },
    { "auto-round", "auto_round:gptq", "gptq" },
    { "auto-round", "auto_round:auto_gptq", "gptq" },
    { "auto-round", "auto_round:gptqmodel", "gptq" },
    { "auto-round", "auto_round:auto_awq", "awq-gemm" },
    { "auto-round", "auto_round:llm_compressor", "compressed-tensors" },
};

/* Where a parse stands. */
typedef struct qparse {
    const nb_json *root;
    const char *source;
    nb_report *report;
    nb_err *err;
} qparse;

/* First of the keys that is present and not null; *key is its name. */
static const nb_json *first_of(const nb_json *o, const char *const *keys, const char **key)
{
    for (; *keys; keys++) {
        const nb_json *v = nb_json_get(o, *keys);
        if (v && !nb_json_is_null(v)) {
            *key = *keys;
            return v;
        }
    }
    *key = NULL;
    return NULL;
}

static void lower_copy(char *out, size_t cap, const char *s)
{
    size_t i = 0;

    for (; s && s[i] && i + 1 < cap; i++)
        out[i] = (char)tolower((unsigned char)s[i]);
    out[i] = 0;
}

/* A value as it stands in the file, escaped, for a message. */
static const char *show(char *out, size_t cap, const nb_json *v)
{
    char *text = nb_json_dump(v, 0, true);

    nb_esc(out, cap, text ? text : "?", text ? strlen(text) : 1);
    nb_free(text);
    return out;
}

/* Integer behind one of the keys. NB_OK with *found false when absent; a string of digits counts, with CFG-020. */
static nb_status get_int(const qparse *p, const char *const *keys, bool *found, int64_t *out, bool *usable)
{
    const char *key, *s;
    const nb_json *v = first_of(p->root, keys, &key);
    char text[NB_ESC_CAP];
    int used = 0;

    *found = v != NULL;
    *usable = true;
    if (!v)
        return NB_OK;
    if (nb_json_typeof(v) == NB_JSTR) {
        s = nb_json_str(v, "");
        nb_esc(text, sizeof text, s, nb_json_str_len(v));
        *usable = strlen(s) < 12 && sscanf(s, "%" SCNd64 "%n", out, &used) == 1 && s[used] == 0;
        return nb_rule_hit(p->report, p->err, "CFG-020", p->source, key, "%s is the string \"%s\", expected a number.", key, text);
    }
    if (nb_json_typeof(v) == NB_JINT || nb_json_typeof(v) == NB_JREAL) {
        const int64_t a = nb_json_int(v, INT64_MIN);
        *usable = a != INT64_MIN;
        *out = a;
    } else {
        *usable = false;
    }
    return NB_OK;
}

static nb_status get_bool(const qparse *p, const char *key, bool *found, bool *out)
{
    const nb_json *v = nb_json_get(p->root, key);
    const char *s;
    char text[NB_ESC_CAP];

    *found = false;
    if (!v || nb_json_is_null(v))
        return NB_OK;
    *found = true;
    if (nb_json_typeof(v) == NB_JBOOL) {
        *out = nb_json_bool(v, false);
        return NB_OK;
    }
    if (nb_json_typeof(v) == NB_JINT) { /* 0 and 1 */
        *out = nb_json_int(v, 0) != 0;
        return NB_OK;
    }
    s = nb_json_str(v, "");
    nb_esc(text, sizeof text, s, strlen(s));
    *out = strcmp(s, "true") == 0 || strcmp(s, "True") == 0;
    return nb_rule_hit(p->report, p->err, "CFG-020", p->source, key, "%s is the string \"%s\", expected a number.", key, text);
}

static nb_status parse_method(const qparse *p, nb_qconfig *c)
{
    static const char *const method_keys[] = { "quant_method", "method", NULL };
    static const char *const version_keys[] = { "version", "checkpoint_format", "format", NULL };
    static const char *const format_keys[] = { "checkpoint_format", "format", "version", NULL };
    static const char *const packing_keys[] = { "packing_format", NULL };
    const char *key, *s = nb_json_str(first_of(p->root, method_keys, &key), NULL);
    char text[NB_ESC_CAP];
    const char *const *keys;

    if (s) {
        lower_copy(c->method, sizeof c->method, s);
    } else { /* side files of older programs (formats 6.2) */
        snprintf(c->method, sizeof c->method, "%s", nb_json_get(p->root, "zero_point") ? "awq" : "gptq");
        s = c->method;
    }
    if (strcmp(c->method, "intel/auto-round") == 0)
        snprintf(c->method, sizeof c->method, "auto-round");
    keys = strcmp(c->method, "awq") == 0 ? version_keys : strcmp(c->method, "auto-round") == 0 ? packing_keys : format_keys;
    if (strcmp(c->method, "compressed-tensors") == 0) /* "version" is the library's there */
        keys = format_keys + 1;
    lower_copy(c->version, sizeof c->version, nb_json_str(first_of(p->root, keys, &key), ""));
    if (strcmp(c->method, "compressed-tensors") == 0 && key && strcmp(key, "version") == 0)
        c->version[0] = 0;
    if (strcmp(c->method, "awq") == 0 && strcmp(nb_json_str(nb_json_get(p->root, "backend"), ""), "llm-awq") == 0)
        snprintf(c->version, sizeof c->version, "llm-awq");
    if (strcmp(c->method, "gptq") == 0 && nb_json_bool(nb_json_get(p->root, "is_marlin_format"), false))
        snprintf(c->version, sizeof c->version, "marlin");

    for (size_t i = 0; i < NB_LEN(declared); i++)
        if (strcmp(declared[i].method, c->method) == 0) {
            if (strcmp(declared[i].version, c->version) == 0)
                c->layout = declared[i].layout;
            key = c->method; /* the method is known */
        }
    if (key == c->method)
        return NB_OK;
    nb_esc(text, sizeof text, s, strlen(s));
    nb_rule_hit(p->report, p->err, "CFG-003", p->source, "quant_method",
                "Quantization method %s is not a 4-bit integer checkpoint this tool understands. \xe2\x86\x92 "
                "Quantize the 16-bit original with `nibble quantize`, or use an AWQ export of the model.",
                text);
    return NB_EUNSUPPORTED;
}

static nb_status parse_sizes(const qparse *p, nb_qconfig *c)
{
    static const char *const bit_keys[] = { "bits", "w_bit", "wbits", NULL };
    static const char *const group_keys[] = { "group_size", "q_group_size", NULL };
    const char *key;
    char text[NB_ESC_CAP];
    bool found, usable;
    int64_t v = 0;
    nb_status rc;

    if ((rc = get_int(p, bit_keys, &found, &v, &usable)) != NB_OK)
        return rc;
    if (!found && strcmp(c->method, "awq") == 0) {
        v = 4;
    } else if (!found || !usable || v < 2 || v > 8) {
        nb_rule_hit(p->report, p->err, "CFG-004", p->source, "bits", "bits = %s is not usable (expected an integer from 2 to 8).",
                    found ? show(text, sizeof text, first_of(p->root, bit_keys, &key)) : "(missing)");
        return NB_EUNSUPPORTED;
    }
    c->spec.bits = (unsigned)v;
    if ((rc = get_int(p, group_keys, &found, &v, &usable)) != NB_OK)
        return rc;
    if (!found) {
        v = strcmp(c->method, "gptq") == 0 && !nb_json_get(p->root, "meta") ? -1 : 128;
    } else if (!usable || v == 0 || v < -1 || v > (1 << 24)) {
        nb_rule_hit(p->report, p->err, "CFG-005", p->source, "group_size",
                    "group_size = %s is not usable (expected -1 or a positive integer).",
                    show(text, sizeof text, first_of(p->root, group_keys, &key)));
        return NB_EFORMAT;
    }
    c->spec.group_size = v;
    return NB_OK;
}

static nb_status parse_flags(const qparse *p, nb_qconfig *c)
{
    bool has_sym, sym = true, zero_point = true, found;
    nb_status rc;

    if ((rc = get_bool(p, "zero_point", &c->has_zero_point, &zero_point)) != NB_OK || (rc = get_bool(p, "sym", &has_sym, &sym)) != NB_OK ||
        (rc = get_bool(p, "desc_act", &found, &c->spec.desc_act)) != NB_OK ||
        (rc = get_bool(p, "lm_head", &c->has_lm_head, &c->lm_head)) != NB_OK)
        return rc;
    if (c->has_zero_point && has_sym && zero_point == sym) {
        nb_rule_hit(p->report, p->err, "CFG-030", p->source, "zero_point",
                    "zero_point is %s and sym is %s; one is the opposite of the other.", zero_point ? "true" : "false",
                    sym ? "true" : "false");
        if (!p->report)
            return NB_EFORMAT;
    }
    c->spec.sym = c->has_zero_point ? !zero_point : has_sym ? sym : strcmp(c->method, "awq") != 0;
    if (strcmp(c->method, "awq") == 0 && !c->has_zero_point)
        return nb_rule_hit(p->report, p->err, "CFG-010", p->source, "zero_point",
                           "zero_point is missing. The tensors decide here, but vLLM and SGLang refuse to load this. \xe2\x86\x92 "
                           "Add \"zero_point\": %s.",
                           c->spec.sym ? "false" : "true");
    return NB_OK;
}

nb_status nb_qconfig_parse(const nb_json *root, const char *source, nb_report *report, nb_qconfig *out, nb_err *err)
{
    const qparse p = { root, source, report, err };
    nb_status rc;

    memset(out, 0, sizeof *out);
    out->root = root;
    out->source = source;
    if (nb_json_typeof(root) != NB_JOBJ)
        return nb_fail(err, NB_EFORMAT, "cfg.quant_config", "", "the quantization config is not a JSON object");
    rc = parse_method(&p, out);
    if (rc != NB_OK)
        return rc;
    if (strcmp(out->method, "compressed-tensors") != 0) { /* its sizes stand per group of targets */
        if ((rc = parse_sizes(&p, out)) != NB_OK || (rc = parse_flags(&p, out)) != NB_OK)
            return rc;
    }
    out->skip = nb_json_get(root, "modules_to_not_convert");
    if (nb_json_typeof(out->skip) != NB_JARR)
        out->skip = NULL;
    out->dynamic = nb_json_get(root, "dynamic");
    if (nb_json_typeof(out->dynamic) != NB_JOBJ)
        out->dynamic = NULL;
    return NB_OK;
}

const char *nb_qconfig_skip(const nb_qconfig *c, const char *module, bool *whole)
{
    const char *part = NULL;

    for (size_t i = 0; i < nb_json_len(c->skip); i++) {
        const char *e = nb_json_str(nb_json_at(c->skip, i), NULL);
        const size_t n = e ? strlen(e) : 0;
        if (n == 0)
            continue;
        for (const char *at = strstr(module, e); at; at = strstr(at + 1, e)) {
            const bool starts = at == module || at[-1] == '.' || *e == '.';
            const bool ends = at[n] == 0 || at[n] == '.' || e[n - 1] == '.';
            if (starts && ends) {
                *whole = true;
                return e;
            }
            if (!part)
                part = e;
        }
    }
    *whole = false;
    return part;
}

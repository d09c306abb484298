/* qconfig.c - quantization_config, quantize_config.json, quant_config.json in one normal form (formats 6). */
#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/num.h"
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
    { "gptq", "gptq_v2", "gptq_v2" },
    { "gptq", "gptq_p", "gptq_p" },
    { "gptq", "marlin", "gptq-marlin" },
    { "gptq", "bitblas", "bitblas" },
    { "gptq", "gemm", "awq-gemm" }, /* GPTQModel's RTN exports: the tensors are AWQ (formats 3.16) */
    { "gptq", "gemv", "awq-gemv" },
    { "gptq", "gemv_fast", "awq-gemv-fast" },
    { "gptq", "llm-awq", "llm-awq" },
    { "compressed-tensors", "", "compressed-tensors" },
    { "compressed-tensors", "pack-quantized", "compressed-tensors" },
    { "compressed-tensors", "mixed-precision", "compressed-tensors" },
    { "auto-round", "", "gptq" },
    { "auto-round", "auto_round", "gptq_v2" }, /* true zeros, symmetric ones too (formats 3.15) */
    { "auto-round", "auto_round:gptqmodel", "gptq_v2" },
    { "auto-round", "auto_round:gptq", "gptq" },
    { "auto-round", "auto_round:auto_gptq", "gptq" },
    { "auto-round", "auto_round:auto_awq", "awq-gemm" },
    { "auto-round", "auto_round:llm_compressor", "compressed-tensors" },
};

/* Methods that people meet and we do not read: what they store, and where to go from there. */
static const struct {
    const char *method, *what;
} foreign[] = {
    { "bitsandbytes", "blockwise floats made when a model is loaded" },
    { "hqq", "zero points that are no integers" },
    { "exl2", "several bit widths inside one matrix" },
    { "exl3", "trellis codes" },
    { "fp8", "8-bit floats" },
    { "fbgemm_fp8", "8-bit floats" },
    { "modelopt", "NVIDIA floats" },
    { "modelopt_fp4", "4-bit floats" },
    { "mxfp4", "4-bit floats in blocks" },
    { "aqlm", "code books" },
    { "vptq", "code books" },
    { "quip", "code books" },
    { "higgs", "code books" },
    { "spqr", "a sparse part beside the codes" },
    { "quanto", "tensors of its own classes" },
    { "torchao", "tensors of its own classes" },
    { "eetq", "8-bit integers in an order for one GPU" },
    { "marlin", "an order for one GPU" },
    { "bitnet", "ternary weights" },
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
    const char *end;
    char text[NB_ESC_CAP];

    *found = v != NULL;
    *usable = true;
    if (!v)
        return NB_OK;
    if (nb_json_typeof(v) == NB_JSTR) {
        s = nb_json_str(v, "");
        nb_esc(text, sizeof text, s, nb_json_str_len(v));
        *usable = strlen(s) < 12 && (end = nb_num_i64(s, out)) && *end == 0;
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
    key = NULL;
    for (size_t i = 0; i < NB_LEN(foreign); i++)
        if (strcmp(foreign[i].method, c->method) == 0)
            key = foreign[i].what;
    nb_rule_hit(p->report, p->err, "CFG-003", p->source, "quant_method",
                "Quantization method %s is not a 4-bit integer checkpoint this tool understands. \xe2\x86\x92 %s%s%s"
                "Quantize the 16-bit original with `nibble quantize`, or use an AWQ export of the model.",
                text, key ? "It stores " : "", key ? key : "", key ? ". " : "");
    return NB_EUNSUPPORTED;
}

/* "MAJOR.MINOR" and whatever follows. */
static bool read_version(const char *s, uint64_t *major, uint64_t *minor)
{
    s = nb_num_u64(s, 9999, major);
    return s && *s == '.' && nb_num_u64(s + 1, 9999, minor);
}

/* The program that wrote the file, from meta.quantizer: "gptqmodel:7.7.0", or a list of such. */
static bool written_by_gptqmodel(const nb_json *root)
{
    const nb_json *q = nb_json_get(nb_json_get(root, "meta"), "quantizer");
    const bool list = nb_json_typeof(q) == NB_JARR;

    for (size_t i = 0; i < (list ? nb_json_len(q) : 1); i++) {
        const char *s = nb_json_str(list ? nb_json_at(q, i) : q, "");
        uint64_t major, minor;
        if (strncmp(s, "gptqmodel:", 10) == 0 && read_version(s + 10, &major, &minor) && (major > 0 || minor >= 9))
            return true;
    }
    return false;
}

/* Layouts that are known and refused, whatever else the config says; serialized Marlin is read, with a warning. */
static nb_status check_gpu_layout(const qparse *p, const nb_qconfig *c)
{
    if (strcmp(c->method, "gptq") != 0)
        return NB_OK;
    if (strcmp(c->version, "marlin") == 0)
        return nb_rule_warn(p->report, "CFG-023", p->source, "checkpoint_format",
                            "Weights are pre-arranged for one GPU kernel (marlin). \xe2\x86\x92 Import is supported.");
    if (strcmp(c->version, "bitblas") != 0)
        return NB_OK;
    if (p->report)
        nb_rule_hit(p->report, p->err, "CFG-023", p->source, "checkpoint_format",
                    "Weights are pre-arranged for one GPU kernel (bitblas). \xe2\x86\x92 Import is not supported.");
    nb_rule_hit(p->report, p->err, "CNV-090", p->source, "checkpoint_format",
                "BitBLAS files depend on the GPU they were prepared for and cannot be decoded reliably. \xe2\x86\x92 "
                "Use the gptq or gptq_v2 export that they were made from.");
    return NB_EUNSUPPORTED;
}

/* ---- compressed-tensors --------------------------------------------------------------------------------------- */

void nb_qconfig_args(const nb_json *w, nb_qspec *spec)
{
    const char *strategy = nb_json_str(nb_json_get(w, "strategy"), "");
    const char *order = nb_json_str(nb_json_get(w, "actorder"), "");

    spec->bits = (unsigned)nb_json_int(nb_json_get(w, "num_bits"), 8);
    spec->group_size = nb_json_int(nb_json_get(w, "group_size"), -1);
    if (strcmp(strategy, "channel") == 0 || strcmp(strategy, "tensor") == 0)
        spec->group_size = -1;
    spec->sym = nb_json_bool(nb_json_get(w, "symmetric"), true);
    spec->desc_act = strcmp(order, "group") == 0 || strcmp(order, "dynamic") == 0;
}

static nb_status ct_refuse(const qparse *p, const char *key, const char *what)
{
    nb_rule_hit(p->report, p->err, "CFG-022", p->source, key,
                "This compressed-tensors model also quantizes %s; only weight-only integer models are supported. \xe2\x86\x92 "
                "Use a W4A16 or W8A16 export, or quantize the 16-bit original with `nibble quantize`.",
                what);
    return NB_EUNSUPPORTED;
}

/* One config group. NB_OK: usable. */
static nb_status ct_group(const qparse *p, const char *key, const nb_json *g)
{
    const nb_json *w = nb_json_get(g, "weights");
    const char *type = nb_json_str(nb_json_get(w, "type"), "int"), *format = nb_json_str(nb_json_get(g, "format"), "pack-quantized");
    const char *strategy = nb_json_str(nb_json_get(w, "strategy"), "group");
    const int64_t bits = nb_json_int(nb_json_get(w, "num_bits"), 8), size = nb_json_int(nb_json_get(w, "group_size"), -1);
    char text[NB_ESC_CAP];

    if (!nb_json_is_null(nb_json_get(g, "input_activations")))
        return ct_refuse(p, key, "activations");
    if (!nb_json_is_null(nb_json_get(g, "output_activations")))
        return ct_refuse(p, key, "output activations");
    if (strcmp(type, "int") != 0)
        return ct_refuse(p, key, "weights to floats");
    if (strcmp(format, "pack-quantized") != 0) {
        char what[NB_ESC_CAP + 32];
        snprintf(what, sizeof what, "weights in the format %s", nb_esc(text, sizeof text, format, strlen(format)));
        return ct_refuse(p, key, what);
    }
    if (strcmp(strategy, "group") != 0 && strcmp(strategy, "channel") != 0 && strcmp(strategy, "tensor") != 0)
        return ct_refuse(p, key, "weights in blocks or tokens");
    if (bits < 2 || bits > 8) {
        nb_rule_hit(p->report, p->err, "CFG-004", p->source, "num_bits", "bits = %s is not usable (expected an integer from 2 to 8).",
                    show(text, sizeof text, nb_json_get(w, "num_bits")));
        return NB_EUNSUPPORTED;
    }
    if (size == 0 || size < -1 || size > 1 << 24 || (size == -1 && strcmp(strategy, "group") == 0)) {
        nb_rule_hit(p->report, p->err, "CFG-005", p->source, "group_size",
                    "group_size = %s is not usable (expected -1 or a positive integer).",
                    show(text, sizeof text, nb_json_get(w, "group_size")));
        return NB_EFORMAT;
    }
    return NB_OK;
}

static bool names_linear(const nb_json *targets)
{
    for (size_t i = 0; i < nb_json_len(targets); i++)
        if (strcmp(nb_json_str(nb_json_at(targets, i), ""), "Linear") == 0)
            return true;
    return false;
}

/* All groups are checked; the global values are those of the group that targets every Linear, else of the first. */
static nb_status parse_ct(const qparse *p, nb_qconfig *c)
{
    const nb_json *groups = nb_json_get(p->root, "config_groups");
    const char *sparse = nb_json_str(nb_json_get(nb_json_get(p->root, "sparsity_config"), "format"), "dense");
    const char *version = nb_json_str(nb_json_get(p->root, "version"), "");
    uint64_t major, minor;
    bool linear = false;

    c->old_words = read_version(version, &major, &minor) && major == 0 && minor < 18;
    if (strcmp(c->version, "nvfp4-pack-quantized") == 0 || strcmp(c->version, "mxfp4-pack-quantized") == 0)
        return ct_refuse(p, "format", "weights to 4-bit floats");
    if (strcmp(sparse, "dense") != 0)
        return ct_refuse(p, "sparsity_config", "sparse weights");
    for (size_t i = 0; i < nb_json_len(groups); i++) {
        const char *key;
        const nb_json *g = nb_json_member(groups, i, &key);
        const bool all = names_linear(nb_json_get(g, "targets"));
        nb_status rc = ct_group(p, key, g);
        if (rc != NB_OK)
            return rc;
        if (i == 0 || (all && !linear))
            nb_qconfig_args(nb_json_get(g, "weights"), &c->spec);
        linear = linear || all;
    }
    if (nb_json_typeof(groups) == NB_JOBJ && nb_json_len(groups))
        return c->layout ? NB_OK : ct_refuse(p, "format", c->version);
    nb_rule_hit(p->report, p->err, "CFG-004", p->source, "config_groups",
                "bits = (missing) is not usable (expected an integer from 2 to 8).");
    return NB_EUNSUPPORTED;
}

/* ---- all methods ---------------------------------------------------------------------------------------------- */

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
    bool has_sym, sym = true, zero_point = true;
    nb_status rc;

    if ((rc = get_bool(p, "zero_point", &c->has_zero_point, &zero_point)) != NB_OK || (rc = get_bool(p, "sym", &has_sym, &sym)) != NB_OK ||
        (rc = get_bool(p, "desc_act", &c->has_desc_act, &c->spec.desc_act)) != NB_OK ||
        (rc = get_bool(p, "lm_head", &c->has_lm_head, &c->lm_head)) != NB_OK)
        return rc;
    if (c->has_zero_point && has_sym && zero_point == sym) {
        nb_rule_hit(p->report, p->err, "CFG-030", p->source, "zero_point",
                    "zero_point is %s and sym is %s; one is the opposite of the other.", zero_point ? "true" : "false",
                    sym ? "true" : "false");
        if (!p->report)
            return NB_EFORMAT;
    }
    c->has_sym = has_sym;
    c->spec.sym = c->has_zero_point ? !zero_point : has_sym ? sym : strcmp(c->method, "awq") != 0;
    if (strcmp(c->method, "gptq") == 0 && (!has_sym || !c->has_desc_act)) {

        if (!has_sym && !c->has_zero_point &&
            (rc = nb_rule_hit(p->report, p->err, "CFG-011", p->source, "sym",
                              "sym is missing; vLLM refuses to load without it. \xe2\x86\x92 Add \"sym\": %s.",
                              c->spec.sym ? "true" : "false")) != NB_OK)
            return rc;
        if (!c->has_desc_act && (rc = nb_rule_hit(p->report, p->err, "CFG-011", p->source, "desc_act",
                                                  "desc_act is missing; vLLM refuses to load without it. \xe2\x86\x92 "
                                                  "Add \"desc_act\": false.")) != NB_OK)
            return rc;
    }
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
    if ((rc = check_gpu_layout(&p, out)) != NB_OK)
        return rc;
    if (strcmp(out->method, "compressed-tensors") == 0) /* its sizes stand per group of targets */
        rc = parse_ct(&p, out);
    else if ((rc = parse_sizes(&p, out)) == NB_OK)
        rc = parse_flags(&p, out);
    if (rc != NB_OK)
        return rc;
    out->word_zeros = written_by_gptqmodel(root);
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

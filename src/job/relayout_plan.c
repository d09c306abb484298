/* relayout_plan.c - what the target of a conversion will say: layout, spec of every linear and of all, configuration files. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/strmap.h"
#include "job/relayout.h"

/* ---- linears --------------------------------------------------------------------------------------------------- */

static int role_part(const nb_format *f, nb_part_role role)
{
    for (int p = 0; p < NB_MAX_PARTS && f->parts[p].suffix; p++)
        if (f->parts[p].role == role)
            return p;
    return -1;
}

static bool omits_zeros(const nb_format *f)
{
    const int p = role_part(f, NB_PART_ZEROS);

    return p < 0 || f->parts[p].when == NB_STORE_ASYM;
}

/* Reads a linear to see whether every zero point is the middle code, as its config says (else CFG-012). */
static nb_status is_symmetric(const nb_linear *lin, bool *out, nb_err *err)
{
    const uint8_t half = (uint8_t)(1u << (lin->spec.bits - 1));
    nb_status rc = NB_OK;

    *out = true;
    for (size_t n0 = 0; n0 < lin->n && *out && rc == NB_OK; n0 += nb_relay_rows(lin)) {
        nb_qlin q = { 0 };
        rc = nb_relay_stripe(&q, lin, n0, lin->format->words == NB_WORDS_NONE, err);
        if (rc == NB_OK)
            rc = lin->format->unpack(lin, n0, &q, err);
        for (size_t i = 0; rc == NB_OK && i < q.n * q.n_groups; i++)
            *out = *out && q.zeros[i] == half;
        nb_qlin_clear(&q);
    }
    return rc;
}

static nb_dtype scale_dtype(const nb_relay *j, const nb_linear *lin)
{
    if (j->o->scale_dtype != NB_DT_NONE)
        return j->o->scale_dtype;
    /* formats 3.3, 3.5: float16 only; llm-awq takes the type of the model, where float32 is none */
    if (strcmp(j->to->name, "awq-gemv") == 0 || strcmp(j->to->name, "awq-gemv-fast") == 0)
        return NB_DT_F16;
    return lin->spec.scale_dtype;
}

static nb_status expect(const nb_relay *j, const nb_linear *lin, nb_err *err)
{
    const int64_t g = j->o->group_size;
    char what[96] = "";
    nb_status rc = NB_OK;

    if (j->o->bits && j->o->bits != lin->spec.bits)
        snprintf(what, sizeof what, "bits (%u to %u)", lin->spec.bits, j->o->bits);
    else if (g && (g < 0 ? lin->k : (size_t)g) != lin->g)
        snprintf(what, sizeof what, "the group size (%zu to %" PRId64 ")", lin->g, g);
    if (what[0])
        rc = nb_fail(err, NB_EUNSUPPORTED, "conv.bits", "CNV-060",
                     "Changing %s is not a conversion. \xe2\x86\x92 Re-quantize from the original weights.", what);
    else if (lin->act_order && role_part(j->to, NB_PART_G_IDX) < 0)
        rc = nb_fail(err, NB_EUNSUPPORTED, "conv.act_order", "CNV-010",
                     "the linear uses a reordered g_idx; %s has no g_idx. \xe2\x86\x92 Keep GPTQ/compressed-tensors, or re-quantize.",
                     j->to->name);
    else if (!j->to->pack)
        rc = nb_fail(err, NB_EUNSUPPORTED, "conv.target", "", "%s is read but not written; nibble formats lists what is", j->to->name);
    nb_err_at(err, NULL, lin->prefix);
    return rc;
}

/* The spec of every linear in the target. Group tables come from the tensors: a declared order that is natural costs nothing. */
static nb_status plan_linear(nb_relay *j, nb_relay_item *it, nb_err *err)
{
    const nb_linear *lin = it->lin;
    bool sym = lin->spec.sym;
    nb_status rc = expect(j, lin, err);

    if (rc == NB_OK && sym && omits_zeros(j->to) && role_part(lin->format, NB_PART_ZEROS) >= 0 &&
        lin->parts[role_part(lin->format, NB_PART_ZEROS)]) {
        if ((rc = is_symmetric(lin, &sym, err)) == NB_OK && !sym)
            nb_log(j->o->host, NB_LOG_WARN, "%s: the config says symmetric, but zero points differ; they are kept", lin->prefix);
    }
    it->spec = lin->spec;
    it->spec.sym = sym;
    it->spec.desc_act = lin->act_order;
    it->spec.scale_dtype = scale_dtype(j, lin);
    return rc;
}

static bool same_spec(const nb_qspec *a, const nb_qspec *b, size_t k)
{
    const size_t ga = a->group_size < 0 ? k : (size_t)a->group_size, gb = b->group_size < 0 ? k : (size_t)b->group_size;

    return a->bits == b->bits && (ga < k ? ga : k) == (gb < k ? gb : k) && a->sym == b->sym && a->desc_act == b->desc_act;
}

/* Global values: those of most linears. Layouts without settings per module need one set of bits and groups; whether zero points
 * are symmetric and inputs reordered may be said for all where every part is stored anyway. */
static nb_status plan_spec(nb_relay *j, nb_err *err)
{
    enum { KINDS = 16 };
    nb_qspec kind[KINDS] = { 0 };
    size_t count[KINDS] = { 0 }, n = 0, best = 0;
    bool any_asym = false, any_order = false;

    for (size_t i = 0; i < j->n_items; i++) {
        any_asym = any_asym || (j->items[i].lin && !j->items[i].spec.sym);
        any_order = any_order || (j->items[i].lin && j->items[i].spec.desc_act);
    }
    for (size_t i = 0; i < j->n_items; i++) {
        nb_relay_item *it = &j->items[i];
        size_t at = 0;
        if (!it->lin)
            continue;
        if (!omits_zeros(j->to) && !j->to->override)
            it->spec.sym = !any_asym;
        if (!omits_zeros(j->to)) /* g_idx is stored in any case */
            it->spec.desc_act = any_order;
        while (at < n && !same_spec(&kind[at], &it->spec, it->lin->k))
            at++;
        if (at == n && n < KINDS)
            kind[n++] = it->spec;
        if (at < KINDS && ++count[at] > count[best])
            best = at;
    }
    j->spec = kind[best];
    for (size_t i = 0; i < j->n_items && !j->to->override; i++) {
        const nb_relay_item *it = &j->items[i];
        if (it->lin && !same_spec(&j->spec, &it->spec, it->lin->k)) {
            nb_fail(err, NB_EUNSUPPORTED, "conv.mixed", "CNV-050",
                    "%u bits, group %zu here and %u bits, group %" PRId64 " elsewhere; %s has one setting for all modules. \xe2\x86\x92 "
                    "Convert to gptq or compressed-tensors.",
                    it->spec.bits, it->lin->g, j->spec.bits, j->spec.group_size, j->to->name);
            nb_err_at(err, NULL, it->lin->prefix);
            return NB_EUNSUPPORTED;
        }
    }
    return NB_OK;
}

/* ---- the list of tensors --------------------------------------------------------------------------------------- */

/* Linears where their first part stands, everything else as it is. */
static nb_status list_items(nb_relay *j, nb_err *err)
{
    const nb_store *s = j->in.store;
    nb_strmap *parts = nb_strmap_new(j->in.scan.n_linears * 4 + 1);
    bool *seen = nb_calloc(j->in.scan.n_linears + 1, 1);
    nb_status rc = parts && seen ? NB_OK : nb_enomem(err, "the tensor list");

    j->items = nb_arena_calloc(&j->arena, s->n_tensors + 1, sizeof *j->items);
    if (rc == NB_OK && !j->items)
        rc = nb_enomem(err, "the tensor list");
    for (size_t i = 0; i < j->in.scan.n_linears && rc == NB_OK; i++)
        for (size_t p = 0; p < NB_MAX_PARTS && rc == NB_OK; p++) {
            const nb_tensor *t = j->in.scan.linears[i].parts[p];
            if (t && nb_strmap_put(parts, t->name, t->name_len, i, NULL) != NB_OK)
                rc = nb_enomem(err, "the tensor list");
        }
    for (size_t i = 0; i < s->n_tensors && rc == NB_OK; i++) {
        const nb_tensor *t = &s->tensors[i];
        uint64_t at;
        if (!nb_strmap_get(parts, t->name, t->name_len, &at)) {
            if (!t->data) {
                rc = nb_fail(err, NB_EUNSUPPORTED, "st.dtype", "", "the tensor has no plain bytes to copy");
                nb_err_at(err, t->file, t->name);
            }
            j->items[j->n_items++].plain = t;
        } else if (!seen[at]) {
            seen[at] = true;
            j->items[j->n_items].lin = &j->in.scan.linears[at];
            rc = plan_linear(j, &j->items[j->n_items++], err);
            j->n_linears++;
        }
    }
    nb_free(seen);
    nb_strmap_free(parts);
    return rc;
}

nb_status nb_relay_target(nb_relay *j, nb_err *err)
{
    bool sym = true;

    if (j->in.scan.n_linears == 0)
        return nb_fail(err, NB_EUNSUPPORTED, "conv.dense", "",
                       "these tensors are dense: there are no codes to move to another layout. "
                       "\xe2\x86\x92 Use nibble quantize.");
    for (size_t i = 0; i < j->in.scan.n_linears; i++)
        sym = sym && j->in.scan.linears[i].spec.sym;
    j->to = j->o->format ? j->o->format : j->in.scan.format;
    if (j->o->best_gptq && !sym)
        j->to = nb_format_find("gptq_v2");
    j->sum->from = j->in.scan.format;
    j->sum->format = j->to;
    return NB_OK;
}

nb_status nb_relay_plan(nb_relay *j, nb_err *err)
{
    const nb_status rc = list_items(j, err);

    if (rc == NB_OK && j->to->offsets && !j->in.scan.format->offsets)
        nb_log(j->o->host, NB_LOG_INFO, "zero points become float16 offsets; integer zeros stay recoverable. [CNV-070]");
    return rc == NB_OK ? plan_spec(j, err) : rc;
}

/* ---- configuration --------------------------------------------------------------------------------------------- */

/* Modules with a plain matrix that a loader would expect to be quantized: not embeddings and norms. */
static bool is_kept_linear(const nb_tensor *t)
{
    static const char suffix[] = ".weight";
    static const char *const other[] = { "embed", "norm", "wte", "wpe" };
    const size_t n = sizeof suffix - 1;
    char name[128];
    const char *last;

    if (t->rank != 2 || t->name_len <= n || t->name_len - n >= sizeof name || strcmp(t->name + t->name_len - n, suffix) != 0)
        return false;
    memcpy(name, t->name, t->name_len - n);
    name[t->name_len - n] = '\0';
    last = strrchr(name, '.') ? strrchr(name, '.') + 1 : name;
    for (size_t i = 0; i < NB_LEN(other); i++)
        if (strstr(last, other[i]))
            return false;
    return strcmp(name, "lm_head") != 0;
}

static nb_status quant_object(nb_relay *j, nb_json **out, nb_err *err)
{
    static const char *const kept[] = { "damp_percent", "true_sequential" };
    const char **skip = nb_arena_calloc(&j->arena, j->n_items + 1, sizeof *skip);
    const bool head = nb_scan_find(&j->in.scan, "lm_head") != NULL;
    size_t n = 0;
    nb_json *q;
    bool ok = skip != NULL;

    if (ok && !head)
        skip[n++] = "lm_head";
    for (size_t i = 0; i < j->n_items && ok; i++) {
        const nb_tensor *t = j->items[i].plain;
        if (t && is_kept_linear(t))
            ok = (skip[n++] = nb_arena_strndup(&j->arena, t->name, t->name_len - 7)) != NULL;
    }
    q = ok ? j->to->config(&j->spec, skip, n) : NULL;
    ok = q != NULL;
    if (ok && head && nb_json_get(q, "lm_head"))
        ok = nb_json_set(q, "lm_head", nb_json_new_bool(true));
    for (size_t i = 0; i < j->n_items && ok && j->to->override; i++) {
        const nb_relay_item *it = &j->items[i];
        if (it->lin && !same_spec(&j->spec, &it->spec, it->lin->k))
            ok = j->to->override(q, it->lin->prefix, &it->spec);
    }
    for (size_t i = 0; i < NB_LEN(kept) && ok && strcmp(j->to->method, "gptq") == 0; i++)
        if (nb_json_get(j->in.qcfg, kept[i]))
            ok = nb_json_set(q, kept[i], nb_json_copy(nb_json_get(j->in.qcfg, kept[i])));
    if (!ok) {
        nb_json_free(q);
        return nb_enomem(err, "the quantization config");
    }
    *out = q;
    return NB_OK;
}

/* config.json, and quantize_config.json where loaders of the method look for it (formats 6.8). */
nb_status nb_relay_configs(nb_relay *j, nb_outdir *out, nb_err *err)
{
    const bool ct = strcmp(j->to->method, "compressed-tensors") == 0;
    const nb_dtype t = j->spec.scale_dtype;
    const nb_json *config;
    nb_json *o = NULL, *q = NULL;
    nb_status rc = nb_hfdir_config(j->in.dir, &config, err);

    if (rc == NB_OK)
        rc = quant_object(j, &q, err);
    if (rc == NB_OK) {
        bool ok = (o = nb_json_copy(config)) && nb_conv_drop_quant(o);
        if (ok && !ct && (t == NB_DT_F16 || t == NB_DT_BF16))
            ok = nb_conv_set_dtype(o, nb_dtype_info(t)->torch, true);
        ok = ok && nb_json_set(o, "quantization_config", nb_json_copy(q));
        rc = ok ? nb_conv_put_json(out, "config.json", o, err) : nb_enomem(err, "config.json");
    }
    if (rc == NB_OK && !ct)
        rc = nb_conv_put_json(out, "quantize_config.json", q, err);
    nb_json_free(o);
    nb_json_free(q);
    return rc == NB_OK ? nb_conv_small_files(&j->in, j->o->host, out, err) : rc;
}

/* ---- names ----------------------------------------------------------------------------------------------------- */

nb_status nb_convert_target(const char *name, nb_convert_opts *o, nb_err *err)
{
    static const struct {
        const char *name, *format;
        bool best;
    } names[] = {
        { "awq", "awq-gemm", false },    { "gptq", "gptq", true },      { "gptq-v1", "gptq", false },
        { "gptq-v2", "gptq_v2", false }, { "gptq-p", "gptq_p", false }, { "ct", "compressed-tensors", false },
    };
    char esc[NB_ESC_CAP];

    o->dtype = nb_dtype_from_name(name);
    if (o->dtype == NB_DT_F16 || o->dtype == NB_DT_BF16 || o->dtype == NB_DT_F32)
        return NB_OK;
    o->dtype = NB_DT_NONE;
    if (strcmp(name, "gguf") == 0) {
        o->gguf = true;
        return NB_OK;
    }
    for (size_t i = 0; i < NB_LEN(names); i++)
        if (strcmp(name, names[i].name) == 0) {
            o->format = nb_format_find(names[i].format);
            o->best_gptq = names[i].best;
            return NB_OK;
        }
    if ((o->format = nb_format_find(name)))
        return NB_OK;
    return nb_fail(
        err, NB_EARG, "arg.value", "",
        "--to is \"%s\"; expected f16, bf16, f32, awq-gemm, awq-gemv, awq-gemv-fast, llm-awq, gptq, gptq-v1, gptq-v2, gptq-p, gguf or "
        "compressed-tensors",
        nb_esc(esc, sizeof esc, name, strlen(name)));
}

/* scan.c - tensors of a store grouped into quantized linears; the format decided from their shapes, checked against the config. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/strmap.h"
#include "quant/convention.h"
#include "quant/formats.h"
#include "quant/qrules.h"

typedef struct scan_impl {
    nb_arena arena;
    nb_linear *linears;
    size_t n, cap;
    nb_strmap *map; /* prefix -> index */
} scan_impl;

/* Everything a pass over the tensors needs. */
typedef struct scan_job {
    const nb_store *store;
    const nb_qconfig *cfg; /* NULL: no config */
    nb_qrules *rules;      /* of cfg */
    nb_report *report;
    nb_scan *out;
    scan_impl *impl;
    bool told_layout; /* CFG-008 once per model */
    nb_err *err;
} scan_job;

/* Names of parts, each paired with its place in the evidence. Anchors say that a prefix is quantized. */
static const struct {
    const char *suffix;
    size_t at;
    bool anchor;
} parts[] = {
    { ".qweight", offsetof(nb_evidence, qweight), true },
    { ".weight_packed", offsetof(nb_evidence, packed), true },
    { ".B", offsetof(nb_evidence, b), true },
    { ".qzeros", offsetof(nb_evidence, qzeros), false },
    { ".scales", offsetof(nb_evidence, scales), false },
    { ".g_idx", offsetof(nb_evidence, g_idx), false },
    { ".scaled_zeros", offsetof(nb_evidence, scaled_zeros), false },
    { ".weight_scale", offsetof(nb_evidence, packed_scale), false },
    { ".weight_zero_point", offsetof(nb_evidence, packed_zero), false },
    { ".weight_shape", offsetof(nb_evidence, packed_shape), false },
    { ".weight_g_idx", offsetof(nb_evidence, packed_idx), false },
    { ".s", offsetof(nb_evidence, s), false },
    { ".weight", offsetof(nb_evidence, weight), false },
    { ".bias", offsetof(nb_evidence, bias), false },
};

/* Row of parts[] that the name ends in, or -1. */
static int part_of(const nb_tensor *t)
{
    for (size_t i = 0; i < NB_LEN(parts); i++) {
        const size_t n = strlen(parts[i].suffix);
        if (t->name_len > n && memcmp(t->name + t->name_len - n, parts[i].suffix, n) == 0)
            return (int)i;
    }
    return -1;
}

static nb_status gather(const scan_job *j, const char *prefix, nb_evidence *e)
{
    const size_t n = strlen(prefix), cap = n + 32;
    char *name = nb_alloc(cap);

    if (!name)
        return nb_enomem(j->err, "a tensor name");
    memset(e, 0, sizeof *e);
    for (size_t i = 0; i < NB_LEN(parts); i++) {
        const nb_tensor *t;
        snprintf(name, cap, "%s%s", prefix, parts[i].suffix);
        t = nb_store_find(j->store, name);
        memcpy((char *)e + parts[i].at, &t, sizeof t);
    }
    nb_free(name);
    return NB_OK;
}

/* Escaped, shortened prefix for messages. */
static const char *shown(char *out, size_t cap, const char *prefix)
{
    return nb_esc(out, cap, prefix, strlen(prefix));
}

/* Rules about which tensors stand together. *skip: the linear cannot be judged further (report mode). */
static nb_status check_names(const scan_job *j, const char *prefix, const nb_evidence *e, const char *file, bool *skip)
{
    char text[NB_ESC_CAP];

    shown(text, sizeof text, prefix);
    *skip = true;
    if (e->qweight && e->packed)
        return nb_rule_hit(j->report, j->err, "NAM-009", file, text, "%s mixes two formats.", text);
    if (e->weight)
        return nb_rule_hit(j->report, j->err, "NAM-002", file, text, "%s has both weight and %s; only one may exist.", text,
                           e->qweight  ? "qweight"
                           : e->packed ? "weight_packed"
                                       : "B");
    if (e->qweight && !e->scales)
        return nb_rule_hit(j->report, j->err, "NAM-001", file, text, "%s has qweight but no scales.", text);
    if (e->packed && !e->packed_scale)
        return nb_rule_hit(j->report, j->err, "NAM-001", file, text, "%s has weight_packed but no weight_scale.", text);
    *skip = false;
    return NB_OK;
}

static nb_status push(const scan_job *j, const nb_linear *lin)
{
    scan_impl *m = j->impl;

    if (m->n == m->cap) {
        const size_t cap = m->cap ? m->cap * 2 : 64;
        nb_linear *p = cap > SIZE_MAX / sizeof *p ? NULL : nb_realloc(m->linears, cap * sizeof *p);
        if (!p)
            return nb_enomem(j->err, "the list of linears");
        m->linears = p;
        m->cap = cap;
    }
    if (nb_strmap_put(m->map, lin->prefix, strlen(lin->prefix), m->n, NULL) != NB_OK)
        return nb_enomem(j->err, "the index of linears");
    m->linears[m->n++] = *lin;
    return NB_OK;
}

/* Name of the row whose shapes a layout has. */
static const char *family(const char *layout)
{
    const nb_format *f = nb_format_find(layout);

    return f && f->family ? f->family : layout;
}

/* The layout for one prefix: from the tensors, else what the config declares. Disagreement is CFG-008. */
static nb_status decide(scan_job *j, const nb_evidence *e, const nb_tensor *anchor, const char *prefix, const char **layout)
{
    const char *found = nb_format_detect(e), *said = j->cfg->layout;
    char text[NB_ESC_CAP], shape[160];

    *layout = found ? found : said;
    if (found && said && strcmp(found, family(said)) == 0)
        *layout = said; /* shapes do not tell the rows of a family apart */
    else if (found && !j->told_layout) {
        j->told_layout = true;
        return nb_rule_hit(j->report, j->err, "CFG-008", anchor->file, shown(text, sizeof text, prefix),
                           "Config declares %s%s%s, but the tensors have the %s layout (%s). Editing the version field does not convert a "
                           "checkpoint. \xe2\x86\x92 Convert from %s.",
                           j->cfg->method, j->cfg->version[0] ? " " : "", j->cfg->version, found,
                           nb_shape_str(shape, sizeof shape, anchor->shape, anchor->rank), found);
    }
    return NB_OK;
}

static nb_status unsupported(const scan_job *j, const char *layout)
{
    return nb_fail(
        j->err, NB_EUNSUPPORTED, "cfg.quant_method", "",
        "the tensors have the %s layout (quant_method %s), which this version recognises but does not read. \xe2\x86\x92 Use an AWQ, "
        "GPTQ or compressed-tensors export of the model, or quantize the 16-bit original with `nibble quantize`.",
        layout ? layout : "unknown", j->cfg->method);
}

/* Must this part be there? Zero points may be absent from symmetric linears where the row says so; a group table only where the
 * order of inputs is natural or groups are static. */
static bool needed(const scan_job *j, const nb_linear *lin, const nb_part *p)
{
    const nb_json *root = j->cfg->root;

    if (!p->optional)
        return true;
    if (p->role == NB_PART_ZEROS)
        return !lin->spec.sym;
    return p->role == NB_PART_G_IDX && lin->spec.desc_act && !nb_json_bool(nb_json_get(root, "static_groups"), false) &&
           !nb_json_bool(nb_json_get(nb_json_get(root, "meta"), "static_groups"), false);
}

static unsigned declared_variant(const nb_qconfig *c, const nb_format *f)
{
    if (f == &nb_fmt_gptq)
        return c->word_zeros ? NB_ZEROS_WORD : NB_ZEROS_FIELD;
    if (f == &nb_fmt_ct)
        return c->old_words ? NB_CT_ALIGNED : NB_CT_DENSE;
    return 0;
}

static nb_status add_linear(scan_job *j, const nb_tensor *anchor, const char *prefix, const nb_evidence *e)
{
    nb_linear lin = { .prefix = prefix, .spec = j->cfg->spec, .bias = e->bias };
    char name[NB_ESC_CAP];
    const char *layout, *excluded;
    nb_err local = { 0 };
    nb_status rc;

    if ((rc = decide(j, e, anchor, prefix, &layout)) != NB_OK ||
        (rc = nb_qrules_spec(j->rules, prefix, &lin.spec, &excluded, j->err)) != NB_OK)
        return rc;
    lin.format = nb_format_find(layout);
    if (!lin.format)
        return unsupported(j, layout);
    lin.variant = declared_variant(j->cfg, lin.format);
    for (size_t p = 0; p < NB_MAX_PARTS && lin.format->parts[p].suffix; p++) {
        const size_t n = strlen(lin.format->parts[p].suffix);
        for (size_t i = 0; i < NB_LEN(parts); i++)
            if (strcmp(parts[i].suffix + 1, lin.format->parts[p].suffix) == 0 && n)
                memcpy(&lin.parts[p], (const char *)e + parts[i].at, sizeof lin.parts[p]);
        if (!lin.parts[p] && needed(j, &lin, &lin.format->parts[p])) {
            shown(name, sizeof name, prefix);
            return nb_rule_hit(j->report, j->err, "NAM-001", anchor->file, name, "%s has %s but no %s.", name,
                               strrchr(anchor->name, '.') + 1, lin.format->parts[p].suffix);
        }
    }
    rc = lin.format->shape(&lin, &local);
    if (rc != NB_OK) {
        if (j->report && local.rule[0] && rc != NB_ENOMEM) /* what no rule names is legal but not ours, and ends the scan */
            return nb_rule_report_err(j->report, &local);
        if (j->err && j->err->code == NB_OK)
            *j->err = local;
        return rc;
    }
    for (size_t p = 0; p < NB_MAX_PARTS; p++) /* read whole; of a large model these are many */
        if (lin.parts[p] && lin.format->parts[p].role == NB_PART_G_IDX)
            nb_store_drop(j->store, lin.parts[p]);
    for (size_t p = 0; p < NB_MAX_PARTS; p++)
        if (lin.parts[p] && lin.parts[p]->dtype == NB_DT_U32 &&
            (rc = nb_rule_warn(j->report, "SHP-001", lin.parts[p]->file, lin.parts[p]->name, "%s is U32, expected I32.",
                               lin.format->parts[p].suffix)) != NB_OK)
            return rc;
    if (!j->out->format)
        j->out->format = lin.format;
    return push(j, &lin);
}

/* A part without its anchor: an activation scale (formats 3.6), or the rest of a linear whose codes are gone. */
static nb_status check_orphan(const scan_job *j, const nb_tensor *t, const char *prefix, const nb_evidence *e)
{
    char text[NB_ESC_CAP];

    if (e->qweight || e->packed || e->b)
        return NB_OK;
    if (t == e->scales && !e->qzeros) {
        shown(text, sizeof text, t->name);
        return nb_rule_hit(j->report, j->err, "NAM-008", t->file, text,
                           "%s is an AWQ activation scale; ignoring it would change the result, and this model has no place for it.", text);
    }
    if (t == e->qzeros) {
        shown(text, sizeof text, prefix);
        return nb_rule_hit(j->report, j->err, "NAM-001", t->file, text, "%s has qzeros but no qweight.", text);
    }
    return NB_OK;
}

static nb_status visit(scan_job *j, const nb_tensor *t)
{
    const int p = part_of(t);
    nb_evidence e;
    char *prefix;
    bool skip;
    nb_status rc;

    if (p < 0 || parts[p].at == offsetof(nb_evidence, weight) || parts[p].at == offsetof(nb_evidence, bias))
        return NB_OK;
    prefix = nb_arena_strndup(&j->impl->arena, t->name, t->name_len - strlen(parts[p].suffix));
    if (!prefix)
        return nb_enomem(j->err, "a module name");
    if ((rc = gather(j, prefix, &e)) != NB_OK)
        return rc;
    if (!parts[p].anchor)
        return check_orphan(j, t, prefix, &e);
    if ((t == e.b && !e.s) || (t == e.packed && e.qweight)) /* some other ".B"; or told once at qweight */
        return NB_OK;
    if ((rc = check_names(j, prefix, &e, t->file, &skip)) != NB_OK || skip)
        return rc;
    return add_linear(j, t, prefix, &e);
}

/* GPTQ zero points that contradict the declared convention: what the tensors say is used (ORD-005, VAL-016). */
static nb_status settle_zeros(scan_job *j)
{
    scan_impl *m = j->impl;
    const nb_format *said = NULL, *use;
    unsigned variant;
    nb_zero_verdict v;
    nb_status rc;

    for (size_t i = 0; i < m->n && !said; i++)
        if (m->linears[i].format == &nb_fmt_gptq || m->linears[i].format == &nb_fmt_gptq_v2)
            said = m->linears[i].format;
    if (!said)
        return NB_OK;
    if ((rc = nb_zero_convention(j->store, m->linears, m->n, &v, j->err)) != NB_OK)
        return rc;
    use = v.reading < 0 ? said : v.reading == NB_ZEROS_TRUE ? &nb_fmt_gptq_v2 : &nb_fmt_gptq;
    variant = v.reading == NB_ZEROS_LEGACY3 ? NB_ZEROS_LEGACY3 : declared_variant(j->cfg, use);
    if (use == said && v.reading != NB_ZEROS_LEGACY3)
        return NB_OK;
    for (size_t i = 0; i < m->n; i++)
        if (m->linears[i].format == said) {
            m->linears[i].format = use;
            m->linears[i].variant = variant == NB_ZEROS_LEGACY3 && m->linears[i].spec.bits != 3 ? NB_ZEROS_WORD : variant;
        }
    if (j->out->format == said)
        j->out->format = use;
    if (v.reading == NB_ZEROS_LEGACY3) {
        snprintf(j->out->note, sizeof j->out->note, "3-bit zero points of an older GPTQModel release are repaired on reading (%s)", v.why);
        return nb_rule_hit(j->report, j->err, "VAL-016", j->cfg->source, "checkpoint_format",
                           "3-bit zero points were saved with the shift of an older GPTQModel release; they are repaired on reading (%s). "
                           "\xe2\x86\x92 Re-save to make the file portable.",
                           v.why);
    }
    snprintf(j->out->note, sizeof j->out->note, "the config says %s, zero points say %s (%s); using %s", said->name, use->name, v.why,
             use->name);
    return nb_rule_hit(j->report, j->err, "ORD-005", j->cfg->source, "checkpoint_format",
                       "Config says %s, zero points say %s (%s). Using %s. \xe2\x86\x92 Fix checkpoint_format to avoid \"!!!!\" output in "
                       "servers.",
                       said->name, use->name, v.why, use->name);
}

/* desc_act against the group tables, once per model. */
static nb_status check_order(scan_job *j)
{
    const scan_impl *m = j->impl;
    const nb_linear *odd = NULL;
    bool said = false, any = false;

    for (size_t i = 0; i < m->n; i++) {
        any = any || m->linears[i].act_order;
        said = said || m->linears[i].spec.desc_act;
        if (!odd && m->linears[i].act_order && !m->linears[i].spec.desc_act)
            odd = &m->linears[i];
    }
    if (odd)
        return nb_rule_hit(j->report, j->err, "ORD-006", odd->parts[0]->file, odd->prefix,
                           "desc_act is false, but g_idx is reordered; g_idx is used.");
    if (said && !any)
        return nb_rule_hit(j->report, j->err, "ORD-007", j->cfg->source, "desc_act",
                           "desc_act is true, but g_idx is in natural order (static groups).");
    return NB_OK;
}

/* Packed tensors in the store, for CFG-001. */
static size_t count_anchors(const nb_store *s)
{
    size_t n = 0;

    for (size_t i = 0; i < s->n_tensors; i++) {
        const int p = part_of(&s->tensors[i]);
        n += p == 0 || p == 1; /* .qweight, .weight_packed */
    }
    return n;
}

/* MXFP4 experts are tensors of their own that the model reads; no linear here is packed. */
static bool is_mxfp4(const nb_store *s, const nb_json *qcfg)
{
    bool blocks = false;

    if (strcmp(nb_json_str(nb_json_get(qcfg, "quant_method"), ""), "mxfp4") != 0)
        return false;
    for (size_t i = 0; i < s->n_tensors && !blocks; i++) {
        const nb_tensor *t = &s->tensors[i];
        blocks = t->name_len > 7 && memcmp(t->name + t->name_len - 7, "_blocks", 7) == 0;
    }
    return blocks;
}

nb_status nb_scan_open(const nb_store *s, const nb_json *qcfg, const char *source, nb_report *report, nb_scan *out, nb_err *err)
{
    nb_qconfig cfg;
    nb_qrules *rules = NULL;
    scan_job j = { .store = s, .cfg = &cfg, .report = report, .out = out, .err = err };
    size_t packed;
    nb_status rc = NB_OK;

    memset(out, 0, sizeof *out);
    packed = count_anchors(s);
    if (!qcfg || nb_json_is_null(qcfg)) {
        if (packed == 0)
            return NB_OK;
        return nb_rule_hit(
            report, err, "CFG-001", s->path, NULL,
            "Found %zu packed tensors but no quantization_config, quantize_config.json or quant_config.json. Bit width and group "
            "size cannot be trusted from tensors alone. \xe2\x86\x92 Pass --bits/--group-size/--format to inspect.",
            packed);
    }
    if (packed == 0 && is_mxfp4(s, qcfg))
        return NB_OK;
    if ((rc = nb_qconfig_parse(qcfg, source, report, &cfg, err)) != NB_OK) {
        nb_err_at(err, source, NULL);
        return rc;
    }
    out->spec = cfg.spec;
    j.impl = out->impl = nb_calloc(1, sizeof *j.impl);
    if (!j.impl || !(j.impl->map = nb_strmap_new(packed)))
        rc = nb_enomem(err, "the scan");
    if (rc == NB_OK)
        rc = nb_qrules_open(&cfg, report, &rules, err);
    j.rules = rules;
    for (size_t i = 0; rc == NB_OK && i < s->n_tensors; i++)
        rc = visit(&j, &s->tensors[i]);
    nb_qrules_close(rules);
    if (rc == NB_OK)
        rc = settle_zeros(&j);
    if (rc == NB_OK && report)
        rc = check_order(&j);
    if (rc != NB_OK) {
        nb_err_at(err, s->path, NULL);
        nb_scan_clear(out);
        return rc;
    }
    out->linears = j.impl->linears;
    out->n_linears = j.impl->n;
    return NB_OK;
}

void nb_scan_clear(nb_scan *sc)
{
    scan_impl *m = sc->impl;

    if (m) {
        nb_arena_clear(&m->arena);
        nb_strmap_free(m->map);
        nb_free(m->linears);
        nb_free(m);
    }
    memset(sc, 0, sizeof *sc);
}

const nb_linear *nb_scan_find(const nb_scan *sc, const char *prefix)
{
    const scan_impl *m = sc->impl;
    uint64_t at;

    if (!m || !nb_strmap_get(m->map, prefix, strlen(prefix), &at))
        return NULL;
    return &m->linears[at];
}

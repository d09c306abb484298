/* inspect.c - see inspect.h. */
#include "job/inspect.h"
#include "job/inferred.h"

#include <stdio.h>
#include <string.h>

#include "base/cpu.h"
#include "base/mem.h"
#include "base/strmap.h"
#include "io/io.h"
#include "model/config.h"
#include "model/model.h"
#include "model/plan.h"
#include "quant/quant.h"

static void copy_text(char *out, size_t cap, const char *s)
{
    char esc[NB_ESC_CAP];

    snprintf(out, cap, "%s", nb_esc(esc, sizeof esc, s, strlen(s)));
}

static void refuse(nb_inspect *in, const nb_err *e)
{
    if (in->why[0] == '\0')
        snprintf(in->why, sizeof in->why, "%.150s%s%.350s", e->subject, e->subject[0] ? ": " : "", e->what);
}

static void add_type(nb_inspect *in, const char *name, uint64_t bytes)
{
    size_t i = 0;

    while (i < in->n_types && strcmp(in->types[i].name, name) != 0)
        i++;
    if (i == NB_INSPECT_TYPES)
        return;
    if (i == in->n_types) {
        snprintf(in->types[i].name, sizeof in->types[i].name, "%s", name);
        in->n_types++;
    }
    in->types[i].n_tensors++;
    in->types[i].n_bytes += bytes;
}

/* Stored types by falling bytes. */
static void sort_types(nb_inspect *in)
{
    for (size_t i = 1; i < in->n_types; i++) {
        for (size_t k = i; k > 0 && in->types[k].n_bytes > in->types[k - 1].n_bytes; k--) {
            const nb_inspect_type t = in->types[k];
            in->types[k] = in->types[k - 1];
            in->types[k - 1] = t;
        }
    }
}

static void look_at_store(nb_inspect *in, const nb_store *s)
{
    const bool gguf = strcmp(s->kind, "gguf") == 0;

    snprintf(in->container, sizeof in->container, "%s", s->kind);
    in->n_files = s->n_files;
    in->n_tensors = s->n_tensors;
    in->n_bytes = s->total_bytes;
    for (size_t i = 0; i < s->n_tensors; i++) {
        const nb_tensor *t = &s->tensors[i];
        const nb_dtype_row *row = nb_dtype_info(t->dtype);
        add_type(in, gguf ? nb_gguf_type_name(t->file_type) : row->st ? row->st : row->name, nb_gguf_stored_bytes(t));
    }
    sort_types(in);
    for (size_t i = 0; s->notes && i < nb_report_count(s->notes) && i < NB_INSPECT_NOTES; i++) {
        const nb_finding *f = nb_report_at(s->notes, i);
        snprintf(in->notes[in->n_notes++], sizeof in->notes[0], "%.60s%s%.80s%s%.160s", f->file, f->subject[0] ? ": " : "", f->subject,
                 ": ", f->what);
    }
}

/* Weights of the model: what is not a part of a quantized linear counts its float elements. */
static nb_status count_params(nb_inspect *in, const nb_store *s, const nb_scan *sc, nb_err *err)
{
    nb_strmap *parts = nb_strmap_new(sc->n_linears * 4 + 1);
    nb_status rc = parts ? NB_OK : nb_enomem(err, "the tensor list");

    for (size_t i = 0; i < sc->n_linears && rc == NB_OK; i++) {
        in->n_params += (uint64_t)sc->linears[i].n * sc->linears[i].k;
        for (size_t p = 0; p < NB_MAX_PARTS; p++) {
            const nb_tensor *t = sc->linears[i].parts[p];
            if (t && nb_strmap_put(parts, t->name, t->name_len, i, NULL) != NB_OK)
                rc = nb_enomem(err, "the tensor list");
        }
    }
    for (size_t i = 0; i < s->n_tensors && rc == NB_OK; i++) {
        const nb_tensor *t = &s->tensors[i];
        uint64_t n;
        if (nb_dtype_info(t->dtype)->is_float && !nb_strmap_get(parts, t->name, t->name_len, &n) && nb_shape_count(t->shape, t->rank, &n))
            in->n_params += n;
    }
    nb_strmap_free(parts);
    return rc;
}

/* Keys of config.json as they stand, for architectures outside our table. */
static void look_at_json(nb_inspect *in, const nb_json *root)
{
    const nb_json *text = nb_json_typeof(nb_json_get(root, "text_config")) == NB_JOBJ ? nb_json_get(root, "text_config") : root;
    const struct {
        const char *key;
        size_t *to;
    } rows[] = { { "num_hidden_layers", &in->layers },
                 { "hidden_size", &in->hidden },
                 { "intermediate_size", &in->ff },
                 { "num_attention_heads", &in->heads },
                 { "num_key_value_heads", &in->kv_heads },
                 { "head_dim", &in->head_dim },
                 { "vocab_size", &in->vocab },
                 { "max_position_embeddings", &in->max_context } };

    in->has_config = true;
    copy_text(in->model_type, sizeof in->model_type, nb_json_str(nb_json_get(root, "model_type"), ""));
    copy_text(in->class_name, sizeof in->class_name, nb_json_str(nb_json_at(nb_json_get(root, "architectures"), 0), ""));
    for (size_t i = 0; i < NB_LEN(rows); i++) {
        const int64_t v = nb_json_int(nb_json_get(text, rows[i].key), 0);
        *rows[i].to = v > 0 ? (size_t)v : 0;
    }
    in->tied = nb_json_bool(nb_json_get(text, "tie_word_embeddings"), false);
}

static void look_at_config(nb_inspect *in, const nb_config *c)
{
    in->known = true;
    snprintf(in->model_type, sizeof in->model_type, "%s", c->model_type);
    snprintf(in->class_name, sizeof in->class_name, "%s", c->class_name);
    in->layers = c->n_layers / (c->halves ? c->halves : 1);
    in->hidden = c->d_model;
    in->ff = c->d_ff;
    in->heads = c->n_heads;
    in->kv_heads = c->n_kv_heads;
    in->head_dim = c->head_dim;
    in->vocab = c->vocab;
    in->max_context = c->context;
    in->tied = c->tie_embeddings;
}

static void look_at_quant(nb_inspect *in, const nb_json *qcfg, const nb_scan *sc)
{
    if (strcmp(in->container, "gguf") == 0) {
        if (in->n_types > 0 && (in->types[0].name[0] == 'Q' || in->types[0].name[0] == 'I')) {
            snprintf(in->method, sizeof in->method, "gguf");
            snprintf(in->layout, sizeof in->layout, "%s", in->types[0].name);
        }
        return;
    }
    if (qcfg) {
        copy_text(in->method, sizeof in->method, nb_json_str(nb_json_get(qcfg, "quant_method"), "unknown"));
        in->bits = (unsigned)nb_json_int(nb_json_get(qcfg, nb_json_get(qcfg, "bits") ? "bits" : "w_bit"), 0);
        in->group_size = nb_json_int(nb_json_get(qcfg, nb_json_get(qcfg, "group_size") ? "group_size" : "q_group_size"), 0);
        in->sym = nb_json_bool(nb_json_get(qcfg, "sym"), !nb_json_bool(nb_json_get(qcfg, "zero_point"), true));
        in->desc_act = nb_json_bool(nb_json_get(qcfg, "desc_act"), false);
    }
    if (sc->format) {
        snprintf(in->method, sizeof in->method, "%s", sc->format->method);
        snprintf(in->layout, sizeof in->layout, "%s", sc->format->name);
        in->bits = sc->spec.bits;
        in->group_size = sc->spec.group_size;
        in->sym = sc->spec.sym;
        in->desc_act = sc->spec.desc_act;
        in->n_linears = sc->n_linears;
    }
}

/* Can it run, and in how much memory? Whatever says no writes `why`. */
static void judge(nb_inspect *in, const nb_config *cfg, const nb_store *s, const nb_scan *sc)
{
    nb_plan plan = { 0 };
    nb_fit fit;
    nb_err e = { 0 };

    if (nb_plan_build(cfg, s, &plan, &e) != NB_OK || nb_model_fit(cfg, &plan, sc, s, in->context, 512, NB_DT_F16, &fit, &e) != NB_OK) {
        refuse(in, &e);
    } else {
        in->weights = fit.weights;
        in->kv = fit.kv;
        in->scratch = fit.scratch;
        in->memory = fit.weights + fit.kv + fit.scratch;
        if (in->machine > 0 && in->memory > in->machine)
            snprintf(in->why, sizeof in->why, "it needs %.1f GB, this machine has %.1f GB", (double)in->memory / 1e9,
                     (double)in->machine / 1e9);
    }
    nb_plan_clear(&plan);
}

static nb_status open_store(const char *path, nb_inspect *in, nb_store **s, nb_err *err)
{
    nb_err e = { 0 };
    nb_container kind;
    nb_status rc = nb_sniff(path, &kind, err);

    if (rc != NB_OK)
        return rc;
    if (kind != NB_IO_GGUF)
        return nb_open(path, s, err);
    rc = nb_gguf_hf_open(path, s, &e); /* not an architecture we can name: list the file as it is */
    if (rc == NB_OK)
        return NB_OK;
    rc = nb_gguf_open(path, s, err);
    if (rc == NB_OK)
        refuse(in, &e);
    return rc;
}

/* Packed tensors without a config: what their shapes say (BB-13), also where that is not enough to read them. */
static nb_status infer(nb_inspect *in, const nb_store *s, const nb_qhint *hint, nb_json **config, nb_scan *scan, nb_err *err)
{
    char note[160];
    nb_err e = { 0 };
    nb_status rc = nb_infer_scan(s, hint, config, scan, note, sizeof note, &e);

    if (rc != NB_OK && strcmp(e.rule, "CFG-001") != 0)
        return nb_fail(err, rc, e.cls, e.rule, "%s", e.what);
    if (rc != NB_OK) {
        refuse(in, &e);
        rc = nb_quant_infer(s, hint, config, note, sizeof note, err);
        if (rc == NB_OK && *config)
            rc = nb_scan_open(s, *config, "", NULL, scan, err);
    }
    if (rc == NB_OK && *config && in->n_notes < NB_INSPECT_NOTES)
        copy_text(in->notes[in->n_notes++], sizeof in->notes[0], note);
    return rc;
}

nb_status nb_inspect_path(const char *path, size_t context, nb_inspect *in, nb_err *err)
{
    return nb_inspect_as(path, context, NULL, in, err);
}

nb_status nb_inspect_as(const char *path, size_t context, const nb_qhint *hint, nb_inspect *in, nb_err *err)
{
    nb_json *inferred = NULL;
    nb_store *s = NULL;
    nb_hfdir *dir = NULL;
    const nb_json *root = NULL, *qcfg = NULL;
    const char *source = NULL;
    nb_scan scan = { 0 };
    nb_config cfg = { 0 };
    nb_err e = { 0 };
    nb_status rc;

    memset(in, 0, sizeof *in);
    in->machine = nb_mem_total();
    rc = open_store(path, in, &s, err);
    if (rc != NB_OK)
        goto done;
    look_at_store(in, s);
    rc = nb_hfdir_open(path, &dir, err);
    if (rc != NB_OK)
        goto done;
    if (nb_hfdir_config(dir, &root, &e) == NB_OK) {
        look_at_json(in, root);
        if (nb_config_parse(root, &cfg, &e) == NB_OK)
            look_at_config(in, &cfg);
    } else if (e.code == NB_EFORMAT && !nb_hfdir_is_gguf(dir)) {
        rc = nb_fail(err, e.code, e.cls, e.rule, "%s", e.what);
        nb_err_at(err, e.file, e.subject);
        goto done;
    }
    if (!in->known)
        refuse(in, &e);
    nb_err_clear(&e);
    if (nb_hfdir_quant_config(dir, &qcfg, &source, &e) != NB_OK) {
        refuse(in, &e);
    } else if (nb_json_is_null(qcfg)) {
        rc = infer(in, s, hint, &inferred, &scan, err);
        qcfg = inferred;
    } else if (nb_infer_said(hint)) {
        rc = nb_infer_conflict(source, err);
    } else if (nb_scan_open(s, qcfg, source, NULL, &scan, &e) != NB_OK) {
        refuse(in, &e);
        memset(&scan, 0, sizeof scan);
    }
    if (rc != NB_OK)
        goto done;
    look_at_quant(in, qcfg, &scan);
    if (!qcfg || scan.format) /* else the layout hides how many there are */
        rc = count_params(in, s, &scan, err);
    if (rc != NB_OK)
        goto done;
    in->context = context ? context : in->max_context < 8192 ? in->max_context : 8192;
    if (in->known && in->why[0] == '\0')
        judge(in, &cfg, s, &scan);
    in->runs = in->why[0] == '\0';
done:
    nb_config_clear(&cfg);
    nb_scan_clear(&scan);
    nb_json_free(inferred);
    nb_hfdir_close(dir);
    nb_store_close(s);
    nb_err_at(err, path, NULL);
    return rc;
}

static nb_json *number(uint64_t v)
{
    return nb_json_new_int(v < INT64_MAX ? (int64_t)v : INT64_MAX);
}

static bool put_tables(nb_json *o, const nb_inspect *in)
{
    nb_json *types = nb_json_new_arr(), *notes;
    bool ok = nb_json_set(o, "types", types);

    for (size_t i = 0; ok && i < in->n_types; i++) {
        nb_json *t = nb_json_new_obj();
        ok = nb_json_push(types, t) && nb_json_set(t, "type", nb_json_new_str(in->types[i].name)) &&
             nb_json_set(t, "tensors", number(in->types[i].n_tensors)) && nb_json_set(t, "bytes", number(in->types[i].n_bytes));
    }
    notes = ok ? nb_json_new_arr() : NULL;
    ok = ok && nb_json_set(o, "notes", notes);
    for (size_t i = 0; ok && i < in->n_notes; i++)
        ok = nb_json_push(notes, nb_json_new_str(in->notes[i]));
    return ok;
}

nb_json *nb_inspect_json(const nb_inspect *in)
{
    const struct {
        const char *key;
        uint64_t v;
        bool known;
    } rows[] = { { "files", in->n_files, true },
                 { "tensors", in->n_tensors, true },
                 { "bytes", in->n_bytes, true },
                 { "parameters", in->n_params, in->n_params > 0 },
                 { "layers", in->layers, in->layers > 0 },
                 { "hidden_size", in->hidden, in->hidden > 0 },
                 { "intermediate_size", in->ff, in->ff > 0 },
                 { "heads", in->heads, in->heads > 0 },
                 { "kv_heads", in->kv_heads, in->kv_heads > 0 },
                 { "head_dim", in->head_dim, in->head_dim > 0 },
                 { "vocab_size", in->vocab, in->vocab > 0 },
                 { "max_context", in->max_context, in->max_context > 0 },
                 { "quantized_linears", in->n_linears, true },
                 { "context", in->context, in->context > 0 },
                 { "weights_bytes", in->weights, in->memory > 0 },
                 { "kv_bytes", in->kv, in->memory > 0 },
                 { "scratch_bytes", in->scratch, in->memory > 0 },
                 { "memory_bytes", in->memory, in->memory > 0 },
                 { "machine_bytes", in->machine, in->machine > 0 } };
    nb_json *o = nb_json_new_obj();
    bool ok = o && nb_json_set(o, "container", nb_json_new_str(in->container)) &&
              nb_json_set(o, "model_type", in->model_type[0] ? nb_json_new_str(in->model_type) : nb_json_new_null()) &&
              nb_json_set(o, "architecture", in->class_name[0] ? nb_json_new_str(in->class_name) : nb_json_new_null()) &&
              nb_json_set(o, "quantization", in->method[0] ? nb_json_new_str(in->method) : nb_json_new_null()) &&
              nb_json_set(o, "layout", in->layout[0] ? nb_json_new_str(in->layout) : nb_json_new_null());

    if (ok && in->bits > 0)
        ok = nb_json_set(o, "bits", nb_json_new_int(in->bits)) && nb_json_set(o, "group_size", nb_json_new_int(in->group_size)) &&
             nb_json_set(o, "sym", nb_json_new_bool(in->sym)) && nb_json_set(o, "desc_act", nb_json_new_bool(in->desc_act));
    for (size_t i = 0; ok && i < NB_LEN(rows); i++)
        ok = nb_json_set(o, rows[i].key, rows[i].known ? number(rows[i].v) : nb_json_new_null());
    ok = ok && nb_json_set(o, "tied", nb_json_new_bool(in->tied)) && nb_json_set(o, "runs", nb_json_new_bool(in->runs)) &&
         nb_json_set(o, "why", in->why[0] ? nb_json_new_str(in->why) : nb_json_new_null()) && put_tables(o, in);
    if (ok)
        return o;
    nb_json_free(o);
    return NULL;
}

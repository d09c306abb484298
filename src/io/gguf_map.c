/* gguf_map.c - a GGUF file in Hugging Face terms: tensor names, and the row order of q and k.
 *
 * Files of the llama family store the rows of q and k for a rotation of neighbouring pairs; Hugging Face rotates halves.
 * Per head of d rows:  row[j] = stored[2j],  row[d/2 + j] = stored[2j + 1],  j < d/2. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/num.h"
#include "io/gguf_meta.h"
#include "io/io.h"
#include "io/io_priv.h"

static const nb_gguf_arch archs[] = {
    { .name = "llama", .model_type = "llama", .cls = "LlamaForCausalLM", .interleaved = true },
    { .name = "qwen2", .model_type = "qwen2", .cls = "Qwen2ForCausalLM", .qkv_bias = true },
    { .name = "qwen3", .model_type = "qwen3", .cls = "Qwen3ForCausalLM", .qk_norm = true },
};

nb_status nb_gguf_arch_of(const nb_store *s, const nb_gguf_arch **out, nb_err *err)
{
    const nb_json *v;
    char esc[NB_ESC_CAP];
    nb_status rc = nb_gguf_get(s, "general.architecture", NB_JSTR, true, &v, err);

    *out = NULL;
    if (rc != NB_OK)
        return rc;
    for (size_t i = 0; i < NB_LEN(archs); i++) {
        if (strcmp(nb_json_str(v, ""), archs[i].name) == 0) {
            *out = &archs[i];
            return NB_OK;
        }
    }
    return nb_fail(err, NB_EUNSUPPORTED, "gguf.arch", "", "architecture \"%s\" is not read from GGUF; llama, qwen2 and qwen3 are",
                   nb_esc(esc, sizeof esc, nb_json_str(v, ""), nb_json_str_len(v)));
}

const nb_gguf_arch *nb_gguf_arch_named(const char *model_type)
{
    for (size_t i = 0; i < NB_LEN(archs); i++) {
        if (strcmp(model_type, archs[i].model_type) == 0)
            return &archs[i];
    }
    return NULL;
}

nb_status nb_gguf_get(const nb_store *s, const char *key, nb_json_type type, bool needed, const nb_json **out, nb_err *err)
{
    static const char *const names[] = { "nothing", "a true/false value", "an integer", "a number", "a string", "an array", "an object" };
    const char *arch = nb_json_str(nb_json_get(s->meta, "general.architecture"), "");
    char full[320];
    nb_json_type have;

    *out = NULL;
    if (strncmp(key, "%s", 2) == 0)
        snprintf(full, sizeof full, "%.128s%.128s", arch, key + 2);
    else
        snprintf(full, sizeof full, "%.256s", key);
    *out = nb_json_get(s->meta, full);
    have = nb_json_typeof(*out);
    if (!*out) {
        if (!needed)
            return NB_OK;
        nb_fail(err, NB_EFORMAT, "gguf.meta_type", "", "the key is missing; expected %s", names[type]);
    } else if (have == type || (type == NB_JREAL && have == NB_JINT)) {
        return NB_OK;
    } else {
        nb_fail(err, NB_EFORMAT, "gguf.meta_type", "", "is %s; expected %s", names[have], names[type]);
    }
    *out = NULL;
    nb_err_at(err, s->path, full);
    return NB_EFORMAT;
}

nb_status nb_gguf_int(const nb_store *s, const char *key, int64_t dflt, int64_t min, int64_t max, int64_t *out, nb_err *err)
{
    const nb_json *v;
    nb_status rc = nb_gguf_get(s, key, NB_JINT, dflt < min, &v, err);

    *out = dflt;
    if (rc != NB_OK || !v)
        return rc;
    *out = nb_json_int(v, dflt);
    if (*out >= min && *out <= max)
        return NB_OK;
    nb_fail(err, NB_EFORMAT, "cfg.value", "", "is %lld; expected %lld to %lld", (long long)*out, (long long)min, (long long)max);
    nb_err_at(err, s->path, strncmp(key, "%s.", 3) == 0 ? key + 3 : key);
    return NB_EFORMAT;
}

typedef struct name_row {
    const char *gguf, *hf;
    nb_gguf_order order;
} name_row;

static const name_row tops[] = {
    { "token_embd.weight", "model.embed_tokens.weight", NB_GGUF_PLAIN },
    { "output_norm.weight", "model.norm.weight", NB_GGUF_PLAIN },
    { "output.weight", "lm_head.weight", NB_GGUF_PLAIN },
};
/* The first nine every layer must have. */
enum { N_NEEDED = 9 };
static const name_row layers[] = {
    { "attn_norm.weight", "input_layernorm.weight", NB_GGUF_PLAIN },
    { "attn_q.weight", "self_attn.q_proj.weight", NB_GGUF_ROPE_Q },
    { "attn_k.weight", "self_attn.k_proj.weight", NB_GGUF_ROPE_K },
    { "attn_v.weight", "self_attn.v_proj.weight", NB_GGUF_PLAIN },
    { "attn_output.weight", "self_attn.o_proj.weight", NB_GGUF_PLAIN },
    { "ffn_norm.weight", "post_attention_layernorm.weight", NB_GGUF_PLAIN },
    { "ffn_gate.weight", "mlp.gate_proj.weight", NB_GGUF_PLAIN },
    { "ffn_up.weight", "mlp.up_proj.weight", NB_GGUF_PLAIN },
    { "ffn_down.weight", "mlp.down_proj.weight", NB_GGUF_PLAIN },
    { "attn_q.bias", "self_attn.q_proj.bias", NB_GGUF_ROPE_Q },
    { "attn_k.bias", "self_attn.k_proj.bias", NB_GGUF_ROPE_K },
    { "attn_v.bias", "self_attn.v_proj.bias", NB_GGUF_PLAIN },
    { "attn_q_norm.weight", "self_attn.q_norm.weight", NB_GGUF_PLAIN },
    { "attn_k_norm.weight", "self_attn.k_norm.weight", NB_GGUF_PLAIN },
};

typedef struct hf_store {
    nb_store base;
    nb_store *gguf; /* owned */
    nb_arena arena;
    size_t *from;  /* [n_tensors] index in gguf                     */
    size_t *heads; /* [n_tensors] heads of interleaved rows, else 0 */
} hf_store;

static void hf_close(nb_store *base)
{
    hf_store *s = (hf_store *)base;

    nb_store_unindex(base);
    nb_store_close(s->gguf);
    nb_arena_clear(&s->arena);
    nb_free(s);
}

static nb_status hf_read(nb_store *base, const nb_tensor *t, uint64_t begin, uint64_t n, float *out, nb_err *err)
{
    const hf_store *s = (const hf_store *)base;
    const nb_tensor *src = &s->gguf->tensors[s->from[t->index]];
    const uint64_t heads = s->heads[t->index];
    const uint64_t width = t->rank == 2 ? t->shape[1] : 1;

    if (heads == 0)
        return nb_store_read_f32(s->gguf, src, begin, n, out, err);
    while (n > 0) {
        const uint64_t d = t->shape[0] / heads, row = begin / width, col = begin % width, head = row / d, j = row % d;
        const uint64_t stored = head * d + (j < d / 2 ? 2 * j : 2 * (j - d / 2) + 1);
        const uint64_t take = n < width - col ? n : width - col;
        nb_status rc = nb_store_read_f32(s->gguf, src, stored * width + col, take, out, err);
        if (rc != NB_OK)
            return rc;
        out += take;
        begin += take;
        n -= take;
    }
    return NB_OK;
}

static void hf_drop(const nb_store *base, const nb_tensor *t)
{
    const hf_store *s = (const hf_store *)base;

    nb_store_drop(s->gguf, &s->gguf->tensors[s->from[t->index]]);
}

static nb_status hf_still(nb_store *base, nb_err *err)
{
    return nb_store_still(((hf_store *)base)->gguf, err);
}

static const nb_store_ops hf_ops = { .close = hf_close, .read_f32 = hf_read, .drop = hf_drop, .still = hf_still };

/* The row of a tensor name, its layer in *layer (-1: none). NULL for a name we do not know. */
static const name_row *find_row(const char *name, int64_t n_layers, int64_t *layer)
{
    *layer = -1;
    if (strncmp(name, "blk.", 4) == 0) {
        uint64_t v;
        const char *end = nb_num_u64(name + 4, INT64_MAX, &v);
        if (!end || (int64_t)v >= n_layers || *end != '.' || (name[4] == '0' && end > name + 5))
            return NULL;
        *layer = (int64_t)v;
        for (size_t i = 0; i < NB_LEN(layers); i++) {
            if (strcmp(end + 1, layers[i].gguf) == 0)
                return &layers[i];
        }
        return NULL;
    }
    for (size_t i = 0; i < NB_LEN(tops); i++) {
        if (strcmp(name, tops[i].gguf) == 0)
            return &tops[i];
    }
    return NULL;
}

static bool row_fits(const nb_gguf_arch *arch, const name_row *row)
{
    if (nb_ends_with(row->gguf, ".bias"))
        return arch->qkv_bias;
    if (strstr(row->gguf, "_q_norm") || strstr(row->gguf, "_k_norm"))
        return arch->qk_norm;
    return true;
}

bool nb_gguf_name_of(const nb_gguf_arch *arch, const char *hf, char *out, size_t cap, nb_gguf_order *order)
{
    uint64_t layer;
    int n = -1;

    *order = NB_GGUF_PLAIN;
    for (size_t i = 0; i < NB_LEN(tops); i++) {
        if (strcmp(hf, tops[i].hf) == 0)
            n = snprintf(out, cap, "%s", tops[i].gguf);
    }
    if (strncmp(hf, "model.layers.", 13) == 0) {
        const char *end = nb_num_u64(hf + 13, 4095, &layer);
        for (size_t i = 0; end && *end == '.' && i < NB_LEN(layers); i++) {
            if (strcmp(end + 1, layers[i].hf) != 0 || !row_fits(arch, &layers[i]))
                continue;
            n = snprintf(out, cap, "blk.%" PRIu64 ".%s", layer, layers[i].gguf);
            *order = arch->interleaved ? layers[i].order : NB_GGUF_PLAIN;
        }
    }
    return n > 0 && (size_t)n < cap;
}

static nb_status unknown(hf_store *s, const char *name, int64_t layer, nb_err *err)
{
    if (layer < 0) { /* rope_freqs.weight is part of the configuration; odd layer numbers are nobody's (GG-20) */
        if (strcmp(name, "rope_freqs.weight") != 0 && s->gguf->notes &&
            nb_report_add(s->gguf->notes, NB_SEV_WARN, "gguf.unknown_tensor", "", s->gguf->path, name, "",
                          "not a tensor of this architecture; ignored") != NB_OK)
            return nb_enomem(err, "notes");
        return NB_OK;
    }
    nb_fail(err, NB_EUNSUPPORTED, "gguf.tensor", "", "this architecture has no such tensor; the file needs a reader we do not have");
    nb_err_at(err, s->gguf->path, name);
    return NB_EUNSUPPORTED;
}

/* Names and orders of all tensors. */
static nb_status map_tensors(hf_store *s, const nb_gguf_arch *arch, int64_t n_layers, const int64_t heads[3], nb_err *err)
{
    const size_t n = s->gguf->n_tensors;
    nb_tensor *views = nb_arena_calloc(&s->arena, n + 1, sizeof *views);
    size_t at = 0;

    s->from = nb_arena_calloc(&s->arena, n + 1, sizeof *s->from);
    s->heads = nb_arena_calloc(&s->arena, n + 1, sizeof *s->heads);
    if (!views || !s->from || !s->heads)
        return nb_enomem(err, "tensor names");
    for (size_t i = 0; i < n; i++) {
        const nb_tensor *t = &s->gguf->tensors[i];
        int64_t layer;
        const name_row *row = find_row(t->name, n_layers, &layer);
        const char *name;
        if (!row || !row_fits(arch, row)) {
            nb_status rc = unknown(s, t->name, layer, err);
            if (rc != NB_OK)
                return rc;
            continue;
        }
        name = layer < 0 ? row->hf : nb_arena_printf(&s->arena, "model.layers.%lld.%s", (long long)layer, row->hf);
        if (!name)
            return nb_enomem(err, "tensor names");
        views[at] = *t;
        views[at].name = name;
        views[at].name_len = strlen(name);
        views[at].index = at;
        s->from[at] = i;
        if (arch->interleaved && row->order != NB_GGUF_PLAIN) {
            const uint64_t h = (uint64_t)heads[row->order];
            if (t->rank < 1 || t->rank > 2 || t->shape[0] % (2 * h) != 0) {
                nb_fail(err, NB_EFORMAT, "cfg.shape_mismatch", "", "%llu rows are not %llu heads of an even size",
                        (unsigned long long)(t->rank ? t->shape[0] : 1), (unsigned long long)h);
                nb_err_at(err, t->file, t->name);
                return NB_EFORMAT;
            }
            s->heads[at] = h;
            views[at].data = NULL;
        }
        s->base.total_bytes += nb_gguf_stored_bytes(t);
        at++;
    }
    s->base.tensors = views;
    s->base.n_tensors = at;
    return NB_OK;
}

/* CF-08: every layer has what a decoder layer needs. */
static nb_status check_complete(hf_store *s, int64_t n_layers, nb_err *err)
{
    char name[192];

    for (int64_t l = -1; l < n_layers; l++) {
        for (size_t i = 0; i < (l < 0 ? 2 : N_NEEDED); i++) { /* the output head may be tied */
            if (l < 0)
                snprintf(name, sizeof name, "%s", tops[i].hf);
            else
                snprintf(name, sizeof name, "model.layers.%lld.%s", (long long)l, layers[i].hf);
            if (nb_store_find(&s->base, name))
                continue;
            nb_fail(err, NB_EFORMAT, "cfg.missing_tensor", "", "the tensor is missing (layer count says %lld)", (long long)n_layers);
            nb_err_at(err, s->gguf->path, name);
            return NB_EFORMAT;
        }
    }
    return NB_OK;
}

nb_status nb_gguf_hf_open(const char *path, nb_store **out, nb_err *err)
{
    hf_store *s = nb_calloc(1, sizeof *s);
    const nb_gguf_arch *arch = NULL;
    int64_t n_layers = 0, heads[3] = { 1, 1, 1 };
    size_t dup;
    nb_status rc;

    *out = NULL;
    if (!s)
        return nb_enomem(err, "a GGUF file");
    s->base.ops = &hf_ops;
    s->base.kind = "gguf";
    rc = nb_gguf_open(path, &s->gguf, err);
    if (rc == NB_OK)
        rc = nb_gguf_arch_of(s->gguf, &arch, err);
    if (rc == NB_OK)
        rc = nb_gguf_int(s->gguf, "%s.block_count", -1, 1, 4096, &n_layers, err);
    if (rc == NB_OK)
        rc = nb_gguf_int(s->gguf, "%s.attention.head_count", -1, 1, 4096, &heads[NB_GGUF_ROPE_Q], err);
    if (rc == NB_OK)
        rc = nb_gguf_int(s->gguf, "%s.attention.head_count_kv", heads[NB_GGUF_ROPE_Q], 1, 4096, &heads[NB_GGUF_ROPE_K], err);
    if (rc == NB_OK)
        rc = map_tensors(s, arch, n_layers, heads, err);
    if (rc == NB_OK)
        rc = nb_store_index(&s->base, &dup, err); /* distinct names map to distinct names */
    if (rc == NB_OK)
        rc = check_complete(s, n_layers, err);
    if (rc != NB_OK)
        goto done;
    s->base.path = s->gguf->path;
    s->base.files = s->gguf->files;
    s->base.n_files = s->gguf->n_files;
    s->base.meta = s->gguf->meta;
    s->base.notes = s->gguf->notes;
    *out = &s->base;
    s = NULL;
done:
    nb_err_at(err, path, NULL);
    if (s)
        hf_close(&s->base);
    return rc;
}

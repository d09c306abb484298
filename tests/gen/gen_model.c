/* gen_model.c - write a random AWQ GEMM checkpoint of a given shape, for benchmarks.
 *
 * usage: nibble_gen_model OUT hidden=2048 layers=16 heads=32 kv_heads=8 ffn=8192 vocab=32000 group=128 kind=llama
 *            context=8192 experts=8 active=2
 * kind=delta: a Qwen 3.5 with three layers of the gated delta rule to one of attention, heads of 128; kind=mamba: a Granite 4 with
 * three Mamba-2 layers to one of attention, heads of 64 with 128 states; kind=mixtral: `experts` feed-forward parts of width ffn in every layer, of which `active` work for a token.
 * Codes, zeros and scales are random but of a realistic size; the embedding, the untied head and routers are F16. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bits.h"
#include "base/map.h"
#include "base/mem.h"
#include "base/rng.h"
#include "io/io.h"

typedef struct shape {
    uint64_t hidden, layers, heads, kv_heads, ffn, vocab, group, context, experts, active;
    enum { KIND_LLAMA, KIND_DELTA, KIND_MAMBA, KIND_MIXTRAL } kind;
} shape;

enum { MOST_EXPERTS = 128, MOST_LINEARS = 4 + 3 * MOST_EXPERTS };

typedef struct lin {
    const char *name;
    uint64_t n, k;
    int expert; /* of a mixture, from 1 */
} lin;

static int is_full(const shape *s, uint64_t l)
{
    return s->kind == KIND_LLAMA || s->kind == KIND_MIXTRAL || l % 4 == 3;
}

/* Channels of a mixer, of its convolution, heads of Mamba. */
static uint64_t inner(const shape *s)
{
    return s->kind == KIND_DELTA ? s->hidden : 2 * s->hidden;
}

static uint64_t convolved(const shape *s)
{
    return s->kind == KIND_DELTA ? 3 * s->hidden : inner(s) + 2 * 128;
}

static size_t linears(const shape *s, uint64_t l, lin out[MOST_LINEARS])
{
    const uint64_t D = s->hidden, kv = D / s->heads * s->kv_heads;
    size_t n = 0;

    if (is_full(s, l)) {
        out[n++] = (lin){ "self_attn.q_proj", s->kind == KIND_DELTA ? 2 * D : D, D, 0 };
        out[n++] = (lin){ "self_attn.k_proj", kv, D, 0 };
        out[n++] = (lin){ "self_attn.v_proj", kv, D, 0 };
        out[n++] = (lin){ "self_attn.o_proj", D, D, 0 };
    } else if (s->kind == KIND_DELTA) {
        out[n++] = (lin){ "linear_attn.in_proj_qkv", 3 * D, D, 0 };
        out[n++] = (lin){ "linear_attn.in_proj_z", D, D, 0 };
        out[n++] = (lin){ "linear_attn.out_proj", D, D, 0 };
    } else {
        out[n++] = (lin){ "mamba.in_proj", inner(s) + convolved(s) + inner(s) / 64, D, 0 };
        out[n++] = (lin){ "mamba.out_proj", D, inner(s), 0 };
    }
    if (s->kind == KIND_MAMBA) {
        out[n++] = (lin){ "shared_mlp.input_linear", 2 * s->ffn, D, 0 };
        out[n++] = (lin){ "shared_mlp.output_linear", D, s->ffn, 0 };
        return n;
    }
    for (int e = 1; s->kind == KIND_MIXTRAL && e <= (int)s->experts; e++) {
        out[n++] = (lin){ "w1", s->ffn, D, e };
        out[n++] = (lin){ "w3", s->ffn, D, e };
        out[n++] = (lin){ "w2", D, s->ffn, e };
    }
    if (s->kind == KIND_MIXTRAL)
        return n;
    out[n++] = (lin){ "mlp.gate_proj", s->ffn, D, 0 };
    out[n++] = (lin){ "mlp.up_proj", s->ffn, D, 0 };
    out[n++] = (lin){ "mlp.down_proj", D, s->ffn, 0 };
    return n;
}

/* What fills a tensor: random words, or 16-bit floats around 0 or 1. */
typedef enum fill { FILL_WORDS, FILL_SCALES, FILL_MATRIX, FILL_ONES, FILL_ZEROS } fill;

typedef struct item {
    char name[128];
    nb_dtype dtype;
    uint64_t shape[2];
    unsigned rank;
    fill how;
    double size; /* standard deviation, or the scale */
} item;

static size_t add(item *it, size_t n, const char *name, nb_dtype t, uint64_t a, uint64_t b, fill how, double size)
{
    snprintf(it[n].name, sizeof it[n].name, "%s", name);
    it[n].dtype = t;
    it[n].shape[0] = a;
    it[n].shape[1] = b;
    it[n].rank = b ? 2 : 1;
    it[n].how = how;
    it[n].size = size;
    return n + 1;
}

/* What is no packed linear in a layer with a mixer. */
static size_t add_mixer(const shape *s, item *it, size_t n, uint64_t l)
{
    const int delta = s->kind == KIND_DELTA;
    const uint64_t heads = delta ? s->hidden / 128 : inner(s) / 64;
    const char *b = delta ? "linear_attn" : "mamba";
    char name[128];

    for (int i = 0; delta && i < 2; i++) {
        snprintf(name, sizeof name, "model.layers.%d.linear_attn.in_proj_%c.weight", (int)l, "ba"[i]);
        n = add(it, n, name, NB_DT_F16, heads, s->hidden, FILL_MATRIX, 1 / sqrt((double)s->hidden));
    }
    snprintf(name, sizeof name, "model.layers.%d.%s.conv1d.weight", (int)l, b);
    n = add(it, n, name, NB_DT_F16, convolved(s), 4, FILL_MATRIX, 0.5);
    snprintf(name, sizeof name, "model.layers.%d.%s.conv1d.bias", (int)l, b);
    if (!delta)
        n = add(it, n, name, NB_DT_F16, convolved(s), 0, FILL_ZEROS, 0);
    snprintf(name, sizeof name, "model.layers.%d.%s.A_log", (int)l, b);
    n = add(it, n, name, NB_DT_F16, heads, 0, FILL_MATRIX, 1);
    snprintf(name, sizeof name, "model.layers.%d.%s.dt_bias", (int)l, b);
    n = add(it, n, name, NB_DT_F16, heads, 0, FILL_MATRIX, 1);
    snprintf(name, sizeof name, "model.layers.%d.%s.D", (int)l, b);
    if (!delta)
        n = add(it, n, name, NB_DT_F16, heads, 0, FILL_ONES, 0);
    snprintf(name, sizeof name, "model.layers.%d.%s.norm.weight", (int)l, b);
    return add(it, n, name, NB_DT_F16, delta ? 128 : inner(s), 0, FILL_ONES, 0);
}

/* Norms of heads. */
static size_t add_heads(const shape *s, item *it, size_t n, uint64_t l)
{
    char name[128];

    for (int i = 0; s->kind == KIND_DELTA && i < 2; i++) {
        snprintf(name, sizeof name, "model.layers.%d.self_attn.%c_norm.weight", (int)l, "qk"[i]);
        n = add(it, n, name, NB_DT_F16, s->hidden / s->heads, 0, FILL_ZEROS, 0);
    }
    return n;
}

static size_t plan(const shape *s, item *it)
{
    const fill norm = s->kind == KIND_DELTA ? FILL_ZEROS : FILL_ONES; /* 1 + weight */
    size_t n = add(it, 0, "model.embed_tokens.weight", NB_DT_F16, s->vocab, s->hidden, FILL_MATRIX, 1);
    char name[128], base[96];
    lin rows[MOST_LINEARS];

    for (uint64_t l = 0; l < s->layers; l++) {
        const size_t n_rows = linears(s, l, rows);

        n = is_full(s, l) ? add_heads(s, it, n, l) : add_mixer(s, it, n, l);
        for (size_t i = 0; i < n_rows; i++) {
            /* codes are uniform around the middle: their standard deviation is 4.6 */
            const double scale = 1 / sqrt((double)rows[i].k) / 4.6;
            if (rows[i].expert)
                snprintf(base, sizeof base, "model.layers.%d.block_sparse_moe.experts.%d.%s", (int)l, rows[i].expert - 1, rows[i].name);
            else
                snprintf(base, sizeof base, "model.layers.%d.%s", (int)l, rows[i].name);
            snprintf(name, sizeof name, "%s.qweight", base);
            n = add(it, n, name, NB_DT_I32, rows[i].k, rows[i].n / 8, FILL_WORDS, 0);
            snprintf(name, sizeof name, "%s.qzeros", base);
            n = add(it, n, name, NB_DT_I32, rows[i].k / s->group, rows[i].n / 8, FILL_WORDS, 1);
            snprintf(name, sizeof name, "%s.scales", base);
            n = add(it, n, name, NB_DT_F16, rows[i].k / s->group, rows[i].n, FILL_SCALES, scale);
        }
        snprintf(name, sizeof name, "model.layers.%d.block_sparse_moe.gate.weight", (int)l);
        if (s->kind == KIND_MIXTRAL)
            n = add(it, n, name, NB_DT_F16, s->experts, s->hidden, FILL_MATRIX, 1 / sqrt((double)s->hidden));
        snprintf(name, sizeof name, "model.layers.%d.input_layernorm.weight", (int)l);
        n = add(it, n, name, NB_DT_F16, s->hidden, 0, norm, 0);
        snprintf(name, sizeof name, "model.layers.%d.post_attention_layernorm.weight", (int)l);
        n = add(it, n, name, NB_DT_F16, s->hidden, 0, norm, 0);
    }
    n = add(it, n, "model.norm.weight", NB_DT_F16, s->hidden, 0, norm, 0);
    return add(it, n, "lm_head.weight", NB_DT_F16, s->vocab, s->hidden, FILL_MATRIX, 1 / sqrt((double)s->hidden));
}

static void fill_bytes(const item *it, uint64_t stream, unsigned char *out, size_t n)
{
    if (it->how == FILL_WORDS && it->size > 0) { /* zeros: 7 or 8 everywhere */
        uint32_t r[4] = { 0 };
        for (size_t i = 0; i < n; i++) {
            if (i % 16 == 0)
                nb_philox(2, stream, i, r);
            out[i] = (unsigned char)(0x77 + (r[i / 4 % 4] >> (i % 4 * 8) & 0x11));
        }
        return;
    }
    if (it->how == FILL_WORDS) {
        for (size_t i = 0; i + 16 <= n; i += 16) {
            uint32_t r[4];
            nb_philox(1, stream, i, r);
            memcpy(out + i, r, 16);
        }
        return;
    }
    for (size_t i = 0; i + 2 <= n; i += 2) {
        double v = it->how == FILL_ONES;
        if (it->how == FILL_MATRIX)
            v = (nb_rng_uniform(3, stream, i) * 2 - 1) * 1.73 * it->size;
        else if (it->how == FILL_SCALES)
            v = it->size * (0.75 + 0.5 * nb_rng_uniform(3, stream, i));
        nb_put_le16(out + i, nb_f32_to_f16((float)v));
    }
}

static nb_status write_all(nb_sink *sink, const item *it, size_t n, nb_err *err)
{
    nb_status rc = NB_OK;

    for (size_t i = 0; rc == NB_OK && i < n; i++)
        rc = nb_sink_declare(sink, it[i].name, it[i].dtype, it[i].rank, it[i].shape, err);
    if (rc == NB_OK)
        rc = nb_sink_begin(sink, err);
    for (size_t i = 0; rc == NB_OK && i < n; i++) {
        uint64_t bytes = 0, count = 0;
        unsigned char *p;
        nb_shape_count(it[i].shape, it[i].rank, &count);
        nb_dtype_bytes(it[i].dtype, count, &bytes);
        p = nb_calloc((size_t)bytes + 16, 1);
        if (!p)
            return nb_enomem(err, it[i].name);
        fill_bytes(&it[i], i, p, (size_t)bytes);
        rc = nb_sink_write(sink, it[i].name, 0, p, bytes, err);
        nb_free(p);
    }
    return rc == NB_OK ? nb_sink_finish(sink, err) : rc;
}

static nb_status put_config(nb_outdir *dir, const shape *s, nb_err *err)
{
    static const char *const classes[] = { "LlamaForCausalLM", "Qwen3_5ForCausalLM", "GraniteMoeHybridForCausalLM", "MixtralForCausalLM" };
    static const char *const types[] = { "llama", "qwen3_5_text", "granitemoehybrid", "mixtral" };
    char text[4096], more[1024] = "";
    int n;

    if (s->kind == KIND_DELTA)
        snprintf(more, sizeof more,
                 " \"full_attention_interval\": 4, \"linear_num_key_heads\": %d, \"linear_num_value_heads\": %d, \"head_dim\": %d,\n"
                 " \"linear_key_head_dim\": 128, \"linear_value_head_dim\": 128, \"linear_conv_kernel_dim\": 4,\n",
                 (int)(s->hidden / 128), (int)(s->hidden / 128), (int)(s->hidden / s->heads));
    if (s->kind == KIND_MAMBA) {
        snprintf(more, sizeof more,
                 " \"mamba_n_heads\": %d, \"mamba_d_head\": 64, \"mamba_d_state\": 128, \"mamba_n_groups\": 1, \"mamba_expand\": 2,\n"
                 " \"num_local_experts\": 0, \"shared_intermediate_size\": %d, \"attention_multiplier\": 0.125, \"layer_types\": [",
                 (int)(inner(s) / 64), (int)s->ffn);
        for (uint64_t l = 0; l < s->layers && l < 32; l++)
            snprintf(more + strlen(more), sizeof more - strlen(more), "%s\"%s\"", l ? ", " : "", is_full(s, l) ? "attention" : "mamba");
        snprintf(more + strlen(more), sizeof more - strlen(more), "],\n");
    }
    if (s->kind == KIND_MIXTRAL)
        snprintf(more, sizeof more, " \"num_local_experts\": %d, \"num_experts_per_tok\": %d,\n", (int)s->experts, (int)s->active);
    n = snprintf(text, sizeof text,
                 "{\"architectures\": [\"%s\"], \"model_type\": \"%s\", \"hidden_size\": %d, \"num_hidden_layers\": %d,\n"
                 " \"num_attention_heads\": %d, \"num_key_value_heads\": %d, \"intermediate_size\": %d, \"vocab_size\": %d,\n"
                 " \"max_position_embeddings\": %d, \"rms_norm_eps\": 1e-05, \"rope_theta\": 10000.0, \"hidden_act\": \"silu\",\n"
                 "%s \"tie_word_embeddings\": false, \"torch_dtype\": \"float16\", \"bos_token_id\": 1, \"eos_token_id\": 2,\n"
                 " \"quantization_config\": {\"quant_method\": \"awq\", \"bits\": 4, \"group_size\": %d, \"zero_point\": true, "
                 "\"version\": \"gemm\"%s}}\n",
                 classes[s->kind], types[s->kind], (int)s->hidden, (int)s->layers, (int)s->heads, (int)s->kv_heads, (int)s->ffn,
                 (int)s->vocab, (int)s->context, more, (int)s->group,
                 s->kind == KIND_MIXTRAL ? ", \"modules_to_not_convert\": [\"gate\"]" : "");

    return nb_outdir_put(dir, "config.json", text, (size_t)n, err);
}

static int set_value(shape *s, const char *word)
{
    const struct {
        const char *name;
        uint64_t *to;
    } rows[] = { { "hidden=", &s->hidden },   { "layers=", &s->layers }, { "heads=", &s->heads }, { "kv_heads=", &s->kv_heads },
                 { "ffn=", &s->ffn },         { "vocab=", &s->vocab },   { "group=", &s->group }, { "context=", &s->context },
                 { "experts=", &s->experts }, { "active=", &s->active } };

    if (strncmp(word, "kind=", 5) == 0) {
        s->kind = strcmp(word + 5, "delta") == 0     ? KIND_DELTA
                  : strcmp(word + 5, "mamba") == 0   ? KIND_MAMBA
                  : strcmp(word + 5, "mixtral") == 0 ? KIND_MIXTRAL
                                                     : KIND_LLAMA;
        return s->kind != KIND_LLAMA || strcmp(word + 5, "llama") == 0;
    }
    for (size_t i = 0; i < NB_LEN(rows); i++)
        if (strncmp(word, rows[i].name, strlen(rows[i].name)) == 0) {
            *rows[i].to = strtoull(word + strlen(rows[i].name), NULL, 10);
            return *rows[i].to > 0;
        }
    return 0;
}

int main(int argc, char **argv)
{
    shape s = { 2048, 16, 32, 8, 8192, 32000, 128, 8192, 8, 2, KIND_LLAMA };
    nb_err err = { 0 };
    nb_outdir *dir = NULL;
    nb_sink *sink = NULL;
    item *items;
    nb_status rc;

    for (int i = 2; i < argc; i++)
        if (!set_value(&s, argv[i])) {
            fprintf(stderr, "gen_model: bad argument %s\n", argv[i]);
            return 2;
        }
    if (argc < 2 || s.layers > 1000 || s.hidden % s.group || s.ffn % s.group || s.hidden % s.heads || s.experts > MOST_EXPERTS ||
        ((s.kind == KIND_DELTA || s.kind == KIND_MAMBA) && (s.layers > 32 || s.hidden % 512))) {
        fprintf(stderr, "usage: nibble_gen_model OUT [hidden= layers= heads= kv_heads= ffn= vocab= group= context=\n"
                        "                            kind=llama|delta|mamba|mixtral experts= active=]\n");
        return 2;
    }
    items = nb_calloc((size_t)s.layers * (3 * (s.kind == KIND_MIXTRAL ? MOST_LINEARS : 8) + 8) + 3, sizeof *items);
    if (!items)
        return 9;
    rc = nb_outdir_open(&dir, argv[1], false, NULL, 0, &err);
    if (rc == NB_OK)
        rc = nb_st_sink_open(&sink, dir, 0, &err);
    if (rc == NB_OK)
        rc = write_all(sink, items, plan(&s, items), &err);
    if (rc == NB_OK)
        rc = put_config(dir, &s, &err);
    nb_sink_close(sink);
    if (rc == NB_OK)
        rc = nb_outdir_commit(dir, &err);
    else
        nb_outdir_abort(dir);
    if (rc != NB_OK)
        fprintf(stderr, "gen_model: %s: %s\n", err.cls, err.what);
    nb_free(items);
    return (int)rc;
}

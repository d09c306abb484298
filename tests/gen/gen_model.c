/* gen_model.c - write a random AWQ GEMM Llama checkpoint of a given shape, for benchmarks.
 *
 * usage: nibble_gen_model OUT hidden=2048 layers=16 heads=32 kv_heads=8 ffn=8192 vocab=32000 group=128
 * Codes, zeros and scales are random but of a realistic size; the embedding and the untied head are F16. */
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
    uint64_t hidden, layers, heads, kv_heads, ffn, vocab, group;
} shape;

typedef struct lin {
    const char *name;
    uint64_t n, k;
} lin;

static void linears(const shape *s, lin out[7])
{
    const uint64_t kv = s->hidden / s->heads * s->kv_heads;
    const lin rows[7] = { { "self_attn.q_proj", s->hidden, s->hidden }, { "self_attn.k_proj", kv, s->hidden },
                          { "self_attn.v_proj", kv, s->hidden },        { "self_attn.o_proj", s->hidden, s->hidden },
                          { "mlp.gate_proj", s->ffn, s->hidden },       { "mlp.up_proj", s->ffn, s->hidden },
                          { "mlp.down_proj", s->hidden, s->ffn } };
    memcpy(out, rows, sizeof rows);
}

/* What fills a tensor: random words, or 16-bit floats around 0 or 1. */
typedef enum fill { FILL_WORDS, FILL_SCALES, FILL_MATRIX, FILL_ONES } fill;

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

static size_t plan(const shape *s, item *it)
{
    size_t n = add(it, 0, "model.embed_tokens.weight", NB_DT_F16, s->vocab, s->hidden, FILL_MATRIX, 1);
    char name[128];
    lin rows[7];

    linears(s, rows);
    for (uint64_t l = 0; l < s->layers; l++) {
        for (size_t i = 0; i < 7; i++) {
            /* codes are uniform around the middle: their standard deviation is 4.6 */
            const double scale = 1 / sqrt((double)rows[i].k) / 4.6;
            snprintf(name, sizeof name, "model.layers.%d.%s.qweight", (int)l, rows[i].name);
            n = add(it, n, name, NB_DT_I32, rows[i].k, rows[i].n / 8, FILL_WORDS, 0);
            snprintf(name, sizeof name, "model.layers.%d.%s.qzeros", (int)l, rows[i].name);
            n = add(it, n, name, NB_DT_I32, rows[i].k / s->group, rows[i].n / 8, FILL_WORDS, 1);
            snprintf(name, sizeof name, "model.layers.%d.%s.scales", (int)l, rows[i].name);
            n = add(it, n, name, NB_DT_F16, rows[i].k / s->group, rows[i].n, FILL_SCALES, scale);
        }
        snprintf(name, sizeof name, "model.layers.%d.input_layernorm.weight", (int)l);
        n = add(it, n, name, NB_DT_F16, s->hidden, 0, FILL_ONES, 0);
        snprintf(name, sizeof name, "model.layers.%d.post_attention_layernorm.weight", (int)l);
        n = add(it, n, name, NB_DT_F16, s->hidden, 0, FILL_ONES, 0);
    }
    n = add(it, n, "model.norm.weight", NB_DT_F16, s->hidden, 0, FILL_ONES, 0);
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
        double v = 1;
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
    char text[2048];
    const int n =
        snprintf(text, sizeof text,
                 "{\"architectures\": [\"LlamaForCausalLM\"], \"model_type\": \"llama\", \"hidden_size\": %d, \"num_hidden_layers\": %d,\n"
                 " \"num_attention_heads\": %d, \"num_key_value_heads\": %d, \"intermediate_size\": %d, \"vocab_size\": %d,\n"
                 " \"max_position_embeddings\": 8192, \"rms_norm_eps\": 1e-05, \"rope_theta\": 10000.0, \"hidden_act\": \"silu\",\n"
                 " \"tie_word_embeddings\": false, \"torch_dtype\": \"float16\", \"bos_token_id\": 1, \"eos_token_id\": 2,\n"
                 " \"quantization_config\": {\"quant_method\": \"awq\", \"bits\": 4, \"group_size\": %d, \"zero_point\": true, "
                 "\"version\": \"gemm\"}}\n",
                 (int)s->hidden, (int)s->layers, (int)s->heads, (int)s->kv_heads, (int)s->ffn, (int)s->vocab, (int)s->group);

    return nb_outdir_put(dir, "config.json", text, (size_t)n, err);
}

static int set_value(shape *s, const char *word)
{
    const struct {
        const char *name;
        uint64_t *to;
    } rows[] = { { "hidden=", &s->hidden }, { "layers=", &s->layers }, { "heads=", &s->heads }, { "kv_heads=", &s->kv_heads },
                 { "ffn=", &s->ffn },       { "vocab=", &s->vocab },   { "group=", &s->group } };

    for (size_t i = 0; i < NB_LEN(rows); i++)
        if (strncmp(word, rows[i].name, strlen(rows[i].name)) == 0) {
            *rows[i].to = strtoull(word + strlen(rows[i].name), NULL, 10);
            return *rows[i].to > 0;
        }
    return 0;
}

int main(int argc, char **argv)
{
    shape s = { 2048, 16, 32, 8, 8192, 32000, 128 };
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
    if (argc < 2 || s.layers > 1000 || s.hidden % s.group || s.ffn % s.group || s.hidden % s.heads) {
        fprintf(stderr, "usage: nibble_gen_model OUT [hidden= layers= heads= kv_heads= ffn= vocab= group=]\n");
        return 2;
    }
    items = nb_calloc((size_t)s.layers * 23 + 3, sizeof *items);
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

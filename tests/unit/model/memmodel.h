/* memmodel.h - a small random Llama in a memory store: 16-bit, AWQ GEMM, mixed, GEMV_FAST, or 8-bit. Weights are counter-based
 * random numbers; quantized linears are rounded to nearest and packed by the format itself. */
#ifndef NB_TEST_MODEL_MEMMODEL_H
#define NB_TEST_MODEL_MEMMODEL_H

#include "base/bits.h"
#include "base/cpu.h"
#include "base/rng.h"
#include "quant/quant.h"
#include "tensor/store.h"

enum { MM_D = 128, MM_HEADS = 4, MM_KV = 2, MM_HEAD = 32, MM_FF = 192, MM_VOCAB = 200, MM_LAYERS = 2, MM_G = 32 };

/* MIXED: k_proj and layer 1's MLP stay 16-bit. FAST: stored offsets. BYTE: 8 bits, but 4 for v_proj and layer 0's gate_proj. */
typedef enum mm_kind { MM_BF16, MM_AWQ, MM_MIXED, MM_FAST, MM_BYTE, MM_KIND_COUNT } mm_kind;

static const char mm_config[] =
    "{\"model_type\":\"llama\",\"architectures\":[\"LlamaForCausalLM\"],\"hidden_size\":128,"
    "\"num_attention_heads\":4,\"num_key_value_heads\":2,\"intermediate_size\":192,\"vocab_size\":200,"
    "\"num_hidden_layers\":2,\"max_position_embeddings\":4096,\"tie_word_embeddings\":false,\"attention_bias\":true}";

static const char mm_byte_rules[] = "{\".*v_proj\":{\"bits\":4},\".*layers\\\\.0\\\\.mlp\\\\.gate_proj\":{\"bits\":4}}";

typedef struct memmodel {
    nb_store *store;
    nb_json *cfg, *qcfg;
    nb_arena mem;
    uint64_t stream;
} memmodel;

static inline float *mm_random(memmodel *m, size_t n, float scale, float base)
{
    float *w = nb_arena_calloc(&m->mem, n, sizeof *w);

    m->stream++;
    for (size_t i = 0; i < n; i++)
        w[i] = nb_bf16_to_f32(nb_f32_to_bf16(base + scale * (float)nb_rng_normal(5, m->stream, i)));
    return w;
}

static inline void mm_add(memmodel *m, const char *name, const char *leaf, nb_dtype t, unsigned rank, const uint64_t *shape,
                          const void *data)
{
    char full[160];
    nb_err err = { 0 };

    snprintf(full, sizeof full, "%s.%s", name, leaf);
    if (nb_memstore_add(m->store, full, t, rank, shape, data, &err) != NB_OK)
        fail_msg("%s: %s", full, err.what);
}

/* w[n][k] or, with k = 0, w[n], as BF16. */
static inline void mm_plain(memmodel *m, const char *name, const char *leaf, size_t n, size_t k, const float *w)
{
    uint16_t *half = nb_arena_calloc(&m->mem, n * (k ? k : 1), sizeof *half);
    const uint64_t shape[2] = { n, k };

    nb_from_f32(half, w, NB_DT_BF16, n * (k ? k : 1));
    mm_add(m, name, leaf, NB_DT_BF16, k ? 2 : 1, shape, half);
}

static inline void mm_rtn(nb_qlin *q, const float *w)
{
    const float top = (float)((1u << q->bits) - 1);

    for (size_t n = 0; n < q->n; n++) {
        for (size_t g = 0; g < q->n_groups; g++) {
            const float *x = w + n * q->k + g * q->g;
            float lo = 0, hi = 0, s;
            for (size_t i = 0; i < q->g; i++) {
                lo = x[i] < lo ? x[i] : lo;
                hi = x[i] > hi ? x[i] : hi;
            }
            s = nb_f16_to_f32(nb_f32_to_f16((hi - lo) / top));
            q->scales[n * q->n_groups + g] = s;
            q->zeros[n * q->n_groups + g] = (uint8_t)(-lo / s + 0.5f);
            for (size_t i = 0; i < q->g; i++) {
                const float c = x[i] / s + (float)q->zeros[n * q->n_groups + g] + 0.5f;
                q->codes[n * q->k + g * q->g + i] = (uint8_t)(c < 0 ? 0 : c > top ? top : c);
            }
        }
    }
}

static inline void mm_awq(memmodel *m, const char *name, const char *format, unsigned bits, size_t n, size_t k, const float *w)
{
    const nb_format *f = nb_format_find(format);
    void *parts[NB_MAX_PARTS] = { 0 };
    nb_qlin q = { 0 };
    nb_err err = { 0 };

    assert_int_equal(nb_qlin_init(&q, n, k, MM_G, bits, &err), NB_OK);
    q.scale_dtype = NB_DT_F16;
    mm_rtn(&q, w);
    for (size_t p = 0; p < NB_MAX_PARTS && f->parts[p].suffix; p++)
        parts[p] = nb_arena_calloc(&m->mem, n * k, 4);
    assert_int_equal(f->pack(&q, 0, n, parts, &err), NB_OK);
    for (size_t p = 0; p < NB_MAX_PARTS && f->parts[p].suffix; p++) {
        uint64_t shape[4];
        const unsigned rank = nb_format_part_shape(f, p, n, k, MM_G, bits, shape);
        mm_add(m, name, f->parts[p].suffix, f->parts[p].dtype ? f->parts[p].dtype : NB_DT_F16, rank, shape, parts[p]);
    }
    nb_qlin_clear(&q);
}

static inline void mm_layer(memmodel *m, size_t l, mm_kind kind)
{
    static const struct {
        const char *name;
        size_t n, k;
        bool bias;
    } lin[] = { { "self_attn.q_proj", MM_HEADS * MM_HEAD, MM_D, true },
                { "self_attn.k_proj", MM_KV * MM_HEAD, MM_D, true },
                { "self_attn.v_proj", MM_KV * MM_HEAD, MM_D, true },
                { "self_attn.o_proj", MM_D, MM_HEADS * MM_HEAD, true },
                { "mlp.gate_proj", MM_FF, MM_D, false },
                { "mlp.up_proj", MM_FF, MM_D, false },
                { "mlp.down_proj", MM_D, MM_FF, false } };
    char name[96];

    for (size_t i = 0; i < NB_LEN(lin); i++) {
        const float *w = mm_random(m, lin[i].n * lin[i].k, 0.12f, 0);
        const bool plain = kind == MM_BF16 || (kind == MM_MIXED && (i == 1 || (l == 1 && i >= 4)));
        snprintf(name, sizeof name, "model.layers.%zu.%s", l, lin[i].name);
        if (plain)
            mm_plain(m, name, "weight", lin[i].n, lin[i].k, w);
        else
            mm_awq(m, name, kind == MM_FAST ? "awq-gemv-fast" : "awq-gemm", kind == MM_BYTE && i != 2 && (l == 1 || i != 4) ? 8 : 4,
                   lin[i].n, lin[i].k, w);
        if (lin[i].bias)
            mm_plain(m, name, "bias", lin[i].n, 0, mm_random(m, lin[i].n, 0.1f, 0));
    }
    snprintf(name, sizeof name, "model.layers.%zu.input_layernorm", l);
    mm_plain(m, name, "weight", MM_D, 0, mm_random(m, MM_D, 0.1f, 1));
    snprintf(name, sizeof name, "model.layers.%zu.post_attention_layernorm", l);
    mm_plain(m, name, "weight", MM_D, 0, mm_random(m, MM_D, 0.1f, 1));
}

static inline void mm_open(memmodel *m, mm_kind kind)
{
    const nb_qspec spec = { .bits = kind == MM_BYTE ? 8 : 4, .group_size = MM_G, .scale_dtype = NB_DT_F16 };
    nb_json *rules = NULL;
    nb_err err = { 0 };

    *m = (memmodel){ 0 };
    assert_int_equal(nb_memstore_open(&m->store, &err), NB_OK);
    assert_int_equal(nb_json_parse(mm_config, strlen(mm_config), "cfg", 0, &m->cfg, &err), NB_OK);
    if (kind != MM_BF16)
        m->qcfg = nb_format_find(kind == MM_FAST ? "awq-gemv-fast" : "awq-gemm")->config(&spec, NULL, 0);
    if (kind == MM_BYTE)
        assert_int_equal(nb_json_parse(mm_byte_rules, strlen(mm_byte_rules), "cfg", 0, &rules, &err), NB_OK);
    if (kind == MM_BYTE)
        assert_true(nb_json_set(m->qcfg, "dynamic", rules));
    mm_plain(m, "model.embed_tokens", "weight", MM_VOCAB, MM_D, mm_random(m, MM_VOCAB * MM_D, 1, 0));
    for (size_t l = 0; l < MM_LAYERS; l++)
        mm_layer(m, l, kind);
    mm_plain(m, "model.norm", "weight", MM_D, 0, mm_random(m, MM_D, 0.1f, 1));
    mm_plain(m, "lm_head", "weight", MM_VOCAB, MM_D, mm_random(m, MM_VOCAB * MM_D, 0.15f, 0));
}

static inline void mm_close(memmodel *m)
{
    nb_store_close(m->store);
    nb_json_free(m->cfg);
    nb_json_free(m->qcfg);
    nb_arena_clear(&m->mem);
}

#endif

/* A GGUF file in Hugging Face terms: names and row order, configuration, tokenizer files (GG-18 .. GG-21, CF-04, CF-08). */
#include "gguf_build.h"

#include <stdlib.h>

#include "io/io.h"

/* What a variant of the small model does otherwise. */
typedef struct variant {
    const char *label, *arch, *pre, *model, *types_len, *extra; /* extra: a tensor of no architecture */
    const char *scores;                                         /* of every token, or "short" */
    uint32_t heads, layers, bos, eps_as_text, add_bos;
    int drop; /* tensor left out, -1 none */
    nb_status want;
    const char *cls; /* of config.json or of tokenizer.json, see `tok` */
    bool tok;
} variant;

enum { HIDDEN = 8, HEAD_DIM = 4, FF = 6, VOCAB = 5 };

/* One layer, two heads of four, one key-value head; every value of every tensor is its running number. */
static const char *model_file(const variant *v)
{
    static const struct {
        const char *name;
        uint64_t rows, cols;
    } t[] = { { "token_embd.weight", VOCAB, HIDDEN },
              { "output_norm.weight", HIDDEN, 0 },
              { "blk.0.attn_norm.weight", HIDDEN, 0 },
              { "blk.0.attn_q.weight", 2 * HEAD_DIM, HIDDEN },
              { "blk.0.attn_k.weight", HEAD_DIM, HIDDEN },
              { "blk.0.attn_v.weight", HEAD_DIM, HIDDEN },
              { "blk.0.attn_output.weight", HIDDEN, 2 * HEAD_DIM },
              { "blk.0.ffn_norm.weight", HIDDEN, 0 },
              { "blk.0.ffn_gate.weight", FF, HIDDEN },
              { "blk.0.ffn_up.weight", FF, HIDDEN },
              { "blk.0.ffn_down.weight", HIDDEN, FF } };
    static const char *const tokens[VOCAB] = { "<s>", "a", "b", "ab", "</s>" };
    const char *arch = v->arch ? v->arch : "llama";
    const uint64_t n = NB_LEN(t) + (v->extra != NULL) - (v->drop >= 0);
    uint64_t at = 0, types = v->types_len ? VOCAB - 1 : VOCAB;
    char key[64];
    nb_buf b = { 0 };
    float x = 0.0f;

    head(&b, 3, n, 16);
    kv_str(&b, "general.architecture", arch);
#define KEY(k) (snprintf(key, sizeof key, "%s." k, arch), key)
    kv_u32(&b, KEY("block_count"), v->layers ? v->layers : 1);
    kv_u32(&b, KEY("context_length"), 128);
    kv_u32(&b, KEY("embedding_length"), HIDDEN);
    kv_u32(&b, KEY("feed_forward_length"), FF);
    kv_u32(&b, KEY("attention.head_count"), v->heads);
    kv_u32(&b, KEY("attention.head_count_kv"), 1);
    if (v->eps_as_text)
        kv_str(&b, KEY("attention.layer_norm_rms_epsilon"), "1e-5");
    else
        kv_f32(&b, KEY("attention.layer_norm_rms_epsilon"), 1e-5f);
    kv_str(&b, "tokenizer.ggml.model", v->model ? v->model : "gpt2");
    kv_str(&b, "tokenizer.ggml.pre", v->pre ? v->pre : "smollm");
    kv_arr(&b, "tokenizer.ggml.tokens", 8, VOCAB);
    for (int i = 0; i < VOCAB; i++)
        str(&b, tokens[i]);
    kv_arr(&b, "tokenizer.ggml.token_type", 5, types);
    for (uint64_t i = 0; i < types; i++)
        u32(&b, i == 0 || i == 4 ? 3 : 1);
    if (v->scores) {
        const bool few = strcmp(v->scores, "short") == 0;
        kv_arr(&b, "tokenizer.ggml.scores", 6, few ? VOCAB - 1 : VOCAB);
        for (int i = few; i < VOCAB; i++)
            u32(&b, nb_bits_from_f32(few ? 0.0f : strtof(v->scores, NULL)));
    } else {
        kv_arr(&b, "tokenizer.ggml.merges", 8, 1);
        str(&b, "a b");
    }
    kv_u32(&b, "tokenizer.ggml.bos_token_id", v->bos);
    kv_bool(&b, "tokenizer.ggml.add_bos_token", (int)v->add_bos);
    kv_str(&b, "tokenizer.chat_template", "{{ 'hi' }}");
    for (size_t i = 0; i < NB_LEN(t); i++) {
        if ((int)i == v->drop)
            continue;
        tensor(&b, t[i].name, t[i].rows, t[i].cols, 0, at);
        at = (at + t[i].rows * (t[i].cols ? t[i].cols : 1) * 4 + 31) / 32 * 32;
    }
    if (v->extra)
        tensor(&b, v->extra, 1, 0, 0, at);
    pad_to(&b, 32);
    for (size_t i = 0; i < NB_LEN(t); i++) {
        if ((int)i == v->drop)
            continue;
        for (uint64_t k = 0; k < t[i].rows * (t[i].cols ? t[i].cols : 1); k++) {
            u32(&b, nb_bits_from_f32(x));
            x += 1.0f;
        }
        pad_to(&b, 32);
    }
    zeros(&b, 4);
    return save(&b, "model.gguf");
}

static const variant good = { .label = "good", .heads = 2, .drop = -1 };

static void names_and_rows(void **state)
{
    const char *path = model_file(&good);
    nb_err err = { 0 };
    nb_store *s;
    const nb_tensor *q, *k, *o;
    float v[2 * HEAD_DIM * HIDDEN], w[3];
    const float q0 = VOCAB * HIDDEN + 2 * HIDDEN, k0 = q0 + 2 * HEAD_DIM * HIDDEN;
    static const int order[] = { 0, 2, 1, 3, 4, 6, 5, 7 };

    (void)state;
    if (nb_open(path, &s, &err) != NB_OK)
        fail_msg("%s: %s", err.subject, err.what);
    assert_int_equal(s->n_tensors, 11);
    q = nb_store_find(s, "model.layers.0.self_attn.q_proj.weight");
    k = nb_store_find(s, "model.layers.0.self_attn.k_proj.weight");
    o = nb_store_find(s, "model.layers.0.self_attn.o_proj.weight");
    assert_true(q && k && o && nb_store_find(s, "model.embed_tokens.weight") && nb_store_find(s, "model.norm.weight") &&
                nb_store_find(s, "model.layers.0.mlp.down_proj.weight") &&
                nb_store_find(s, "model.layers.0.post_attention_layernorm.weight"));
    assert_null(q->data);
    assert_non_null(o->data);
    assert_int_equal(nb_store_read_f32(s, q, 0, 2 * HEAD_DIM * HIDDEN, v, &err), NB_OK);
    for (int r = 0; r < 2 * HEAD_DIM; r++)
        for (int c = 0; c < HIDDEN; c++)
            assert_float_equal(v[r * HIDDEN + c], q0 + (float)(order[r] * HIDDEN + c), 0.0f);
    assert_int_equal(nb_store_read_f32(s, k, HIDDEN - 1, 3, w, &err), NB_OK); /* over a row's end: rows 0 and 2 of the file */
    assert_float_equal(w[0], k0 + HIDDEN - 1, 0.0f);
    assert_float_equal(w[1], k0 + 2 * HIDDEN, 0.0f);
    nb_store_close(s);
}

static void small_files(void **state)
{
    nb_err err = { 0 };
    nb_hfdir *d;
    const nb_json *c;
    nb_json *t;
    const char *p;
    size_t n;

    (void)state;
    assert_int_equal(nb_hfdir_open(model_file(&good), &d, &err), NB_OK);
    assert_true(nb_hfdir_is_gguf(d));
    assert_int_equal(nb_hfdir_count(d), 4);
    if (nb_hfdir_config(d, &c, &err) != NB_OK)
        fail_msg("%s", err.what);
    assert_string_equal(nb_json_str(nb_json_at(nb_json_get(c, "architectures"), 0), ""), "LlamaForCausalLM");
    assert_int_equal(nb_json_int(nb_json_get(c, "head_dim"), 0), HEAD_DIM);
    assert_int_equal(nb_json_int(nb_json_get(c, "vocab_size"), 0), VOCAB);
    assert_float_equal(nb_json_num(nb_json_get(c, "rope_theta"), 0), 10000.0, 0.0);
    assert_true(nb_json_bool(nb_json_get(c, "tie_word_embeddings"), false));
    assert_int_equal(nb_hfdir_file(d, "tokenizer_config.json", &p, &n, &err), NB_OK);
    assert_non_null(strstr(p, "\"chat_template\": \"{{ 'hi' }}\""));
    assert_int_equal(nb_hfdir_file(d, "chat_template.jinja", &p, &n, &err), NB_OK);
    assert_null(p);
    assert_int_equal(nb_hfdir_file(d, "tokenizer.json", &p, &n, &err), NB_OK);
    assert_int_equal(nb_json_parse(p, n, "tok", 0, &t, &err), NB_OK);
    c = nb_json_get(t, "model");
    assert_int_equal(nb_json_int(nb_json_get(nb_json_get(c, "vocab"), "ab"), 0), 3);
    assert_string_equal(nb_json_str(nb_json_at(nb_json_get(c, "merges"), 0), ""), "a b");
    assert_int_equal(nb_json_len(nb_json_get(t, "added_tokens")), 2);
    assert_true(nb_json_bool(nb_json_get(nb_json_at(nb_json_get(t, "added_tokens"), 1), "special"), false));
    c = nb_json_get(nb_json_get(t, "pre_tokenizer"), "pretokenizers");
    assert_string_equal(nb_json_str(nb_json_get(nb_json_at(c, 0), "type"), ""), "Digits");
    assert_string_equal(nb_json_str(nb_json_get(nb_json_at(c, 1), "type"), ""), "ByteLevel");
    nb_json_free(t);
    nb_hfdir_close(d);
}

static const variant rows[] = {
    { .label = "GG-19 CF-04 no heads", .heads = 0, .drop = -1, .want = NB_EFORMAT, .cls = "cfg.value" },
    { .label = "CF-05 heads that do not divide", .heads = 3, .drop = -1, .want = NB_EFORMAT, .cls = "cfg.head_dim" },
    { .label = "GG-19 CF-04 4097 heads", .heads = 4097, .drop = -1, .want = NB_EFORMAT, .cls = "cfg.value" },
    { .label = "GG-19 CF-04 2^31 layers", .heads = 2, .layers = 0x80000000, .drop = -1, .want = NB_EFORMAT, .cls = "cfg.value" },
    { .label = "GG-18 epsilon is text", .heads = 2, .eps_as_text = 1, .drop = -1, .want = NB_EFORMAT, .cls = "gguf.meta_type" },
    { .label = "GG-21 BOS outside the vocabulary", .heads = 2, .bos = VOCAB, .drop = -1, .want = NB_EFORMAT, .cls = "tok.special_id" },
    { .label = "architecture we do not know", .arch = "rwkv7", .heads = 2, .drop = -1, .want = NB_EUNSUPPORTED, .cls = "gguf.arch" },
    { .label = "GG-21 token types of another length",
      .heads = 2,
      .types_len = "4",
      .drop = -1,
      .want = NB_EFORMAT,
      .cls = "tok.arrays",
      .tok = true },
    { .label = "unknown tokenizer model",
      .heads = 2,
      .model = "bert",
      .drop = -1,
      .want = NB_EUNSUPPORTED,
      .cls = "gguf.tokenizer",
      .tok = true },
    { .label = "TK-14 SentencePiece without scores",
      .heads = 2,
      .model = "llama",
      .drop = -1,
      .want = NB_EFORMAT,
      .cls = "gguf.meta_type",
      .tok = true },
    { .label = "SentencePiece", .heads = 2, .model = "llama", .drop = -1, .scores = "-1", .want = NB_OK, .cls = "", .tok = true },
    { .label = "TK-14 a score too few",
      .heads = 2,
      .model = "llama",
      .drop = -1,
      .scores = "short",
      .want = NB_EFORMAT,
      .cls = "tok.arrays",
      .tok = true },
    { .label = "TK-14 score NaN",
      .heads = 2,
      .model = "llama",
      .drop = -1,
      .scores = "nan",
      .want = NB_EFORMAT,
      .cls = "tok.score",
      .tok = true },
    { .label = "TK-14 score infinite",
      .heads = 2,
      .model = "llama",
      .drop = -1,
      .scores = "inf",
      .want = NB_EFORMAT,
      .cls = "tok.score",
      .tok = true },
    { .label = "unknown pattern name",
      .heads = 2,
      .pre = "smol",
      .drop = -1,
      .want = NB_EUNSUPPORTED,
      .cls = "gguf.tokenizer",
      .tok = true },
};

static void config_rows(void **state)
{
    (void)state;
    for (size_t i = 0; i < NB_LEN(rows); i++) {
        nb_err err = { 0 };
        nb_hfdir *d;
        const nb_json *c;
        const char *p;
        size_t n;
        assert_int_equal(nb_hfdir_open(model_file(&rows[i]), &d, &err), NB_OK);
        expect(rows[i].label, rows[i].tok ? nb_hfdir_file(d, "tokenizer.json", &p, &n, &err) : nb_hfdir_config(d, &c, &err), &err,
               rows[i].want, rows[i].cls);
        nb_hfdir_close(d);
    }
}

static void tensor_rows(void **state)
{
    static const variant bad[] = {
        { .label = "GG-20 CF-08 a layer too many", .heads = 2, .layers = 2, .drop = -1, .want = NB_EFORMAT, .cls = "cfg.missing_tensor" },
        { .label = "CF-08 no down projection", .heads = 2, .drop = 10, .want = NB_EFORMAT, .cls = "cfg.missing_tensor" },
        { .label = "heads that do not divide the rows", .heads = 3, .drop = -1, .want = NB_EFORMAT, .cls = "cfg.shape_mismatch" },
        { .label = "a tensor this architecture lacks",
          .heads = 2,
          .drop = -1,
          .extra = "blk.0.attn_q.bias",
          .want = NB_EUNSUPPORTED,
          .cls = "gguf.tensor" },
        { .label = "GG-20 layer number huge", .heads = 2, .drop = -1, .extra = "blk.99999999999999999999.attn_q.weight", .want = NB_OK },
        { .label = "GG-20 layer number negative", .heads = 2, .drop = -1, .extra = "blk.-1.attn_q.weight", .want = NB_OK },
        { .label = "GG-20 layer number with zeros in front", .heads = 2, .drop = -1, .extra = "blk.00.attn_q.weight", .want = NB_OK },
        { .label = "GG-20 layer number not decimal", .heads = 2, .drop = -1, .extra = "blk.x.attn_q.weight", .want = NB_OK },
    };

    (void)state;
    for (size_t i = 0; i < NB_LEN(bad); i++) {
        nb_err err = { 0 };
        nb_store *s = NULL;
        expect(bad[i].label, nb_open(model_file(&bad[i]), &s, &err), &err, bad[i].want, bad[i].cls);
        if (s && bad[i].extra && nb_report_count(s->notes) != 1)
            fail_msg("%s: not noted", bad[i].label);
        nb_store_close(s);
    }
}

/* Every name of tokenizer.ggml.pre that we know gives a tokenizer; BOS appears where the file asks for it. */
static void pre_names(void **state)
{
    static const char *const names[] = { "gpt-2",  "smollm", "llama-bpe",   "qwen2",      "stablelm2",
                                         "gpt-4o", "tekken", "deepseek-v3", "chatglm-bpe" };

    (void)state;
    for (size_t i = 0; i < NB_LEN(names); i++) {
        variant v = good;
        nb_err err = { 0 };
        nb_hfdir *d;
        nb_json *t = NULL;
        const char *p;
        size_t n;
        v.pre = names[i];
        v.add_bos = 1;
        assert_int_equal(nb_hfdir_open(model_file(&v), &d, &err), NB_OK);
        if (nb_hfdir_file(d, "tokenizer.json", &p, &n, &err) != NB_OK || nb_json_parse(p, n, "tok", 0, &t, &err) != NB_OK)
            fail_msg("%s: %s", names[i], err.what);
        assert_string_equal(nb_json_str(nb_json_get(nb_json_get(t, "post_processor"), "type"), ""), "TemplateProcessing");
        assert_non_null(strstr(p, "\"use_regex\": "));
        nb_json_free(t);
        nb_hfdir_close(d);
    }
}

/* Every allocation fails once: NB_ENOMEM or success, and nothing leaks. */
static void allocations_of(const variant *v)
{
    static const char *const names[] = { "config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json" };
    const char *path = model_file(v);
    bool failed = true;

    for (uint64_t i = 1; failed && i < 20000; i++) {
        nb_err err = { 0 };
        nb_hfdir *d = NULL;
        nb_store *s = NULL;
        nb_status rc;
        const char *p;
        size_t n;
        nb_mem_fail_at(i);
        rc = nb_open(path, &s, &err);
        if (rc == NB_OK)
            rc = nb_hfdir_open(path, &d, &err);
        for (size_t k = 0; k < NB_LEN(names) && rc == NB_OK; k++)
            rc = nb_hfdir_file(d, names[k], &p, &n, &err);
        failed = nb_mem_fail_at(0) >= i;
        if (rc != NB_OK && rc != NB_ENOMEM)
            fail_msg("allocation %llu: %d %s: %s", (unsigned long long)i, (int)rc, err.cls, err.what);
        nb_hfdir_close(d);
        nb_store_close(s);
    }
    assert_false(failed);
}

static void allocations(void **state)
{
    variant v = good;

    (void)state;
    v.pre = "qwen2";
    v.add_bos = 1;
    allocations_of(&v);
    v.model = "llama";
    v.scores = "-1";
    allocations_of(&v);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(names_and_rows), cmocka_unit_test(small_files), cmocka_unit_test(config_rows),
                                        cmocka_unit_test(tensor_rows),    cmocka_unit_test(pre_names),   cmocka_unit_test(allocations) };

    return cmocka_run_group_tests(tests, NULL, scratch_remove);
}

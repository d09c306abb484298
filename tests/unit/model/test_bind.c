/* Plan and bind: op list and slots, what is fused, what happens when tensors are missing or have other shapes. */
#include "unit/model/fixture.h"
#include "unit/model/memmodel.h"

static nb_json *config_with(const char *edit)
{
    nb_json *j = NULL, *e = NULL;

    assert_int_equal(nb_json_parse(mm_config, strlen(mm_config), "cfg", 0, &j, NULL), NB_OK);
    assert_int_equal(nb_json_parse(edit, strlen(edit), "cfg", 0, &e, NULL), NB_OK);
    for (size_t i = 0; i < nb_json_len(e); i++) {
        const char *key;
        const nb_json *v = nb_json_member(e, i, &key);
        if (nb_json_is_null(v))
            nb_json_remove(j, key);
        else
            assert_true(nb_json_set(j, key, nb_json_copy(v)));
    }
    nb_json_free(e);
    return j;
}

/* All tensors of s but one, whose name may be given another prefix: "model." becomes `prefix`. */
static nb_store *copy_without(const nb_store *s, const char *gone, const char *prefix)
{
    nb_store *out = NULL;
    char name[160];

    assert_int_equal(nb_memstore_open(&out, NULL), NB_OK);
    for (size_t i = 0; i < s->n_tensors; i++) {
        const nb_tensor *t = &s->tensors[i];
        if (strcmp(t->name, gone) == 0)
            continue;
        snprintf(name, sizeof name, "%s%s", strncmp(t->name, "model.", 6) == 0 ? prefix : "",
                 strncmp(t->name, "model.", 6) == 0 ? t->name + 6 : t->name);
        assert_int_equal(nb_memstore_add(out, name, t->dtype, t->rank, t->shape, t->data, NULL), NB_OK);
    }
    return out;
}

static const struct {
    const char *label, *edit, *gone, *prefix;
    nb_status want;
    const char *cls, *says;
} rows[] = {
    { "the whole model", "{}", "", "model.", NB_OK, "", NULL },
    { "names without prefix", "{}", "", "", NB_OK, "", NULL },
    { "names of a multimodal file", "{}", "", "model.language_model.", NB_OK, "", NULL },
    { "CF-08 more layers than tensors", "{\"num_hidden_layers\":3}", "", "model.", NB_EFORMAT, "cfg.missing_tensor", "model.layers.2." },
    { "CF-08 a norm is missing", "{}", "model.layers.1.post_attention_layernorm.weight", "model.", NB_EFORMAT, "cfg.missing_tensor",
      "layers.1.post_attention_layernorm.weight" },
    { "CF-08 a weight is missing", "{}", "model.layers.0.mlp.up_proj.weight", "model.", NB_EFORMAT, "cfg.missing_tensor", "up_proj" },
    { "CF-08 a promised bias is missing", "{}", "model.layers.0.self_attn.v_proj.bias", "model.", NB_EFORMAT, "cfg.missing_tensor",
      "v_proj.bias" },
    { "a bias nobody promised is used", "{\"attention_bias\":false}", "", "model.", NB_OK, "", NULL },
    { "CF-08 no final norm", "{}", "model.norm.weight", "model.", NB_EFORMAT, "cfg.missing_tensor", "model.norm.weight" },
    { "CF-08 no embedding", "{}", "model.embed_tokens.weight", "model.", NB_EFORMAT, "cfg.missing_tensor", "embed_tokens" },
    { "CF-09 another intermediate size", "{\"intermediate_size\":200}", "", "model.", NB_EFORMAT, "cfg.shape_mismatch", "[192, 128]" },
    { "CF-09 another hidden size", "{\"hidden_size\":64,\"head_dim\":32}", "", "model.", NB_EFORMAT, "cfg.shape_mismatch", "128" },
    { "CF-09 another head count", "{\"num_key_value_heads\":4}", "", "model.", NB_EFORMAT, "cfg.shape_mismatch", "k_proj" },
    { "CF-16 untied without a head", "{}", "lm_head.weight", "model.", NB_EFORMAT, "cfg.missing_tensor", "lm_head" },
    { "CF-16 tied without a head", "{\"tie_word_embeddings\":true}", "lm_head.weight", "model.", NB_OK, "", NULL },
    { "CF-16 no head and no word about it", "{\"tie_word_embeddings\":null}", "lm_head.weight", "model.", NB_OK, "", NULL },
    { "tied, only the head is stored", "{\"tie_word_embeddings\":true}", "model.embed_tokens.weight", "model.", NB_OK, "", NULL },
    { "an unknown class with the names of llama", "{\"model_type\":\"foo\",\"architectures\":[\"FooForCausalLM\"]}", "", "model.",
      NB_EUNSUPPORTED, "cfg.arch", "; its tensors are nearest to llama (LlamaForCausalLM) and differ in no name" },
    { "an unknown class without one of llama's", "{\"model_type\":\"foo\",\"architectures\":[\"FooForCausalLM\"]}",
      "model.layers.1.post_attention_layernorm.weight", "model.", NB_EUNSUPPORTED, "cfg.arch",
      "nearest to llama (LlamaForCausalLM), but it lacks post_attention_layernorm" },
    { "an unknown class of another width", "{\"model_type\":\"foo\",\"architectures\":null,\"intermediate_size\":200}", "", "model.",
      NB_EUNSUPPORTED, "cfg.arch", "other shapes of mlp.gate_proj, mlp.up_proj, mlp.down_proj" },
    { "an unknown class with names of no row", "{\"model_type\":\"foo\",\"architectures\":null}", "", "engine.", NB_EUNSUPPORTED,
      "cfg.arch", "supported: llama" },
    { "rows of the embedding decide the vocabulary", "{\"vocab_size\":64}", "", "model.", NB_OK, "", NULL },
};

static void bind_rows(void **state)
{
    memmodel mem;

    (void)state;
    mm_open(&mem, MM_BF16);
    for (size_t i = 0; i < NB_LEN(rows); i++) {
        nb_store *s = copy_without(mem.store, rows[i].gone, rows[i].prefix);
        nb_json *cfg = config_with(rows[i].edit);
        nb_scan scan;
        nb_model *m = NULL;
        nb_err err = { 0 };
        nb_status rc;

        assert_int_equal(nb_scan_open(s, NULL, "config.json", NULL, &scan, &err), NB_OK);
        rc = nb_model_open(s, cfg, &scan, &(nb_model_opts){ 0 }, &m, &err);
        if (rc != rows[i].want || strcmp(err.cls, rows[i].cls) != 0 || (rows[i].says && !strstr(err.what, rows[i].says)))
            fail_msg("%s: got %d %s (%s), want %d %s", rows[i].label, (int)rc, err.cls, err.what, (int)rows[i].want, rows[i].cls);
        if (rc == NB_OK) {
            nb_fit fit;
            assert_int_equal(nb_model_config(m)->vocab, MM_VOCAB);
            assert_int_equal(nb_model_fit(nb_model_config(m), nb_model_plan(m), &scan, s, 100, 16, NB_DT_F16, &fit, &err), NB_OK);
            assert_in_range(fit.weights, nb_model_step_bytes(m), nb_model_bytes(m));
            assert_true(fit.kv == (uint64_t)4 * 32 * 2 * 2 * MM_KV * MM_HEAD * MM_LAYERS);
        }
        nb_model_close(m);
        nb_scan_clear(&scan);
        nb_json_free(cfg);
        nb_store_close(s);
    }
    mm_close(&mem);
}

/* The op list, in the words of the plan. */
static void plan_of_llama(void **state)
{
    static const struct {
        nb_op_kind kind;
        nb_slot in, out;
    } want[] = {
        { NB_OP_NORM, NB_SLOT_X, NB_SLOT_NORM },     { NB_OP_LINEAR, NB_SLOT_NORM, NB_SLOT_QKV },
        { NB_OP_ROPE, NB_SLOT_QKV, NB_SLOT_QKV },    { NB_OP_ATTN, NB_SLOT_QKV, NB_SLOT_ATT },
        { NB_OP_LINEAR, NB_SLOT_ATT, NB_SLOT_PROJ }, { NB_OP_ADD, NB_SLOT_PROJ, NB_SLOT_X },
        { NB_OP_NORM, NB_SLOT_X, NB_SLOT_NORM },     { NB_OP_LINEAR, NB_SLOT_NORM, NB_SLOT_GU },
        { NB_OP_ACT_MUL, NB_SLOT_GU, NB_SLOT_ACT },  { NB_OP_LINEAR, NB_SLOT_ACT, NB_SLOT_PROJ },
        { NB_OP_ADD, NB_SLOT_PROJ, NB_SLOT_X },
    };
    nb_json *j =
        config_with("{\"hidden_size\":100,\"head_dim\":20,\"num_attention_heads\":5,\"num_key_value_heads\":1,\"intermediate_size\":70}");
    char name[128];
    nb_config c;
    nb_plan p;
    size_t n, k;

    (void)state;
    assert_int_equal(nb_config_parse(j, &c, NULL), NB_OK);
    assert_int_equal(nb_plan_build(&c, NULL, &p, NULL), NB_OK);
    assert_int_equal(p.n_ops, NB_LEN(want));
    for (size_t i = 0; i < p.n_ops; i++)
        if (p.ops[i].kind != want[i].kind || p.ops[i].in != want[i].in || p.ops[i].out != want[i].out)
            fail_msg("op %zu is %d %d %d", i, p.ops[i].kind, p.ops[i].in, p.ops[i].out);
    assert_true(p.qkv.off[0] == 0 && p.qkv.off[1] == 128 && p.qkv.off[2] == 192 && p.up_off == 128);
    assert_true(p.slot_width[NB_SLOT_QKV] == 256 && p.slot_width[NB_SLOT_GU] == 256 && p.slot_width[NB_SLOT_X] == 128);
    assert_true(p.slot_len[NB_SLOT_X] == 100 && p.slot_len[NB_SLOT_ATT] == 100 && p.slot_len[NB_SLOT_ACT] == 70);
    assert_string_equal(nb_plan_linear(&p, 7, NB_ROLE_DOWN, name, sizeof name), "model.layers.7.mlp.down_proj");
    assert_string_equal(nb_plan_vec(&p, 0, NB_VEC_N2, name, sizeof name), "model.layers.0.post_attention_layernorm.weight");
    for (int r = 0; r < NB_ROLE_COUNT; r++) {
        assert_true(p.has_role[r] == (r <= NB_ROLE_V || (r >= NB_ROLE_O && r <= NB_ROLE_DOWN && r != NB_ROLE_GATE_UP)) &&
                    (!p.has_role[r] || p.ops[nb_plan_op_of(&p, (nb_role)r)].kind == NB_OP_LINEAR));
        nb_plan_linear_size(&p, (nb_role)r, &n, &k);
        assert_true(!p.has_role[r] || (n > 0 && k > 0));
    }
    nb_plan_linear_size(&p, NB_ROLE_K, &n, &k);
    assert_true(n == 20 && k == 100 && nb_plan_role_off(&p, NB_ROLE_V) == 192);
    assert_int_equal(nb_plan_vec_size(&p, NB_VEC_QN), 0);
    nb_plan_clear(&p);
    nb_config_clear(&c);
    nb_json_free(j);
}

/* A cancelled load says so. */
static bool stop(void *user)
{
    (void)user;
    return true;
}

static void cancelled(void **state)
{
    const nb_host host = { .cancelled = stop };
    memmodel mem;
    nb_scan scan;
    nb_model *m = NULL;
    nb_err err = { 0 };

    (void)state;
    mm_open(&mem, MM_AWQ);
    assert_int_equal(nb_scan_open(mem.store, mem.qcfg, "config.json", NULL, &scan, &err), NB_OK);
    assert_int_equal(nb_model_open(mem.store, mem.cfg, &scan, &(nb_model_opts){ .host = &host }, &m, &err), NB_ECANCELED);
    assert_null(m);
    nb_scan_clear(&scan);
    mm_close(&mem);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bind_rows),
        cmocka_unit_test(plan_of_llama),
        cmocka_unit_test(cancelled),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

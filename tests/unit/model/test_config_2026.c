/* Broken and unusual config.json of the families of 2026: one sentence that names the key and what is supported. Rows patch the
 * configuration of a checkpoint of tests/data/models-2026. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "io/io.h"
#include "model/config.h"
#include "model/plan.h"

typedef struct row {
    const char *label, *model, *patch; /* members to set; "!key" removes */
    nb_status code;
    const char *cls, *says;
} row;

static const row rows[] = {
    { "CF-11 unknown layer kind", "qwen3_next", "{\"layer_types\":[\"linear_attention\",\"rwkv\"]}", NB_EUNSUPPORTED, "cfg.unsupported",
      "rwkv" },
    { "CF-11 kind of another family", "qwen3_5-mm", "{\"layer_types\":[\"conv\",\"full_attention\"]}", NB_EUNSUPPORTED, "cfg.unsupported",
      "linear_attention" },
    { "CF-11 kind is a number", "lfm2", "{\"layer_types\":[1,\"full_attention\"]}", NB_EUNSUPPORTED, "cfg.unsupported", "layer_types" },
    { "CF-11 unknown letter", "nemotron_h-latent", "{\"!layers_block_type\":0,\"hybrid_override_pattern\":\"M-X*\"}", NB_EUNSUPPORTED,
      "cfg.unsupported", "letters" },
    { "CF-11 unknown word", "nemotron_h-latent", "{\"layers_block_type\":[\"moe\",\"attn\"]}", NB_EUNSUPPORTED, "cfg.unsupported", "attn" },
    { "CF-11 chunked in a plain family", "gemma4",
      "{\"layer_types\":[\"chunked_attention\",\"full_attention\",\"full_attention\",\"full_attention\"]}", NB_EUNSUPPORTED,
      "cfg.unsupported", "chunked" },
    { "CF-11 MLP kind", "exaone_moe", "{\"mlp_layer_types\":[\"dense\",\"hash\",\"sparse\"]}", NB_EUNSUPPORTED, "cfg.unsupported", "hash" },
    { "CF-11 lists that differ by layer", "ernie4_5_moe", "{\"moe_k\":[1,2]}", NB_EUNSUPPORTED, "cfg.unsupported", "moe_k" },
    { "CF-11 mpt without alibi", "mpt", "{\"attn_config\":{\"alibi\":false}}", NB_EUNSUPPORTED, "cfg.unsupported", "alibi" },
    { "CF-12 too few kinds", "qwen3_next", "{\"layer_types\":[\"linear_attention\"]}", NB_EFORMAT, "cfg.value", "1 entries" },
    { "CF-12 kinds are a word", "granitemoehybrid", "{\"layer_types\":\"mamba\"}", NB_EFORMAT, "cfg.value", "layer_types" },
    { "CF-12 no kinds where there is no rule", "lfm2_moe", "{\"!layer_types\":0}", NB_EFORMAT, "cfg.value", "layer_types" },
    { "CF-12 no pattern", "nemotron_h-latent", "{\"!layers_block_type\":0}", NB_EFORMAT, "cfg.value", "kind of every layer" },
    { "CF-12 empty pattern", "nemotron_h-latent", "{\"!layers_block_type\":0,\"hybrid_override_pattern\":\"\"}", NB_EFORMAT, "cfg.value",
      "hybrid_override_pattern" },
    { "CF-12 too few MLP kinds", "exaone_moe", "{\"mlp_layer_types\":[\"dense\"]}", NB_EFORMAT, "cfg.value", "mlp_layer_types" },
    { "CF-12 layers of the list past the end", "kimi_linear", "{\"linear_attn_config\":{\"full_attn_layers\":[9]}}", NB_EFORMAT,
      "cfg.value", "full_attn_layers" },
    { "CF-12 moe layers past the end", "llama4", "{\"moe_layers\":[7]}", NB_EFORMAT, "cfg.value", "moe_layers" },
    { "CF-12 sparsity of wrong length", "gemma3n", "{\"activation_sparsity_pattern\":[0.5]}", NB_EFORMAT, "cfg.value",
      "activation_sparsity_pattern" },
    { "CF-12 sparsity of 1", "gemma3n", "{\"activation_sparsity_pattern\":1.0}", NB_EFORMAT, "cfg.value", "activation_sparsity_pattern" },
    { "CF-12 widths of wrong length", "gemma3n", "{\"intermediate_size\":[16,16]}", NB_EFORMAT, "cfg.value", "intermediate_size" },
    { "CF-12 multipliers of wrong length", "falcon_h1", "{\"ssm_multipliers\":[1,1]}", NB_EFORMAT, "cfg.value", "ssm_multipliers" },
    { "CF-12 multiplier is a word", "falcon_h1", "{\"mlp_multipliers\":[1,\"x\"]}", NB_EFORMAT, "cfg.value", "mlp_multipliers" },
    { "CF-07 shared keys of no layer", "gemma4", "{\"num_kv_shared_layers\":4}", NB_EFORMAT, "cfg.value", "num_kv_shared_layers" },
    { "CF-07 shared keys of all and more", "gemma3n", "{\"num_kv_shared_layers\":5}", NB_EFORMAT, "cfg.value", "num_kv_shared_layers" },
    { "CF-07 value heads do not divide", "qwen3_next", "{\"linear_num_value_heads\":3}", NB_EFORMAT, "cfg.value",
      "linear_num_value_heads" },
    { "CF-07 groups do not divide", "mamba2", "{\"n_groups\":3}", NB_EFORMAT, "cfg.value", "n_groups" },
    { "CF-07 values longer than keys", "mimo_v2_flash", "{\"v_head_dim\":16}", NB_EFORMAT, "cfg.value", "v_head_dim" },
    { "CF-05 key heads 0", "qwen3_next", "{\"linear_num_key_heads\":0}", NB_EFORMAT, "cfg.value", "linear_num_key_heads" },
    { "CF-05 state size 0", "granitemoehybrid", "{\"mamba_d_state\":0}", NB_EFORMAT, "cfg.value", "mamba_d_state" },
    { "CF-05 state size is a word", "nemotron_h-latent", "{\"ssm_state_size\":\"big\"}", NB_EFORMAT, "cfg.value", "ssm_state_size" },
    { "CF-05 state size too large", "bamba", "{\"mamba_d_state\":65537}", NB_EFORMAT, "cfg.value", "65536" },
    { "CF-05 states together too large", "bamba",
      "{\"mamba_d_state\":65536,\"hidden_size\":16384,\"mamba_d_head\":\"auto\",\"head_dim\":8}", NB_EFORMAT, "cfg.overflow", "too many" },
    { "CF-05 heads that do not make up the width", "granitemoehybrid", "{\"mamba_n_heads\":5}", NB_EFORMAT, "cfg.value", "mamba_n_heads" },
    { "CF-05 head size that is not theirs", "granitemoehybrid", "{\"mamba_d_head\":8}", NB_EFORMAT, "cfg.value", "mamba_d_head" },
    { "CF-05 a convolution of one tap", "lfm2", "{\"conv_L_cache\":1}", NB_EFORMAT, "cfg.value", "2 or more" },
    { "CF-05 a convolution of very many taps", "lfm2", "{\"conv_L_cache\":1000}", NB_EFORMAT, "cfg.overflow", "taps" },
    { "CF-05 many streams", "gemma3n", "{\"altup_num_inputs\":9}", NB_EFORMAT, "cfg.value", "altup_num_inputs" },
    { "CF-05 active stream", "gemma3n", "{\"altup_active_idx\":3}", NB_EFORMAT, "cfg.value", "altup_active_idx" },
    { "CF-05 rotary size odd", "minimax_m2", "{\"rotary_dim\":3}", NB_EFORMAT, "cfg.value", "rotary_dim" },
    { "CF-05 rotary size above the head", "minimax_m2", "{\"rotary_dim\":1000}", NB_EFORMAT, "cfg.value", "rotary_dim" },
    { "CF-10 period offset", "jamba", "{\"attn_layer_offset\":2}", NB_EFORMAT, "cfg.value", "attn_layer_offset" },
    { "CF-10 limits crossed", "mamba2", "{\"time_step_limit\":[1,0]}", NB_EFORMAT, "cfg.value", "time_step_limit" },
    { "CF-10 one limit", "mamba2", "{\"time_step_limit\":[1]}", NB_EFORMAT, "cfg.value", "time_step_limit" },
    { "CF-10 infinity as an object", "mamba2", "{\"time_step_limit\":[0,{\"__float__\":\"Infinity\"}]}", NB_OK, "", NULL },
    { "CF-10 no number as an object", "mamba2", "{\"time_step_limit\":[0,{\"__float__\":\"NaN\"}]}", NB_EFORMAT, "cfg.value",
      "time_step_limit" },
    { "CF-10 position scale", "ministral3", "{\"rope_parameters\":{\"rope_type\":\"yarn\",\"factor\":4,\"llama_4_scaling_beta\":-1}}",
      NB_EFORMAT, "cfg.value", "llama_4_scaling_beta" },
    { "CF-10 chunk 0", "llama4", "{\"attention_chunk_size\":0}", NB_EFORMAT, "cfg.value", "attention_chunk_size" },
    { "CF-10 no chunk", "llama4", "{\"attention_chunk_size\":null}", NB_OK, "", NULL },
    { "CF-13 experts without a count", "nemotron_h-latent", "{\"!n_routed_experts\":0}", NB_EFORMAT, "cfg.value", "n_routed_experts" },
    { "CF-13 gemma4 experts without a count", "gemma4", "{\"enable_moe_block\":true}", NB_EFORMAT, "cfg.value", "num_experts" },
    { "CF-11 kind of a layer with a shared block", "zamba2",
      "{\"layers_block_type\":[\"mamba\",\"hybrid\",\"attention\",\"hybrid\",\"hybrid\"]}", NB_EUNSUPPORTED, "cfg.unsupported",
      "mamba and hybrid" },
    { "CF-12 too few kinds of shared blocks", "zamba2", "{\"layers_block_type\":[\"mamba\"]}", NB_EFORMAT, "cfg.value", "1 entries" },
    { "CF-12 kinds by the other key", "zamba2", "{\"!layers_block_type\":0}", NB_OK, "", NULL },
    { "CF-12 no kinds at all", "zamba2", "{\"!layers_block_type\":0,\"!hybrid_layer_ids\":0}", NB_EFORMAT, "cfg.value",
      "layers_block_type" },
    { "CF-05 no blocks to share", "zamba2", "{\"num_mem_blocks\":0}", NB_EFORMAT, "cfg.value", "num_mem_blocks" },
    { "CF-05 state size of Mamba-2 below 1", "zamba2", "{\"mamba_d_state\":-1}", NB_EFORMAT, "cfg.value", "mamba_d_state" },
    { "CF-07 Mamba heads that do not divide", "zamba2", "{\"n_mamba_heads\":5}", NB_EFORMAT, "cfg.value", "n_mamba_heads" },
    { "CF-11 another rotation for long texts", "zamba2", "{\"use_long_context\":true}", NB_EUNSUPPORTED, "cfg.unsupported",
      "use_long_context" },
    { "CF-11 kind of a layer with entries", "deepseek_v4",
      "{\"layer_types\":[\"sliding_attention\",\"full_attention\",\"sliding_attention\",\"sliding_attention\"]}", NB_EUNSUPPORTED,
      "cfg.unsupported", "heavily_compressed_attention" },
    { "CF-11 a ratio that is none", "deepseek_v4", "{\"compress_ratios\":[0,4,64,4]}", NB_EUNSUPPORTED, "cfg.unsupported", "128" },
    { "CF-12 too few ratios", "deepseek_v4", "{\"compress_ratios\":[0,4]}", NB_EFORMAT, "cfg.value", "compress_ratios" },
    { "CF-12 ratios go on behind the last layer", "deepseek_v4", "{\"compress_ratios\":[0,4,128,4,0]}", NB_OK, "", NULL },
    { "CF-12 no ratios", "deepseek_v4", "{\"!compress_ratios\":0}", NB_OK, "", NULL },
    { "CF-11 MLP kind of no token", "deepseek_v4", "{\"mlp_layer_types\":[\"hash_moe\",\"moe\",\"dense\",\"moe\"]}", NB_EUNSUPPORTED,
      "cfg.unsupported", "hash_moe and moe" },
    { "CF-11 another scoring", "deepseek_v4", "{\"scoring_func\":\"softmax\"}", NB_EUNSUPPORTED, "cfg.unsupported", "sqrtsoftplus" },
    { "CF-05 entries of no token", "deepseek_v4", "{\"compress_rate_csa\":0}", NB_EFORMAT, "cfg.value", "compress_rate_csa" },
    { "CF-05 entries of very many tokens", "deepseek_v4", "{\"compress_rate_hca\":65537}", NB_EFORMAT, "cfg.value", "65536" },
    { "CF-05 many residuals", "deepseek_v4", "{\"hc_mult\":9}", NB_EFORMAT, "cfg.value", "hc_mult" },
    { "CF-07 two kv heads", "deepseek_v4", "{\"num_key_value_heads\":2}", NB_EFORMAT, "cfg.value", "num_key_value_heads" },
    { "CF-07 groups of the output", "deepseek_v4", "{\"o_groups\":3}", NB_EFORMAT, "cfg.value", "o_groups" },
    { "CF-07 rotation wider than a head", "deepseek_v4", "{\"qk_rope_head_dim\":14}", NB_EFORMAT, "cfg.value", "qk_rope_head_dim" },
    { "CF-02 family without a recorded pass", "jamba", "{\"model_type\":\"zamba\",\"architectures\":[\"ZambaForCausalLM\"]}",
      NB_EUNSUPPORTED, "cfg.arch", "zamba" },
};

static void apply(nb_json *j, const char *patch)
{
    nb_json *p = NULL;
    const char *key;

    assert_int_equal(nb_json_parse(patch, strlen(patch), "cfg", 0, &p, NULL), NB_OK);
    for (size_t i = 0; i < nb_json_len(p); i++) {
        const nb_json *v = nb_json_member(p, i, &key);
        if (key[0] == '!')
            nb_json_remove(j, key + 1);
        else
            assert_true(nb_json_set(j, key, nb_json_copy(v)));
    }
    nb_json_free(p);
}

static nb_json *config_of(const char *model)
{
    char dir[128];
    nb_hfdir *d = NULL;
    const nb_json *cfg, *text;
    nb_json *j;

    snprintf(dir, sizeof dir, "tests/data/models-2026/%s", model);
    assert_int_equal(nb_hfdir_open(dir, &d, NULL), NB_OK);
    assert_int_equal(nb_hfdir_config(d, &cfg, NULL), NB_OK);
    text = nb_json_get(cfg, "text_config");
    j = nb_json_copy(text ? text : cfg);
    nb_hfdir_close(d);
    return j;
}

static void patched(void **state)
{
    (void)state;
    for (size_t i = 0; i < NB_LEN(rows); i++) {
        const row *r = &rows[i];
        nb_json *j = config_of(r->model);
        nb_err err = { 0 };
        nb_config c;
        nb_status rc;

        apply(j, r->patch);
        rc = nb_config_parse(j, &c, &err);
        if (rc != r->code || (rc != NB_OK && (strcmp(err.cls, r->cls) != 0 || !strstr(err.what, r->says))))
            fail_msg("%s: %d %s: %s", r->label, rc, err.cls, err.what);
        if (rc == NB_OK)
            nb_config_clear(&c);
        nb_json_free(j);
    }
}

/* Every key alone gone, null, a word, -1, huge: an error or a plan, never anything else. */
static void every_key(void **state)
{
    static const char *const values[] = { "null", "\"x\"", "-1", "0", "1e30", "[]", "{}", "65536", "true" };
    static const char *const models[] = { "qwen3_next",   "lfm2",        "granitemoehybrid", "nemotron_h-latent", "falcon_h1",
                                          "jamba",        "kimi_linear", "minimax",          "olmo_hybrid",       "mamba2",
                                          "gemma3n",      "gemma4",      "llama4",           "mistral4",          "mimo_v2_flash",
                                          "ernie4_5_moe", "minicpm3",    "zamba2",           "deepseek_v4" };

    (void)state;
    for (size_t m = 0; m < NB_LEN(models); m++) {
        nb_json *whole = config_of(models[m]);
        for (size_t i = 0; i < nb_json_len(whole); i++)
            for (size_t v = 0; v <= NB_LEN(values); v++) {
                const char *key;
                nb_json *j = nb_json_copy(whole), *value = NULL;
                nb_config c;
                nb_plan p;
                nb_err err = { 0 };

                nb_json_member(whole, i, &key);
                nb_json_remove(j, key);
                if (v < NB_LEN(values)) {
                    assert_int_equal(nb_json_parse(values[v], strlen(values[v]), "cfg", 0, &value, NULL), NB_OK);
                    assert_true(nb_json_set(j, key, value));
                }
                if (nb_config_parse(j, &c, &err) == NB_OK) {
                    assert_int_equal(nb_plan_build(&c, NULL, &p, NULL), NB_OK);
                    nb_plan_clear(&p);
                    nb_config_clear(&c);
                } else {
                    assert_true(err.what[0] != '\0');
                }
                nb_json_free(j);
            }
        nb_json_free(whole);
    }
}

/* Only what recorded logits have been compared with runs: every row of the table has a figure in docs/models.md, and kin of such
 * families are refused by name. */
static void only_verified(void **state)
{
    static const struct {
        const char *type, *class;
    } kin[] = {
        { "mamba", "MambaForCausalLM" },         { "falcon_mamba", "FalconMambaForCausalLM" },
        { "zamba", "ZambaForCausalLM" },         { "recurrent_gemma", "RecurrentGemmaForCausalLM" },
        { "mimo_v2", "MiMoV2ForCausalLM" },      { "plamo2", "Plamo2ForCausalLM" },
        { "phi4flash", "Phi4FlashForCausalLM" }, { "qwen4", "Qwen4ForCausalLM" },
    };
    static char page[1 << 20];
    FILE *f = fopen("docs/models.md", "r");

    (void)state;
    assert_non_null(f);
    page[fread(page, 1, sizeof page - 1, f)] = 0;
    fclose(f);
    for (size_t i = 0; i < nb_arch_count(); i++) {
        char line[80];
        snprintf(line, sizeof line, "\n| `%s` | ", nb_arch_at(i)->type);
        if (!strstr(page, line))
            fail_msg("%s runs, but docs/models.md has no difference from recorded logits", nb_arch_at(i)->type);
    }
    for (size_t i = 0; i < NB_LEN(kin); i++) {
        char text[160];
        nb_json *j = NULL;
        nb_config c;
        nb_err err = { 0 };

        snprintf(text, sizeof text, "{\"model_type\":\"%s\",\"architectures\":[\"%s\"]}", kin[i].type, kin[i].class);
        assert_int_equal(nb_json_parse(text, strlen(text), "cfg", 0, &j, NULL), NB_OK);
        assert_int_equal(nb_config_parse(j, &c, &err), NB_EUNSUPPORTED);
        assert_string_equal(err.cls, "cfg.arch");
        assert_non_null(strstr(err.what, kin[i].type));
        nb_json_free(j);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(patched), cmocka_unit_test(every_key), cmocka_unit_test(only_verified) };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

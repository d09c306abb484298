/* config.json: defaults, aliases, and the CF rows of hardening 5.5 that a model configuration decides; rope check values
 * of spec models 8.6. Rows are edits of one good file. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "model/arch.h"
#include "model/config.h"

static const char good[] =
    "{\"model_type\":\"llama\",\"architectures\":[\"LlamaForCausalLM\"],\"hidden_size\":256,\"num_attention_heads\":4,"
    "\"num_key_value_heads\":2,\"intermediate_size\":512,\"vocab_size\":1000,\"num_hidden_layers\":3,"
    "\"max_position_embeddings\":2048,\"rms_norm_eps\":1e-5,\"rope_theta\":10000.0,\"hidden_act\":\"silu\","
    "\"bos_token_id\":1,\"eos_token_id\":2}";

static nb_json *text(const char *s)
{
    nb_json *j = NULL;
    nb_err err = { 0 };

    if (nb_json_parse(s, strlen(s), "cfg", 0, &j, &err) != NB_OK)
        fail_msg("%s: %s", s, err.what);
    return j;
}

/* The good file with the members of `edit` set; "!key": null removes it. */
static nb_json *edited(const char *edit)
{
    nb_json *j = text(good), *e = text(edit);

    for (size_t i = 0; i < nb_json_len(e); i++) {
        const char *key;
        const nb_json *v = nb_json_member(e, i, &key);
        if (key[0] == '!')
            nb_json_remove(j, key + 1);
        else
            assert_true(nb_json_set(j, key, nb_json_copy(v)));
    }
    nb_json_free(e);
    return j;
}

static const struct {
    const char *label, *edit;
    nb_status want;
    const char *cls;
    const char *says; /* in the sentence; NULL: anything */
} rows[] = {
    { "the good file", "{}", NB_OK, "", NULL },
    { "CF-02 no architecture", "{\"!model_type\":0,\"!architectures\":0}", NB_EUNSUPPORTED, "cfg.arch", "llama" },
    { "CF-02 unknown architecture", "{\"model_type\":\"rwkv9\",\"architectures\":[\"Rwkv9\"]}", NB_EUNSUPPORTED, "cfg.arch", "rwkv9" },
    { "CF-02 unknown type, known class", "{\"model_type\":\"yi\"}", NB_OK, "", NULL },
    { "CF-02 type is a number", "{\"model_type\":7,\"!architectures\":0}", NB_EUNSUPPORTED, "cfg.arch", "7" },
    { "CF-03 auto_map is ignored", "{\"auto_map\":{\"AutoModel\":\"evil.Model\"},\"trust_remote_code\":true}", NB_OK, "", NULL },
    { "CF-04 hidden 0", "{\"hidden_size\":0}", NB_EFORMAT, "cfg.value", "hidden_size" },
    { "CF-04 hidden -1", "{\"hidden_size\":-1}", NB_EFORMAT, "cfg.value", "-1" },
    { "CF-04 hidden limit", "{\"hidden_size\":16777216,\"head_dim\":64}", NB_OK, "", NULL },
    { "CF-04 hidden limit + 1", "{\"hidden_size\":16777217,\"head_dim\":64}", NB_EFORMAT, "cfg.value", "16777216" },
    { "CF-04 hidden 2^63", "{\"hidden_size\":9223372036854775808}", NB_EFORMAT, "cfg.value", NULL },
    { "CF-04 hidden null", "{\"hidden_size\":null}", NB_EFORMAT, "cfg.value", "hidden_size" },
    { "CF-04 hidden string", "{\"hidden_size\":\"256\"}", NB_EFORMAT, "cfg.value", "256" },
    { "CF-04 hidden fraction", "{\"hidden_size\":256.5}", NB_EFORMAT, "cfg.value", NULL },
    { "CF-04 hidden absent", "{\"!hidden_size\":0}", NB_EFORMAT, "cfg.value", "absent" },
    { "CF-04 layers 0", "{\"num_hidden_layers\":0}", NB_EFORMAT, "cfg.value", "num_hidden_layers" },
    { "CF-04 layers limit + 1", "{\"num_hidden_layers\":4097}", NB_EFORMAT, "cfg.value", "4096" },
    { "CF-04 layers list", "{\"num_hidden_layers\":[3]}", NB_EFORMAT, "cfg.value", NULL },
    { "CF-04 layers absent", "{\"!num_hidden_layers\":0}", NB_EFORMAT, "cfg.value", "num_hidden_layers" },
    { "CF-04 intermediate -1", "{\"intermediate_size\":-1}", NB_EFORMAT, "cfg.value", "intermediate_size" },
    { "CF-04 intermediate null", "{\"intermediate_size\":null}", NB_EFORMAT, "cfg.value", "intermediate_size" },
    { "CF-04 vocabulary 0", "{\"vocab_size\":0}", NB_EFORMAT, "cfg.value", "vocab_size" },
    { "CF-04 vocabulary string", "{\"vocab_size\":\"x\"}", NB_EFORMAT, "cfg.value", "vocab_size" },
    { "CF-04 vocabulary limit + 1", "{\"vocab_size\":16777217}", NB_EFORMAT, "cfg.value", "vocab_size" },
    { "CF-04 context 0", "{\"max_position_embeddings\":0}", NB_EFORMAT, "cfg.value", "max_position_embeddings" },
    { "CF-04 head_dim 0", "{\"head_dim\":0}", NB_EFORMAT, "cfg.value", "head_dim" },
    { "CF-04 head_dim -8", "{\"head_dim\":-8}", NB_EFORMAT, "cfg.value", "head_dim" },
    { "CF-04 head_dim null is absent", "{\"head_dim\":null}", NB_OK, "", NULL },
    { "CF-04 bias flag is a number", "{\"attention_bias\":1}", NB_EFORMAT, "cfg.value", "attention_bias" },
    { "CF-04 tie flag is a string", "{\"tie_word_embeddings\":\"yes\"}", NB_EFORMAT, "cfg.value", "tie_word_embeddings" },
    { "CF-05 heads 0", "{\"num_attention_heads\":0}", NB_EFORMAT, "cfg.value", "num_attention_heads" },
    { "CF-05 heads 7, hidden 4096", "{\"num_attention_heads\":7,\"num_key_value_heads\":7,\"hidden_size\":4096}", NB_EFORMAT,
      "cfg.head_dim", "4096" },
    { "CF-06 explicit head_dim", "{\"hidden_size\":1792,\"num_attention_heads\":24,\"num_key_value_heads\":8,\"head_dim\":128}", NB_OK, "",
      NULL },
    { "CF-07 kv heads 0", "{\"num_key_value_heads\":0}", NB_EFORMAT, "cfg.value", "num_key_value_heads" },
    { "CF-07 kv heads above heads", "{\"num_key_value_heads\":8}", NB_EFORMAT, "cfg.value", "num_key_value_heads" },
    { "CF-07 kv heads do not divide", "{\"num_key_value_heads\":3}", NB_EFORMAT, "cfg.value", "num_key_value_heads" },
    { "CF-07 kv heads null means heads", "{\"num_key_value_heads\":null}", NB_OK, "", NULL },
    { "CF-10 epsilon 0", "{\"rms_norm_eps\":0}", NB_EFORMAT, "cfg.value", "rms_norm_eps" },
    { "CF-10 epsilon negative", "{\"rms_norm_eps\":-1e-5}", NB_EFORMAT, "cfg.value", "rms_norm_eps" },
    { "CF-10 epsilon above 1", "{\"rms_norm_eps\":1.5}", NB_EFORMAT, "cfg.value", "rms_norm_eps" },
    { "CF-10 epsilon string", "{\"rms_norm_eps\":\"1e-5\"}", NB_EFORMAT, "cfg.value", "rms_norm_eps" },
    { "CF-10 theta 0", "{\"rope_theta\":0}", NB_EFORMAT, "cfg.value", "rope_theta" },
    { "CF-10 theta negative", "{\"rope_theta\":-1e4}", NB_EFORMAT, "cfg.value", "rope_theta" },
    { "CF-10 theta out of any use", "{\"rope_theta\":1e308}", NB_EFORMAT, "cfg.value", "rope_theta" },
    { "CF-10 factor 0", "{\"rope_scaling\":{\"rope_type\":\"linear\",\"factor\":0}}", NB_EFORMAT, "cfg.value", "factor" },
    { "CF-10 factor absent", "{\"rope_scaling\":{\"rope_type\":\"linear\"}}", NB_EFORMAT, "cfg.value", "factor" },
    { "CF-10 rotary fraction 0", "{\"partial_rotary_factor\":0}", NB_EFORMAT, "cfg.value", "partial_rotary_factor" },
    { "CF-10 rotary fraction above 1", "{\"partial_rotary_factor\":1.1}", NB_EFORMAT, "cfg.value", "partial_rotary_factor" },
    { "CF-10 rotary size odd", "{\"head_dim\":10,\"partial_rotary_factor\":0.5}", NB_EFORMAT, "cfg.value", "rotary" },
    { "CF-10 llama3 bands crossed",
      "{\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":8,\"low_freq_factor\":4,\"high_freq_factor\":1}}", NB_EFORMAT, "cfg.value",
      "high_freq_factor" },
    { "CF-11 unknown rope type", "{\"rope_scaling\":{\"rope_type\":\"spiral\",\"factor\":2}}", NB_EUNSUPPORTED, "cfg.unsupported",
      "spiral" },
    { "CF-11 unknown old rope type", "{\"rope_scaling\":{\"type\":\"ntk2\",\"factor\":2}}", NB_EUNSUPPORTED, "cfg.unsupported", "ntk2" },
    { "CF-11 rope type is a number", "{\"rope_scaling\":{\"rope_type\":3}}", NB_EUNSUPPORTED, "cfg.unsupported", NULL },
    { "CF-11 rope scaling is a list", "{\"rope_scaling\":[1]}", NB_EFORMAT, "cfg.value", "rope_scaling" },
    { "CF-11 unknown activation", "{\"hidden_act\":\"swoosh\"}", NB_EUNSUPPORTED, "cfg.unsupported", "swoosh" },
    { "CF-11 activation is a number", "{\"hidden_act\":1}", NB_EUNSUPPORTED, "cfg.unsupported", NULL },
    { "CF-11 unknown attention kind", "{\"model_type\":\"mistral\",\"layer_types\":[\"full_attention\",\"mamba\",\"full_attention\"]}",
      NB_EUNSUPPORTED, "cfg.unsupported", "mamba" },
    { "CF-12 layer kinds of wrong length", "{\"model_type\":\"mistral\",\"layer_types\":[\"full_attention\"]}", NB_EFORMAT, "cfg.value",
      "layer_types" },
    { "CF-12 longrope factors of wrong length", "{\"rope_scaling\":{\"type\":\"longrope\",\"short_factor\":[1,1],\"long_factor\":[1,1]}}",
      NB_EFORMAT, "cfg.value", "long_factor" },
    { "CF-12 longrope factors absent", "{\"rope_scaling\":{\"type\":\"su\"}}", NB_EFORMAT, "cfg.value", "long_factor" },
    { "CF-12 longrope factor 0", "{\"head_dim\":4,\"rope_scaling\":{\"type\":\"su\",\"short_factor\":[1,1],\"long_factor\":[1,0]}}",
      NB_EFORMAT, "cfg.value", "long_factor" },
    { "CF-13 context 2^31", "{\"max_position_embeddings\":2147483648}", NB_OK, "", NULL },
    { "CF-14 eos negative", "{\"eos_token_id\":-2}", NB_EFORMAT, "cfg.token_id", "eos_token_id" },
    { "CF-14 eos -1 means none", "{\"eos_token_id\":-1}", NB_OK, "", NULL },
    { "CF-14 bos at vocabulary", "{\"bos_token_id\":1000}", NB_EFORMAT, "cfg.token_id", "1000" },
    { "CF-14 bos last of vocabulary", "{\"bos_token_id\":999}", NB_OK, "", NULL },
    { "CF-14 pad string", "{\"pad_token_id\":\"<pad>\"}", NB_EFORMAT, "cfg.token_id", "pad" },
    { "CF-14 eos list", "{\"eos_token_id\":[1,2,3]}", NB_OK, "", NULL },
    { "CF-14 eos list with a bad id", "{\"eos_token_id\":[1,2,5000]}", NB_EFORMAT, "cfg.token_id", "5000" },
    { "CF-14 eos list too long", "{\"eos_token_id\":[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17]}", NB_EFORMAT, "cfg.token_id", "17" },
    { "CF-10 more experts for a token than there are", "{\"model_type\":\"mixtral\",\"num_local_experts\":4,\"num_experts_per_tok\":5}",
      NB_EFORMAT, "cfg.value", "num_experts_per_tok" },
    { "CF-10 groups that cannot give enough",
      "{\"model_type\":\"glm4_moe\",\"n_routed_experts\":16,\"moe_intermediate_size\":32,\"n_group\":8,\"topk_group\":2}", NB_EFORMAT,
      "cfg.value", "groups" },
    { "CF-08 experts without a count", "{\"model_type\":\"mixtral\"}", NB_EFORMAT, "cfg.value", "num_local_experts" },
    { "CF-11 both directions", "{\"model_type\":\"gemma3_text\",\"use_bidirectional_attention\":true}", NB_EUNSUPPORTED, "cfg.unsupported",
      "use_bidirectional_attention" },
    { "CF-12 rope list of wrong length", "{\"model_type\":\"smollm3\",\"no_rope_layers\":[1]}", NB_EFORMAT, "cfg.value", "no_rope_layers" },
    { "another name of a row", "{\"model_type\":\"qwen2_5_vl_text\",\"rope_scaling\":{\"type\":\"mrope\",\"mrope_section\":[16,24,24]}}",
      NB_OK, "", NULL },
    { "CF-17 window -1", "{\"model_type\":\"mistral\",\"sliding_window\":-1}", NB_EFORMAT, "cfg.value", "sliding_window" },
    { "CF-17 window 0", "{\"model_type\":\"mistral\",\"sliding_window\":0}", NB_EFORMAT, "cfg.value", "sliding_window" },
    { "CF-17 window null means none", "{\"model_type\":\"mistral\",\"sliding_window\":null}", NB_OK, "", NULL },
    { "CF-17 window unused", "{\"model_type\":\"qwen2\",\"sliding_window\":0,\"use_sliding_window\":false}", NB_OK, "", NULL },
    { "CF-18 heads times head_dim", "{\"num_attention_heads\":4096,\"num_key_value_heads\":4096,\"head_dim\":16777216}", NB_EFORMAT,
      "cfg.overflow", "4096" },
};

static void config_rows(void **state)
{
    (void)state;
    for (size_t i = 0; i < NB_LEN(rows); i++) {
        nb_json *j = edited(rows[i].edit);
        nb_config c;
        nb_err err = { 0 };
        const nb_status rc = nb_config_parse(j, &c, &err);

        if (rc != rows[i].want || strcmp(err.cls, rows[i].cls) != 0 || (rows[i].says && !strstr(err.what, rows[i].says)))
            fail_msg("%s: got %d %s (%s), want %d %s", rows[i].label, (int)rc, err.cls, err.what, (int)rows[i].want, rows[i].cls);
        nb_config_clear(&c);
        nb_json_free(j);
    }
}

static void no_object(void **state)
{
    nb_json *j = text("[1]");
    nb_config c;
    nb_err err = { 0 };

    (void)state;
    assert_int_equal(nb_config_parse(j, &c, &err), NB_EFORMAT);
    nb_json_free(j);
}

static nb_config parsed(const char *edit)
{
    nb_json *j = edited(edit);
    nb_config c;
    nb_err err = { 0 };

    if (nb_config_parse(j, &c, &err) != NB_OK)
        fail_msg("%s: %s", edit, err.what);
    nb_json_free(j);
    return c;
}

/* What silence means, and which key wins. */
static void defaults(void **state)
{
    nb_config c =
        parsed("{\"!num_key_value_heads\":0,\"!rms_norm_eps\":0,\"!rope_theta\":0,\"!max_position_embeddings\":0,\"!hidden_act\":0,"
               "\"!eos_token_id\":0,\"!bos_token_id\":0}");

    (void)state;
    assert_int_equal(c.n_kv_heads, 4);
    assert_int_equal(c.head_dim, 64);
    assert_true(c.norm_eps == 1e-6 && c.rope.theta == 1e4 && c.context == 2048);
    assert_true(!c.tie_embeddings && !c.tie_given && !c.attn_bias && !c.o_bias && !c.mlp_bias && c.qk == NB_QK_NONE && !c.windowed);
    assert_true(c.bos_id == -1 && c.pad_id == -1 && c.n_eos == 0 && c.dtype == NB_DT_NONE && c.act == NB_ACT_SILU);
    nb_config_clear(&c);

    c = parsed(
        "{\"attention_bias\":true,\"mlp_bias\":true,\"tie_word_embeddings\":true,\"eos_token_id\":[7,8],\"torch_dtype\":\"bfloat16\","
        "\"hidden_act\":\"gelu_new\"}");
    assert_true(c.attn_bias && c.o_bias && c.mlp_bias && c.tie_embeddings && c.tie_given && c.n_eos == 2 && c.eos_id[1] == 8);
    assert_true(c.dtype == NB_DT_BF16 && c.act == NB_ACT_GELU_TANH);
    nb_config_clear(&c);

    c = parsed("{\"model_type\":\"qwen3\",\"!head_dim\":0,\"dtype\":\"float16\",\"torch_dtype\":\"float32\"}");
    assert_true(c.head_dim == 128 && c.qk && !c.attn_bias && c.dtype == NB_DT_F16);
    nb_config_clear(&c);

    c = parsed("{\"model_type\":\"qwen2\",\"use_sliding_window\":true,\"sliding_window\":8,\"max_window_layers\":1}");
    assert_true(c.attn_bias && !c.o_bias && c.sliding_window == 8 && !c.windowed[0] && c.windowed[1] && c.windowed[2]);
    nb_config_clear(&c);

    c = parsed("{\"model_type\":\"mistral\",\"attention_bias\":true}");
    assert_true(!c.attn_bias && c.sliding_window == 4096 && c.windowed[0]);
    nb_config_clear(&c);

    c = parsed("{\"rope_scaling\":{},\"rope_parameters\":{\"rope_type\":\"linear\",\"factor\":3,\"rope_theta\":500}}");
    assert_true(c.rope.kind == NB_ROPE_LINEAR && c.rope.factor == 3 && c.rope.theta == 500);
    nb_config_clear(&c);

    c = parsed("{\"original_max_position_embeddings\":64,\"rope_scaling\":{\"type\":\"yarn\",\"factor\":null,\"original_max_position_"
               "embeddings\":128}}");
    assert_true(c.rope.kind == NB_ROPE_YARN && c.rope.orig_context == 64 && c.rope.factor == 32);
    nb_config_clear(&c);
}

/* Multimodal files keep the model inside text_config and some keys outside. */
static void nested(void **state)
{
    nb_json *outer = text("{\"model_type\":\"llava\",\"architectures\":[\"LlavaForConditionalGeneration\"],\"eos_token_id\":5,"
                          "\"tie_word_embeddings\":true,\"torch_dtype\":\"float16\"}");
    nb_json *inner = edited("{\"!eos_token_id\":0,\"!architectures\":0}");
    nb_config c;
    nb_err err = { 0 };

    (void)state;
    assert_true(nb_json_set(outer, "text_config", inner));
    assert_int_equal(nb_config_parse(outer, &c, &err), NB_OK);
    assert_true(c.n_eos == 1 && c.eos_id[0] == 5 && c.tie_embeddings && c.dtype == NB_DT_F16 && c.d_model == 256);
    nb_config_clear(&c);
    nb_json_free(outer);
}

static void table(void **state)
{
    (void)state;
    for (size_t i = 0; i < nb_arch_count(); i++) {
        static const char kinds[] = ",\"layer_types\":[\"full_attention\",\"full_attention\",\"full_attention\"]"; /* no default */
        const nb_arch *a = nb_arch_at(i);
        char edit[512];
        nb_config c;

        assert_ptr_equal(nb_arch_find(a->type, NULL), a);
        assert_ptr_equal(nb_arch_find(NULL, a->cls), a);
        assert_true(a->eps > 0 && a->theta > 0 && a->eps_key);
        snprintf(edit, sizeof edit,
                 "{\"model_type\":\"%s\",\"architectures\":[\"%s\"],\"num_local_experts\":16,\"num_experts_per_tok\":2,\"moe_intermediate_"
                 "size\":32,\"num_kv_shared_layers\":0,\"hybrid_layer_ids\":[1]%s}",
                 a->type, a->cls,
                 strcmp(a->type, "lfm2_moe") == 0 || strcmp(a->type, "nemotron_h") == 0 ? kinds
                 : strcmp(a->type, "deepseek_v4") == 0                                  ? ",\"num_key_value_heads\":1,\"o_groups\":4"
                                                                                        : "");
        c = parsed(edit);
        assert_ptr_equal(c.arch, a);
        nb_config_clear(&c);
    }
}

/* ---- rope check values ---------------------------------------------------------------------------------------- */

static const struct rope_case {
    const char *label, *edit;
    double a; /* attention factor */
    struct {
        size_t i;
        double f;
    } at[12]; /* ended by f = 0 */
} ropes[] = {
    { "default", "{\"rope_theta\":1e6,\"head_dim\":128}", 1, { { 1, 0.80584219 }, { 31, 0.0012409378 }, { 63, 1.2409378e-06 } } },
    { "llama3, r 128",
      "{\"rope_theta\":5e5,\"head_dim\":128,\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":8,\"low_freq_factor\":1,"
      "\"high_freq_factor\":4,\"original_max_position_embeddings\":8192}}",
      1,
      { { 28, 0.003211446 },
        { 29, 0.0021665708 },
        { 30, 0.0013718936 },
        { 31, 0.00085675141 },
        { 32, 0.00052484616 },
        { 33, 0.00031269375 },
        { 34, 0.00017850781 },
        { 35, 9.5562124e-05 },
        { 36, 7.7846553e-05 },
        { 63, 3.068926e-07 } } },
    { "llama3, r 64",
      "{\"rope_theta\":5e5,\"head_dim\":64,\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":32,\"low_freq_factor\":1,"
      "\"high_freq_factor\":4,\"original_max_position_embeddings\":8192}}",
      1,
      { { 14, 0.003211446 }, { 15, 0.0012905479 }, { 16, 0.0004295568 }, { 17, 9.7082878e-05 }, { 18, 1.9461638e-05 } } },
    { "yarn",
      "{\"rope_theta\":1e6,\"head_dim\":128,\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":4,"
      "\"original_max_position_embeddings\":32768}}",
      1.1386294,
      { { 24, 0.0053753215 }, { 32, 0.00060294118 }, { 39, 6.4903943e-05 }, { 40, 4.4456985e-05 } } },
    { "yarn, not truncated",
      "{\"rope_theta\":150000,\"head_dim\":64,\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":32,\"truncate\":false,"
      "\"original_max_position_embeddings\":4096}}",
      1.3465736,
      { { 8, 0.050813275 }, { 9, 0.031705696 }, { 12, 0.0067949595 }, { 17, 0.0001293187 }, { 18, 3.8308812e-05 } } },
    { "yarn, mscale 1/1",
      "{\"rope_theta\":1e4,\"head_dim\":64,\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":40,\"mscale\":1,\"mscale_all_dim\":1,"
      "\"original_max_position_embeddings\":4096}}",
      1,
      { { 11, 0.039006927 }, { 16, 0.0055 }, { 23, 3.3338036e-05 } } },
};

static bool near(double got, double want)
{
    return fabs(got - want) <= 6e-8 * fabs(want) + 1e-15; /* the page gives eight digits */
}

static void rope_values(void **state)
{
    (void)state;
    for (size_t i = 0; i < NB_LEN(ropes); i++) {
        nb_config c = parsed(ropes[i].edit);

        if (!near(nb_rope_attention_factor(&c), ropes[i].a))
            fail_msg("%s: factor %.9g, want %.9g", ropes[i].label, nb_rope_attention_factor(&c), ropes[i].a);
        for (size_t j = 0; ropes[i].at[j].f > 0; j++) {
            const double f = nb_rope_freq(&c, 0, ropes[i].at[j].i);
            if (!near(f, ropes[i].at[j].f))
                fail_msg("%s: f_%zu %.9g, want %.9g", ropes[i].label, ropes[i].at[j].i, f, ropes[i].at[j].f);
        }
        nb_config_clear(&c);
    }
}

static void rope_linear(void **state)
{
    nb_config c = parsed("{\"rope_scaling\":{\"type\":\"linear\",\"factor\":2.5}}"), d = parsed("{}");

    (void)state;
    for (size_t i = 0; i < 32; i++)
        assert_true(near(nb_rope_freq(&c, 0, i) * 2.5, nb_rope_freq(&d, 0, i)));
    nb_config_clear(&c);
    nb_config_clear(&d);
}

/* dynamic: theta 1e4, r 128, factor 2, M 2048, n 4096 gives theta' 30527.7367; up to M the plain table. */
static void rope_dynamic(void **state)
{
    nb_config c = parsed("{\"head_dim\":128,\"rope_scaling\":{\"type\":\"dynamic\",\"factor\":2}}");

    (void)state;
    assert_true(nb_rope_key(&c, 2048) == 0 && nb_rope_key(&c, 2049) != 0 && nb_rope_key(&c, 2049) != nb_rope_key(&c, 4096));
    assert_true(near(nb_rope_freq(&c, 0, 1), pow(1e4, -2.0 / 128)));
    assert_true(near(nb_rope_freq(&c, nb_rope_key(&c, 4096), 64 / 2), pow(30527.7367, -0.5)));
    nb_config_clear(&c);
}

static void rope_long(void **state)
{
    nb_config c = parsed("{\"head_dim\":4,\"max_position_embeddings\":131072,\"original_max_position_embeddings\":4096,"
                         "\"rope_scaling\":{\"type\":\"su\",\"short_factor\":[1,2],\"long_factor\":[4,8]}}");

    (void)state;
    assert_true(near(nb_rope_attention_factor(&c), 1.19023807));
    assert_true(nb_rope_key(&c, 4096) == 0 && nb_rope_key(&c, 4097) == nb_rope_key(&c, 9999) && nb_rope_key(&c, 4097) != 0);
    assert_true(near(nb_rope_freq(&c, 0, 1), 0.01 / 2) && near(nb_rope_freq(&c, nb_rope_key(&c, 5000), 1), 0.01 / 8));
    nb_config_clear(&c);
}

/* Any stretch of the table equals a longer one; the rotary part may be smaller than the head. */
static void rope_table(void **state)
{
    nb_config c = parsed("{\"head_dim\":16,\"partial_rotary_factor\":0.5}");
    float cs[10 * 4], sn[10 * 4], c1[4], s1[4];

    (void)state;
    assert_int_equal(nb_rope_dims(&c), 8);
    nb_rope_table(&c, 0, 100, 10, cs, sn);
    for (size_t p = 0; p < 10; p++) {
        nb_rope_table(&c, 0, 100 + p, 1, c1, s1);
        assert_memory_equal(c1, cs + 4 * p, sizeof c1);
        assert_memory_equal(s1, sn + 4 * p, sizeof s1);
        assert_true(c1[1] == (float)cos((double)(100 + p) * pow(1e4, -2.0 / 8)));
    }
    nb_config_clear(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(config_rows), cmocka_unit_test(no_object),   cmocka_unit_test(defaults),    cmocka_unit_test(nested),
        cmocka_unit_test(table),       cmocka_unit_test(rope_values), cmocka_unit_test(rope_linear), cmocka_unit_test(rope_dynamic),
        cmocka_unit_test(rope_long),   cmocka_unit_test(rope_table),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

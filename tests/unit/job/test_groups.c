/* test_groups.c - which linears are scaled together, and where their scales fold, for plans of several shapes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "job/groups.h"

static const struct {
    const char *label, *config;
    size_t n_groups;
    bool v_to_o;
} rows[] = {
    { "grouped queries: nothing folds into v",
      "{\"architectures\":[\"LlamaForCausalLM\"],\"model_type\":\"llama\",\"hidden_size\":64,\"intermediate_size\":96,\"num_hidden_"
      "layers\":2,"
      "\"num_attention_heads\":4,\"num_key_value_heads\":2,\"vocab_size\":100,\"rms_norm_eps\":1e-5,\"max_position_embeddings\":64}",
      3, false },
    { "as many kv heads as heads: v carries the scales of o",
      "{\"architectures\":[\"LlamaForCausalLM\"],\"model_type\":\"llama\",\"hidden_size\":64,\"intermediate_size\":96,\"num_hidden_"
      "layers\":2,"
      "\"num_attention_heads\":4,\"num_key_value_heads\":4,\"vocab_size\":100,\"rms_norm_eps\":1e-5,\"max_position_embeddings\":64}",
      4, true },
    { "heads wider than the model: v still has a row for every input of o",
      "{\"architectures\":[\"LlamaForCausalLM\"],\"model_type\":\"llama\",\"hidden_size\":64,\"intermediate_size\":96,\"num_hidden_"
      "layers\":2,"
      "\"num_attention_heads\":4,\"num_key_value_heads\":4,\"head_dim\":32,\"vocab_size\":100,\"rms_norm_eps\":1e-5,"
      "\"max_position_embeddings\":64}",
      4, true },
    { "gemma: norms that count from 1 fold too",
      "{\"model_type\":\"gemma2\",\"hidden_size\":64,\"intermediate_size\":96,\"num_hidden_layers\":2,\"num_attention_heads\":4,\"num_key_"
      "value_heads\":4,\"vocab_size\":100,\"head_dim\":16}",
      4, true },
    { "norms behind the branches only: v and up carry",
      "{\"model_type\":\"olmo2\",\"hidden_size\":64,\"intermediate_size\":96,\"num_hidden_layers\":2,\"num_attention_heads\":4,\"num_key_"
      "value_heads\":4,\"vocab_size\":100}",
      2, true },
    { "a norm without weight carries nothing, limits stop v",
      "{\"model_type\":\"olmo\",\"hidden_size\":64,\"intermediate_size\":96,\"num_hidden_layers\":2,\"num_attention_heads\":4,\"num_key_"
      "value_heads\":4,\"vocab_size\":100,\"clip_qkv\":8}",
      1, false },
    { "parallel branches read one norm",
      "{\"model_type\":\"cohere\",\"hidden_size\":64,\"intermediate_size\":96,\"num_hidden_layers\":2,\"num_attention_heads\":4,\"num_key_"
      "value_heads\":4,\"vocab_size\":100}",
      2, true },
    { "norms with a bias, a plain MLP: only v",
      "{\"model_type\":\"starcoder2\",\"hidden_size\":64,\"intermediate_size\":96,\"num_hidden_layers\":2,\"num_attention_heads\":4,\"num_"
      "key_value_heads\":4,\"vocab_size\":100}",
      1, true },
};

static void check_group(const char *label, const nb_plan *p, const nb_scale_group *g)
{
    switch (g->roles[0]) {
    case NB_ROLE_Q:
        assert_int_equal(g->n_roles, 3);
        assert_true(g->from_norm && g->vec == NB_VEC_N1);
        assert_int_equal(p->ops[g->end - 1].roles[0], NB_ROLE_O); /* the whole of self_attn is inspected */
        break;
    case NB_ROLE_GATE:
        assert_int_equal(g->n_roles, 2);
        assert_true(g->from_norm && g->vec == NB_VEC_N2);
        assert_int_equal(p->ops[g->end - 1].roles[0], NB_ROLE_DOWN);
        break;
    case NB_ROLE_DOWN:
        assert_true(!g->from_norm && g->pred == NB_ROLE_UP && g->end == g->op + 1);
        break;
    case NB_ROLE_O:
        assert_true(!g->from_norm && g->pred == NB_ROLE_V && g->end == g->op + 1);
        break;
    default:
        fail_msg("%s: unexpected group of role %d", label, g->roles[0]);
    }
}

static void plans(void **state)
{
    (void)state;
    for (size_t i = 0; i < NB_LEN(rows); i++) {
        nb_scale_group g[NB_MAX_GROUPS];
        nb_err err = { 0 };
        nb_json *j;
        nb_config cfg;
        nb_plan plan;
        bool v_to_o = false;
        size_t n;

        assert_int_equal(nb_json_parse(rows[i].config, strlen(rows[i].config), "cfg", 0, &j, &err), NB_OK);
        if (nb_config_parse(j, &cfg, &err) != NB_OK)
            fail_msg("%s: %s", rows[i].label, err.what);
        assert_int_equal(nb_plan_build(&cfg, NULL, &plan, &err), NB_OK);
        n = nb_scale_groups(&plan, g);
        if (n != rows[i].n_groups)
            fail_msg("%s: %zu groups", rows[i].label, n);
        for (size_t a = 0; a < n; a++) {
            check_group(rows[i].label, &plan, &g[a]);
            v_to_o = v_to_o || g[a].roles[0] == NB_ROLE_O;
        }
        assert_int_equal(v_to_o, rows[i].v_to_o);
        nb_plan_clear(&plan);
        nb_config_clear(&cfg);
        nb_json_free(j);
    }
}

static void clipping_by_role(void **state)
{
    (void)state;
    assert_false(nb_role_clips(NB_ROLE_Q));
    assert_false(nb_role_clips(NB_ROLE_K));
    for (int r = NB_ROLE_V; r < NB_ROLE_COUNT; r++)
        assert_true(nb_role_clips((nb_role)r) == (r != NB_ROLE_QKV));
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(plans), cmocka_unit_test(clipping_by_role) };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

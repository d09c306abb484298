/* test_groups.c - which linears are scaled together, and where their scales fold, for every architecture there is a model of. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/mem.h"
#include "job/groups.h"
#include "job/load.h"

/* Groups of a layer in words: "n1>q,k,v" a norm before q, k and v; "up>down"; "+b" the norm has a bias; "v~o" heads that share
 * scales; "up^>down" by the root. Of experts the first one stands for all: "e.gate"; "s." the shared one. */
static const struct {
    const char *model;
    size_t layer;
    bool shared_v;
    const char *groups;
} rows[] = {
    { "llama", 0, false, "n1>q,k,v n2>gate,up up>down" },
    { "llama", 0, true, "n1>q,k,v v~o n2>gate,up up>down" },
    { "mistral", 0, false, "n1>q,k,v n2>gate,up up>down" },
    { "qwen2", 0, false, "n1>q,k,v n2>gate,up up>down" },
    { "qwen3", 0, false, "n1>q,k,v n2>gate,up up>down" },
    { "granite", 0, false, "n1>q,k,v n2>gate,up up>down" },
    { "smollm3", 0, false, "n1>q,k,v n2>gate,up up>down" },
    { "seed_oss", 0, false, "n1>q,k,v n2>gate,up up>down" },
    { "ernie4_5", 0, false, "n1>q,k,v n2>gate,up up>down" },
    { "hunyuan_v1_dense", 0, false, "n1>q,k,v n2>gate,up up>down" },
    { "stablelm", 0, false, "n1+b>q,k,v n2+b>gate,up up>down" },
    { "gemma", 0, false, "n1>q,k,v n2>gate,up up>down" },
    { "gemma2", 0, false, "n1>q,k,v n2>gate,up up>down" },
    { "gemma3_text", 0, false, "n1>q,k,v n2>gate,up up>down" },
    { "gemma3-mm", 0, false, "n1>q,k,v n2>gate,up up>down" },
    { "olmo", 0, false, "up>down" },     /* norms without weights */
    { "olmo-clip", 0, true, "up>down" }, /* limits do not scale */
    { "olmo2", 0, false, "up>down" },    /* norms behind the branches */
    { "olmo3", 0, true, "v~o up>down" },
    { "exaone4", 0, false, "up>down" },
    { "cohere", 0, false, "n1>q,k,v,gate,up up>down" }, /* parallel branches read one norm */
    { "cohere2", 0, false, "n1>q,k,v,gate,up up>down" },
    { "stablelm-parallel", 0, false, "n1+b>q,k,v,gate,up up>down" },
    { "phi", 0, true, "n1+b>q,k,v,up v~o" },
    { "gpt_neox", 0, true, "n1+b>qkv qkv>o n2+b>up" },
    { "falcon-40b", 0, true, "n1+b>qkv qkv~o n2+b>up" }, /* stored by kv head */
    { "phi", 0, false, "n1+b>q,k,v,up" },                /* gelu of a plain MLP is not homogeneous */
    { "phi3", 0, false, "n1>qkv n2>gate_up gate_up>down" },
    { "glm", 0, false, "n1>q,k,v n2>gate_up gate_up>down" },
    { "glm4", 0, false, "n1>q,k,v n2>gate_up gate_up>down" },
    { "starcoder2", 0, false, "n1+b>q,k,v n2+b>up" },
    { "gpt2", 0, false, "n1+b>qkv qkv>o n2+b>up" },
    { "gpt_neox", 0, false, "n1+b>qkv qkv>o n2+b>up" }, /* two norms in parallel */
    { "gpt_neox-serial", 0, false, "n1+b>qkv qkv>o n2+b>up" },
    { "falcon", 0, false, "n1+b>qkv,up" },
    { "falcon-40b", 0, false, "n1+b>qkv n2+b>up" },
    { "falcon-rw", 0, false, "n1+b>qkv qkv>o n2+b>up" },
    { "opt", 0, false, "n1+b>q,k,v v>o n2+b>up up>down" }, /* relu is homogeneous */
    { "opt-350m", 0, false, "v>o up>down" },               /* the residual stream is what the norms give */
    { "nemotron", 0, false, "n1+b>q,k,v n2+b>up up^>down" },
    { "deepseek_v2", 0, false, "n1>q,kva kva>kvb n2>gate,up up>down" },
    { "deepseek_v2", 1, false, "n1>q,kva kva>kvb n2>router,e.gate,e.up,s.gate,s.up e.up>e.down s.up>s.down" },
    { "deepseek_v3", 1, false, "n1>qa,kva qa>qb kva>kvb n2>router,e.gate,e.up,s.gate,s.up e.up>e.down s.up>s.down" },
    { "glm4_moe", 1, false, "n1>q,k,v n2>router,e.gate,e.up,s.gate,s.up e.up>e.down s.up>s.down" },
    { "mixtral", 0, false, "n1>q,k,v n2>router,e.gate,e.up e.up>e.down" },
    { "qwen2_moe", 0, false, "n1>q,k,v n2>router,e.gate,e.up,s.gate,s.up,sgate e.up>e.down s.up>s.down" },
    { "qwen3_moe", 0, false, "n1>q,k,v n2>router,e.gate,e.up e.up>e.down" },
    { "olmoe", 0, false, "n1>q,k,v n2>router,e.gate,e.up e.up>e.down" },
    { "granitemoe", 0, false, "n1>q,k,v n2>router,e.gate,e.up e.up>e.down" },
    { "granitemoeshared", 0, false, "n1>q,k,v n2>router,e.gate,e.up,s.gate_up e.up>e.down s.gate_up>s.down" },
    { "phimoe", 0, false, "n1+b>q,k,v n2+b>router,e.gate,e.up e.up>e.down" },
    { "gpt_oss", 0, false, "n1>q,k,v n2>router,e.gate,e.up" }, /* limits and (up + 1) */
    { "mllama_text", 0, false, "n1>q,k,v n2>gate,up up>down" },
    { "deepseek_v32", 1, false, "n1>qa,kva,ik,iw qa>qb,iq kva>kvb n2>router,e.gate,e.up,s.gate,s.up e.up>e.down s.up>s.down" },
    /* limited activations; layers that make no entries, entries and the keys that choose them, entries alone */
    { "deepseek_v4", 0, false, "n1>qa,kva qa>qb n2>router,e.gate,e.up,s.gate,s.up" },
    { "deepseek_v4", 1, false, "n1>qa,kva,ickv,icg,iw,ckv,cg qa>qb,iq n2>router,e.gate,e.up,s.gate,s.up" },
    { "deepseek_v4", 2, false, "n1>qa,kva,ckv,cg qa>qb n2>router,e.gate,e.up,s.gate,s.up" },
};

static const char *const roles[NB_ROLE_COUNT] = {
    [NB_ROLE_Q] = "q",
    [NB_ROLE_K] = "k",
    [NB_ROLE_V] = "v",
    [NB_ROLE_QKV] = "qkv",
    [NB_ROLE_QA] = "qa",
    [NB_ROLE_QB] = "qb",
    [NB_ROLE_KVA] = "kva",
    [NB_ROLE_O] = "o",
    [NB_ROLE_GATE] = "gate",
    [NB_ROLE_UP] = "up",
    [NB_ROLE_GATE_UP] = "gate_up",
    [NB_ROLE_DOWN] = "down",
    [NB_ROLE_INDEX_Q] = "iq",
    [NB_ROLE_INDEX_K] = "ik",
    [NB_ROLE_INDEX_W] = "iw",
    [NB_ROLE_COMP_KV] = "ckv",
    [NB_ROLE_COMP_GATE] = "cg",
    [NB_ROLE_ICOMP_KV] = "ickv",
    [NB_ROLE_ICOMP_GATE] = "icg",
};
static const char *const vecs[NB_VEC_COUNT] = {
    [NB_VEC_N1] = "n1", [NB_VEC_N2] = "n2", [NB_VEC_QA] = "qa", [NB_VEC_KVA] = "kva", [NB_VEC_N1P] = "n1p", [NB_VEC_N2P] = "n2p",
};

static void add(char *to, size_t cap, const char *what)
{
    assert_true(strlen(to) + strlen(what) < cap);
    strcat(to, what);
}

/* false: one of the many experts, not the first. */
static bool name_mod(const nb_plan *p, nb_mod mod, char *to, size_t cap)
{
    const uint32_t e = nb_mod_expert(mod);

    if (e != NB_NO_EXPERT && e > 0 && e < p->cfg->moe.n_experts)
        return false;
    if (e != NB_NO_EXPERT)
        add(to, cap, e == 0 ? "e." : "s.");
    add(to, cap,
        mod == NB_MOD_ROUTER        ? "router"
        : mod == NB_MOD_SHARED_GATE ? "sgate"
        : mod == NB_MOD_KVB         ? "kvb"
                                    : roles[nb_mod_role(mod)]);
    return true;
}

static void describe(const nb_plan *p, const nb_scale_groups *gs, char *out, size_t cap)
{
    out[0] = 0;
    for (size_t i = 0; i < gs->n; i++) {
        const nb_scale_group *g = &gs->g[i];
        char one[512] = "", mod[32] = "";

        if (g->vec != NB_VEC_NONE) {
            add(one, sizeof one, vecs[g->vec]);
            add(one, sizeof one, nb_plan_vec_bias(p, g->vec) != NB_VEC_NONE ? "+b" : "");
        } else if (name_mod(p, g->pred, mod, sizeof mod)) {
            add(one, sizeof one, mod);
        } else {
            continue;
        }
        add(one, sizeof one, g->root ? "^" : "");
        add(one, sizeof one, g->tied ? "~" : ">");
        for (size_t m = 0, n = 0; m < g->n_mods; m++) {
            mod[0] = 0;
            if (!name_mod(p, g->mods[m], mod, sizeof mod))
                continue;
            add(one, sizeof one, n++ ? "," : "");
            add(one, sizeof one, mod);
        }
        add(out, cap, i ? " " : "");
        add(out, cap, one);
    }
}

static void every_architecture(void **state)
{
    (void)state;
    for (size_t i = 0; i < NB_LEN(rows); i++) {
        nb_loaded l = { 0 };
        nb_scale_groups gs;
        nb_err err = { 0 };
        char path[128], got[1024];
        nb_config cfg;
        nb_plan plan;

        snprintf(path, sizeof path, "tests/data/models/%s/config.json", rows[i].model);
        snprintf(path, sizeof path, "tests/data/models%s/%s", access(path, R_OK) == 0 ? "" : "-2026", rows[i].model);
        if (nb_load_store(&l, path, NULL, &err) != NB_OK || nb_config_parse(l.config, &cfg, &err) != NB_OK ||
            nb_plan_build(&cfg, l.store, &plan, &err) != NB_OK)
            fail_msg("%s: %s", rows[i].model, err.what);
        assert_int_equal(nb_scale_groups_find(&plan, l.store, rows[i].layer, rows[i].shared_v, &gs, &err), NB_OK);
        describe(&plan, &gs, got, sizeof got);
        if (strcmp(got, rows[i].groups) != 0)
            fail_msg("%s layer %zu: \"%s\", expected \"%s\"", rows[i].model, rows[i].layer, got, rows[i].groups);
        nb_scale_groups_clear(&gs);
        nb_plan_clear(&plan);
        nb_config_clear(&cfg);
        nb_load_close(&l);
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
    const struct CMUnitTest tests[] = { cmocka_unit_test(every_architecture), cmocka_unit_test(clipping_by_role) };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* constrain.c - what an answer may be: response formats, grammars, and calls that are required. */
#include <string.h>

#include "serve/gen.h"
#include "text/tool_grammar.h"

nb_status nb_constraints_init(nb_constraints *k, bool compact, nb_err *err)
{
    memset(k, 0, sizeof *k);
    k->limits.compact = compact;
    return pthread_mutex_init(&k->lock, NULL) == 0 ? NB_OK : nb_fail(err, NB_ENOMEM, "serve.lock", "", "no lock can be made");
}

void nb_constraints_clear(nb_constraints *k)
{
    nb_gcache_close(k->cache);
    nb_gvocab_close(k->vocab);
    pthread_mutex_destroy(&k->lock);
}

/* The cache, made when it is needed first. */
static nb_status get_cache(const nb_texts *t, nb_gcache **out, nb_err *err)
{
    nb_constraints *k = t->constraints;
    nb_status rc = NB_OK;

    pthread_mutex_lock(&k->lock);
    if (!k->vocab)
        rc = nb_gvocab_open(t->tok, t->eos, t->n_eos, t->vocab, &k->vocab, err);
    if (rc == NB_OK && !k->cache)
        rc = nb_gcache_open(k->vocab, &k->limits, 0, &k->cache, err);
    *out = k->cache;
    pthread_mutex_unlock(&k->lock);
    return rc;
}

/* {"type":"object","properties":{"name":{"const":NAME},"arguments":SCHEMA},"required":[...],"additionalProperties":false} */
static nb_json *call_schema(const nb_json *tool)
{
    const nb_json *fn = nb_json_get(tool, "function"), *params = nb_json_get(fn, "parameters");
    nb_json *o = nb_json_new_obj(), *props = nb_json_new_obj(), *name = nb_json_new_obj(), *required = nb_json_new_arr(), *args;
    bool ok;

    if (nb_json_is_null(params)) {
        args = nb_json_new_obj();
        ok = nb_json_set(args, "type", nb_json_new_str("object"));
    } else {
        args = nb_json_copy(params);
        ok = args != NULL;
    }
    ok = nb_json_set(name, "const", nb_json_copy(nb_json_get(fn, "name"))) && ok;
    ok = nb_json_set(props, "name", name) && ok;
    ok = nb_json_set(props, "arguments", args) && ok;
    ok = nb_json_push(required, nb_json_new_str("name")) && nb_json_push(required, nb_json_new_str("arguments")) && ok;
    ok = nb_json_set(o, "type", nb_json_new_str("object")) && ok;
    ok = nb_json_set(o, "properties", props) && ok;
    ok = nb_json_set(o, "required", required) && ok;
    ok = nb_json_set(o, "additionalProperties", nb_json_new_bool(false)) && ok;
    if (ok)
        return o;
    nb_json_free(o);
    return NULL;
}

/* One call of any tool. */
static nb_json *any_call(const nb_json *tools)
{
    nb_json *o = nb_json_new_obj(), *any = nb_json_new_arr();
    bool ok = any != NULL;

    for (size_t i = 0; ok && i < nb_json_len(tools); i++)
        ok = nb_json_push(any, call_schema(nb_json_at(tools, i)));
    ok = nb_json_set(o, "anyOf", any) && ok;
    if (ok)
        return o;
    nb_json_free(o);
    return NULL;
}

/* The named tool's parameters: the whole answer is the arguments of that call. */
static nb_json *named_schema(const nb_gen *g)
{
    for (size_t i = 0; i < nb_json_len(g->ask.tools); i++) {
        const nb_json *fn = nb_json_get(nb_json_at(g->ask.tools, i), "function"), *params = nb_json_get(fn, "parameters");
        nb_json *o;

        if (strcmp(nb_json_str(nb_json_get(fn, "name"), ""), g->ask.tool_name) != 0)
            continue;
        if (!nb_json_is_null(params))
            return nb_json_copy(params);
        o = nb_json_new_obj();
        if (nb_json_set(o, "type", nb_json_new_str("object")))
            return o;
        nb_json_free(o);
        return NULL;
    }
    return NULL;
}

/* ---- what the engine asks ---- */

static int on_mask(void *user, size_t choice, uint32_t *bits)
{
    const nb_limit *l = user;
    nb_gen *g = l->g;
    nb_err err = { 0 };
    const nb_status rc = nb_gstate_mask(g->choices[l->first + choice].grammar, bits, &err);

    if (rc == NB_OK)
        return 1;
    if (rc == NB_NO)
        nb_refuse(&g->refusal, 500, "constraint_dead_end", g->ask.constraint_param, "No token can follow under this constraint.");
    else
        nb_refuse_err(&g->refusal, 500, "internal_error", NULL, &err);
    return -1;
}

static void on_accept(void *user, size_t choice, int32_t id)
{
    const nb_limit *l = user;
    nb_choice *c = &l->g->choices[l->first + choice];
    nb_err err = { 0 };

    if (nb_gstate_advance(c->grammar, id, &err) == NB_ENOMEM)
        c->failed = true;
}

static bool refuse_grammar(nb_gen *g, const char *param, const nb_err *err)
{
    const char *code = strcmp(err->cls, "grammar.unsupported") == 0   ? "unsupported_schema"
                       : strcmp(err->cls, "grammar.too_complex") == 0 ? "schema_too_complex"
                                                                      : "invalid_schema";

    return nb_refuse_err(&g->refusal, 400, code, param, err);
}

/* Each choice its own state. The mask rests until `marker` has come (NULL: it does not), and while the prompt leaves the answer
 * inside reasoning (GRM-7). */
static bool open_states(nb_gen *g, const char *marker)
{
    const char *end = nb_reason_format_end(g->t->reason);
    nb_err err = { 0 };

    for (size_t i = 0; i < g->n_choices; i++) {
        nb_choice *c = &g->choices[i];
        nb_status rc = nb_gstate_open(g->grammar, &c->grammar, &err);

        if (rc == NB_OK && marker)
            rc = nb_gstate_wait(c->grammar, marker, strlen(marker), &err);
        else if (rc == NB_OK && end && c->parser && nb_reply_is_reasoning(c->parser))
            rc = nb_gstate_wait(c->grammar, end, strlen(end), &err);
        if (rc != NB_OK)
            return nb_refuse_err(&g->refusal, 503, "out_of_memory", NULL, &err);
    }
    g->limits = nb_arena_calloc(&g->ask.arena, g->n_prompts, sizeof *g->limits);
    for (size_t p = 0; g->limits && p < g->n_prompts; p++)
        g->limits[p] = (nb_limit){ { on_mask, on_accept, &g->limits[p] }, g, p * g->ask.n };
    return g->limits || nb_refuse_memory(&g->refusal);
}

/* Calls in the model's own form (TOOL-2): required and named ones from the first token, others from their marker on. */
static bool constrain_calls(nb_gen *g)
{
    const bool must = g->own_calls;
    const char *marker = must ? NULL : nb_tool_format_begin(g->t->tools);
    const nb_tool_grammar_opts o = { .format = g->t->tools,
                                     .tools = g->ask.tools,
                                     .name = g->ask.tool_choice == NB_CALLS_NAMED ? g->ask.tool_name : NULL,
                                     .several = g->ask.parallel_tools,
                                     .begun = !must };
    nb_gcache *cache;
    nb_err err = { 0 };
    nb_status rc;

    if (!must && !marker)
        return true;
    rc = get_cache(g->t, &cache, &err);
    if (rc == NB_OK)
        rc = nb_grammar_new_tools(g->t->constraints->vocab, &o, &g->t->constraints->limits, &g->grammar, &err);
    if (rc != NB_OK && !must && rc != NB_ENOMEM)
        return true; /* then such calls are only parsed */
    if (rc != NB_OK)
        return refuse_grammar(g, "tools", &err);
    for (size_t i = 0; i < g->n_choices; i++) /* what has begun as a call will be one: it goes out as it is written */
        if (g->choices[i].parser)
            nb_reply_live(g->choices[i].parser, must);
    return open_states(g, marker);
}

bool nb_gen_constrain(nb_gen *g)
{
    static const nb_gkind kinds[] = { [NB_CON_JSON] = NB_G_JSON,
                                      [NB_CON_SCHEMA] = NB_G_SCHEMA,
                                      [NB_CON_REGEX] = NB_G_REGEX,
                                      [NB_CON_CHOICE] = NB_G_CHOICE,
                                      [NB_CON_EBNF] = NB_G_EBNF };
    const nb_ask *a = &g->ask;
    const char *param = a->constraint_param;
    nb_gkind kind = kinds[a->constraint];
    nb_json *made = NULL;
    nb_gcache *cache;
    nb_err err = { 0 };
    nb_status rc;

    if (a->constraint == NB_CON_NONE && (g->own_calls || (a->tool_choice == NB_CALLS_AUTO && a->tools && g->t->tools != NB_TOOLS_NONE)))
        return constrain_calls(g);
    if (a->constraint == NB_CON_NONE && a->tool_choice != NB_CALLS_REQUIRED && a->tool_choice != NB_CALLS_NAMED)
        return true;
    if (a->constraint == NB_CON_NONE) {
        made = a->tool_choice == NB_CALLS_REQUIRED ? any_call(a->tools) : named_schema(g);
        param = "tools";
        kind = NB_G_SCHEMA;
    } else if (a->constraint == NB_CON_REGEX || a->constraint == NB_CON_EBNF) {
        made = nb_json_new_str(a->constraint_text);
    } else if (a->constraint != NB_CON_JSON) {
        made = nb_json_copy(a->schema);
    }
    if (!made && a->constraint != NB_CON_JSON)
        return nb_refuse_memory(&g->refusal);
    rc = get_cache(g->t, &cache, &err);
    if (rc == NB_OK)
        rc = nb_gcache_get(cache, kind, made, &g->grammar, &err);
    nb_json_free(made);
    return rc == NB_OK ? open_states(g, NULL) : refuse_grammar(g, param, &err);
}

/* route_info.c - endpoints that tell about the server: models, health, versions, figures; and the admin's. */
#include <stdio.h>
#include <string.h>

#include "serve/ask_priv.h"
#include "serve/server_priv.h"

/* ---- models ---- */

static nb_json *card(const nb_server *s, const char *name)
{
    nb_json *o = nb_json_new_obj(), *extra = s->m.info ? nb_json_copy(s->m.info) : NULL;
    bool ok = nb_json_set(o, "id", nb_json_new_str(name)) && nb_json_set(o, "object", nb_json_new_str("model")) &&
              nb_json_set(o, "created", nb_json_new_int(s->created)) && nb_json_set(o, "owned_by", nb_json_new_str("nibble")) &&
              nb_json_set(o, "root", nb_json_new_str(s->m.root)) && nb_json_set(o, "parent", nb_json_new_null()) &&
              nb_json_set(o, "max_model_len", nb_json_new_int((int64_t)s->texts.context)) &&
              nb_json_set(o, "permission", nb_json_new_arr());

    if (ok && extra) {
        ok = nb_json_set(o, "nibble", extra);
        extra = NULL;
    }
    nb_json_free(extra);
    if (ok)
        return o;
    nb_json_free(o);
    return NULL;
}

void nb_route_models(nb_server *s, nb_http_req *r)
{
    nb_json *o = nb_json_new_obj(), *list = nb_json_new_arr();
    bool ok = list != NULL;

    for (size_t i = 0; ok && i < s->m.n_names; i++)
        ok = nb_json_push(list, card(s, s->m.names[i]));
    ok = nb_json_set(o, "object", nb_json_new_str("list")) && nb_json_set(o, "data", list) && ok;
    nb_answer_json(r, o, ok);
}

static int hex(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10 : -1;
}

/* Percent-decoding; false for a bad or zero byte. */
static bool decode_path(const char *s, char *out, size_t cap)
{
    size_t n = 0;

    for (; *s && n + 1 < cap; s++) {
        if (*s != '%') {
            out[n++] = *s;
            continue;
        }
        if (hex(s[1]) < 0 || hex(s[2]) < 0 || (s[1] == '0' && s[2] == '0'))
            return false;
        out[n++] = (char)(hex(s[1]) * 16 + hex(s[2]));
        s += 2;
    }
    out[n] = 0;
    return *s == 0;
}

void nb_route_model(nb_server *s, nb_http_req *r)
{
    char name[512];
    nb_refusal f = { 0 };
    nb_json *found;

    if (!decode_path(strstr(nb_http_path(r), "models/") + 7, name, sizeof name))
        nb_refuse(&f, 400, "bad_request", NULL, "The name in the path is not well encoded.");
    else
        nb_model_known(s, name, &f);
    if (f.status) {
        nb_answer_refusal(r, &f);
        return;
    }
    found = card(s, name);
    nb_answer_json(r, found, found != NULL);
}

/* ---- health and figures ---- */

void nb_route_live(nb_server *s, nb_http_req *r)
{
    (void)s;
    nb_http_reply(r, 200, "text/plain", "", 0);
}

void nb_route_health(nb_server *s, nb_http_req *r)
{
    const nb_server_state state = atomic_load(&s->state);
    nb_engine_stats st;
    double age = 0;

    if (state == NB_SERVER_READY) {
        nb_worker_stats(s->worker, &st, &age);
        if (age < s->o.stall_s) {
            nb_http_reply(r, 200, "text/plain", "", 0);
            return;
        }
    }
    nb_http_add(r, "Retry-After", "2");
    if (state == NB_SERVER_LOADING)
        nb_http_error(r, 503, "loading", NULL, "The model is being loaded.");
    else if (state == NB_SERVER_DRAINING)
        nb_http_error(r, 503, "shutting_down", NULL, "The server is going down.");
    else
        nb_http_error(r, 503, "stalled", NULL, "The engine shows no life.");
}

void nb_route_version(nb_server *s, nb_http_req *r)
{
    nb_json *o = nb_json_new_obj();
    const bool ready = atomic_load(&s->state) != NB_SERVER_LOADING && s->worker;
    const char *slash = strchr(s->o.version, '/');

    nb_answer_json(r, o,
                   nb_json_set(o, "version", nb_json_new_str(slash ? slash + 1 : s->o.version)) &&
                       nb_json_set(o, "commit", nb_json_new_str(s->o.commit)) &&
                       nb_json_set(o, "kernels", nb_json_new_str(ready ? s->m.isa : "")) &&
                       nb_json_set(o, "numerics", nb_json_new_str("invariant")));
}

void nb_route_metrics(nb_server *s, nb_http_req *r)
{
    nb_engine_stats st;
    nb_buf page = { 0 };
    double age = 0;
    const bool ready = atomic_load(&s->state) != NB_SERVER_LOADING && s->worker;

    if (ready)
        nb_worker_stats(s->worker, &st, &age);
    nb_metrics_write(s->metrics, ready ? &st : NULL, age, &page);
    if (page.failed)
        nb_http_error(r, 503, "out_of_memory", NULL, "There is no memory for this answer now; try again.");
    else
        nb_http_reply(r, 200, "text/plain; version=0.0.4; charset=utf-8", page.p, page.n);
    nb_buf_clear(&page);
}

void nb_route_load(nb_server *s, nb_http_req *r)
{
    nb_engine_stats st = { 0 };
    double age = 0;
    nb_json *o = nb_json_new_obj();

    if (atomic_load(&s->state) != NB_SERVER_LOADING && s->worker)
        nb_worker_stats(s->worker, &st, &age);
    nb_answer_json(r, o,
                   nb_json_set(o, "server_load", nb_json_new_int((int64_t)(st.running + st.waiting))) &&
                       nb_json_set(o, "queued", nb_json_new_int((int64_t)st.waiting)) &&
                       nb_json_set(o, "running", nb_json_new_int((int64_t)st.running)) &&
                       nb_json_set(o, "kv_usage", nb_json_new_real(st.pages ? (double)st.pages_used / (double)st.pages : 0)) &&
                       nb_json_set(o, "kv_cached", nb_json_new_real(st.pages ? (double)st.pages_cached / (double)st.pages : 0)) &&
                       nb_json_set(o, "queried_tokens", nb_json_new_int((int64_t)st.queried_tokens)) &&
                       nb_json_set(o, "hit_tokens", nb_json_new_int((int64_t)st.hit_tokens)) &&
                       nb_json_set(o, "output_tokens", nb_json_new_int((int64_t)st.output_tokens)));
}

static nb_json *limits_json(const nb_server *s)
{
    nb_json *o = nb_json_new_obj();

    if (nb_json_set(o, "body_bytes", nb_json_new_int((int64_t)s->o.http.limits.max_body)) &&
        nb_json_set(o, "header_bytes", nb_json_new_int((int64_t)s->o.http.limits.total)) &&
        nb_json_set(o, "headers", nb_json_new_int((int64_t)s->o.http.limits.count)) &&
        nb_json_set(o, "connections", nb_json_new_int(s->o.http.max_conns)) &&
        nb_json_set(o, "queued", nb_json_new_int((int64_t)s->m.max_queued)) &&
        nb_json_set(o, "queue_seconds", nb_json_new_real(s->m.queue_timeout)) &&
        nb_json_set(o, "request_seconds", nb_json_new_real(s->m.request_timeout)) &&
        nb_json_set(o, "head_seconds", nb_json_new_real(s->o.http.head_s)) &&
        nb_json_set(o, "body_seconds", nb_json_new_real(s->o.http.body_s)) &&
        nb_json_set(o, "idle_seconds", nb_json_new_real(s->o.http.idle_s)) &&
        nb_json_set(o, "write_seconds", nb_json_new_real(s->o.http.write_s)))
        return o;
    nb_json_free(o);
    return NULL;
}

/* What an operator should know of this model (TOOL-1). */
static nb_json *warnings_json(const nb_server *s)
{
    nb_json *list = nb_json_new_arr();
    bool ok = list != NULL;

    if (ok && !s->texts.chat)
        ok = nb_json_push(list, nb_json_new_str("The model has no chat template: chats are refused."));
    if (ok && s->texts.chat && s->m.tools == NB_TOOLS_NONE)
        ok = nb_json_push(list, nb_json_new_str("The chat template shows no form of tool calls: they come as content (--tool-parser)."));
    if (ok)
        return list;
    nb_json_free(list);
    return NULL;
}

void nb_route_props(nb_server *s, nb_http_req *r)
{
    nb_json *o = nb_json_new_obj(), *d = nb_json_new_obj();
    const nb_sampling *p = &s->m.defaults;
    const bool ok = nb_json_set(d, "temperature", nb_json_new_real(nb_json_short(p->temperature))) &&
                    nb_json_set(d, "top_k", nb_json_new_int(p->top_k)) &&
                    nb_json_set(d, "top_p", nb_json_new_real(nb_json_short(p->top_p))) &&
                    nb_json_set(d, "min_p", nb_json_new_real(nb_json_short(p->min_p))) &&
                    nb_json_set(d, "repetition_penalty", nb_json_new_real(nb_json_short(p->repetition_penalty)));

    nb_answer_json(r, o,
                   nb_json_set(o, "model", nb_json_new_str(s->m.names[0])) &&
                       nb_json_set(o, "max_model_len", nb_json_new_int((int64_t)s->texts.context)) &&
                       nb_json_set(o, "vocab_size", nb_json_new_int((int64_t)s->m.vocab)) &&
                       nb_json_set(o, "chat_template", nb_json_new_bool(s->texts.chat != NULL)) &&
                       nb_json_set(o, "system_fingerprint", nb_json_new_str(s->fingerprint)) &&
                       nb_json_set(o, "kv_dtype", nb_json_new_str(s->m.kv_dtype)) &&
                       nb_json_set(o, "prefix_cache", nb_json_new_bool(s->m.prefix_cache)) &&
                       nb_json_set(o, "tool_parser", nb_json_new_str(nb_tool_format_name(s->m.tools))) &&
                       nb_json_set(o, "reasoning_parser", nb_json_new_str(nb_reason_format_name(s->m.reason))) &&
                       nb_json_set(o, "limits", limits_json(s)) && nb_json_set(o, "warnings", warnings_json(s)) &&
                       nb_json_set(o, "max_n", nb_json_new_int((int64_t)s->rules.max_n)) && nb_json_set(o, "defaults", d) && ok);
}

void nb_route_openapi(nb_server *s, nb_http_req *r)
{
    (void)s;
    nb_http_reply(r, 200, "application/json", (const char *)nb_openapi, nb_openapi_size);
}

void nb_route_page(nb_server *s, nb_http_req *r)
{
    nb_http_add(r, "Content-Security-Policy",
                "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; img-src data:; base-uri "
                "'none'; form-action 'none'");
    nb_http_add(r, "X-Content-Type-Options", "nosniff");
    nb_http_reply(r, 200, "text/html; charset=utf-8", s->o.page ? s->o.page : "", s->o.n_page);
}

/* ---- admin ---- */

void nb_route_reset(nb_server *s, nb_http_req *r)
{
    nb_worker_reset_cache(s->worker, r);
}

void nb_route_abort(nb_server *s, nb_http_req *r)
{
    nb_refusal f = { 0 };
    nb_json *o = NULL, *out;
    size_t n;
    const char *body = nb_http_body(r, &n), *id = NULL;
    bool all = false;
    const nb_call *call = nb_http_data(r);

    if (nb_body_parse(body, n, &o, &f) && nb_ask_str(o, "request_id", 256, &id, &f) && nb_ask_bool(o, "all", &all, &f)) {
        if (!id && !all)
            nb_refuse(&f, 400, "missing_required_parameter", "request_id", "Give request_id, or all: true.");
        else
            n = nb_worker_abort(s->worker, id, s->o.n_admin_keys ? 0 : call->key); /* PC-12: without an admin, each his own */
    }
    if (f.status) {
        nb_answer_refusal(r, &f);
    } else {
        out = nb_json_new_obj();
        nb_answer_json(r, out, nb_json_set(out, "aborted", nb_json_new_int((int64_t)n)));
    }
    nb_json_free(o);
}

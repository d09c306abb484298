/* server.c - who may come in (Host, Origin, key), where to, and in which state of the server. */
#define _GNU_SOURCE /* strcasestr */
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <time.h>

#include "base/sha256.h"
#include "serve/server_priv.h"

/* ---- answers ---- */

void nb_answer_json(nb_http_req *r, nb_json *v, bool ok)
{
    char *text = ok ? nb_json_dump(v, 0, true) : NULL;

    nb_json_free(v);
    if (text)
        nb_http_reply(r, 200, "application/json", text, strlen(text));
    else
        nb_http_error(r, 503, "out_of_memory", NULL, "There is no memory for this answer now; try again.");
    nb_free(text);
}

void nb_answer_refusal(nb_http_req *r, const nb_refusal *f)
{
    nb_http_error(r, f->status, f->code, f->param[0] ? f->param : NULL, f->message);
}

bool nb_model_known(const nb_server *s, const char *name, nb_refusal *f)
{
    nb_buf names = { 0 };
    bool hit = !*name || s->o.any_model;
    char esc[NB_ESC_CAP];

    for (size_t i = 0; !hit && i < s->m.n_names; i++)
        hit = strcmp(name, s->m.names[i]) == 0;
    if (hit)
        return true;
    for (size_t i = 0; i < s->m.n_names; i++)
        nb_buf_printf(&names, "%s%s", i ? ", " : "", s->m.names[i]);
    nb_refuse(f, 404, "model_not_found", "model", "The model \"%s\" is not served here; use %.300s.",
              nb_esc(esc, sizeof esc, name, strlen(name)), names.p ? names.p : "");
    nb_buf_clear(&names);
    return false;
}

/* ---- who comes in ---- */

static bool is_loopback_name(const char *h, size_t n)
{
    static const char *const names[] = { "localhost", "127.0.0.1", "[::1]", "::1" };
    const char *colon = h[0] == '[' ? memchr(h, ']', n) : memchr(h, ':', n);
    const size_t host = !colon ? n : (size_t)(colon - h) + (h[0] == '[');

    for (size_t i = 0; i < NB_LEN(names); i++)
        if (strlen(names[i]) == host && strncasecmp(names[i], h, host) == 0)
            return true;
    return host > 4 && strncmp(h, "127.", 4) == 0 && strspn(h, "0123456789.") >= host;
}

/* An Origin of a page on this machine. */
static bool is_loopback_origin(const char *o)
{
    const char *host = strstr(o, "://");

    return host && is_loopback_name(host + 3, strlen(host + 3));
}

static bool origin_allowed(const nb_server *s, const char *origin)
{
    for (size_t i = 0; i < s->o.n_origins; i++)
        if (strcmp(s->o.origins[i], "*") == 0 || strcasecmp(s->o.origins[i], origin) == 0)
            return true;
    return s->o.n_origins == 0 && (s->o.n_keys || is_loopback_origin(origin));
}

/* DNS rebinding and foreign pages (API-5). False: answered. */
static bool place_allowed(nb_server *s, nb_http_req *r)
{
    const char *host = nb_http_header(r, "host", NULL), *origin = nb_http_header(r, "origin", NULL);

    if (s->loopback && !s->o.n_keys && !s->o.allow_any_host && host && !is_loopback_name(host, strlen(host))) {
        nb_http_error(r, 403, "forbidden", NULL,
                      "This Host is not this machine; start the server with --api-key or --host to be reached by name.");
        return false;
    }
    if (!origin)
        return true;
    if (!origin_allowed(s, origin)) {
        nb_http_error(r, 403, "forbidden", NULL, "Pages of this origin may not use the server; allow it with --cors-origin.");
        return false;
    }
    nb_http_add(r, "Access-Control-Allow-Origin", s->o.n_keys && s->o.n_origins == 0 ? "*" : origin);
    nb_http_add(r, "Vary", "Origin");
    return true;
}

static void preflight(nb_http_req *r)
{
    nb_http_add(r, "Access-Control-Allow-Methods", "GET, POST, OPTIONS");
    nb_http_add(r, "Access-Control-Allow-Headers", "authorization, content-type, x-api-key, x-request-id, *");
    nb_http_add(r, "Access-Control-Max-Age", "600");
    nb_http_reply(r, 204, NULL, "", 0);
}

/* Index of the key among all (keys, then admin keys), -1 when it is none of them; the time does not tell how it differs. */
static int find_key(const nb_server *s, const char *key)
{
    const size_t n = s->o.n_keys + s->o.n_admin_keys;
    uint8_t digest[32];
    nb_sha256 h;
    int hit = -1;

    nb_sha256_init(&h);
    nb_sha256_add(&h, key, strlen(key));
    nb_sha256_end(&h, digest);
    for (size_t i = 0; i < n; i++)
        if (nb_same_bytes(digest, s->digests[i], sizeof digest) && hit < 0)
            hit = (int)i;
    return hit;
}

/* The key a request brought, NULL when it brought none or two. */
static const char *brought_key(const nb_http_req *r)
{
    unsigned n_auth, n_x;
    const char *auth = nb_http_header(r, "authorization", &n_auth), *x = nb_http_header(r, "x-api-key", &n_x);

    if (n_auth + n_x != 1)
        return NULL;
    if (x)
        return x;
    if (strncasecmp(auth, "bearer ", 7) != 0)
        return NULL;
    for (auth += 7; *auth == ' ';)
        auth++;
    return auth;
}

/* False: answered with 401 or 403. */
static bool key_allowed(nb_server *s, nb_http_req *r, nb_route_class cls, nb_call *call)
{
    const bool admin = cls == NB_ROUTE_ADMIN;
    const char *key;
    int i;

    if (admin && s->o.no_admin) {
        nb_http_error(r, 403, "forbidden", NULL, "Admin paths are switched off (--no-admin).");
        return false;
    }
    if (cls == NB_ROUTE_OPEN || (s->o.n_keys == 0 && !(admin && s->o.n_admin_keys)))
        return true;
    key = brought_key(r);
    i = key ? find_key(s, key) : -1;
    if (i < 0) {
        nb_http_add(r, "WWW-Authenticate", "Bearer");
        nb_http_error(r, 401, "invalid_api_key", NULL, "Send the header \"Authorization: Bearer KEY\" with a key of this server.");
        return false;
    }
    if (admin && s->o.n_admin_keys && (size_t)i < s->o.n_keys) {
        nb_http_error(r, 403, "forbidden", NULL, "This path needs an admin key (--admin-key).");
        return false;
    }
    call->key = (uint64_t)i + 1;
    return true;
}

/* x-request-id of the client when it is harmless, else one of ours. */
static void name_call(const nb_http_req *r, nb_call *call)
{
    unsigned n;
    const char *id = nb_http_header(r, "x-request-id", &n);
    uint8_t random[16];
    bool ok = id && n == 1 && *id && strlen(id) <= 128;

    for (const char *p = id; ok && *p; p++)
        ok = (*p >= '0' && *p <= '9') || ((*p | 32) >= 'a' && (*p | 32) <= 'z') || strchr("._-", *p);
    if (ok) {
        snprintf(call->id, sizeof call->id, "%s", id);
        return;
    }
    nb_random_bytes(random, sizeof random);
    for (size_t i = 0; i < sizeof random; i++)
        snprintf(call->id + 2 * i, 3, "%02x", random[i]);
}

static bool json_body(nb_http_req *r)
{
    unsigned n;
    const char *type = nb_http_header(r, "content-type", &n);
    const char *charset = type ? strcasestr(type, "charset=") : NULL;

    if (nb_http_header(r, "content-encoding", NULL))
        return false;
    if (n != 1 || strncasecmp(type, "application/json", 16) != 0 || (type[16] && !strchr("; \t", type[16])))
        return false;
    return !charset || strncasecmp(charset + 8, "utf-8", 5) == 0 || strncasecmp(charset + 8, "\"utf-8\"", 7) == 0;
}

static void wait_header(nb_server *s, nb_http_req *r)
{
    char after[16];

    snprintf(after, sizeof after, "%u", s->worker ? (nb_worker_retry_ms(s->worker) + 999) / 1000 : 2);
    nb_http_add(r, "Retry-After", after);
}

/* False: answered with 503. */
static bool state_allowed(nb_server *s, nb_http_req *r, const nb_route *route)
{
    const nb_server_state state = atomic_load(&s->state);

    if (!route->needs_model || state == NB_SERVER_READY)
        return true;
    if (state == NB_SERVER_DRAINING && strcmp(route->method, "GET") == 0)
        return true;
    wait_header(s, r);
    if (state == NB_SERVER_LOADING)
        nb_http_error(r, 503, "loading", NULL, "The model is being loaded; try again in a moment.");
    else
        nb_http_error(r, 503, "shutting_down", NULL, "The server is going down; send this to another one.");
    return false;
}

/* Who may use a route; a path that does not exist (NULL) needs a key, too. */
static nb_route_class class_of(const nb_server *s, const nb_route *route)
{
    if (route && route->run == nb_route_metrics && s->o.metrics_open)
        return NB_ROUTE_OPEN;
    return route ? route->cls : NB_ROUTE_KEY;
}

static void on_head(void *user, nb_http_req *r)
{
    nb_server *s = user;
    nb_call *call = nb_calloc(1, sizeof *call);
    const char *method = nb_http_method(r);
    const nb_route *route;
    nb_buf allow = { 0 };
    bool known;

    nb_http_add(r, "Server", s->o.version);
    if (!call) {
        nb_http_error(r, 503, "out_of_memory", NULL, "There is no memory for this request now; try again.");
        return;
    }
    nb_http_set_data(r, call);
    name_call(r, call);
    nb_http_add(r, "x-request-id", call->id);
    route = nb_route_find(nb_http_path(r), method, &known, &allow);
    if (!place_allowed(s, r)) {
        ;
    } else if (strcmp(method, "OPTIONS") == 0) {
        if (allow.n)
            nb_http_add(r, "Allow", allow.p);
        preflight(r);
    } else if (!key_allowed(s, r, class_of(s, route), call)) {
        ;
    } else if (!known) {
        nb_http_error(r, 404, "not_found", NULL, "There is nothing at this path.");
    } else if (!route) {
        nb_http_add(r, "Allow", allow.p ? allow.p : "");
        nb_http_error(r, 405, "method_not_allowed", NULL, "This path does not know this method.");
    } else if (strcmp(method, "POST") == 0 && !nb_http_header(r, "content-length", NULL) && !nb_http_header(r, "transfer-encoding", NULL)) {
        nb_http_error(r, 411, "length_required", NULL, "A POST needs Content-Length or chunked coding.");
    } else if (strcmp(method, "POST") == 0 && route->cls != NB_ROUTE_ADMIN && !json_body(r)) {
        nb_http_error(r, 415, "unsupported_media_type", NULL, "Send the body as Content-Type: application/json in UTF-8, not compressed.");
    } else if (state_allowed(s, r, route)) {
        call->route = route;
    }
    nb_buf_clear(&allow);
}

static void on_body(void *user, nb_http_req *r)
{
    nb_server *s = user;
    const nb_call *call = nb_http_data(r);

    call->route->run(s, r);
}

static void on_done(void *user, nb_http_req *r)
{
    nb_server *s = user;
    nb_call *call = nb_http_data(r);
    const int status = nb_http_status(r);

    if (status)
        nb_metrics_http(s->metrics, call && call->route ? call->route->path : "none", nb_http_method(r), status,
                        nb_now() - nb_http_began(r));
    nb_http_set_data(r, NULL);
    nb_free(call);
}

/* ---- the server ---- */

static nb_status hash_keys(nb_server *s, nb_err *err)
{
    const size_t n = s->o.n_keys + s->o.n_admin_keys;

    s->digests = nb_calloc(n ? n : 1, sizeof *s->digests);
    if (!s->digests)
        return nb_enomem(err, "the keys");
    for (size_t i = 0; i < n; i++) {
        const char *key = i < s->o.n_keys ? s->o.keys[i] : s->o.admin_keys[i - s->o.n_keys];
        nb_sha256 h;

        nb_sha256_init(&h);
        nb_sha256_add(&h, key, strlen(key));
        nb_sha256_end(&h, s->digests[i]);
    }
    return NB_OK;
}

nb_status nb_server_open(const nb_server_opts *o, nb_server **out, nb_err *err)
{
    nb_server *s = nb_calloc(1, sizeof *s);
    nb_http_opts http = o->http;
    nb_status rc;

    *out = NULL;
    if (!s)
        return nb_enomem(err, "the server");
    s->o = *o;
    s->created = (int64_t)time(NULL);
    s->loopback = strncmp(o->http.host, "unix:", 5) != 0 && is_loopback_name(o->http.host, strlen(o->http.host));
    http.timing = "openai-processing-ms"; /* API-6 */
    http.head = on_head;
    http.body = on_body;
    http.done = on_done;
    http.user = s;
    rc = nb_constraints_init(&s->constraints, o->json_compact, err);
    if (rc == NB_OK)
        rc = hash_keys(s, err);
    if (rc == NB_OK)
        rc = nb_metrics_open(&s->metrics, err);
    if (rc == NB_OK)
        rc = nb_http_open(&http, &s->http, err);
    if (rc == NB_OK)
        rc = nb_http_start(s->http, err);
    if (rc != NB_OK) {
        nb_server_close(s);
        return rc;
    }
    *out = s;
    return NB_OK;
}

uint16_t nb_server_port(const nb_server *s)
{
    return nb_http_port(s->http);
}

static void set_fingerprint(nb_server *s, const char *identity)
{
    uint8_t digest[32];
    nb_sha256 h;

    nb_sha256_init(&h);
    nb_sha256_add(&h, identity, strlen(identity));
    nb_sha256_end(&h, digest);
    memcpy(s->fingerprint, "fp_", 4);
    for (size_t i = 0; i < 8; i++)
        snprintf(s->fingerprint + 3 + 2 * i, 3, "%02x", digest[i]);
}

nb_status nb_server_ready(nb_server *s, const nb_server_model *m, nb_err *err)
{
    const nb_cache_scope scope = m->scope >= 0 ? (nb_cache_scope)m->scope : s->o.n_keys > 1 ? NB_SCOPE_KEY : NB_SCOPE_GLOBAL;
    const nb_worker_opts w = { .engine = m->engine,
                               .http = s->http,
                               .metrics = s->metrics,
                               .prepare_threads = m->prepare_threads,
                               .max_queued = m->max_queued,
                               .queue_timeout = m->queue_timeout,
                               .request_timeout = m->request_timeout,
                               .scope = scope,
                               .host = s->o.host };
    const nb_metrics_info info = { .model = m->names[0],
                                   .isa = m->isa,
                                   .kernel = m->kernel,
                                   .kv_dtype = m->kv_dtype,
                                   .context = nb_engine_context(m->engine),
                                   .page = NB_PAGE,
                                   .weights_bytes = m->weights_bytes,
                                   .kv_bytes = nb_engine_kv_bytes(m->engine),
                                   .work_bytes = nb_engine_work_bytes(m->engine),
                                   .prefix_cache = m->prefix_cache,
                                   .prefix = s->o.metrics_prefix };
    nb_status rc;

    s->m = *m;
    set_fingerprint(s, m->identity);
    s->texts = (nb_texts){ .tok = m->tok,
                           .chat = m->chat && nb_chat_has_template(m->chat) ? m->chat : NULL,
                           .vocab = m->vocab,
                           .context = info.context,
                           .eos = m->eos,
                           .n_eos = m->n_eos,
                           .model = m->names[0],
                           .fingerprint = s->fingerprint,
                           .tools = m->tools,
                           .reason = m->reason,
                           .constraints = &s->constraints,
                           .strict_openai = s->o.strict_openai,
                           .errors = s->o.http.errors,
                           .stream_interval = s->o.stream_interval };
    s->rules = (nb_ask_rules){ .vocab = m->vocab,
                               .max_n = s->o.max_n ? s->o.max_n : NB_MAX_CHOICES,
                               .lenient = s->o.lenient,
                               .priorities = m->priorities,
                               .request_template = s->o.request_template,
                               .defaults = &s->m.defaults };
    nb_metrics_describe(s->metrics, &info);
    rc = nb_worker_open(&w, &s->worker, err);
    if (rc == NB_OK)
        atomic_store(&s->state, NB_SERVER_READY);
    return rc;
}

size_t nb_server_drain(nb_server *s, double seconds, bool (*hurry)(void *user), void *user)
{
    const double end = nb_now() + seconds;
    const struct timespec nap = { 0, 20000000 };
    size_t cut;

    atomic_store(&s->state, NB_SERVER_DRAINING);
    if (!s->worker)
        return 0;
    while (nb_worker_pending(s->worker) && nb_now() < end && !(hurry && hurry(user)))
        nanosleep(&nap, NULL);
    cut = nb_worker_abort(s->worker, NULL, 0);
    for (int i = 0; cut && i < 100 && nb_worker_pending(s->worker); i++) /* the last words go out */
        nanosleep(&nap, NULL);
    return cut;
}

double nb_server_stalled(nb_server *s)
{
    nb_engine_stats st;
    double age = 0;

    if (s->worker)
        nb_worker_stats(s->worker, &st, &age);
    return age;
}

void nb_server_dump(nb_server *s, nb_buf *out)
{
    nb_engine_stats st = { 0 };
    double age = 0;

    if (!s->worker)
        return;
    nb_worker_stats(s->worker, &st, &age);
    nb_buf_printf(out,
                  "silent for %.1f s after %llu steps; last step: %zu tokens in %.3f s; %zu running, %zu waiting, %zu requests open; "
                  "%zu of %zu blocks held\n",
                  age, (unsigned long long)st.steps, st.last_rows, st.last_step_s, st.running, st.waiting, nb_worker_pending(s->worker),
                  st.pages_used, st.pages);
}

void nb_server_close(nb_server *s)
{
    if (!s)
        return;
    atomic_store(&s->state, NB_SERVER_DRAINING);
    nb_worker_close(s->worker);
    nb_http_close(s->http);
    nb_metrics_close(s->metrics);
    nb_constraints_clear(&s->constraints);
    nb_free(s->digests);
    nb_free(s);
}

/* cmd_serve.c - `nibble serve MODEL`: listen, load, serve, drain. Options become the structs of serve/server.h. */
#include <inttypes.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "base/cpu.h"
#include "base/sha256.h"
#include "cli/cli.h"
#include "cli/progress.h"
#include "job/answer.h"
#include "job/load.h"
#include "serve/server.h"

extern const unsigned char nb_page_html[];
extern const size_t nb_page_html_size;

enum { QUEUE_POOLS = 8 }; /* prompt tokens that may wait, in KV pools */

typedef struct serve_opts {
    const char *host, *key_file, *kv, *act, *kv_cache, *cache_dir, *cache_disk, *scope, *policy, *tool_parser, *reasoning_parser,
        *generation_config, *sampler, *template_file, *log_format, *metrics_prefix, *evict, *errors;
    int64_t port, context, max_seqs, max_batched, max_queued, max_queued_tokens, max_per_key, max_n, max_conns, max_body_mib, prepare,
        stream_interval;
    double step_ms, queue_timeout, request_timeout, drain_s, stall_s, priority_age, max_queue_age, head_s, body_s, idle_s, write_s;
    bool no_admin, metrics_open, any_model, any_host, unsafe_bind, strict, lenient, request_template, no_cache, expose_root, quiet_requests,
        watchdog, json_compact;
    nb_strlist keys, admin_keys, names, origins;
} serve_opts;

typedef struct serve {
    nb_cli *cli;
    serve_opts o;
    nb_strlist keys; /* of the options, the file and the environment */
    char *key_text;
    nb_loaded l;
    nb_pool *pool;
    nb_engine *engine;
    nb_server *server;
    nb_answer_defaults model;
    nb_json *info;
    uint8_t fingerprint[32], disk_fingerprint[32]; /* of the model; of all its bytes and this program, where blocks are kept on disk */
    char identity[512], name[256], isa[64];
    nb_host host;
    const char *served[65]; /* names of the model */
} serve;

/* ---- options ---- */

static nb_status add_keys(serve *s, nb_err *err)
{
    const char *env = getenv("NIBBLE_API_KEY");
    size_t n = 0;
    nb_status rc = NB_OK;

    s->keys = s->o.keys;
    if (env && *env && s->keys.n < NB_LEN(s->keys.v))
        s->keys.v[s->keys.n++] = env;
    if (s->o.key_file)
        rc = nb_read_file(s->o.key_file, 1 << 20, &s->key_text, &n, err);
    for (char *p = s->key_text, *next; rc == NB_OK && p && *p; p = next) {
        char *eol = strchr(p, '\n');

        next = eol ? eol + 1 : p + strlen(p);
        if (eol)
            *eol = 0;
        p[strcspn(p, "\r")] = 0;
        if (*p && s->keys.n < NB_LEN(s->keys.v))
            s->keys.v[s->keys.n++] = p;
    }
    for (size_t i = 0; rc == NB_OK && i < s->keys.n; i++)
        if (!*s->keys.v[i])
            rc = nb_fail(err, NB_EARG, "arg.value", "", "--api-key is empty");
    return rc;
}

static bool local_host(const char *host)
{
    return strncmp(host, "unix:", 5) == 0 || strncmp(host, "127.", 4) == 0 || strcmp(host, "localhost") == 0 || strcmp(host, "::1") == 0;
}

static nb_status check_opts(const serve *s, nb_err *err)
{
    const serve_opts *o = &s->o;
    nb_tool_format tools;
    nb_reason_format reason;
    nb_dtype kv;
    bool a8;
    nb_status rc;

    if (!local_host(o->host) && s->keys.n == 0 && !o->unsafe_bind)
        return nb_fail(err, NB_EARG, "net.unsafe_bind", "HT-27",
                       "--host %s can be reached from other machines and there is no --api-key; give one, or say --allow-unsafe-bind",
                       o->host);
    if (!o->cache_dir != !o->cache_disk)
        return nb_fail(err, NB_EARG, "arg.value", "KV-27", "--prefix-cache-dir and --prefix-cache-disk are given together");
    if (o->cache_dir && (o->no_cache || !*o->cache_dir))
        return nb_fail(err, NB_EARG, "arg.value", "KV-27", "--prefix-cache-dir %s",
                       o->no_cache ? "cannot be used with --no-prefix-cache" : "is empty");
    if (o->scope && strcmp(o->scope, "global") != 0 && strcmp(o->scope, "key") != 0 && strcmp(o->scope, "request") != 0)
        return nb_fail(err, NB_EARG, "arg.value", "", "--prefix-cache-scope is global, key or request");
    if (o->evict && strcmp(o->evict, "lru") != 0 && strcmp(o->evict, "lfu") != 0)
        return nb_fail(err, NB_EARG, "arg.value", "", "--prefix-cache-policy is lru or lfu");
    if (o->policy && strcmp(o->policy, "fcfs") != 0 && strcmp(o->policy, "priority") != 0 && strcmp(o->policy, "lpm") != 0)
        return nb_fail(err, NB_EARG, "arg.value", "", "--schedule-policy is fcfs, priority or lpm");
    if (o->tool_parser && !nb_tool_format_named(o->tool_parser, &tools))
        return nb_fail(err, NB_EARG, "arg.value", "", "--tool-parser %s is not known; see nibble serve --help", o->tool_parser);
    if (o->reasoning_parser && !nb_reason_format_named(o->reasoning_parser, &reason))
        return nb_fail(err, NB_EARG, "arg.value", "", "--reasoning-parser %s is not known; see nibble serve --help", o->reasoning_parser);
    if (o->sampler && strcmp(o->sampler, "vllm") != 0 && strcmp(o->sampler, "llamacpp") != 0)
        return nb_fail(err, NB_EARG, "arg.value", "", "--sampler-order is vllm or llamacpp");
    if (o->generation_config && strcmp(o->generation_config, "auto") != 0 && strcmp(o->generation_config, "none") != 0)
        return nb_fail(err, NB_EARG, "arg.value", "", "--generation-config is auto or none");
    rc = nb_cli_kv(o->kv, &kv, err);
    if (rc == NB_OK)
        rc = nb_cli_act(o->act, false, &a8, err);
    if (rc != NB_OK)
        return rc;
    if (o->metrics_prefix && (!*o->metrics_prefix || strspn(o->metrics_prefix, "abcdefghijklmnopqrstuvwxyz_") != strlen(o->metrics_prefix)))
        return nb_fail(err, NB_EARG, "arg.value", "", "--metrics-prefix is a word of small letters and _");
    if (o->errors && strcmp(o->errors, "openai") != 0 && strcmp(o->errors, "vllm") != 0)
        return nb_fail(err, NB_EARG, "arg.value", "", "--error-style is openai or vllm");
    if (o->log_format && strcmp(o->log_format, "text") != 0 && strcmp(o->log_format, "json") != 0)
        return nb_fail(err, NB_EARG, "arg.value", "", "--log-format is text or json");
    return NB_OK;
}

/* ---- log: one line per request, on stderr; what clients sent is not in it, but for ids that were checked ---- */

/* Would a line go out at once? A full pipe that nobody empties must not hold up the server. */
static bool log_takes(void)
{
    struct pollfd out = { .fd = 2, .events = POLLOUT };

    return poll(&out, 1, 0) > 0 && out.revents & POLLOUT;
}

static void serve_log(void *user, nb_level level, const char *line)
{
    const serve *s = user;
    const time_t t = time(NULL);
    struct tm tm;
    char when[32];
    nb_json *o;
    char *text;

    if (level == NB_LOG_DEBUG || (level == NB_LOG_INFO && s->o.quiet_requests) || !log_takes())
        return;
    gmtime_r(&t, &tm);
    strftime(when, sizeof when, "%Y-%m-%dT%H:%M:%SZ", &tm);
    if (!s->o.log_format || strcmp(s->o.log_format, "json") != 0) {
        fprintf(stderr, "%s %s%s\n", when, level == NB_LOG_ERROR ? "error: " : level == NB_LOG_WARN ? "warning: " : "", line);
        return;
    }
    o = nb_json_new_obj();
    if (nb_json_set(o, "time", nb_json_new_str(when)) &&
        nb_json_set(o, "level",
                    nb_json_new_str(level == NB_LOG_ERROR  ? "error"
                                    : level == NB_LOG_WARN ? "warning"
                                                           : "info")) &&
        nb_json_set(o, "message", nb_json_new_str(line)) && (text = nb_json_dump(o, 0, true))) {
        fprintf(stderr, "%s\n", text);
        nb_free(text);
    }
    nb_json_free(o);
}

/* ---- the model ---- */

static void hash_text(nb_sha256 *h, const char *p, size_t n)
{
    nb_sha256_add_le32(h, (uint32_t)n);
    nb_sha256_add(h, p ? p : "", n);
}

/* What the model is: configuration, tokenizer, and every tensor by name, type, shape and its first and last bytes. whole: by all of its
 * bytes, and this program: what is kept over restarts must not outlive a change of either. */
static nb_status fingerprint(const serve *s, bool whole, uint8_t out[32], nb_err *err)
{
    static const char *const files[] = { "config.json", "tokenizer.json", "quantize_config.json", "quantization_config.json" };
    nb_sha256 h;

    nb_sha256_init_by(&h, nb_kern_sha256(nb_cpu_features()));
    if (whole)
        hash_text(&h, NB_VERSION NB_COMMIT, strlen(NB_VERSION NB_COMMIT));
    for (size_t i = 0; i < NB_LEN(files); i++) {
        const char *p;
        size_t n;
        nb_status rc = nb_hfdir_file(s->l.dir, files[i], &p, &n, err);

        if (rc != NB_OK)
            return rc;
        hash_text(&h, p, p ? n : 0);
    }
    for (size_t i = 0; i < s->l.store->n_tensors; i++) {
        const nb_tensor *t = &s->l.store->tensors[i];
        const size_t edge = whole || t->n_bytes < 256 ? (size_t)t->n_bytes : 256;

        hash_text(&h, t->name, t->name_len);
        nb_sha256_add_le32(&h, (uint32_t)t->dtype);
        for (unsigned d = 0; d < t->rank; d++)
            nb_sha256_add_le32(&h, (uint32_t)t->shape[d]);
        if (whole && !t->data)
            return nb_fail(err, NB_EUNSUPPORTED, "disk.model", "KV-27", "--prefix-cache-dir: the bytes of %.*s cannot be checked",
                           (int)t->name_len, t->name);
        if (t->data) {
            nb_sha256_add(&h, t->data, edge);
            if (!whole) /* else they were among those */
                nb_sha256_add(&h, t->data + (size_t)t->n_bytes - edge, edge);
        }
    }
    nb_sha256_end(&h, out);
    return NB_OK;
}

/* The source of the chat template, to see how calls and reasoning are written. NULL when there is none. */
static char *template_source(serve *s)
{
    const char *p;
    size_t n;
    nb_json *cfg = NULL;
    const nb_json *t;
    nb_buf all = { 0 };

    if (nb_hfdir_file(s->l.dir, "chat_template.jinja", &p, &n, NULL) == NB_OK && p)
        return nb_strndup(p, n);
    if (nb_hfdir_file(s->l.dir, "tokenizer_config.json", &p, &n, NULL) != NB_OK || !p ||
        nb_json_parse_config(p, n, "tok", &cfg, NULL, NULL) != NB_OK)
        return NULL;
    t = nb_json_get(cfg, "chat_template");
    if (nb_json_typeof(t) == NB_JSTR)
        nb_buf_puts(&all, nb_json_str(t, ""));
    for (size_t i = 0; i < nb_json_len(t); i++)
        nb_buf_puts(&all, nb_json_str(nb_json_get(nb_json_at(t, i), "template"), ""));
    nb_json_free(cfg);
    return all.p;
}

/* Blocks of the KV pool: what --kv-cache holds, else what max_seqs full contexts need, within 60 % of the free memory. */
static nb_status pool_pages(const serve *s, nb_engine_opts *e, nb_err *err)
{
    const uint64_t available = nb_mem_free();
    uint64_t budget = available / 5 * 3;

    char need[32], have[32];

    if (s->o.kv_cache && nb_cli_size("--kv-cache", s->o.kv_cache, "2G or 512MiB", &budget, err) != NB_OK)
        return err->code;
    if (s->o.kv_cache && budget > available)
        return nb_fail(err, NB_ENOMEM, "mem.budget", "MM-01", "--kv-cache asks for %s, %s of memory are free; give less",
                       nb_human_bytes(need, sizeof need, budget), nb_human_bytes(have, sizeof have, available));
    e->n_pages = 1 + e->max_seqs * ((e->context + NB_PAGE - 1) / NB_PAGE);
    if (s->o.kv_cache || nb_engine_cache_bytes(s->l.model, e) > budget)
        e->n_pages = nb_engine_pages_in(s->l.model, e, budget);
    return e->n_pages < 3
               ? nb_fail(err, NB_ENOMEM, "mem.budget", "MM-01",
                         "a KV pool of %" PRIu64 " bytes holds fewer than two blocks of %d tokens; free memory, or give --kv-cache", budget,
                         NB_PAGE)
               : NB_OK;
}

static nb_status open_engine(serve *s, nb_err *err)
{
    const nb_config *c = nb_model_config(s->l.model);
    nb_engine_opts e = { .pool = s->pool,
                         .tune = s->cli->threads == 0,
                         .context = s->o.context ? (size_t)s->o.context
                                    : c->context ? c->context
                                                 : 4096,
                         .max_seqs = (size_t)s->o.max_seqs,
                         .max_batched = (size_t)s->o.max_batched,
                         .step_ms = s->o.step_ms,
                         .no_prefix_cache = s->o.no_cache,
                         .lfu = s->o.evict && strcmp(s->o.evict, "lfu") == 0,
                         .disk_dir = s->o.cache_dir,
                         .policy = !s->o.policy            ? NB_SCHED_FCFS
                                   : s->o.policy[0] == 'p' ? NB_SCHED_PRIORITY
                                   : s->o.policy[0] == 'l' ? NB_SCHED_LPM
                                                           : NB_SCHED_FCFS,
                         .priority_age_s = s->o.priority_age,
                         .max_queued = (size_t)s->o.max_queued,
                         .max_queue_age_s = s->o.max_queue_age,
                         .max_per_key = (size_t)s->o.max_per_key };
    nb_status rc = nb_cli_kv(s->o.kv, &e.kv_dtype, err);
    size_t tokens;

    if (rc == NB_OK)
        rc = nb_cli_act(s->o.act, false, &e.a8, err);
    if (rc == NB_OK && s->o.cache_disk)
        rc = nb_cli_size("--prefix-cache-disk", s->o.cache_disk, "20G or 20GiB", &e.disk_bytes, err);
    if (rc == NB_OK && c->context && e.context > c->context)
        e.context = c->context;
    if (rc == NB_OK)
        rc = pool_pages(s, &e, err);
    if (rc != NB_OK)
        return rc;
    tokens = (e.n_pages - 1) * NB_PAGE;
    if (tokens < e.context) {
        nb_log(&s->cli->host, NB_LOG_WARN,
               "serve.context: the KV pool holds %zu tokens, so the context is %zu instead of %zu; more with --kv-cache", tokens, tokens,
               e.context);
        e.context = tokens;
    }
    e.max_queued_tokens = s->o.max_queued_tokens < 0 ? QUEUE_POOLS * tokens : (size_t)s->o.max_queued_tokens;
    memcpy(e.fingerprint, s->o.cache_dir ? s->disk_fingerprint : s->fingerprint, sizeof e.fingerprint);
    return nb_engine_open(s->l.model, &e, &s->engine, err);
}

/* What the model's card tells of it; with the scan, which goes when the weights have been packed. */
static nb_json *card_info(const serve *s)
{
    const nb_scan *q = &s->l.scan;
    nb_json *o = nb_json_new_obj();

    if (nb_json_set(o, "format", nb_json_new_str(q->format ? q->format->name : "dense")) &&
        nb_json_set(o, "bits", nb_json_new_int(q->format ? q->spec.bits : 16)) &&
        nb_json_set(o, "group_size", nb_json_new_int(q->format ? q->spec.group_size : 0)))
        return o;
    nb_json_free(o);
    return NULL;
}

/* What can be wrong with the files shows before anything listens (OV-12). */
static nb_status open_files(serve *s, const char *path, nb_err *err)
{
    nb_status rc = nb_load_store(&s->l, path, &s->cli->host, err);

    if (rc == NB_OK)
        rc = nb_load_text(&s->l, path, err);
    s->info = rc == NB_OK ? card_info(s) : NULL;
    if (rc == NB_OK)
        rc = fingerprint(s, false, s->fingerprint, err);
    return rc == NB_OK && s->o.cache_dir ? fingerprint(s, true, s->disk_fingerprint, err) : rc;
}

static nb_status load_model(serve *s, nb_err *err)
{
    const nb_kern *kern;
    nb_model_opts mo = { .host = &s->cli->host };
    nb_status rc = nb_cli_cpu(s->cli, &kern, err);

    if (rc == NB_OK)
        rc = nb_cli_pool(s->cli, &s->pool, err);
    mo.kern = kern;
    mo.pool = s->pool;
    if (rc == NB_OK)
        rc = nb_load_model(&s->l, &mo, err);
    if (rc == NB_OK)
        rc = nb_answer_defaults_read(s->l.dir, nb_model_config(s->l.model), &s->model, err);
    if (rc == NB_OK && s->model.ignored[0])
        nb_log(&s->cli->host, NB_LOG_WARN, "cfg.value: generation_config.json: ignored, out of range: %s", s->model.ignored);
    if (rc == NB_OK && s->o.generation_config && strcmp(s->o.generation_config, "none") == 0)
        s->model.sampling = (nb_sampling){ .temperature = 1, .top_p = 1, .repetition_penalty = 1 };
    s->model.sampling.late_temperature = s->o.sampler && strcmp(s->o.sampler, "llamacpp") == 0;
    if (rc == NB_OK)
        rc = open_engine(s, err);
    nb_cli_progress_end(s->cli);
    return rc;
}

/* ---- serving ---- */

/* The directory's last name. */
static void model_name(serve *s, const char *path)
{
    char *full = realpath(path, NULL);
    const char *p = full ? full : path, *slash = strrchr(p, '/');
    const size_t cap = sizeof s->name;

    snprintf(s->name, cap, "%s", slash && slash[1] ? slash + 1 : p);
    if (strlen(s->name) > 12 && strcmp(s->name + strlen(s->name) - 12, ".safetensors") == 0 && slash &&
        slash > p) { /* a file: its folder's name */
        const char *q = slash;

        while (q > p && q[-1] != '/')
            q--;
        snprintf(s->name, cap, "%.*s", (int)(slash - q), q);
    }
    free(full);
}

static nb_status be_ready(serve *s, const char *path, nb_err *err)
{
    const char **names = s->served;
    size_t n = s->o.names.n;
    char *tmpl = template_source(s);
    nb_server_model m = { .engine = s->engine,
                          .tok = s->l.tok,
                          .chat = s->l.chat,
                          .names = names,
                          .root = s->o.expose_root ? path : NULL,
                          .defaults = s->model.sampling,
                          .eos = s->model.stop_ids,
                          .n_eos = s->model.n_stop_ids,
                          .vocab = nb_model_config(s->l.model)->vocab,
                          .isa = s->isa,
                          .kernel = s->o.act ? s->o.act : "a16",
                          .kv_dtype = s->o.kv ? s->o.kv : "f16",
                          .identity = s->identity,
                          .weights_bytes = nb_model_bytes(s->l.model),
                          .prefix_cache = !s->o.no_cache,
                          .priorities = s->o.policy && strcmp(s->o.policy, "priority") == 0,
                          .scope = !s->o.scope            ? -1
                                   : s->o.scope[0] == 'g' ? NB_SCOPE_GLOBAL
                                   : s->o.scope[0] == 'k' ? NB_SCOPE_KEY
                                                          : NB_SCOPE_REQUEST,
                          .max_queued = (size_t)s->o.max_queued,
                          .queue_timeout = s->o.queue_timeout,
                          .request_timeout = s->o.request_timeout,
                          .prepare_threads = (unsigned)s->o.prepare };
    size_t used = 0;
    nb_status rc;

    memcpy(s->served, s->o.names.v, sizeof s->o.names.v);
    if (n == 0)
        names[n++] = s->name;
    else if (n < NB_LEN(s->served))
        names[n++] = s->name; /* the directory's name always works */
    m.n_names = n;
    if (!m.root)
        m.root = names[0];
    m.tools = s->o.tool_parser ? NB_TOOLS_NONE : nb_tool_format_guess(tmpl ? tmpl : "", tmpl ? strlen(tmpl) : 0);
    m.reason = s->o.reasoning_parser ? NB_REASON_NONE : nb_reason_format_guess(tmpl ? tmpl : "", tmpl ? strlen(tmpl) : 0);
    if (s->o.tool_parser)
        nb_tool_format_named(s->o.tool_parser, &m.tools);
    if (s->o.reasoning_parser)
        nb_reason_format_named(s->o.reasoning_parser, &m.reason);
    nb_free(tmpl);
    snprintf(s->isa, sizeof s->isa, "%s", nb_model_kern(s->l.model)->name);
    if (!s->info || !nb_json_set(s->info, "kernel", nb_json_new_str(s->isa)))
        return nb_enomem(err, "the model's card");
    m.info = s->info;
    for (size_t i = 0; i < sizeof s->fingerprint; i++)
        used += (size_t)snprintf(s->identity + used, sizeof s->identity - used, "%02x", s->fingerprint[i]);
    snprintf(s->identity + used, sizeof s->identity - used, "|%s|%s|%s|invariant|%s|1", NB_VERSION, m.kernel, m.kv_dtype,
             s->o.sampler ? s->o.sampler : "vllm");
    rc = nb_server_ready(s->server, &m, err);
    s->engine = NULL; /* the server's */
    return rc;
}

/* The line a newcomer needs: where it is, how much it can take, and a command that works. */
static void announce(const serve *s, size_t context, size_t tokens)
{
    const bool chat = s->l.chat && nb_chat_has_template(s->l.chat);
    char where[256], mem[32];

    if (strncmp(s->o.host, "unix:", 5) == 0)
        snprintf(where, sizeof where, "%s", s->o.host);
    else
        snprintf(where, sizeof where, "http://%s:%u", strcmp(s->o.host, "0.0.0.0") == 0 ? "127.0.0.1" : s->o.host,
                 nb_server_port(s->server));
    nb_cli_note(s->cli, "%s is ready at %s  (%s, %d threads, %s resident)", s->o.names.n ? s->o.names.v[0] : s->name, where, s->isa,
                nb_pool_threads(s->pool), nb_human_bytes(mem, sizeof mem, nb_rss_now()));
    nb_cli_note(s->cli, "  context up to %zu tokens; room for %zu tokens of all requests, %" PRId64 " at a time", context, tokens,
                s->o.max_seqs);
    if (strncmp(s->o.host, "unix:", 5) == 0)
        return;
    if (chat)
        nb_cli_note(
            s->cli,
            "  curl %s/v1/chat/completions%s -H 'Content-Type: application/json' -d '{\"messages\":[{\"role\":\"user\",\"content\":\"Say "
            "hello.\"}],\"max_tokens\":32}'",
            where, s->keys.n ? " -H \"Authorization: Bearer $NIBBLE_API_KEY\"" : "");
    else
        nb_cli_note(
            s->cli,
            "  curl %s/v1/completions%s -H 'Content-Type: application/json' -d '{\"prompt\":\"Once upon a time\",\"max_tokens\":32}'",
            where, s->keys.n ? " -H \"Authorization: Bearer $NIBBLE_API_KEY\"" : "");
}

static nb_status open_server(serve *s, nb_err *err)
{
    nb_server_opts o = { .http = NB_HTTP_OPTS,
                         .keys = s->keys.v,
                         .n_keys = s->keys.n,
                         .admin_keys = s->o.admin_keys.v,
                         .n_admin_keys = s->o.admin_keys.n,
                         .no_admin = s->o.no_admin,
                         .metrics_open = s->o.metrics_open,
                         .any_model = s->o.any_model,
                         .strict_openai = s->o.strict,
                         .lenient = s->o.lenient,
                         .request_template = s->o.request_template,
                         .allow_any_host = s->o.any_host,
                         .json_compact = s->o.json_compact,
                         .origins = s->o.origins.v,
                         .n_origins = s->o.origins.n,
                         .max_n = (size_t)s->o.max_n,
                         .stream_interval = (size_t)s->o.stream_interval,
                         .metrics_prefix = s->o.metrics_prefix,
                         .stall_s = s->o.stall_s,
                         .version = "nibble/" NB_VERSION,
                         .commit = NB_COMMIT,
                         .page = (const char *)nb_page_html,
                         .n_page = nb_page_html_size,
                         .host = &s->host };

    o.http.host = s->o.host;
    o.http.port = (uint16_t)s->o.port;
    o.http.max_conns = (unsigned)s->o.max_conns;
    o.http.head_s = s->o.head_s;
    o.http.body_s = s->o.body_s;
    o.http.idle_s = s->o.idle_s;
    o.http.write_s = s->o.write_s;
    o.http.errors = s->o.errors && strcmp(s->o.errors, "vllm") == 0 ? NB_ERRORS_VLLM : NB_ERRORS_OPENAI;
    o.http.limits.max_body = (size_t)s->o.max_body_mib << 20;
    return nb_server_open(&o, &s->server, err);
}

/* What systemd listens to (NOTIFY_SOCKET), when it does. */
static void notify(const char *text)
{
    const char *path = getenv("NOTIFY_SOCKET");
    struct sockaddr_un a = { .sun_family = AF_UNIX };
    int fd;

    if (!path || strlen(path) < 2 || strlen(path) >= sizeof a.sun_path)
        return;
    memcpy(a.sun_path, path, strlen(path));
    if (a.sun_path[0] == '@')
        a.sun_path[0] = 0;
    fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd >= 0) {
        (void)!sendto(fd, text, strlen(text), MSG_NOSIGNAL, (struct sockaddr *)&a,
                      (socklen_t)(offsetof(struct sockaddr_un, sun_path) + strlen(path)));
        close(fd);
    }
}

/* Past every lock and buffer, as the thread that hangs may hold them: what is known, then the end. */
static void end_now(serve *s, int code, const char *why)
{
    nb_buf b = { 0 };

    nb_buf_printf(&b, "nibble: error: serve.stalled: %s (OV-10)\n", why);
    nb_server_dump(s->server, &b);
    if (!b.failed && log_takes())
        (void)!write(2, b.p, b.n < PIPE_BUF ? b.n : PIPE_BUF); /* so much goes into a pipe at once */
    _exit(code);
}

/* Until a signal, or until the watchdog finds the engine dead. */
static nb_status wait_for_end(serve *s)
{
    const struct timespec nap = { 0, 50000000 };
    double fed = 0;

    while (!nb_cli_interrupted()) {
        const double age = nb_server_stalled(s->server);

        nanosleep(&nap, NULL);
        if (nb_now() - fed > 5 && age < s->o.stall_s) {
            notify("WATCHDOG=1");
            fed = nb_now();
        }
        if (s->o.watchdog && age > 4 * s->o.stall_s)
            end_now(s, NB_EINTERNAL, "the engine shows no life; a supervisor may start the server again");
    }
    return NB_OK;
}

static nb_status serve_path(serve *s, const char *path, nb_err *err)
{
    const struct rlimit none = { 0, 0 };
    size_t cut;
    nb_status rc = add_keys(s, err);

    setrlimit(RLIMIT_CORE, &none); /* prompts and keys do not reach the disk (PC-11) */
    if (rc == NB_OK)
        rc = check_opts(s, err);
    if (rc == NB_OK)
        rc = open_files(s, path, err);
    if (rc == NB_OK)
        rc = open_server(s, err);
    if (rc == NB_OK)
        rc = load_model(s, err);
    if (rc == NB_OK) {
        nb_engine_stats st;
        const size_t context = nb_engine_context(s->engine);

        nb_engine_stats_get(s->engine, &st);
        model_name(s, path);
        rc = be_ready(s, path, err);
        if (rc == NB_OK) {
            announce(s, context, st.pages * NB_PAGE);
            notify("READY=1");
            rc = wait_for_end(s);
        }
    }
    if (rc != NB_OK)
        return rc;
    notify("STOPPING=1");
    if (log_takes())
        nb_cli_note(s->cli, "draining; a second signal ends at once");
    cut = nb_server_drain(s->server, s->o.drain_s, NULL, NULL);
    if (cut && nb_server_stalled(s->server) > s->o.stall_s)
        end_now(s, 128 + SIGTERM, "the engine shows no life; what it ran is lost");
    return cut ? nb_fail(err, NB_ECANCELED, "canceled", "", "%zu requests were cut", cut) : NB_OK;
}

static nb_status run_serve(nb_cli *cli, int argc, char **argv, nb_err *err);

extern const nb_cmd nb_cmd_serve;
const nb_cmd nb_cmd_serve = {
    .name = "serve",
    .usage = "serve MODEL [options]",
    .brief = "OpenAI-compatible server with prefix cache, continuous batching and a web page",
    .help = "Listens on 127.0.0.1:8000 at once (/health tells when the model is there), speaks /v1/chat/completions,\n"
            "/v1/completions, /v1/models, /tokenize, /metrics and more, and shows a page to chat with at /. An answer depends on\n"
            "the request alone: not on who else is asking, on the cache or on threads. Ctrl-C or SIGTERM drains.\n\n"
            "Keys: --api-key, --api-key-file (one a line), or NIBBLE_API_KEY in the environment.\n"
            "Tool parsers: hermes llama3_json mistral qwen3_xml deepseek_v3 deepseek_v31 kimi_k2 glm47 minimax_m2 pythonic\n"
            "granite phi4mini gpt_oss none; reasoning parsers: think mistral gpt_oss granite none. Both are found from the\n"
            "chat template when not given.\n\n"
            "  nibble serve SmolLM2-awq\n"
            "  nibble serve SmolLM2-awq --host 0.0.0.0 --api-key secret --kv-cache 4G --max-seqs 32",
    .run = run_serve,
};

static nb_status run_serve(nb_cli *cli, int argc, char **argv, nb_err *err)
{
    const nb_http_opts usual = NB_HTTP_OPTS;
    serve s = { .cli = cli,
                .o = { .host = "127.0.0.1",
                       .port = 8000,
                       .max_seqs = 64,
                       .max_batched = 512,
                       .max_queued = 256,
                       .max_n = 16,
                       .max_conns = 512,
                       .max_body_mib = 16,
                       .prepare = 2,
                       .step_ms = 200,
                       .request_timeout = 600,
                       .drain_s = 30,
                       .stall_s = 30,
                       .priority_age = 10,
                       .max_queue_age = 5,
                       .max_queued_tokens = -1,
                       .stream_interval = 1,
                       .head_s = usual.head_s,
                       .body_s = usual.body_s,
                       .idle_s = usual.idle_s,
                       .write_s = usual.write_s } };
    const nb_opt opts[] = {
        { "--host", NB_OPT_STR, &s.o.host, 0, 0, "ADDRESS", "address to listen on, or unix:PATH (default 127.0.0.1)" },
        { "--port", NB_OPT_INT, &s.o.port, 0, 65535, "N", "port (default 8000; 0: any free one)" },
        { "--api-key", NB_OPT_LIST, &s.o.keys, 0, 0, "KEY", "requests need this key (may be repeated)" },
        { "--api-key-file", NB_OPT_STR, &s.o.key_file, 0, 0, "FILE", "keys, one a line" },
        { "--admin-key", NB_OPT_LIST, &s.o.admin_keys, 0, 0, "KEY", "key of the admin paths" },
        { "--no-admin", NB_OPT_FLAG, &s.o.no_admin, 0, 0, NULL, "no admin paths" },
        { "--allow-unsafe-bind", NB_OPT_FLAG, &s.o.unsafe_bind, 0, 0, NULL, "listen to other machines without a key" },
        { "--allow-any-host", NB_OPT_FLAG, &s.o.any_host, 0, 0, NULL, "accept any Host header on a loopback address" },
        { "--cors-origin", NB_OPT_LIST, &s.o.origins, 0, 0, "ORIGIN", "pages of this origin may use the server (\"*\": all)" },
        { "--metrics-open", NB_OPT_FLAG, &s.o.metrics_open, 0, 0, NULL, "/metrics needs no key" },
        { "--served-model-name", NB_OPT_LIST, &s.o.names, 0, 0, "NAME", "name clients use (default: the directory's)" },
        { "--any-model", NB_OPT_FLAG, &s.o.any_model, 0, 0, NULL, "accept any model name in requests" },
        { "--expose-root", NB_OPT_FLAG, &s.o.expose_root, 0, 0, NULL, "show the model's path in /v1/models" },
        { "--max-model-len,--context", NB_OPT_INT, &s.o.context, 2, 1e8, "N", "longest prompt + answer (default: the model's)" },
        { "--max-seqs", NB_OPT_INT, &s.o.max_seqs, 1, 1024, "N", "sequences computed together (default 64)" },
        { "--max-batched-tokens", NB_OPT_INT, &s.o.max_batched, 64, 65536, "N", "tokens of one step (default 512)" },
        { "--step-ms", NB_OPT_NUM, &s.o.step_ms, 0, 1e6, "MS", "aim for a step while answers stream (default 200)" },
        { "--kv-cache", NB_OPT_STR, &s.o.kv_cache, 0, 0, "SIZE",
          "memory of the KV pool, such as 2G or 2GiB (default: what max-seqs needs, at most 60 % of free memory)" },
        { "--kv", NB_OPT_STR, &s.o.kv, 0, 0, "f16|q8|f32", "how keys and values are kept (default f16)" },
        { "--act", NB_OPT_STR, &s.o.act, 0, 0, NB_CLI_ACT, NB_CLI_ACT_HELP },
        { "--no-prefix-cache", NB_OPT_FLAG, &s.o.no_cache, 0, 0, NULL, "compute every prompt anew" },
        { "--prefix-cache-dir", NB_OPT_STR, &s.o.cache_dir, 0, 0, "DIR",
          "keep cached prompts there when the server ends, and read them again" },
        { "--prefix-cache-disk", NB_OPT_STR, &s.o.cache_disk, 0, 0, "SIZE", "bytes of its files at most, such as 20G or 20GiB" },
        { "--prefix-cache-scope", NB_OPT_STR, &s.o.scope, 0, 0, "SCOPE",
          "who shares cached prompts: global, key or request (default: key with two or more keys)" },
        { "--prefix-cache-policy", NB_OPT_STR, &s.o.evict, 0, 0, "lru|lfu",
          "which cached blocks go first: those not used longest (default), or those used least often" },
        { "--schedule-policy", NB_OPT_STR, &s.o.policy, 0, 0, "POLICY", "fcfs, priority or lpm (default fcfs)" },
        { "--priority-age", NB_OPT_NUM, &s.o.priority_age, 0, 1e6, "S",
          "a waiting request gains one priority every S seconds (default 10)" },
        { "--max-queued", NB_OPT_INT, &s.o.max_queued, 0, 1e6, "N", "requests waiting before 429 (default 256; 0: no bound)" },
        { "--max-queued-tokens", NB_OPT_INT, &s.o.max_queued_tokens, 0, 1e12, "N",
          "their prompt tokens before 429 (default: 8 times what the KV pool holds; 0: no bound)" },
        { "--max-queue-age", NB_OPT_NUM, &s.o.max_queue_age, 0.001, 1e6, "S",
          "with lpm, a request that waits longer goes first (default 5)" },
        { "--max-concurrent-per-key", NB_OPT_INT, &s.o.max_per_key, 0, 1e6, "N",
          "sequences of one API key computed together (default: no bound)" },
        { "--queue-timeout", NB_OPT_NUM, &s.o.queue_timeout, 0, 1e6, "S", "a request waits at most so long (default: no limit)" },
        { "--request-timeout", NB_OPT_NUM, &s.o.request_timeout, 0, 1e6, "S", "a request takes at most so long (default 600)" },
        { "--max-n", NB_OPT_INT, &s.o.max_n, 1, NB_MAX_CHOICES, "N", "choices of one request (default 16)" },
        { "--max-body", NB_OPT_INT, &s.o.max_body_mib, 1, 1024, "MIB", "longest request body (default 16)" },
        { "--max-connections", NB_OPT_INT, &s.o.max_conns, 1, 16384, "N", "open connections (default 512)" },
        { "--head-timeout", NB_OPT_NUM, &s.o.head_s, 0.1, 1e6, "S", "time for the head of a request (default 10)" },
        { "--body-timeout", NB_OPT_NUM, &s.o.body_s, 0.1, 1e6, "S", "time for the whole request (default 60)" },
        { "--idle-timeout", NB_OPT_NUM, &s.o.idle_s, 1, 1e6, "S", "a connection may be idle for so long (default 30)" },
        { "--write-timeout", NB_OPT_NUM, &s.o.write_s, 0.1, 1e6, "S", "a client that takes nothing for so long is given up (default 30)" },
        { "--drain-seconds", NB_OPT_NUM, &s.o.drain_s, 0, 1e6, "S", "what runs may go on for so long after SIGTERM (default 30)" },
        { "--stall-seconds", NB_OPT_NUM, &s.o.stall_s, 1, 1e6, "S", "an engine silent for so long is unhealthy (default 30)" },
        { "--watchdog", NB_OPT_FLAG, &s.o.watchdog, 0, 0, NULL, "exit 70 when the engine is silent four times as long" },
        { "--stream-interval", NB_OPT_INT, &s.o.stream_interval, 1, 1e6, "N", "tokens of an event of a stream (default 1)" },
        { "--metrics-prefix", NB_OPT_STR, &s.o.metrics_prefix, 0, 0, "NAME", "tell the metrics under NAME: as well as under vllm:" },
        { "--tool-parser", NB_OPT_STR, &s.o.tool_parser, 0, 0, "NAME", "how the model writes tool calls (default: by the template)" },
        { "--reasoning-parser", NB_OPT_STR, &s.o.reasoning_parser, 0, 0, "NAME", "how it writes reasoning (default: by the template)" },
        { "--sampler-order", NB_OPT_STR, &s.o.sampler, 0, 0, "vllm|llamacpp",
          "temperature before the cuts, as vLLM does it (default), or after them, as llama.cpp does it" },
        { "--generation-config", NB_OPT_STR, &s.o.generation_config, 0, 0, "auto|none",
          "use generation_config.json for defaults (default auto)" },
        { "--lenient", NB_OPT_FLAG, &s.o.lenient, 0, 0, NULL, "accept temperatures above 2" },
        { "--error-style", NB_OPT_STR, &s.o.errors, 0, 0, "openai|vllm",
          "\"code\" of an error: a word, as OpenAI has it (default), or the status and vLLM's types" },
        { "--strict-openai", NB_OPT_FLAG, &s.o.strict, 0, 0, NULL, "no \"nibble\" object in answers" },
        { "--trust-request-template", NB_OPT_FLAG, &s.o.request_template, 0, 0, NULL, "requests may bring a chat template" },
        { "--json-compact", NB_OPT_FLAG, &s.o.json_compact, 0, 0, NULL, "constrained JSON has no whitespace: fewer tokens" },
        { "--prepare-threads", NB_OPT_INT, &s.o.prepare, 1, 4, "N", "threads for templates and tokenizing (default 2)" },
        { "--log-format", NB_OPT_STR, &s.o.log_format, 0, 0, "text|json", "of request lines on stderr (default text)" },
        { "--no-request-log", NB_OPT_FLAG, &s.o.quiet_requests, 0, 0, NULL, "no line per request" },
    };
    const char *args[1];
    size_t n;
    bool help;
    nb_status rc = nb_cli_parse(cli, &nb_cmd_serve, opts, NB_LEN(opts), argc, argv, args, NB_LEN(args), &n, &help, err);

    if (help)
        return NB_OK;
    s.host = (nb_host){ .log = serve_log, .user = &s };
    if (rc == NB_OK && n == 0)
        rc = nb_fail(err, NB_EARG, "arg.missing", "", "MODEL is missing; usage: nibble %s", nb_cmd_serve.usage);
    if (rc == NB_OK)
        rc = serve_path(&s, args[0], err);
    nb_server_close(s.server);
    nb_engine_close(s.engine);
    nb_load_close(&s.l);
    nb_pool_close(s.pool);
    nb_json_free(s.info);
    nb_free(s.key_text);
    return rc;
}

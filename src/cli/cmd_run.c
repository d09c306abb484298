/* cmd_run.c - `nibble run MODEL ["prompt"]`: one answer, or a chat loop on a terminal, streamed. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cpu.h"
#include "base/mem.h"
#include "cli/cli.h"
#include "engine/engine.h"
#include "job/load.h"

typedef struct run_opts {
    double temperature, top_p, min_p, repetition_penalty;
    int64_t top_k, seed, max_tokens, context;
    const char *system, *file, *kv;
    bool raw, exact_fp32, ignore_eos;
    nb_strlist stop;
} run_opts;

typedef struct run {
    nb_cli *cli;
    run_opts o;
    nb_loaded l;
    nb_pool *pool;
    nb_engine *engine;
    nb_sampling sampling;
    int32_t stop_ids[32];
    size_t n_stop_ids;
    /* figures of the last answer */
    size_t n_prompt, n_answer;
    double prompt_s, answer_s;
    nb_finish finish;
} run;

/* ---- settings ---- */

static void add_stop_id(run *r, int64_t id)
{
    for (size_t i = 0; i < r->n_stop_ids; i++)
        if (r->stop_ids[i] == id)
            return;
    if (id >= 0 && id <= INT32_MAX && r->n_stop_ids < NB_LEN(r->stop_ids))
        r->stop_ids[r->n_stop_ids++] = (int32_t)id;
}

/* Sampling: the command line, else generation_config.json, else the plain distribution (SMP-1). */
static nb_status settings(run *r, nb_err *err)
{
    const nb_config *c = nb_model_config(r->l.model);
    const char *text;
    size_t n;
    nb_json *gen = NULL;
    const nb_json *eos;
    nb_status rc = nb_hfdir_file(r->l.dir, "generation_config.json", &text, &n, err);

    if (rc == NB_OK && text)
        rc = nb_json_parse(text, n, "cfg", 0, &gen, err);
    if (rc != NB_OK) {
        nb_err_at(err, "generation_config.json", NULL);
        return rc;
    }
    r->sampling.temperature = (float)(r->o.temperature >= 0 ? r->o.temperature : nb_json_num(nb_json_get(gen, "temperature"), 1));
    if (r->o.temperature < 0 && !nb_json_bool(nb_json_get(gen, "do_sample"), true))
        r->sampling.temperature = 0;
    r->sampling.top_k = (int)(r->o.top_k >= 0 ? r->o.top_k : nb_json_int(nb_json_get(gen, "top_k"), 0));
    r->sampling.top_p = (float)(r->o.top_p >= 0 ? r->o.top_p : nb_json_num(nb_json_get(gen, "top_p"), 1));
    r->sampling.min_p = (float)(r->o.min_p >= 0 ? r->o.min_p : nb_json_num(nb_json_get(gen, "min_p"), 0));
    r->sampling.repetition_penalty =
        (float)(r->o.repetition_penalty > 0 ? r->o.repetition_penalty : nb_json_num(nb_json_get(gen, "repetition_penalty"), 1));
    r->sampling.seed = r->o.seed >= 0 ? (uint64_t)r->o.seed : (uint64_t)(nb_now() * 1e6);
    if (!r->o.ignore_eos) {
        for (size_t i = 0; i < c->n_eos; i++)
            add_stop_id(r, c->eos_id[i]);
        eos = nb_json_get(gen, "eos_token_id");
        add_stop_id(r, nb_json_int(eos, -1));
        for (size_t i = 0; i < nb_json_len(eos); i++)
            add_stop_id(r, nb_json_int(nb_json_at(eos, i), -1));
    }
    nb_json_free(gen);
    return nb_sampling_check(&r->sampling, err);
}

/* ---- text out, with stop strings held back ---- */

typedef struct printer {
    nb_buf text;  /* whole answer            */
    size_t shown; /* bytes already printed   */
    bool stopped; /* a stop string was found */
    const run *r;
} printer;

/* Bytes at the end of text[n] that may be the beginning of a stop string. */
static size_t held_back(const printer *p)
{
    size_t hold = 0;

    for (size_t i = 0; i < p->r->o.stop.n; i++) {
        const char *s = p->r->o.stop.v[i];
        const size_t len = strlen(s);
        for (size_t k = len - 1; k > hold; k--)
            if (k <= p->text.n && memcmp(p->text.p + p->text.n - k, s, k) == 0) {
                hold = k;
                break;
            }
    }
    return hold;
}

/* Cut the text before the stop string that ends first (DET-3). */
static void find_stop(printer *p, size_t from)
{
    size_t best_end = SIZE_MAX, best_at = 0;

    for (size_t i = 0; i < p->r->o.stop.n; i++) {
        const char *s = p->r->o.stop.v[i];
        const size_t len = strlen(s);
        for (size_t at = from > len ? from - len : 0; at + len <= p->text.n; at++)
            if (memcmp(p->text.p + at, s, len) == 0) {
                if (at + len < best_end) {
                    best_end = at + len;
                    best_at = at;
                }
                break;
            }
    }
    if (best_end != SIZE_MAX) {
        p->text.n = best_at;
        p->text.p[best_at] = 0;
        p->stopped = true;
    }
}

static void show(printer *p, size_t from, bool last)
{
    size_t end;

    if (!p->text.p)
        return;
    find_stop(p, from);
    end = p->stopped || last ? p->text.n : p->text.n - held_back(p);
    if (!p->r->cli->json && end > p->shown) {
        fwrite(p->text.p + p->shown, 1, end - p->shown, stdout);
        fflush(stdout);
    }
    if (end > p->shown)
        p->shown = end;
}

/* ---- one answer ---- */

/* Run one prompt to its end; the answer's text goes to out and, streamed, to stdout. */
static nb_status answer(run *r, const nb_ids *prompt, nb_buf *out, nb_err *err)
{
    const nb_request q = { .ids = prompt->p,
                           .n_ids = prompt->n,
                           .max_tokens = (size_t)r->o.max_tokens,
                           .sampling = r->sampling,
                           .stop_ids = r->stop_ids,
                           .n_stop_ids = r->n_stop_ids };
    printer p = { .r = r };
    nb_detok *detok = NULL;
    uint64_t id;
    double t0 = nb_now(), t1 = 0;
    nb_status rc = nb_detok_open(r->l.tok, true, &detok, err);

    r->n_prompt = prompt->n;
    r->n_answer = 0;
    r->finish = NB_FINISH_NONE;
    if (rc == NB_OK)
        rc = nb_engine_add(r->engine, &q, &id, err);
    while (rc == NB_OK && !nb_engine_idle(r->engine)) {
        nb_event ev[2];
        size_t n;
        if (nb_cli_interrupted() || p.stopped)
            nb_engine_cancel(r->engine, id);
        rc = nb_engine_step(r->engine, ev, NB_LEN(ev), &n, err);
        for (size_t i = 0; rc == NB_OK && i < n; i++) {
            const size_t from = p.text.n;
            if (t1 == 0)
                t1 = nb_now();
            if (ev[i].kind == NB_EV_DONE) {
                r->finish = p.stopped ? NB_FINISH_STOP : ev[i].finish;
                continue;
            }
            r->n_answer++;
            rc = nb_detok_add(detok, ev[i].id, &p.text, err);
            if (rc == NB_OK)
                show(&p, from, false);
        }
    }
    if (rc == NB_OK && !p.stopped) {
        const size_t from = p.text.n;
        rc = nb_detok_flush(detok, &p.text, err);
        show(&p, from, true);
    }
    r->prompt_s = t1 - t0;
    r->answer_s = nb_now() - t1;
    if (rc == NB_OK && p.text.failed)
        rc = nb_enomem(err, "the answer");
    *out = p.text;
    nb_detok_close(detok);
    if (rc == NB_OK && r->finish == NB_FINISH_CANCEL && nb_cli_interrupted())
        rc = NB_ECANCELED;
    return rc;
}

static void figures(const run *r)
{
    char mem[32];

    nb_cli_dim(r->cli, "%zu prompt tokens at %.0f tok/s, %zu tokens at %.1f tok/s, %s, %s, %d threads", r->n_prompt,
               r->prompt_s > 0 ? (double)r->n_prompt / r->prompt_s : 0, r->n_answer,
               r->answer_s > 0 && r->n_answer > 1 ? (double)(r->n_answer - 1) / r->answer_s : 0,
               nb_human_bytes(mem, sizeof mem, nb_rss_now()), nb_model_kern(r->l.model)->name, nb_pool_threads(r->pool));
}

static const char *const finish_names[] = { "none", "stop", "length", "cancel" };

static nb_status print_json(const run *r, const nb_buf *text, nb_err *err)
{
    nb_json *o = nb_json_new_obj();
    const bool ok = nb_json_set(o, "text", nb_json_new_strn(text->p ? text->p : "", text->n)) &&
                    nb_json_set(o, "finish_reason", nb_json_new_str(finish_names[r->finish])) &&
                    nb_json_set(o, "prompt_tokens", nb_json_new_int((int64_t)r->n_prompt)) &&
                    nb_json_set(o, "completion_tokens", nb_json_new_int((int64_t)r->n_answer)) &&
                    nb_json_set(o, "prompt_s", nb_json_new_real(r->prompt_s)) &&
                    nb_json_set(o, "answer_s", nb_json_new_real(r->answer_s)) &&
                    nb_json_set(o, "kernel", nb_json_new_str(nb_model_kern(r->l.model)->name)) &&
                    nb_json_set(o, "seed", nb_json_new_int((int64_t)r->sampling.seed));

    if (ok)
        nb_cli_json(o);
    nb_json_free(o);
    return ok ? NB_OK : nb_enomem(err, "the result");
}

/* ---- prompts ---- */

static bool push_message(nb_json *messages, const char *role, const char *text, size_t n)
{
    nb_json *m = nb_json_new_obj();

    if (!nb_json_set(m, "role", nb_json_new_str(role)) || !nb_json_set(m, "content", nb_json_new_strn(text, n))) {
        nb_json_free(m);
        return false;
    }
    return nb_json_push(messages, m);
}

static bool chatting(const run *r)
{
    return !r->o.raw && nb_chat_has_template(r->l.chat);
}

static nb_status encode_chat(run *r, const nb_json *messages, nb_ids *ids, nb_err *err)
{
    nb_buf prompt = { 0 };
    nb_status rc = nb_chat_render(r->l.chat, messages, true, NULL, &prompt, err);

    if (rc == NB_OK)
        rc = nb_tokenizer_encode(r->l.tok, prompt.p ? prompt.p : "", prompt.n, false, true, ids, err);
    nb_buf_clear(&prompt);
    return rc;
}

static nb_status one_turn(run *r, nb_json *messages, const char *text, size_t n, nb_err *err)
{
    nb_ids ids = { 0 };
    nb_buf out = { 0 };
    nb_status rc;

    if (messages && !push_message(messages, "user", text, n))
        return nb_enomem(err, "the message");
    rc = messages ? encode_chat(r, messages, &ids, err) : nb_tokenizer_encode(r->l.tok, text, n, true, false, &ids, err);
    if (rc == NB_OK)
        rc = answer(r, &ids, &out, err);
    if (rc == NB_OK && r->cli->json)
        rc = print_json(r, &out, err);
    else if (rc == NB_OK || rc == NB_ECANCELED)
        putchar('\n');
    fflush(stdout);
    if (rc == NB_OK) {
        figures(r);
        if (messages && !push_message(messages, "assistant", out.p ? out.p : "", out.n))
            rc = nb_enomem(err, "the message");
    }
    nb_ids_clear(&ids);
    nb_buf_clear(&out);
    return rc;
}

static nb_status chat_loop(run *r, nb_json *messages, nb_err *err)
{
    char *line = NULL;
    size_t cap = 0;
    nb_status rc = NB_OK;

    nb_cli_dim(r->cli, "%s. An empty line or Ctrl-D ends.", messages ? "Chat" : "No chat template: every line is continued as text");
    while (rc == NB_OK && !nb_cli_interrupted()) {
        ssize_t n;
        fputs(r->cli->color ? "\033[1m>\033[0m " : "> ", stderr);
        n = getline(&line, &cap, stdin);
        if (n > 0 && line[n - 1] == '\n')
            n--;
        if (n <= 0)
            break;
        rc = one_turn(r, messages, line, (size_t)n, err);
    }
    free(line);
    return nb_cli_interrupted() ? NB_ECANCELED : rc;
}

/* The prompt of the command line, of --file, or of a pipe; *n 0 and NULL: ask on the terminal. */
static nb_status get_prompt(const run *r, const char *arg, char **out, size_t *n, nb_err *err)
{
    nb_buf b = { 0 };
    char part[4096];
    size_t got;

    *out = NULL;
    *n = 0;
    if (r->o.file)
        return nb_read_file(r->o.file, (size_t)64 << 20, out, n, err);
    if (arg) {
        *out = nb_strdup(arg);
        *n = strlen(arg);
        return *out ? NB_OK : nb_enomem(err, "the prompt");
    }
    if (isatty(0))
        return NB_OK;
    while ((got = fread(part, 1, sizeof part, stdin)) > 0)
        nb_buf_put(&b, part, got);
    if (b.failed)
        return nb_enomem(err, "the prompt");
    while (b.n && b.p[b.n - 1] == '\n')
        b.n--;
    *out = b.p ? b.p : nb_strdup("");
    *n = b.n;
    return *out ? NB_OK : nb_enomem(err, "the prompt");
}

static nb_status load(run *r, const char *path, nb_err *err)
{
    const nb_kern *kern;
    nb_model_opts mo = { .host = &r->cli->host };
    nb_engine_opts eo = { .context = (size_t)r->o.context, .exact_fp32 = r->o.exact_fp32 };
    nb_status rc = nb_cli_cpu(r->cli, &kern, err);

    if (rc == NB_OK && r->o.kv && strcmp(r->o.kv, "f16") != 0 && strcmp(r->o.kv, "f32") != 0)
        rc = nb_fail(err, NB_EARG, "usage.value", "", "--kv is f16 or f32");
    if (rc == NB_OK)
        rc = nb_cli_pool(r->cli, &r->pool, err);
    if (rc == NB_OK)
        rc = nb_load_text(&r->l, path, err);
    if (rc == NB_OK)
        rc = nb_load_store(&r->l, path, &r->cli->host, err);
    mo.kern = kern;
    mo.pool = eo.pool = r->pool;
    eo.kv_dtype = r->o.kv && strcmp(r->o.kv, "f32") == 0 ? NB_DT_F32 : NB_DT_F16;
    if (rc == NB_OK)
        rc = nb_load_model(&r->l, &mo, err);
    if (rc == NB_OK)
        rc = nb_engine_open(r->l.model, &eo, &r->engine, err);
    if (rc == NB_OK)
        rc = settings(r, err);
    nb_cli_progress_end(r->cli);
    return rc;
}

static nb_status converse(run *r, const char *prompt_arg, nb_err *err)
{
    nb_json *messages = NULL;
    char *prompt = NULL;
    size_t n;
    nb_status rc = get_prompt(r, prompt_arg, &prompt, &n, err);

    if (rc == NB_OK && chatting(r)) {
        messages = nb_json_new_arr();
        if (!messages || (r->o.system && !push_message(messages, "system", r->o.system, strlen(r->o.system))))
            rc = nb_enomem(err, "the messages");
    }
    if (rc == NB_OK)
        rc = prompt ? one_turn(r, messages, prompt, n, err) : chat_loop(r, messages, err);
    nb_free(prompt);
    nb_json_free(messages);
    return rc;
}

static nb_status run_run(nb_cli *cli, int argc, char **argv, nb_err *err);

extern const nb_cmd nb_cmd_run;
const nb_cmd nb_cmd_run = {
    .name = "run",
    .usage = "run MODEL [PROMPT] [options]",
    .brief = "answer a prompt or chat, streaming",
    .help = "Without PROMPT a terminal gets a chat loop; a pipe is read as the prompt. A model without a chat template\n"
            "continues the text. Values not given come from generation_config.json.\n\n"
            "  nibble run SmolLM2-awq \"What is the capital of France?\" --temperature 0\n"
            "  nibble run pemberley-awq \"It is a truth\" --max-tokens 60 --seed 1",
    .run = run_run,
};

static nb_status run_run(nb_cli *cli, int argc, char **argv, nb_err *err)
{
    run r = { .cli = cli, .o = { .temperature = -1, .top_p = -1, .min_p = -1, .repetition_penalty = -1, .top_k = -1, .seed = -1 } };
    const nb_opt opts[] = {
        { "-n,--max-tokens", NB_OPT_INT, &r.o.max_tokens, 1, 1e9, "N", "longest answer (default: what the context holds)" },
        { "--temperature", NB_OPT_NUM, &r.o.temperature, 0, 100, "T", "0 is greedy" },
        { "--top-k", NB_OPT_INT, &r.o.top_k, 0, 1e9, "K", "keep the K likeliest tokens (0: all)" },
        { "--top-p", NB_OPT_NUM, &r.o.top_p, 0, 1, "P", "keep the likeliest tokens of total probability P" },
        { "--min-p", NB_OPT_NUM, &r.o.min_p, 0, 1, "P", "drop tokens below P times the likeliest" },
        { "--repetition-penalty", NB_OPT_NUM, &r.o.repetition_penalty, 0.01, 100, "R", "above 1 makes repeats less likely" },
        { "--seed", NB_OPT_INT, &r.o.seed, 0, 9e18, "N", "same seed, same answer" },
        { "--stop", NB_OPT_LIST, &r.o.stop, 0, 0, "TEXT", "end before this text (may be repeated)" },
        { "--ignore-eos", NB_OPT_FLAG, &r.o.ignore_eos, 0, 0, NULL, "end-of-sequence ids do not stop" },
        { "--system", NB_OPT_STR, &r.o.system, 0, 0, "TEXT", "system message" },
        { "--raw", NB_OPT_FLAG, &r.o.raw, 0, 0, NULL, "continue the text, no chat template" },
        { "-f,--file", NB_OPT_STR, &r.o.file, 0, 0, "FILE", "read the prompt from a file" },
        { "--context", NB_OPT_INT, &r.o.context, 2, 1e8, "N", "longest prompt + answer (default: the model's)" },
        { "--kv", NB_OPT_STR, &r.o.kv, 0, 0, "f16|f32", "how keys and values are kept (default f16)" },
        { "--exact-fp32", NB_OPT_FLAG, &r.o.exact_fp32, 0, 0, NULL, "float32 activations in 4-bit linears (reference, slow)" },
    };
    const char *args[2];
    size_t n;
    bool help;
    nb_status rc = nb_cli_parse(cli, &nb_cmd_run, opts, NB_LEN(opts), argc, argv, args, NB_LEN(args), &n, &help, err);

    if (help)
        return NB_OK;
    if (rc == NB_OK && n == 0)
        rc = nb_fail(err, NB_EARG, "usage.argument", "", "MODEL is missing; usage: nibble %s", nb_cmd_run.usage);
    for (size_t i = 0; rc == NB_OK && i < r.o.stop.n; i++)
        if (!*r.o.stop.v[i])
            rc = nb_fail(err, NB_EARG, "usage.value", "", "--stop is empty");
    if (rc == NB_OK)
        rc = load(&r, args[0], err);
    if (rc == NB_OK)
        rc = converse(&r, n > 1 ? args[1] : NULL, err);
    nb_engine_close(r.engine);
    nb_load_close(&r.l);
    nb_pool_close(r.pool);
    return rc;
}

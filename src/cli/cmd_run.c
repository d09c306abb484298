/* cmd_run.c - `nibble run MODEL ["prompt"]`: one answer, or a chat loop on a terminal, streamed. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cpu.h"
#include "base/mem.h"
#include "cli/cli.h"
#include "job/answer.h"
#include "job/load.h"

typedef struct run_opts {
    double temperature, top_p, min_p, repetition_penalty;
    int64_t top_k, seed, max_tokens, context;
    const char *system, *file, *kv, *act;
    bool raw, exact_fp32, ignore_eos;
    nb_strlist stop;
} run_opts;

typedef struct run {
    nb_cli *cli;
    run_opts o;
    nb_loaded l;
    nb_pool *pool;
    nb_engine *engine;
    nb_answer_defaults model; /* with the command line's changes */
    size_t n_prompt;          /* of the last answer */
    nb_answer last;
} run;

/* ---- settings ---- */

/* Sampling: the command line, else the model's defaults. */
static nb_status settings(run *r, nb_err *err)
{
    nb_sampling *s = &r->model.sampling;
    nb_status rc = nb_answer_defaults_read(r->l.dir, nb_model_config(r->l.model), &r->model, err);

    if (rc != NB_OK)
        return rc;
    if (r->model.ignored[0])
        nb_log(&r->cli->host, NB_LOG_WARN, "cfg.value: generation_config.json: ignored, out of range: %s", r->model.ignored);
    if (r->o.temperature >= 0)
        s->temperature = (float)r->o.temperature;
    if (r->o.top_k >= 0)
        s->top_k = (int)r->o.top_k;
    if (r->o.top_p >= 0)
        s->top_p = (float)r->o.top_p;
    if (r->o.min_p >= 0)
        s->min_p = (float)r->o.min_p;
    if (r->o.repetition_penalty > 0)
        s->repetition_penalty = (float)r->o.repetition_penalty;
    s->seed = r->o.seed >= 0 ? (uint64_t)r->o.seed : (uint64_t)(nb_now() * 1e6);
    return nb_sampling_check(s, err);
}

/* ---- one answer ---- */

static int show(void *user, const char *text, size_t n)
{
    const run *r = user;

    if (!r->cli->json) {
        fwrite(text, 1, n, stdout);
        fflush(stdout);
    }
    return ferror(stdout); /* nobody reads on: main() tells why */
}

/* Run one prompt to its end, streaming to stdout. */
static nb_status answer(run *r, const nb_ids *prompt, nb_err *err)
{
    const nb_answer_opts o = { .ids = prompt->p,
                               .n_ids = prompt->n,
                               .max_tokens = (size_t)r->o.max_tokens,
                               .sampling = r->model.sampling,
                               .stop_ids = r->model.stop_ids,
                               .n_stop_ids = r->o.ignore_eos ? 0 : r->model.n_stop_ids,
                               .stop = r->o.stop.v,
                               .n_stop = r->o.stop.n,
                               .piece = show,
                               .user = r,
                               .host = &r->cli->host };

    r->n_prompt = prompt->n;
    nb_buf_clear(&r->last.text);
    return nb_answer_run(r->engine, r->l.tok, &o, &r->last, NULL, err);
}

static void figures(const run *r)
{
    char mem[32];
    nb_engine_stats st;
    int threads;

    nb_engine_stats_get(r->engine, &st);
    threads = st.few_threads ? st.few_threads : nb_pool_threads(r->pool);
    nb_cli_dim(r->cli, "%zu prompt tokens at %.0f tok/s, %zu tokens at %.1f tok/s, %s, %s, %d thread%s", r->n_prompt,
               r->last.prompt_s > 0 ? (double)r->n_prompt / r->last.prompt_s : 0, r->last.n_tokens,
               r->last.answer_s > 0 && r->last.n_tokens > 1 ? (double)(r->last.n_tokens - 1) / r->last.answer_s : 0,
               nb_human_bytes(mem, sizeof mem, nb_rss_now()), nb_model_kern(r->l.model)->name, threads, threads == 1 ? "" : "s");
}

static const char *const finish_names[] = { "none", "stop", "length", "cancel" };

static nb_status print_json(const run *r, nb_err *err)
{
    nb_json *o = nb_json_new_obj();
    const bool ok = nb_json_set(o, "text", nb_json_new_strn(r->last.text.p ? r->last.text.p : "", r->last.text.n)) &&
                    nb_json_set(o, "finish_reason", nb_json_new_str(finish_names[r->last.finish])) &&
                    nb_json_set(o, "prompt_tokens", nb_json_new_int((int64_t)r->n_prompt)) &&
                    nb_json_set(o, "completion_tokens", nb_json_new_int((int64_t)r->last.n_tokens)) &&
                    nb_json_set(o, "prompt_s", nb_json_new_real(r->last.prompt_s)) &&
                    nb_json_set(o, "answer_s", nb_json_new_real(r->last.answer_s)) &&
                    nb_json_set(o, "kernel", nb_json_new_str(nb_model_kern(r->l.model)->name)) &&
                    nb_json_set(o, "seed", nb_json_new_int((int64_t)r->model.sampling.seed));

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
    return nb_chat_encode(r->l.chat, r->l.tok, messages, true, NULL, false, NULL, ids, err);
}

static nb_status one_turn(run *r, nb_json *messages, const char *text, size_t n, nb_err *err)
{
    nb_ids ids = { 0 };
    nb_status rc;

    if (messages && !push_message(messages, "user", text, n))
        return nb_enomem(err, "the message");
    rc = messages ? encode_chat(r, messages, &ids, err) : nb_tokenizer_encode(r->l.tok, text, n, true, false, &ids, err);
    if (rc == NB_OK)
        rc = answer(r, &ids, err);
    if (rc == NB_OK && r->cli->json)
        rc = print_json(r, err);
    else if (rc == NB_OK || rc == NB_ECANCELED)
        putchar('\n');
    fflush(stdout);
    if (rc == NB_OK) {
        figures(r);
        if (messages && !push_message(messages, "assistant", r->last.text.p ? r->last.text.p : "", r->last.text.n))
            rc = nb_enomem(err, "the message");
    }
    nb_ids_clear(&ids);
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
    nb_engine_opts eo = { .context = (size_t)r->o.context, .exact_fp32 = r->o.exact_fp32, .tune = r->cli->threads == 0 };
    nb_status rc = nb_cli_cpu(r->cli, &kern, err);

    if (rc == NB_OK)
        rc = nb_cli_kv(r->o.kv, &eo.kv_dtype, err);
    if (rc == NB_OK)
        rc = nb_cli_act(r->o.act, eo.exact_fp32, &eo.a8, err);
    if (rc == NB_OK)
        rc = nb_cli_pool(r->cli, &r->pool, err);
    if (rc == NB_OK)
        rc = nb_load_store(&r->l, path, &r->cli->host, err);
    if (rc == NB_OK)
        rc = nb_load_text(&r->l, path, err);
    mo.kern = kern;
    mo.pool = eo.pool = r->pool;
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
        { "--kv", NB_OPT_STR, &r.o.kv, 0, 0, NB_CLI_KV, "how keys and values are kept (default f16; q8 needs half of it)" },
        { "--act", NB_OPT_STR, &r.o.act, 0, 0, NB_CLI_ACT, NB_CLI_ACT_HELP },
        { "--exact-fp32", NB_OPT_FLAG, &r.o.exact_fp32, 0, 0, NULL, "float32 activations in 4-bit linears (reference, slow)" },
    };
    const char *args[2];
    size_t n;
    bool help;
    nb_status rc = nb_cli_parse(cli, &nb_cmd_run, opts, NB_LEN(opts), argc, argv, args, NB_LEN(args), &n, &help, err);

    if (help)
        return NB_OK;
    if (rc == NB_OK && n == 0)
        rc = nb_fail(err, NB_EARG, "arg.missing", "", "MODEL is missing; usage: nibble %s", nb_cmd_run.usage);
    for (size_t i = 0; rc == NB_OK && i < r.o.stop.n; i++)
        if (!*r.o.stop.v[i])
            rc = nb_fail(err, NB_EARG, "arg.value", "", "--stop is empty");
    if (rc == NB_OK)
        rc = load(&r, args[0], err);
    if (rc == NB_OK)
        rc = converse(&r, n > 1 ? args[1] : NULL, err);
    nb_buf_clear(&r.last.text);
    nb_engine_close(r.engine);
    nb_load_close(&r.l);
    nb_pool_close(r.pool);
    return rc;
}

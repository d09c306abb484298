/* cmd_template.c - `nibble template MODEL F.json`: messages to the exact prompt, or to its token ids;
 * `nibble template --template T.jinja V.json`: any template with exactly these variables. Output is that and nothing else. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/map.h"
#include "base/mem.h"
#include "base/num.h"
#include "cli/cli.h"
#include "io/io.h"
#include "job/load.h"
#include "text/chat.h"
#include "text/tokenizer.h"

#define INPUT_MOST ((size_t)64 << 20)

/* The whole of stdin; freed with nb_free. */
static nb_status read_stdin(char **out, size_t *n, nb_err *err)
{
    nb_buf b = { 0 };
    char block[16384];
    size_t k;

    while ((k = fread(block, 1, sizeof block, stdin)) > 0 && b.n <= INPUT_MOST && !b.failed)
        nb_buf_put(&b, block, k);
    *out = b.p;
    *n = b.n;
    if (!b.failed && b.n <= INPUT_MOST && !ferror(stdin))
        return NB_OK;
    nb_buf_clear(&b);
    *out = NULL;
    if (ferror(stdin))
        return nb_fail(err, NB_EREAD, "io.read", "", "standard input cannot be read");
    return b.failed ? nb_enomem(err, "standard input")
                    : nb_fail(err, NB_ELIMIT, "limit.input", "", "standard input has more than %zu MiB", INPUT_MOST >> 20);
}

/* A JSON file, or stdin for "-". */
static nb_status read_json(const char *path, nb_json **out, nb_err *err)
{
    char *text = NULL;
    size_t n = 0;
    nb_status rc;

    if (strcmp(path, "-") != 0)
        return nb_json_parse_file(path, INPUT_MOST, "json", out, err);
    rc = read_stdin(&text, &n, err);
    if (rc == NB_OK)
        rc = nb_json_parse(text ? text : "", n, "json", 0, out, err);
    nb_err_at(err, "stdin", NULL);
    nb_free(text);
    return rc;
}

/* "YYYY-MM-DD hh:mm:ss" with the day of week and year worked out. */
static nb_status parse_now(const char *s, struct tm *t, nb_err *err)
{
    static const int before[] = { 0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334, 365 };
    static const struct {
        unsigned least, most;
        char behind;
    } field[] = { { 1, 9999, '-' }, { 1, 12, '-' }, { 1, 31, ' ' }, { 0, 23, ':' }, { 0, 59, ':' }, { 0, 60, 0 } };
    char esc[NB_ESC_CAP];
    int v[NB_LEN(field)];
    const char *p = s;

    for (size_t i = 0; p && i < NB_LEN(field); i++) {
        uint64_t number = 0;
        p = nb_num_u64(p, field[i].most, &number);
        v[i] = (int)number;
        if (p && number >= field[i].least && *p == field[i].behind)
            p += field[i].behind != 0;
        else
            p = NULL;
    }
    if (!p)
        return nb_fail(err, NB_EARG, "arg.value", "", "--now takes 'YYYY-MM-DD hh:mm:ss', not \"%s\"",
                       nb_esc(esc, sizeof esc, s, strlen(s)));
    const int y = v[0], mon = v[1], d = v[2];
    const int leap = (y % 4 == 0 && y % 100 != 0) || y % 400 == 0, past = y - 1;
    if (d > before[mon] - before[mon - 1] + (mon == 2 && leap))
        return nb_fail(err, NB_EARG, "arg.value", "", "--now: month %d has no day %d", mon, d);
    *t = (struct tm){
        .tm_year = y - 1900, .tm_mon = mon - 1, .tm_mday = d, .tm_hour = v[3], .tm_min = v[4], .tm_sec = v[5], .tm_isdst = -1
    };
    t->tm_yday = before[mon - 1] + d - 1 + (mon > 2 && leap);
    t->tm_wday = (1 + past * 365 + past / 4 - past / 100 + past / 400 + t->tm_yday) % 7; /* 0001-01-01 was a Monday */
    return NB_OK;
}

static nb_status render_template(const char *path, const char *vars_path, const struct tm *now, nb_buf *out, nb_err *err)
{
    nb_template *t = NULL;
    nb_json *vars = NULL;
    char *src = NULL;
    size_t n = 0;
    nb_status rc = nb_read_file(path, INPUT_MOST, &src, &n, err);

    if (rc == NB_OK) {
        rc = nb_template_open(src, n, &t, err);
        nb_err_at(err, path, NULL);
    }
    if (rc == NB_OK && vars_path)
        rc = read_json(vars_path, &vars, err);
    if (rc == NB_OK) {
        rc = nb_template_render(t, vars, now, out, err);
        nb_err_at(err, path, NULL);
    }
    nb_json_free(vars);
    nb_template_close(t);
    nb_free(src);
    return rc;
}

typedef struct options {
    const char *path, *now_text, *tools, *kwargs;
    bool tokens, special;
    struct tm now_tm;
    const struct tm *now; /* NULL: the real clock */
} options;

/* A request that is a list of messages becomes an object. */
static nb_status make_object(nb_json **request, nb_err *err)
{
    nb_json *all;

    if (nb_json_typeof(*request) == NB_JOBJ)
        return NB_OK;
    all = nb_json_new_obj();
    if (nb_json_set(all, "messages", *request)) {
        *request = all;
        return NB_OK;
    }
    nb_json_free(all);
    *request = NULL;
    return nb_enomem(err, "the request");
}

static nb_status read_request(const char *path, const options *o, nb_json **request, nb_err *err)
{
    nb_json *tools = NULL, *kwargs = NULL;
    nb_status rc = read_json(path, request, err);

    if (rc == NB_OK && (o->tools || o->kwargs))
        rc = make_object(request, err);
    if (rc == NB_OK && o->tools) {
        rc = read_json(o->tools, &tools, err);
        if (rc == NB_OK && !nb_json_set(*request, "tools", tools))
            rc = nb_enomem(err, "the request");
    }
    if (rc == NB_OK && o->kwargs) {
        rc = nb_json_parse(o->kwargs, strlen(o->kwargs), "json", 0, &kwargs, err);
        if (rc == NB_OK)
            rc = nb_chat_add_kwargs(*request, kwargs, err);
        nb_err_at(err, "--kwargs", NULL);
        nb_json_free(kwargs);
    }
    return rc;
}

/* What the model says of templates, without a vocabulary. */
static nb_status open_chat(const char *model, nb_chat **chat, nb_err *err)
{
    nb_hfdir *dir = NULL;
    const char *config = NULL, *jinja = NULL;
    size_t n_config = 0, n_jinja = 0;
    nb_status rc = nb_hfdir_open(model, &dir, err);

    if (rc == NB_OK)
        rc = nb_hfdir_file(dir, "tokenizer_config.json", &config, &n_config, err);
    if (rc == NB_OK)
        rc = nb_hfdir_file(dir, "chat_template.jinja", &jinja, &n_jinja, err);
    if (rc == NB_OK)
        rc = nb_chat_open(config, n_config, jinja, n_jinja, chat, err);
    nb_err_at(err, model, NULL);
    nb_hfdir_close(dir);
    return rc;
}

static nb_status render_chat(nb_loaded *l, const char *model, const char *request_path, const options *o, nb_buf *out, nb_ids *ids,
                             nb_err *err)
{
    nb_json *request = NULL;
    nb_status rc = o->tokens ? nb_load_text(l, model, err) : open_chat(model, &l->chat, err);

    if (rc == NB_OK)
        rc = read_request(request_path, o, &request, err);
    if (rc == NB_OK) {
        rc = o->tokens ? nb_chat_encode(l->chat, l->tok, request, true, o->now, o->special, out, ids, err)
                       : nb_chat_render(l->chat, request, true, o->now, out, err);
        nb_err_at(err, model, NULL);
    }
    nb_json_free(request);
    return rc;
}

/* Ids in a line; with -v one a line with its piece. */
static void print_ids(const nb_cli *cli, const nb_tokenizer *t, const nb_ids *ids)
{
    char esc[NB_ESC_CAP];

    for (size_t i = 0; i < ids->n; i++) {
        size_t n = 0;
        const char *s = nb_tokenizer_piece(t, ids->p[i], &n);
        if (cli->verbose)
            printf("%" PRId32 "\t%s\n", ids->p[i], s ? nb_esc(esc, sizeof esc, s, n) : "");
        else
            printf("%s%" PRId32, i ? " " : "", ids->p[i]);
    }
    if (!cli->verbose)
        putchar('\n');
}

static bool add_ids(nb_json *o, const nb_tokenizer *t, const nb_ids *ids)
{
    nb_json *list = nb_json_new_arr(), *pieces = nb_json_new_arr();
    bool ok = list && pieces;

    for (size_t i = 0; ok && i < ids->n; i++) {
        size_t n = 0;
        const char *s = nb_tokenizer_piece(t, ids->p[i], &n);
        ok = nb_json_push(list, nb_json_new_int(ids->p[i])) && nb_json_push(pieces, s ? nb_json_new_strn(s, n) : nb_json_new_null());
    }
    if (!ok) {
        nb_json_free(list);
        nb_json_free(pieces);
        return false;
    }
    ok = nb_json_set(o, "ids", list);
    return nb_json_set(o, "pieces", pieces) && ok;
}

/* ids NULL: the prompt alone. */
static nb_status print(const nb_cli *cli, const nb_buf *out, const nb_tokenizer *t, const nb_ids *ids, nb_err *err)
{
    nb_json *o;

    if (!cli->json && ids) {
        print_ids(cli, t, ids);
        return NB_OK;
    }
    if (!cli->json) {
        if (out->n && fwrite(out->p, 1, out->n, stdout) != out->n)
            return nb_fail(err, NB_EWRITE, "out.stdout", "", "standard output cannot be written");
        return NB_OK;
    }
    o = nb_json_new_obj();
    if (!nb_json_set(o, "prompt", nb_json_new_strn(out->p ? out->p : "", out->n)) || (ids && !add_ids(o, t, ids))) {
        nb_json_free(o);
        return nb_enomem(err, "the result");
    }
    nb_cli_json(o);
    nb_json_free(o);
    return NB_OK;
}

static nb_status run(nb_cli *cli, int argc, char **argv, nb_err *err);

const nb_cmd nb_cmd_template;
const nb_cmd nb_cmd_template = {
    .name = "template",
    .usage = "template MODEL F.json [options]\n       nibble template --template T.jinja [VARIABLES.json] [options]",
    .brief = "messages to the exact prompt and its tokens",
    .help = "F.json is an array of messages, or an object with messages, tools, add_generation_prompt and any further\n"
            "variables; \"-\" is standard input. add_generation_prompt is true unless the object says otherwise. The request\n"
            "is adapted as in a chat: null content becomes \"\", text parts are joined, arguments given as text are parsed.\n"
            "With --template there is no model: the template gets exactly the variables of the file, unchanged.\n"
            "--kwargs sets further variables, such as '{\"enable_thinking\": false}'.\n"
            "The prompt is printed byte for byte, without a newline at the end. What the template refuses goes to stderr,\n"
            "exit code 4. --tokens prints the prompt's token ids instead (-v: one a line with its piece); --json has both.\n"
            "What looks like a control token inside a message is text to it, unless --special is given.\n",
    .run = run,
};

static nb_status run(nb_cli *cli, int argc, char **argv, nb_err *err)
{
    const char *args[3];
    options o = { 0 };
    const nb_opt opts[] = {
        { "--template", NB_OPT_STR, &o.path, 0, 0, "FILE", "render this template, no model" },
        { "--tools", NB_OPT_STR, &o.tools, 0, 0, "FILE", "array of tools for the request" },
        { "--kwargs", NB_OPT_STR, &o.kwargs, 0, 0, "JSON", "object of further template variables" },
        { "--tokens", NB_OPT_FLAG, &o.tokens, 0, 0, NULL, "token ids of the prompt" },
        { "--special", NB_OPT_FLAG, &o.special, 0, 0, NULL, "with --tokens: control tokens in messages count as such" },
        { "--now", NB_OPT_STR, &o.now_text, 0, 0, "TIME", "clock of the template: 'YYYY-MM-DD hh:mm:ss'" },
    };
    nb_loaded l = { 0 };
    nb_ids ids = { 0 };
    nb_buf out = { 0 };
    size_t n = 0;
    bool help = false;
    nb_status rc = nb_cli_parse(cli, &nb_cmd_template, opts, NB_LEN(opts), argc, argv, args, NB_LEN(args), &n, &help, err);

    if (help)
        return NB_OK;
    if (rc == NB_OK && o.now_text) {
        rc = parse_now(o.now_text, &o.now_tm, err);
        o.now = &o.now_tm;
    }
    if (rc != NB_OK)
        return rc;
    if (o.path ? n > 1 || o.tools || o.kwargs || o.tokens : n != 2)
        return nb_fail(err, NB_EARG, "arg.missing", "", "%s",
                       o.path ? "--template takes one file of variables and no --tools, --kwargs or --tokens"
                              : "template takes MODEL and a JSON file with messages, or --template and a JSON file with variables");
    rc = o.path ? render_template(o.path, n ? args[0] : NULL, o.now, &out, err) : render_chat(&l, args[0], args[1], &o, &out, &ids, err);
    if (rc == NB_OK)
        rc = print(cli, &out, l.tok, o.tokens ? &ids : NULL, err);
    nb_buf_clear(&out);
    nb_ids_clear(&ids);
    nb_load_close(&l);
    return rc;
}

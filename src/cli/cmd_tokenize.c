/* cmd_tokenize.c - `nibble tokenize MODEL`: text to ids and back. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/map.h"
#include "base/mem.h"
#include "cli/cli.h"
#include "io/io.h"
#include "job/load.h"
#include "text/tokenizer.h"
#include "text/utf8.h"

#define INPUT_MOST     (1u << 30)
#define TOKENIZER_MOST (256u << 20) /* hardening 4 */

typedef struct options {
    const char *text, *file, *jsonl;
    bool no_special, plain, raw, decode, skip_special;
} options;

typedef struct job {
    const nb_cli *cli;
    const options *o;
    nb_tokenizer *t;
} job;

/* ---- opening ---- */

static bool ends_with(const char *s, const char *tail)
{
    const size_t n = strlen(s), k = strlen(tail);

    return n >= k && strcmp(s + n - k, tail) == 0;
}

/* A .json file is a tokenizer itself, whatever its name, unless the name says what else it is. */
static bool is_tokenizer_file(const char *path)
{
    static const char *const others[] = { "config.json", ".index.json",       "vocab.json",
                                          "tekken.json", "added_tokens.json", "special_tokens_map.json" };

    for (size_t i = 0; i < NB_LEN(others); i++) {
        if (ends_with(path, others[i]))
            return false;
    }
    return ends_with(path, ".json");
}

static nb_status open_file(const char *path, nb_tokenizer **out, nb_err *err)
{
    const char *slash = strrchr(path, '/');
    char *json = NULL, *config = NULL, side[4096];
    size_t n_json = 0, n_config = 0;
    nb_err none = { 0 };
    nb_status rc;

    rc = nb_read_file(path, TOKENIZER_MOST, &json, &n_json, err);
    if (rc == NB_OK) {
        snprintf(side, sizeof side, "%.*s%s", slash ? (int)(slash + 1 - path) : 0, path, "tokenizer_config.json");
        if (nb_read_file(side, TOKENIZER_MOST, &config, &n_config, &none) != NB_OK && none.code != NB_EOPEN) {
            nb_err_at(&none, side, NULL);
            *err = none;
            rc = none.code;
        }
    }
    if (rc == NB_OK)
        rc = nb_tokenizer_open(json, n_json, config, n_config, out, err);
    nb_free(json);
    nb_free(config);
    return rc;
}

static nb_status open_dir(const char *path, nb_tokenizer **out, nb_err *err)
{
    nb_hfdir *d = NULL;
    nb_status rc = nb_hfdir_open(path, &d, err);

    if (rc == NB_OK)
        rc = nb_load_tokenizer(d, out, err);
    nb_hfdir_close(d);
    return rc;
}

/* ---- input ---- */

static nb_status read_stdin(nb_buf *b, nb_err *err)
{
    char chunk[65536];
    size_t n;

    while ((n = fread(chunk, 1, sizeof chunk, stdin)) > 0) {
        nb_buf_put(b, chunk, n);
        if (b->n > INPUT_MOST)
            return nb_fail(err, NB_ELIMIT, "limit.file", "", "standard input is longer than %u bytes", INPUT_MOST);
    }
    if (ferror(stdin))
        return nb_fail(err, NB_EREAD, "io.read", "", "standard input cannot be read");
    return b->failed ? nb_enomem(err, "standard input") : NB_OK;
}

static nb_status read_input(const char *path, nb_buf *b, nb_err *err)
{
    char *p = NULL;
    size_t n = 0;
    nb_status rc;

    if (!path || strcmp(path, "-") == 0)
        return read_stdin(b, err);
    rc = nb_read_file(path, INPUT_MOST, &p, &n, err);
    if (rc == NB_OK) {
        b->p = p;
        b->n = n;
        b->cap = n + 1;
    }
    return rc;
}

/* Ids written in decimal, separated by blanks or commas, perhaps in brackets. */
static nb_status parse_ids(const char *s, size_t n, nb_ids *out, nb_err *err)
{
    nb_status rc = NB_OK;

    for (size_t i = 0; rc == NB_OK && i < n;) {
        int64_t v = 0;
        size_t from = i;

        if (strchr(" \t\r\n,[]", s[i]) && s[i]) {
            i++;
            continue;
        }
        while (i < n && s[i] >= '0' && s[i] <= '9' && v <= INT32_MAX)
            v = v * 10 + (s[i++] - '0');
        if (i == from || v > INT32_MAX || (i < n && (!s[i] || !strchr(" \t\r\n,[]", s[i]))))
            return nb_fail(err, NB_EARG, "arg.ids", "", "token ids are whole numbers below 2^31 separated by blanks (at byte %zu)", from);
        rc = nb_ids_push(out, (int32_t)v, err);
    }
    return rc;
}

/* ---- one text, one list ---- */

static void print_pieces(const job *j, const nb_ids *ids)
{
    char esc[NB_ESC_CAP];

    for (size_t i = 0; i < ids->n; i++) {
        size_t n = 0;
        const char *s = nb_tokenizer_piece(j->t, ids->p[i], &n);
        printf("%" PRId32 "\t%s\n", ids->p[i], s ? nb_esc(esc, sizeof esc, s, n) : "");
    }
}

static void print_ids(const nb_ids *ids, char between)
{
    for (size_t i = 0; i < ids->n; i++) {
        if (i > 0)
            putchar(between);
        printf("%" PRId32, ids->p[i]);
    }
}

static nb_status print_ids_json(const job *j, const nb_ids *ids, nb_err *err)
{
    nb_json *o = nb_json_new_obj(), *list = nb_json_new_arr(), *pieces = nb_json_new_arr();
    bool ok = o && list && pieces;

    for (size_t i = 0; ok && i < ids->n; i++) {
        size_t n = 0;
        const char *s = nb_tokenizer_piece(j->t, ids->p[i], &n);
        ok = nb_json_push(list, nb_json_new_int(ids->p[i])) && nb_json_push(pieces, s ? nb_json_new_strn(s, n) : nb_json_new_null());
    }
    if (ok) {
        ok = nb_json_set(o, "ids", list);
        list = NULL;
    }
    if (ok) {
        ok = nb_json_set(o, "pieces", pieces);
        pieces = NULL;
    }
    if (ok)
        nb_cli_json(o);
    nb_json_free(list);
    nb_json_free(pieces);
    nb_json_free(o);
    return ok ? NB_OK : nb_enomem(err, "the output");
}

static nb_status print_text_json(const char *s, size_t n, nb_err *err)
{
    nb_json *o = nb_json_new_obj();
    char *line = NULL;

    if (o && nb_json_set(o, "text", nb_json_new_strn(s, n)))
        line = nb_json_dump(o, 0, true);
    if (line)
        puts(line);
    nb_free(line);
    nb_json_free(o);
    return line ? NB_OK : nb_enomem(err, "the output");
}

static nb_status encode_one(const job *j, const char *s, size_t n, nb_err *err)
{
    nb_ids ids = { 0 };
    nb_status rc = j->o->raw || j->o->text ? NB_OK : nb_u8_text(s, n, "--raw takes it, with U+FFFD for what is invalid", err);

    if (rc == NB_OK)
        rc = nb_tokenizer_encode(j->t, s, n, !j->o->no_special, !j->o->plain, &ids, err);
    if (rc == NB_OK && j->cli->json) {
        rc = print_ids_json(j, &ids, err);
    } else if (rc == NB_OK && j->cli->verbose) {
        print_pieces(j, &ids);
    } else if (rc == NB_OK) {
        print_ids(&ids, ' ');
        putchar('\n');
    }
    nb_ids_clear(&ids);
    return rc;
}

static nb_status decode_one(const job *j, const char *s, size_t n, nb_err *err)
{
    nb_ids ids = { 0 };
    nb_buf out = { 0 };
    nb_status rc = parse_ids(s, n, &ids, err);

    if (rc == NB_OK)
        rc = nb_tokenizer_decode(j->t, ids.p, ids.n, j->o->skip_special, &out, err);
    if (rc == NB_OK && j->cli->json) {
        rc = print_text_json(out.p ? out.p : "", out.n, err);
    } else if (rc == NB_OK) {
        fwrite(out.p ? out.p : "", 1, out.n, stdout);
        putchar('\n');
    }
    nb_ids_clear(&ids);
    nb_buf_clear(&out);
    return rc;
}

/* ---- --jsonl ---- */

static nb_status line_encode(const job *j, const nb_json *v, nb_err *err)
{
    const nb_json *text = nb_json_get(v, "text");
    nb_ids ids = { 0 };
    nb_status rc;

    if (nb_json_typeof(text) != NB_JSTR)
        return nb_fail(err, NB_EFORMAT, "tok.line", "", "the object has no text under \"text\"");
    rc = nb_tokenizer_encode(j->t, nb_json_str(text, ""), nb_json_str_len(text), !j->o->no_special, !j->o->plain, &ids, err);
    if (rc == NB_OK) {
        fputs("{\"ids\":[", stdout);
        print_ids(&ids, ',');
        fputs("]}\n", stdout);
    }
    nb_ids_clear(&ids);
    return rc;
}

static nb_status line_decode(const job *j, const nb_json *v, nb_err *err)
{
    const nb_json *list = nb_json_get(v, "ids");
    nb_ids ids = { 0 };
    nb_buf out = { 0 };
    nb_status rc = NB_OK;

    if (nb_json_typeof(list) != NB_JARR)
        return nb_fail(err, NB_EFORMAT, "tok.line", "", "the object has no list of ids under \"ids\"");
    for (size_t i = 0; rc == NB_OK && i < nb_json_len(list); i++) {
        const int64_t id = nb_json_typeof(nb_json_at(list, i)) == NB_JINT ? nb_json_int(nb_json_at(list, i), -1) : -1;
        if (id < 0 || id > INT32_MAX)
            rc = nb_fail(err, NB_EFORMAT, "tok.id", "", "\"ids\"[%zu] is no whole number from 0 below 2^31", i);
        else
            rc = nb_ids_push(&ids, (int32_t)id, err);
    }
    if (rc == NB_OK)
        rc = nb_tokenizer_decode(j->t, ids.p, ids.n, j->o->skip_special, &out, err);
    if (rc == NB_OK)
        rc = print_text_json(out.p ? out.p : "", out.n, err);
    nb_ids_clear(&ids);
    nb_buf_clear(&out);
    return rc;
}

static nb_status run_lines(const job *j, const char *s, size_t n, nb_err *err)
{
    nb_status rc = NB_OK;
    size_t line = 0;

    for (size_t i = 0; rc == NB_OK && i < n;) {
        const char *end = memchr(s + i, '\n', n - i);
        const size_t len = end ? (size_t)(end - (s + i)) : n - i;
        nb_json *v = NULL;
        char place[32];

        line++;
        if (len > 0) {
            rc = nb_json_parse(s + i, len, "tok", 0, &v, err);
            if (rc == NB_OK)
                rc = j->o->decode ? line_decode(j, v, err) : line_encode(j, v, err);
            nb_json_free(v);
        }
        if (rc != NB_OK) {
            snprintf(place, sizeof place, "line %zu", line);
            nb_err_at(err, j->o->jsonl, place);
        }
        i += len + 1;
        if (nb_cli_interrupted() && rc == NB_OK)
            rc = nb_fail(err, NB_ECANCELED, "canceled", "", "stopped");
    }
    return rc;
}

static nb_status work(const job *j, nb_err *err)
{
    const options *o = j->o;
    nb_buf in = { 0 };
    nb_status rc = NB_OK;

    if (!o->text)
        rc = read_input(o->jsonl ? o->jsonl : o->file, &in, err);
    if (rc == NB_OK && o->jsonl) {
        rc = run_lines(j, in.p ? in.p : "", in.n, err);
    } else if (rc == NB_OK) {
        const char *s = o->text ? o->text : in.p ? in.p : "";
        const size_t n = o->text ? strlen(o->text) : in.n;
        rc = o->decode ? decode_one(j, s, n, err) : encode_one(j, s, n, err);
        if (rc != NB_OK && o->file)
            nb_err_at(err, o->file, NULL);
    }
    nb_buf_clear(&in);
    return rc;
}

static nb_status run(nb_cli *cli, int argc, char **argv, nb_err *err);

const nb_cmd nb_cmd_tokenize = {
    .name = "tokenize",
    .usage = "tokenize MODEL [--text T | --file F | --jsonl F] [--no-special] [--decode] [--skip-special]",
    .brief = "text to token ids and back",
    .help = "MODEL is a directory with tokenizer.json (or else tekken.json, tokenizer.model, vocab.json and merges.txt),\n"
            "a tokenizer.json, or a .gguf file. Without --text, --file or --jsonl the text comes from standard input.\n"
            "With --decode the text is a list of ids. -v prints one token a line: id, tab, piece. --jsonl reads\n"
            "objects, one a line: {\"text\": T} gives {\"ids\": [...]}, with --decode {\"ids\": [...]} gives {\"text\": T}.\n"
            "\n"
            "  nibble tokenize models/pemberley-4m --text 'It is a truth'\n"
            "  nibble tokenize models/pemberley-4m --decode --text '1 2 3'\n",
    .run = run,
};

static nb_status run(nb_cli *cli, int argc, char **argv, nb_err *err)
{
    options o = { 0 };
    const nb_opt opts[] = {
        { .name = "--text", .kind = NB_OPT_STR, .to = &o.text, .arg = "T", .help = "this text (with --decode: these ids)" },
        { .name = "--file", .kind = NB_OPT_STR, .to = &o.file, .arg = "F", .help = "the text of a file; - is standard input" },
        { .name = "--jsonl", .kind = NB_OPT_STR, .to = &o.jsonl, .arg = "F", .help = "one JSON object a line" },
        { .name = "--no-special", .kind = NB_OPT_FLAG, .to = &o.no_special, .help = "add no BOS, EOS or the like" },
        { .name = "--plain", .kind = NB_OPT_FLAG, .to = &o.plain, .help = "special tokens inside the text are ordinary text" },
        { .name = "--raw", .kind = NB_OPT_FLAG, .to = &o.raw, .help = "accept zeros and invalid UTF-8 (read as U+FFFD)" },
        { .name = "--decode", .kind = NB_OPT_FLAG, .to = &o.decode, .help = "ids to text" },
        { .name = "--skip-special", .kind = NB_OPT_FLAG, .to = &o.skip_special, .help = "leave special tokens out of decoded text" },
    };
    const char *args[1];
    size_t n_args = 0;
    bool help = false;
    job j = { .cli = cli, .o = &o };
    nb_status rc;

    rc = nb_cli_parse(cli, &nb_cmd_tokenize, opts, NB_LEN(opts), argc, argv, args, NB_LEN(args), &n_args, &help, err);
    if (help)
        return NB_OK;
    if (rc != NB_OK)
        return rc;
    if (n_args != 1)
        return nb_fail(err, NB_EARG, "arg.missing", "", "tokenize needs one MODEL: a directory, a tokenizer.json or a .gguf file");
    if ((o.text != NULL) + (o.file != NULL) + (o.jsonl != NULL) > 1)
        return nb_fail(err, NB_EARG, "arg.option", "", "--text, --file and --jsonl exclude one another");
    rc = is_tokenizer_file(args[0]) ? open_file(args[0], &j.t, err) : open_dir(args[0], &j.t, err);
    nb_err_at(err, args[0], NULL);
    if (rc == NB_OK)
        rc = work(&j, err);
    nb_tokenizer_close(j.t);
    return rc;
}

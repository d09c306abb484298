/* opt.c - options as tables: parsing, nearest spelling, the help page of a verb, and what --cpu and --threads mean. */
#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/num.h"
#include "cli/cli.h"
#include "job/load.h"

enum { COMMON = 7 };

static void common_opts(nb_cli *cli, bool *verbose, bool *help, const char **errors, nb_opt out[COMMON])
{
    const nb_opt rows[COMMON] = {
        { "--json", NB_OPT_FLAG, &cli->json, 0, 0, NULL, "machine-readable output on stdout" },
        { "-q,--quiet", NB_OPT_FLAG, &cli->quiet, 0, 0, NULL, "no narration on stderr" },
        { "-v,--verbose", NB_OPT_FLAG, verbose, 0, 0, NULL, "more of it" },
        { "--threads", NB_OPT_INT, &cli->threads, 1, 1024, "N", "threads (default: every core this process may use)" },
        { "--cpu,--cpu-cap", NB_OPT_STR, &cli->cpu, 0, 0, "NAME",
          "cap the kernels: scalar, avx2, neon ... (see nibble doctor); also NIBBLE_CPU" },
        { "--errors", NB_OPT_STR, errors, 0, 0, "json", "errors on stderr as one JSON object a line" },
        { "-h,--help", NB_OPT_FLAG, help, 0, 0, NULL, "this page" },
    };
    memcpy(out, rows, sizeof rows);
}

/* Does `word` (n bytes) equal one of the comma-separated spellings? */
static bool spells(const char *names, const char *word, size_t n)
{
    while (*names) {
        const size_t len = strcspn(names, ",");
        if (len == n && memcmp(names, word, n) == 0)
            return true;
        names += len + (names[len] == ',');
    }
    return false;
}

static const nb_opt *find_opt(const nb_opt *opts, size_t n, const char *word, size_t len)
{
    for (size_t i = 0; i < n; i++)
        if (spells(opts[i].name, word, len))
            return &opts[i];
    return NULL;
}

size_t nb_cli_distance(const char *a, size_t na, const char *b, size_t nb)
{
    size_t row[41];

    if (na > 40 || nb > 40)
        return 99;
    for (size_t j = 0; j <= nb; j++)
        row[j] = j;
    for (size_t i = 1; i <= na; i++) {
        size_t diag = row[0];
        row[0] = i;
        for (size_t j = 1; j <= nb; j++) {
            const size_t sub = diag + (a[i - 1] != b[j - 1]);
            const size_t gap = 1 + (row[j] < row[j - 1] ? row[j] : row[j - 1]);
            diag = row[j];
            row[j] = sub < gap ? sub : gap;
        }
    }
    return row[nb];
}

static void nearest(const nb_opt *opts, size_t n, const char *word, size_t len, const char **best, size_t *best_len, size_t *best_d)
{
    for (size_t i = 0; i < n; i++)
        for (const char *p = opts[i].name; *p;) {
            const size_t l = strcspn(p, ",");
            const size_t d = nb_cli_distance(word, len, p, l);
            if (d < *best_d) {
                *best_d = d;
                *best = p;
                *best_len = l;
            }
            p += l + (p[l] == ',');
        }
}

static void print_opts(const nb_opt *opts, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        char left[64];
        snprintf(left, sizeof left, "%s%s%s", opts[i].name, opts[i].arg ? " " : "", opts[i].arg ? opts[i].arg : "");
        printf("  %-26s %s\n", left, opts[i].help);
    }
}

static void print_page(const nb_cmd *cmd, const nb_opt *opts, size_t n, const nb_opt *common)
{
    printf("nibble %s - %s\n\nusage: nibble %s\n\n", cmd->name, cmd->brief, cmd->usage);
    print_opts(opts, n);
    if (n)
        putchar('\n');
    print_opts(common, COMMON);
    puts("\nOf an option given twice the last one counts, unless it may be repeated.");
    if (cmd->help && *cmd->help)
        printf("\n%s\n", cmd->help);
}

static nb_status bad_value(nb_err *err, const nb_opt *o, const char *value, const char *want)
{
    char esc[NB_ESC_CAP];

    return nb_fail(err, NB_EARG, "arg.value", "", "%s is \"%s\", expected %s", o->name, nb_esc(esc, sizeof esc, value, strlen(value)),
                   want);
}

static nb_status store_value(const nb_opt *o, const char *value, nb_err *err)
{
    char want[96];
    const char *end;

    if (o->kind == NB_OPT_INT) {
        int64_t v;
        end = nb_num_i64(value, &v);
        snprintf(want, sizeof want, "an integer from %.0f to %.0f", o->min, o->max);
        if (!end || *end || !((double)v >= o->min && (double)v <= o->max))
            return bad_value(err, o, value, want);
        *(int64_t *)o->to = v;
        return NB_OK;
    }
    if (o->kind == NB_OPT_NUM) {
        double v;
        end = nb_num_real(value, &v);
        snprintf(want, sizeof want, "a number from %g to %g", o->min, o->max);
        if (!end || *end || !(v >= o->min && v <= o->max))
            return bad_value(err, o, value, want);
        *(double *)o->to = v;
        return NB_OK;
    }
    if (o->kind == NB_OPT_STR) {
        *(const char **)o->to = value;
        return NB_OK;
    }
    nb_strlist *list = o->to;
    if (list->n == NB_LEN(list->v))
        return nb_fail(err, NB_EARG, "arg.value", "", "%s is given more than %zu times", o->name, NB_LEN(list->v));
    list->v[list->n++] = value;
    return NB_OK;
}

static nb_status unknown_option(const nb_opt *opts, size_t n, const nb_opt *common, const nb_cmd *cmd, const char *word, size_t len,
                                nb_err *err)
{
    const char *best = NULL;
    size_t best_len = 0, best_d = 4;
    char esc[NB_ESC_CAP];

    nearest(opts, n, word, len, &best, &best_len, &best_d);
    nearest(common, COMMON, word, len, &best, &best_len, &best_d);
    nb_esc(esc, sizeof esc, word, len);
    if (best)
        return nb_fail(err, NB_EARG, "arg.option", "", "%s has no option \"%s\"; did you mean %.*s?", cmd->name, esc, (int)best_len, best);
    return nb_fail(err, NB_EARG, "arg.option", "", "%s has no option \"%s\"; nibble %s --help lists them", cmd->name, esc, cmd->name);
}

/* A word that is one of our options cannot be the value of the one before; --opt=--word gives such a value. */
static bool is_option(const nb_opt *opts, size_t n, const nb_opt *common, const char *word)
{
    const size_t len = strcspn(word, "=");

    return find_opt(opts, n, word, len) || find_opt(common, COMMON, word, len);
}

nb_status nb_cli_parse(nb_cli *cli, const nb_cmd *cmd, const nb_opt *opts, size_t n, int argc, char **argv, const char **args, size_t cap,
                       size_t *n_args, bool *help, nb_err *err)
{
    nb_opt common[COMMON];
    bool verbose = false, only_words = false;
    const char *errors = NULL;

    *n_args = 0;
    *help = false;
    common_opts(cli, &verbose, help, &errors, common);
    if (cli->on_options) {
        cli->on_options(cli->on_options_ctx, cmd->name, opts, n);
        cli->on_options(cli->on_options_ctx, cmd->name, common, COMMON);
        *help = true;
        return NB_NO;
    }
    for (int i = 0; i < argc; i++) {
        const char *word = argv[i];
        const char *eq = strchr(word, '=');
        const bool dashed = word[0] == '-' && word[1] && !only_words;
        const size_t len = eq && word[1] == '-' ? (size_t)(eq - word) : strlen(word);
        const nb_opt *o;
        nb_status rc;

        if (dashed && strcmp(word, "--") == 0) {
            only_words = true;
            continue;
        }
        if (!dashed) {
            char esc[NB_ESC_CAP];
            if (*n_args == cap)
                return nb_fail(err, NB_EARG, "arg.extra", "", "unexpected argument \"%s\"; usage: nibble %s",
                               nb_esc(esc, sizeof esc, word, strlen(word)), cmd->usage);
            args[(*n_args)++] = word;
            continue;
        }
        o = find_opt(opts, n, word, len);
        if (!o)
            o = find_opt(common, COMMON, word, len);
        if (!o)
            return unknown_option(opts, n, common, cmd, word, len, err);
        if (o->kind == NB_OPT_FLAG) {
            if (word[len])
                return nb_fail(err, NB_EARG, "arg.value", "", "%s takes no value", o->name);
            *(bool *)o->to = true;
            continue;
        }
        if (!word[len] && (i + 1 == argc || is_option(opts, n, common, argv[i + 1])))
            return nb_fail(err, NB_EARG, "arg.value", "", "%s needs a value (%s)", o->name, o->arg ? o->arg : "VALUE");
        rc = store_value(o, word[len] ? word + len + 1 : argv[++i], err);
        if (rc != NB_OK)
            return rc;
    }
    if (*help) {
        print_page(cmd, opts, n, common);
        return NB_NO;
    }
    if (errors && strcmp(errors, "json") != 0 && strcmp(errors, "text") != 0)
        return nb_fail(err, NB_EARG, "arg.value", "", "--errors is text or json");
    cli->errors_json = errors && strcmp(errors, "json") == 0;
    cli->verbose = verbose;
    return NB_OK;
}

nb_status nb_cli_cpu(const nb_cli *cli, const nb_kern **kern, nb_err *err)
{
    return nb_load_kern(cli->cpu, kern, err);
}

nb_status nb_cli_pool(const nb_cli *cli, nb_pool **pool, nb_err *err)
{
    return nb_pool_open(pool, (int)cli->threads, err);
}

nb_status nb_cli_kv(const char *name, nb_dtype *out, nb_err *err)
{
    static const struct {
        const char *name;
        nb_dtype t;
    } rows[] = { { "f16", NB_DT_F16 }, { "f32", NB_DT_F32 }, { "q8", NB_DT_I8 } };

    *out = NB_DT_NONE;
    if (!name)
        return NB_OK;
    for (size_t i = 0; i < NB_LEN(rows); i++)
        if (strcmp(rows[i].name, name) == 0) {
            *out = rows[i].t;
            return NB_OK;
        }
    return nb_fail(err, NB_EARG, "arg.value", "", "--kv is one of " NB_CLI_KV);
}

nb_status nb_cli_act(const char *name, bool exact_fp32, bool *a8, nb_err *err)
{
    *a8 = name && strcmp(name, "a8") == 0;
    if (name && !*a8 && strcmp(name, "a16") != 0)
        return nb_fail(err, NB_EARG, "arg.value", "", "--act is one of " NB_CLI_ACT);
    if (*a8 && exact_fp32)
        return nb_fail(err, NB_EARG, "arg.conflict", "", "--act a8 and --exact-fp32 exclude each other");
    return NB_OK;
}

nb_status nb_cli_size(const char *option, const char *text, const char *such, uint64_t *out, nb_err *err)
{
    static const char units[] = "KMGT";
    char esc[NB_ESC_CAP];
    double bytes = 0;
    const char *number = nb_num_real(text, &bytes), *end = number ? number : text;
    const char *u = *end ? strchr(units, toupper((unsigned char)*end)) : NULL;

    if (u) {
        const bool binary = end[1] == 'i';
        for (const char *p = units; p <= u; p++)
            bytes *= binary ? 1024 : 1000;
        end += binary ? 2 : 1;
    }
    end += *end == 'B';
    if (!number || *end || !(bytes > 0) || !(bytes < 1e18))
        return nb_fail(err, NB_EARG, "arg.value", "", "%s takes a size such as %s, not \"%s\"", option, such,
                       nb_esc(esc, sizeof esc, text, strlen(text)));
    *out = (uint64_t)bytes;
    return NB_OK;
}

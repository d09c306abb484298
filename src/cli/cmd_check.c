/* cmd_check.c - `nibble check DIR`: findings like a compiler's, a summary line, exit 1 when a must-rule fails. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "cli/cli.h"
#include "job/check.h"
#include "job/inferred.h"

enum { SHOWN = 5 }; /* findings of one rule in a text report; -v shows all */

static const char *alike(const nb_finding *f)
{
    return f->rule[0] ? f->rule : f->cls;
}

static void print_finding(const nb_cli *cli, const nb_finding *f, const char *path)
{
    static const char *const color[] = { [NB_SEV_INFO] = "", [NB_SEV_WARN] = "\033[33m", [NB_SEV_REJECT] = "\033[31m" };
    const bool paint = cli->color && f->sev != NB_SEV_INFO;

    if (f->file[0])
        printf("%s: ", nb_check_short_file(path, f->file));
    if (f->subject[0])
        printf("%s: ", f->subject);
    printf("%s%s%s: %s [%s]\n", paint ? color[f->sev] : "", nb_check_severity(f->sev), paint ? "\033[0m" : "", f->what, alike(f));
    if (f->next[0])
        printf("  \xe2\x86\x92 %s\n", f->next);
}

/* Findings of one rule and severity. */
typedef struct tally {
    const char *name;
    nb_severity sev;
    size_t all, seen;
} tally;

enum { MAX_TALLY = 512 }; /* there are fewer rules and classes */

static tally *tally_of(tally *t, size_t *n, const nb_finding *f)
{
    size_t i = 0;

    while (i < *n && (t[i].sev != f->sev || strcmp(t[i].name, alike(f)) != 0))
        i++;
    if (i == *n && *n < MAX_TALLY)
        t[(*n)++] = (tally){ .name = alike(f), .sev = f->sev };
    return &t[i < MAX_TALLY ? i : MAX_TALLY - 1];
}

static void print_findings(const nb_cli *cli, const nb_report *r, nb_severity least, const char *path)
{
    tally t[MAX_TALLY];
    size_t n = 0;

    for (size_t i = 0; i < nb_report_count(r); i++)
        tally_of(t, &n, nb_report_at(r, i))->all++;
    for (size_t i = 0; i < nb_report_count(r); i++) {
        const nb_finding *f = nb_report_at(r, i);
        tally *of = tally_of(t, &n, f);
        if (f->sev < least)
            continue;
        if (cli->verbose > 0 || of->seen < SHOWN)
            print_finding(cli, f, path);
        else if (of->seen == SHOWN)
            printf("\xe2\x80\xa6 and %zu more like this [%s] (--level all -v shows them)\n", of->all - SHOWN, of->name);
        of->seen++;
    }
}

static void print_text(const nb_cli *cli, const nb_report *r, const nb_check_sum *s, nb_severity least, const char *path)
{
    const size_t errors = nb_report_count_sev(r, NB_SEV_REJECT), warnings = nb_report_count_sev(r, NB_SEV_WARN);
    char bytes[32], name[NB_ESC_CAP];

    print_findings(cli, r, least, path);
    printf("%s: ", nb_esc(name, sizeof name, path, strlen(path)));
    if (s->format[0])
        printf("%s, %u bits, group %" PRId64 ", %zu quantized linears, ", s->format, s->bits, s->group_size, s->n_linears);
    printf("%zu tensors, %s: %zu error%s, %zu warning%s\n", s->n_tensors, nb_human_bytes(bytes, sizeof bytes, s->n_bytes), errors,
           errors == 1 ? "" : "s", warnings, warnings == 1 ? "" : "s");
}

static nb_status parse_level(const char *level, nb_severity *least, nb_err *err)
{
    static const struct {
        const char *name;
        nb_severity least;
    } levels[] = { { "must", NB_SEV_REJECT }, { "should", NB_SEV_WARN }, { "all", NB_SEV_INFO } };
    char text[NB_ESC_CAP];

    for (size_t i = 0; i < NB_LEN(levels); i++)
        if (strcmp(level, levels[i].name) == 0) {
            *least = levels[i].least;
            return NB_OK;
        }
    return nb_fail(err, NB_EARG, "arg.value", "", "--level is \"%s\", expected must, should or all",
                   nb_esc(text, sizeof text, level, strlen(level)));
}

static nb_status run(nb_cli *cli, int argc, char **argv, nb_err *err);

extern const nb_cmd nb_cmd_check;
const nb_cmd nb_cmd_check = {
    .name = "check",
    .usage = "check MODEL [options]",
    .brief = "every rule over every byte; exit 1 if a must-rule fails",
    .help = "Findings go to stdout, one each: file, tensor or module, severity, sentence, rule; the next line says what to do.\n"
            "Of one rule the first five are shown, -v shows all; --json and --sarif always hold all.\n"
            "Exit status: 0 no error, 1 a must-rule failed, 3 and above: the checkpoint could not be opened.\n\n"
            "  nibble check DIR\n"
            "  nibble check DIR --level must --json\n"
            "  nibble check DIR --sarif > nibble.sarif",
    .run = run,
};

static nb_status run(nb_cli *cli, int argc, char **argv, nb_err *err)
{
    const char *level = "should", *format = NULL, *args[1];
    int64_t bits = 0, group = 0;
    nb_qhint hint = { 0 };
    bool sarif = false;
    const nb_opt opts[] = {
        { .name = "--level", .kind = NB_OPT_STR, .to = &level, .arg = "LEVEL", .help = "must, should (default) or all" },
        { "--format", NB_OPT_STR, &format, 0, 0, "LAYOUT", "no quantization config: the layout, as convert --to takes it" },
        { "--bits", NB_OPT_INT, &bits, 2, 8, "N", "no quantization config: bits of a code" },
        { "--group-size", NB_OPT_INT, &group, -1, 1 << 20, "N", "no quantization config: inputs of a group, -1 for all" },
        { .name = "--sarif", .kind = NB_OPT_FLAG, .to = &sarif, .help = "findings as SARIF 2.1.0, for CI" },
    };
    nb_severity least = NB_SEV_WARN;
    nb_check_sum sum;
    nb_report *report = NULL;
    nb_json *json = NULL;
    nb_pool *pool = NULL;
    size_t n_args;
    bool help = false;
    nb_status rc = nb_cli_parse(cli, &nb_cmd_check, opts, NB_LEN(opts), argc, argv, args, NB_LEN(args), &n_args, &help, err);

    if (help)
        return NB_OK;
    if (rc != NB_OK || (rc = parse_level(level, &least, err)) != NB_OK)
        return rc;
    if (n_args != 1)
        return nb_fail(err, NB_EARG, "arg.missing", "", "check needs one model: nibble check MODEL");
    if ((rc = nb_infer_hint(format, bits, group, &hint, err)) != NB_OK)
        return rc;
    report = nb_report_new();
    rc = report ? nb_cli_pool(cli, &pool, err) : nb_enomem(err, "the report");
    if (rc == NB_OK) {
        const nb_check_opts o = { .pool = pool, .host = &cli->host, .hint = hint };
        rc = nb_check(args[0], &o, report, &sum, err);
        nb_cli_progress_end(cli);
    }
    if (rc == NB_OK || rc == NB_NO) {
        if (!cli->json && !sarif)
            print_text(cli, report, &sum, least, args[0]);
        else if ((json = sarif ? nb_check_sarif(args[0], report, least, NB_VERSION) : nb_check_json(args[0], report, &sum, least)))
            nb_cli_json(json);
        else
            rc = nb_enomem(err, "the report");
    }
    nb_json_free(json);
    nb_pool_close(pool);
    nb_report_free(report);
    return rc;
}

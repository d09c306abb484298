/* cmd_check.c - `nibble check DIR`: findings like a compiler's, a summary line, exit 1 when a must-rule fails. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "cli/cli.h"
#include "job/check.h"

static void print_finding(const nb_cli *cli, const nb_finding *f, const char *path)
{
    static const char *const color[] = { [NB_SEV_INFO] = "", [NB_SEV_WARN] = "\033[33m", [NB_SEV_REJECT] = "\033[31m" };
    const bool paint = cli->color && f->sev != NB_SEV_INFO;

    if (f->file[0])
        printf("%s: ", nb_check_short_file(path, f->file));
    if (f->subject[0])
        printf("%s: ", f->subject);
    printf("%s%s%s: %s [%s]\n", paint ? color[f->sev] : "", nb_check_severity(f->sev), paint ? "\033[0m" : "", f->what,
           f->rule[0] ? f->rule : f->cls);
    if (f->next[0])
        printf("  \xe2\x86\x92 %s\n", f->next);
}

static void print_text(const nb_cli *cli, const nb_report *r, const nb_check_sum *s, nb_severity least, const char *path)
{
    const size_t errors = nb_report_count_sev(r, NB_SEV_REJECT), warnings = nb_report_count_sev(r, NB_SEV_WARN);
    char bytes[32], name[NB_ESC_CAP];

    for (size_t i = 0; i < nb_report_count(r); i++)
        if (nb_report_at(r, i)->sev >= least)
            print_finding(cli, nb_report_at(r, i), path);
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
            "Exit status: 0 no error, 1 a must-rule failed, 3 and above: the checkpoint could not be opened.\n\n"
            "  nibble check DIR\n"
            "  nibble check DIR --level must --json\n"
            "  nibble check DIR --sarif > nibble.sarif",
    .run = run,
};

static nb_status run(nb_cli *cli, int argc, char **argv, nb_err *err)
{
    const char *level = "should", *args[1];
    bool sarif = false;
    const nb_opt opts[] = {
        { .name = "--level", .kind = NB_OPT_STR, .to = &level, .arg = "LEVEL", .help = "must, should (default) or all" },
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
    report = nb_report_new();
    rc = report ? nb_cli_pool(cli, &pool, err) : nb_enomem(err, "the report");
    if (rc == NB_OK) {
        const nb_check_opts o = { .pool = pool, .host = &cli->host };
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

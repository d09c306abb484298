/* cmd_explain.c - `nibble explain SHP-003`, `nibble explain st.truncated`. */
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "cli/cli.h"
#include "job/explain.h"

static nb_status run(nb_cli *cli, int argc, char **argv, nb_err *err);

extern const nb_cmd nb_cmd_explain;
const nb_cmd nb_cmd_explain = {
    .name = "explain",
    .usage = "explain [CLASS|ID]",
    .brief = "the long text of an error class or a rule",
    .help = "Every message of nibble carries a class (st.truncated) and, where a written rule is broken, its id (SHP-003).\n"
            "Without a name, all rules and families of classes.\n\n"
            "  nibble explain SHP-003\n"
            "  nibble explain conv.act_order",
    .run = run,
};

static const char *str(const nb_json *o, const char *key)
{
    return nb_json_str(nb_json_get(o, key), "");
}

/* Text broken between words at 100 columns. */
static void print_wrapped(const char *text, const char *indent)
{
    size_t col = 0;

    while (*text) {
        const size_t n = strcspn(text, " ");
        if (col > 0 && col + 1 + n > 100) {
            printf("\n");
            col = 0;
        }
        if (n > 0) {
            printf("%s%.*s", col ? " " : indent, (int)n, text);
            col += n + (col ? 1 : strlen(indent));
        }
        text += n + (text[n] == ' ');
    }
    printf("\n");
}

static void print_one(const nb_json *o)
{
    const nb_json *rules = nb_json_get(o, "rules");

    printf("%s", str(o, "name"));
    if (str(o, "title")[0])
        printf(" (%s)", str(o, "title"));
    if (str(o, "severity")[0])
        printf(", %s", str(o, "severity"));
    if (nb_json_get(o, "exit"))
        printf(", exit code %d", (int)nb_json_int(nb_json_get(o, "exit"), 0));
    printf("\n");
    if (str(o, "text")[0])
        print_wrapped(str(o, "text"), "  ");
    for (size_t i = 0; i < nb_json_len(rules); i++) {
        printf("\n%s, %s\n", str(nb_json_at(rules, i), "id"), str(nb_json_at(rules, i), "severity"));
        print_wrapped(str(nb_json_at(rules, i), "text"), "  ");
    }
}

static void print_list(const nb_json *o)
{
    const nb_json *rules = nb_json_get(o, "rules"), *families = nb_json_get(o, "families");

    printf("families of error classes\n");
    for (size_t i = 0; i < nb_json_len(families); i++)
        printf("  %-10s %s\n", str(nb_json_at(families, i), "name"), str(nb_json_at(families, i), "title"));
    printf("\nrules\n");
    for (size_t i = 0; i < nb_json_len(rules); i++) {
        const nb_json *r = nb_json_at(rules, i);
        const char *text = str(r, "text"), *end = strstr(text, ". ");
        printf("  %-8s %-8s %-24s %.*s\n", str(r, "id"), str(r, "severity"), str(r, "class"), end ? (int)(end - text) : (int)strlen(text),
               text);
    }
}

static nb_status run(nb_cli *cli, int argc, char **argv, nb_err *err)
{
    const char *args[1];
    bool help = false;
    nb_json *o = NULL;
    size_t n;
    nb_status rc = nb_cli_parse(cli, &nb_cmd_explain, NULL, 0, argc, argv, args, NB_LEN(args), &n, &help, err);

    if (help)
        return NB_OK;
    if (rc == NB_OK)
        rc = n == 1 ? nb_explain(args[0], &o, err) : nb_explain_list(&o, err);
    if (rc != NB_OK)
        return rc;
    if (cli->json)
        nb_cli_json(o);
    else if (n == 1)
        print_one(o);
    else
        print_list(o);
    nb_json_free(o);
    return NB_OK;
}

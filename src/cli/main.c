/* main.c - the program: command table, global help, errors and exit codes. One row per verb; the verb's own file does
 * the work. Exit codes: hardening 3.1. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/cpu.h"
#include "base/fp.h"
#include "base/mem.h"
#include "cli/cli.h"
#include "cli/progress.h"
#include "kern/kern.h"

extern const nb_cmd nb_cmd_inspect, nb_cmd_check, nb_cmd_convert, nb_cmd_quantize, nb_cmd_eval, nb_cmd_run, nb_cmd_bench, nb_cmd_tokenize,
    nb_cmd_template, nb_cmd_diff, nb_cmd_explain, nb_cmd_formats, nb_cmd_plan, nb_cmd_doctor, nb_cmd_serve, nb_cmd_completion;

static const nb_cmd *const commands[] = {
    &nb_cmd_inspect, &nb_cmd_check,  &nb_cmd_convert,  &nb_cmd_quantize, &nb_cmd_eval, &nb_cmd_run,     &nb_cmd_serve,   &nb_cmd_bench,
    &nb_cmd_plan,    &nb_cmd_doctor, &nb_cmd_tokenize, &nb_cmd_template, &nb_cmd_diff, &nb_cmd_explain, &nb_cmd_formats, &nb_cmd_completion,
};

const nb_cmd *const *nb_cli_verbs(size_t *n)
{
    *n = NB_LEN(commands);
    return commands;
}

static void print_help(FILE *to)
{
    fprintf(to,
            "nibble %s - open, check, convert, quantize, measure, run and serve 4-bit Hugging Face checkpoints\n\n"
            "usage: nibble VERB MODEL [options]\n\n",
            NB_VERSION);
    for (size_t i = 0; i < NB_LEN(commands); i++)
        fprintf(to, "  %-10s %s\n", commands[i]->name, commands[i]->brief);
    fprintf(to, "\n  help VERB  the page of one verb\n\n"
                "examples: nibble inspect MODEL\n"
                "          nibble run MODEL \"What is the capital of France?\"\n"
                "          nibble serve MODEL\n\n"
                "MODEL is a directory, a .safetensors file, an index or a .gguf file. Every verb has --json and --help.\n");
}

static const nb_cmd *find_command(const char *name)
{
    for (size_t i = 0; i < NB_LEN(commands); i++)
        if (strcmp(commands[i]->name, name) == 0 || (commands[i]->alias && strcmp(commands[i]->alias, name) == 0))
            return commands[i];
    return NULL;
}

static nb_status run_command(nb_cli *cli, const nb_cmd *cmd, int argc, char **argv, nb_err *err)
{
    cli->verb = cmd->name;
    return cmd->run(cli, argc, argv, err);
}

/* next: the word behind, NULL when there is none. */
static nb_status unknown_verb(const char *verb, const char *next, nb_err *err)
{
    const nb_cmd *swapped = next ? find_command(next) : NULL;
    const char *best = NULL;
    size_t best_d = 4;
    char esc[NB_ESC_CAP];

    nb_esc(esc, sizeof esc, verb, strlen(verb));
    if (verb[0] == '-')
        return nb_fail(err, NB_EARG, "arg.verb", "", "\"%s\" comes before the verb; options go behind it: nibble VERB MODEL [options]",
                       esc);
    if (swapped)
        return nb_fail(err, NB_EARG, "arg.verb", "", "no verb \"%s\"; the verb comes first: nibble %s %s", esc, next, esc);
    for (size_t i = 0; i < NB_LEN(commands); i++) {
        const size_t d = nb_cli_distance(verb, strlen(verb), commands[i]->name, strlen(commands[i]->name));
        if (d < best_d) {
            best_d = d;
            best = commands[i]->name;
        }
    }
    if (best)
        return nb_fail(err, NB_EARG, "arg.verb", "", "no verb \"%s\"; did you mean %s?", esc, best);
    return nb_fail(err, NB_EARG, "arg.verb", "", "no verb \"%s\"; nibble --help lists them", esc);
}

static nb_status dispatch(nb_cli *cli, int argc, char **argv, nb_err *err)
{
    char *page[] = { (char *)"--help", NULL };
    const char *verb = argc > 1 ? argv[1] : NULL;
    const bool help = verb && strcmp(verb, "help") == 0;
    const nb_cmd *cmd;

    if (!verb) {
        print_help(stderr);
        return NB_EARG;
    }
    if (strcmp(verb, "--version") == 0 || strcmp(verb, "version") == 0) {
        printf("nibble %s\n%s%skernels %s on %s\n", NB_VERSION, NB_COMMIT[0] ? "commit " NB_COMMIT : "", NB_COMMIT[0] ? ", " : "",
               nb_kern_pick(nb_cpu_features())->name, nb_cpu_name());
        return NB_OK;
    }
    if (strcmp(verb, "--help") == 0 || strcmp(verb, "-h") == 0 || (help && argc == 2)) {
        print_help(stdout);
        return NB_OK;
    }
    cmd = find_command(help ? argv[2] : verb);
    if (!cmd)
        return unknown_verb(help ? argv[2] : verb, help || argc < 3 ? NULL : argv[2], err);
    return help ? run_command(cli, cmd, 1, page, err) : run_command(cli, cmd, argc - 2, argv + 2, err);
}

/* --errors has a say in how its own misspelled neighbours are reported. */
static bool wants_json_errors(int argc, char **argv)
{
    bool json = false;

    for (int i = 1; i < argc && strcmp(argv[i], "--") != 0; i++) {
        const char *value = strncmp(argv[i], "--errors=", 9) == 0              ? argv[i] + 9
                            : strcmp(argv[i], "--errors") == 0 && i + 1 < argc ? argv[i + 1]
                                                                               : NULL;
        if (value)
            json = strcmp(value, "json") == 0;
    }
    return json;
}

int main(int argc, char **argv)
{
    nb_cli cli = { 0 };
    nb_err err = { 0 };
    nb_fp as_loaded; /* a library built for fast arithmetic may have set other modes when it was loaded */
    nb_status rc;

    nb_fp_enter(&as_loaded);
    nb_cli_setup(&cli);
    cli.errors_json = wants_json_errors(argc, argv);
    rc = dispatch(&cli, argc, argv, &err);
    nb_cli_progress_end(&cli);
    if ((fflush(stdout) != 0 || ferror(stdout)) && (rc == NB_OK || rc == NB_NO)) {
        nb_err_clear(&err);
        rc = nb_fail(&err, NB_EWRITE, "out.write", "", "standard output cannot be written: %s", strerror(errno));
    }
    if (nb_cli_pipe_gone())
        return nb_cli_exit_code(rc);
    if (err.code != NB_OK)
        nb_cli_print_err(&cli, &err);
    else if (rc != NB_OK && rc != NB_NO && rc != NB_EARG)
        fprintf(stderr, "nibble: error: internal: status %d without a sentence\n", (int)rc);
    return nb_cli_exit_code(rc);
}

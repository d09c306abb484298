/* main.c - the program: command table, global help, errors and exit codes. One row per verb; the verb's own file does
 * the work. Exit codes: hardening 3.1. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "cli/cli.h"
#include "cli/progress.h"

extern const nb_cmd nb_cmd_inspect, nb_cmd_check, nb_cmd_convert, nb_cmd_quantize, nb_cmd_eval, nb_cmd_run, nb_cmd_bench, nb_cmd_tokenize,
    nb_cmd_template;

static const nb_cmd *const commands[] = {
    &nb_cmd_inspect, &nb_cmd_check, &nb_cmd_convert,  &nb_cmd_quantize, &nb_cmd_eval,
    &nb_cmd_run,     &nb_cmd_bench, &nb_cmd_tokenize, &nb_cmd_template,
};

static void print_help(FILE *to)
{
    fprintf(to,
            "nibble %s - open, check, convert, quantize, measure and run 4-bit Hugging Face checkpoints\n\n"
            "usage: nibble VERB MODEL [options]\n\n",
            NB_VERSION);
    for (size_t i = 0; i < NB_LEN(commands); i++)
        fprintf(to, "  %-10s %s\n", commands[i]->name, commands[i]->brief);
    fprintf(to, "\n  help VERB  the page of one verb\n\n"
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

static nb_status dispatch(nb_cli *cli, int argc, char **argv, nb_err *err)
{
    const char *verb = argc > 1 ? argv[1] : NULL;
    const nb_cmd *cmd;
    char esc[NB_ESC_CAP];

    if (!verb) {
        print_help(stderr);
        return NB_EARG;
    }
    if (strcmp(verb, "--version") == 0 || strcmp(verb, "version") == 0) {
        printf("nibble %s\n", NB_VERSION);
        return NB_OK;
    }
    if (strcmp(verb, "--help") == 0 || strcmp(verb, "-h") == 0 || (strcmp(verb, "help") == 0 && argc == 2)) {
        print_help(stdout);
        return NB_OK;
    }
    if (strcmp(verb, "help") == 0) {
        char *page[] = { (char *)"--help", NULL };
        cmd = find_command(argv[2]);
        if (cmd)
            return run_command(cli, cmd, 1, page, err);
        verb = argv[2];
    }
    cmd = find_command(verb);
    if (!cmd)
        return nb_fail(err, NB_EARG, "usage.verb", "", "no verb \"%s\"; nibble --help lists them",
                       nb_esc(esc, sizeof esc, verb, strlen(verb)));
    return run_command(cli, cmd, argc - 2, argv + 2, err);
}

int main(int argc, char **argv)
{
    nb_cli cli = { 0 };
    nb_err err = { 0 };
    nb_status rc;

    nb_cli_setup(&cli);
    rc = dispatch(&cli, argc, argv, &err);
    nb_cli_progress_end(&cli);
    if (fflush(stdout) != 0 && rc == NB_OK)
        rc = nb_fail(&err, NB_EWRITE, "out.stdout", "", "standard output cannot be written");
    if (err.code != NB_OK)
        nb_cli_print_err(&cli, &err);
    else if (rc != NB_OK && rc != NB_NO && rc != NB_EARG)
        fprintf(stderr, "nibble: error: internal: status %d without a sentence\n", (int)rc);
    return nb_cli_exit_code(rc);
}

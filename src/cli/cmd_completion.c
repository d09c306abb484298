/* cmd_completion.c - `nibble completion`: scripts for bash, zsh and fish, written from the option tables of the verbs. */
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "cli/cli.h"
#include "job/explain.h"

static nb_status run(nb_cli *cli, int argc, char **argv, nb_err *err);

extern const nb_cmd nb_cmd_completion;
const nb_cmd nb_cmd_completion = {
    .name = "completion",
    .usage = "completion bash|zsh|fish",
    .brief = "words that a shell offers: a script on stdout",
    .help = "The script knows verbs, options and values that have names; other words are files. It never starts nibble.\n\n"
            "  nibble completion bash >~/.local/share/bash-completion/completions/nibble\n"
            "  nibble completion zsh >~/.zfunc/_nibble\n"
            "  nibble completion fish >~/.config/fish/completions/nibble.fish",
    .run = run,
};

/* How one shell says it. values: what an option's value may be, separated by blanks; "" when it is free; NULL: it takes none. */
typedef struct shell {
    const char *name;
    void (*begin)(const nb_cmd *const *verbs, size_t n);
    void (*verb)(const char *name);
    void (*option)(const char *verb, const nb_opt *o, const char *spelling, const char *values);
    void (*verb_end)(void);
    void (*end)(void);
} shell;

/* s as it stands between single quotes; each of `special` gets a backslash, a quote becomes `quote`. */
static void put_inside(const char *s, const char *special, const char *quote)
{
    for (; *s; s++) {
        if (*s == '\'') {
            fputs(quote, stdout);
            continue;
        }
        if (strchr(special, *s))
            putchar('\\');
        putchar(*s);
    }
}

/* ---- bash: one case of VERB, then the word before it ---- */

static void bash_begin(const nb_cmd *const *verbs, size_t n)
{
    printf("# bash completion of nibble %s\n"
           "_nibble() {\n"
           "    local cur=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]} verb=${COMP_WORDS[1]} options= values= verbs='",
           NB_VERSION);
    for (size_t i = 0; i < n; i++)
        printf("%s ", verbs[i]->name);
    puts("help'\n"
         "    COMPREPLY=()\n"
         "    if [ \"$COMP_CWORD\" = 1 ] || { [ \"$COMP_CWORD\" = 2 ] && [ \"$verb\" = help ]; }; then\n"
         "        COMPREPLY=($(compgen -W \"$verbs\" -- \"$cur\"))\n"
         "        return\n"
         "    fi\n"
         "    [ \"$verb ${COMP_WORDS[2]}\" = 'bench serve' ] && verb='bench serve'\n"
         "    case $verb in");
}

static void bash_verb(const char *name)
{
    printf("    '%s')", name);
}

static void bash_option(const char *verb, const nb_opt *o, const char *spelling, const char *values)
{
    (void)verb;
    (void)o;
    printf("\n        options+=' %s'", spelling);
    if (values && *values)
        printf("\n        [ \"$before\" = %s ] && values='%s'", spelling, values);
}

static void bash_verb_end(void)
{
    puts(" ;;");
}

static void bash_end(void)
{
    puts("    esac\n"
         "    if [ -n \"$values\" ]; then\n"
         "        COMPREPLY=($(compgen -W \"$values\" -- \"$cur\"))\n"
         "    elif [ \"${cur#-}\" != \"$cur\" ]; then\n"
         "        COMPREPLY=($(compgen -W \"$options\" -- \"$cur\"))\n"
         "    fi\n"
         "}\n"
         "complete -o default -F _nibble nibble");
}

/* ---- zsh: _arguments of each verb ---- */

static void zsh_begin(const nb_cmd *const *verbs, size_t n)
{
    puts("#compdef nibble\n"
         "_nibble() {\n"
         "    local -a verbs\n"
         "    verbs=(");
    for (size_t i = 0; i < n; i++) {
        char row[160];
        snprintf(row, sizeof row, "%s:%s", verbs[i]->name, verbs[i]->brief);
        printf("        '");
        put_inside(row, "", "'\\''");
        puts("'");
    }
    puts("        'help:the page of one verb'\n"
         "    )\n"
         "    if (( CURRENT == 2 )) || [[ CURRENT -eq 3 && $words[2] == help ]]; then\n"
         "        _describe verb verbs\n"
         "        return\n"
         "    fi\n"
         "    shift words\n"
         "    (( CURRENT-- ))\n"
         "    if [[ \"$words[1] $words[2]\" == 'bench serve' ]]; then\n"
         "        shift words\n"
         "        (( CURRENT-- ))\n"
         "        words[1]='bench serve'\n"
         "    fi\n"
         "    case $words[1] in");
}

static void zsh_verb(const char *name)
{
    printf("    '%s') _arguments -S", name);
}

static void zsh_option(const char *verb, const nb_opt *o, const char *spelling, const char *values)
{
    (void)verb;
    printf(" \\\n        %s'%s[", o->kind == NB_OPT_LIST ? "'*'" : "", spelling);
    put_inside(o->help, "[]:\\", "'\\''");
    putchar(']');
    if (values && *values)
        printf(":value:(%s)", values);
    else if (values)
        printf(":value:_files");
    putchar('\'');
}

static void zsh_verb_end(void)
{
    puts(" \\\n        '*:file:_files' ;;");
}

static void zsh_end(void)
{
    puts("    esac\n"
         "}\n"
         "if [[ \"$funcstack[1]\" == _nibble ]]; then\n"
         "    _nibble \"$@\"\n"
         "else\n"
         "    compdef _nibble nibble\n"
         "fi");
}

/* ---- fish: one line an option ---- */

static void fish_begin(const nb_cmd *const *verbs, size_t n)
{
    printf("# fish completion of nibble %s\n", NB_VERSION);
    for (size_t i = 0; i < n; i++) {
        printf("complete -c nibble -n __fish_use_subcommand -f -a %s -d '", verbs[i]->name);
        put_inside(verbs[i]->brief, "\\", "\\'");
        puts("'");
    }
    puts("complete -c nibble -n __fish_use_subcommand -f -a help -d 'the page of one verb'");
}

static void fish_verb(const char *name)
{
    (void)name;
}

static void fish_option(const char *verb, const nb_opt *o, const char *spelling, const char *values)
{
    const char *both = strcmp(verb, "bench serve") == 0 ? "; and __fish_seen_subcommand_from serve" : "";

    printf("complete -c nibble -n '__fish_seen_subcommand_from %.*s%s' ", (int)strcspn(verb, " "), verb, both);
    printf(spelling[1] == '-' ? "-l %s" : "-s %s", spelling + (spelling[1] == '-' ? 2 : 1));
    if (values && *values)
        printf(" -x -a '%s'", values);
    else if (values)
        printf(" -r");
    printf(" -d '");
    put_inside(o->help, "\\", "\\'");
    puts("'");
}

static void nothing(void)
{
}

static const shell shells[] = {
    { "bash", bash_begin, bash_verb, bash_option, bash_verb_end, bash_end },
    { "zsh", zsh_begin, zsh_verb, zsh_option, zsh_verb_end, zsh_end },
    { "fish", fish_begin, fish_verb, fish_option, nothing, nothing },
};

/* ---- the verbs' tables ---- */

typedef struct job {
    const shell *sh;
    nb_buf readable, writable; /* names of layouts, separated by blanks, ended */
    nb_buf values;
} job;

/* Names that the value of o may have: those of its "a|b|c", or the layouts. */
static const char *values_of(job *j, const nb_opt *o)
{
    if (o->kind == NB_OPT_FLAG)
        return NULL;
    if (o->arg && strcmp(o->arg, "LAYOUT") == 0)
        return strcmp(o->name, "--to") == 0 ? j->writable.p : j->readable.p;
    j->values.n = 0;
    if (o->arg && strchr(o->arg, '|'))
        for (const char *p = o->arg; *p; p++)
            nb_buf_put(&j->values, *p == '|' ? " " : p, 1);
    nb_buf_put(&j->values, "", 1);
    return j->values.failed ? "" : j->values.p;
}

static void options(void *ctx, const char *verb, const nb_opt *opts, size_t n)
{
    job *j = ctx;

    for (size_t i = 0; i < n; i++) {
        const char *values = values_of(j, &opts[i]);

        for (const char *p = opts[i].name; *p;) { /* "-o,--output" */
            const size_t len = strcspn(p, ",");
            char spelling[48];
            snprintf(spelling, sizeof spelling, "%.*s", (int)len, p);
            j->sh->option(verb, &opts[i], spelling, values);
            p += len + (p[len] == ',');
        }
    }
}

/* The table of a verb comes from the place where it is used: its run() hands it to nb_cli_parse and ends there. */
static nb_status one_verb(job *j, const nb_cmd *cmd, const char *name, int argc, char **argv, nb_err *err)
{
    nb_cli asking = { .on_options = options, .on_options_ctx = j };
    nb_status rc;

    j->sh->verb(name);
    rc = cmd->run(&asking, argc, argv, err);
    j->sh->verb_end();
    return rc;
}

static bool layout_names(job *j)
{
    nb_json *rows = nb_formats_json();

    for (size_t i = 0; i < nb_json_len(rows); i++) {
        const nb_json *row = nb_json_at(rows, i);
        const char *name = nb_json_str(nb_json_get(row, "name"), "");

        if (nb_json_bool(nb_json_get(row, "read"), false))
            nb_buf_printf(&j->readable, "%s ", name);
        if (nb_json_bool(nb_json_get(row, "write"), false))
            nb_buf_printf(&j->writable, "%s ", name);
    }
    nb_json_free(rows);
    nb_buf_put(&j->readable, "", 1);
    nb_buf_puts(&j->writable, "gguf f16 bf16 f32");
    nb_buf_put(&j->writable, "", 1);
    return rows && !j->readable.failed && !j->writable.failed;
}

static nb_status write_script(const shell *sh, nb_err *err)
{
    char *serve[] = { (char *)"serve", NULL };
    job j = { .sh = sh };
    size_t n;
    const nb_cmd *const *verbs = nb_cli_verbs(&n);
    nb_status rc = layout_names(&j) ? NB_OK : nb_enomem(err, "the names of the layouts");

    if (rc == NB_OK)
        sh->begin(verbs, n);
    for (size_t i = 0; rc == NB_OK && i < n; i++) {
        rc = one_verb(&j, verbs[i], verbs[i]->name, 0, serve + 1, err);
        if (rc == NB_OK && strcmp(verbs[i]->name, "bench") == 0)
            rc = one_verb(&j, verbs[i], "bench serve", 1, serve, err);
    }
    if (rc == NB_OK)
        sh->end();
    nb_buf_clear(&j.values);
    nb_buf_clear(&j.readable);
    nb_buf_clear(&j.writable);
    return rc;
}

static nb_status run(nb_cli *cli, int argc, char **argv, nb_err *err)
{
    const char *name = NULL;
    bool help = false;
    size_t n;
    const nb_status rc = nb_cli_parse(cli, &nb_cmd_completion, NULL, 0, argc, argv, &name, 1, &n, &help, err);

    if (help)
        return NB_OK;
    if (rc != NB_OK)
        return rc;
    for (size_t i = 0; n && i < NB_LEN(shells); i++)
        if (strcmp(name, shells[i].name) == 0)
            return write_script(&shells[i], err);
    return nb_fail(err, NB_EARG, n ? "arg.value" : "arg.missing", "", "name a shell: bash, zsh or fish");
}

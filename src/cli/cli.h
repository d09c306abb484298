/* cli.h - what the verbs share: options as tables, errors on stderr, exit codes, progress, interrupt.
 *
 * A verb is one file cmd_VERB.c with one `const nb_cmd nb_cmd_VERB` and a row in main.c. stdout is data, stderr is
 * narration; colour only on a terminal without NO_COLOR. Exit codes: hardening 3.1 (an nb_status is one). */
#ifndef NB_CLI_CLI_H
#define NB_CLI_CLI_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/json.h"
#include "base/log.h"
#include "base/pool.h"
#include "kern/kern.h"
#include "tensor/report.h"

typedef enum nb_opt_kind {
    NB_OPT_FLAG, /* bool *                            */
    NB_OPT_STR,  /* const char ** (last one wins)     */
    NB_OPT_INT,  /* int64_t *  with min..max          */
    NB_OPT_NUM,  /* double *   with min..max          */
    NB_OPT_LIST  /* nb_strlist *: may be repeated     */
} nb_opt_kind;

typedef struct nb_strlist {
    const char *v[64];
    size_t n;
} nb_strlist;

typedef struct nb_opt {
    const char *name; /* "--group-size"; a second spelling after a comma: "-o,--output" */
    nb_opt_kind kind;
    void *to;
    double min, max; /* INT, NUM */
    const char *arg; /* "N", "FILE" in help */
    const char *help;
} nb_opt;

/* Options every verb has: --json, -q, -v, --threads, --cpu, --help. */
typedef struct nb_cli {
    const char *verb;
    bool json, quiet, errors_json, color, tty_err;
    int verbose;
    int64_t threads; /* 0: all cores */
    const char *cpu; /* cap: "scalar", "avx2", ... ; NULL: best */
    nb_host host;    /* ready to hand to the library: log, progress bar or plain lines, Ctrl-C */
    /* Not NULL: the verb is only asked for its options. nb_cli_parse hands over its table, then the common one, and returns as for --help. */
    void (*on_options)(void *ctx, const char *verb, const nb_opt *opts, size_t n);
    void *on_options_ctx;
} nb_cli;

typedef struct nb_cmd {
    const char *name, *alias; /* alias may be NULL */
    const char *usage;        /* "inspect MODEL [options]" */
    const char *brief;        /* one line */
    const char *help;         /* longer text, examples */
    /* args: positional words, n of them. Returns the exit status; a failure is already in err. */
    nb_status (*run)(nb_cli *cli, int argc, char **argv, nb_err *err);
} nb_cmd;

/* The verbs in the order of the help; n of them. */
const nb_cmd *const *nb_cli_verbs(size_t *n);

/* Parse argv against opts[n]; positional words go to args (cap of them at most, *n_args counted). "--" ends options.
 * --opt=value and --opt value. Unknown option: NB_EARG "arg.option" with the nearest spelling. An option given twice: the last one counts (CL-02). --help prints the
 * page of the verb and returns NB_NO with err clear: the caller returns NB_OK then (nb_cli_parse has *help set). */
nb_status nb_cli_parse(nb_cli *cli, const nb_cmd *cmd, const nb_opt *opts, size_t n, int argc, char **argv, const char **args, size_t cap,
                       size_t *n_args, bool *help, nb_err *err);

/* Edit distance of two words, 99 when one is longer than 40 bytes. */
size_t nb_cli_distance(const char *a, size_t na, const char *b, size_t nb);

/* A size in bytes: "4G" and "4GB" (powers of 1000), "4GiB" (of 1024), "65536". option and such (sizes) are for the message. NB_EARG for
 * others. */
nb_status nb_cli_size(const char *option, const char *text, const char *such, uint64_t *out, nb_err *err);

/* The cap of --cpu as feature bits: nb_cpu_features() masked. NB_EARG when the machine lacks it or the name is unknown. */
nb_status nb_cli_cpu(const nb_cli *cli, const nb_kern **kern, nb_err *err);
/* Pool with --threads threads. */
nb_status nb_cli_pool(const nb_cli *cli, nb_pool **pool, nb_err *err);

void nb_cli_json(const nb_json *v);                       /* pretty JSON and newline on stdout */
void nb_cli_note(const nb_cli *cli, const char *fmt, ...) /* a line on stderr unless quiet */
#if defined(__GNUC__)
    __attribute__((format(printf, 2, 3)))
#endif
    ;
void nb_cli_dim(const nb_cli *cli, const char *fmt, ...) /* the same, dim on a terminal */
#if defined(__GNUC__)
    __attribute__((format(printf, 2, 3)))
#endif
    ;
void nb_cli_progress_end(const nb_cli *cli); /* clear the bar before other output */
/* "1.2 GB", "4.1 MB" into out. */
const char *nb_human_bytes(char *out, size_t cap, uint64_t n);
/* true once after Ctrl-C (the second Ctrl-C ends the process at once). */
bool nb_cli_interrupted(void);

/* --kv: how keys and values are kept. NULL: NONE, the default. NB_EARG for other names. */
#define NB_CLI_KV "f16|f32|q8"
nb_status nb_cli_kv(const char *name, nb_dtype *out, nb_err *err);
/* --act: integers that activations of quantized linears become. NULL: a16. NB_EARG for other names, and for a8 with exact_fp32. */
#define NB_CLI_ACT      "a16|a8"
#define NB_CLI_ACT_HELP "activations of quantized linears: 16-bit integers (default), or 8-bit: faster with many rows, less exact"
nb_status nb_cli_act(const char *name, bool exact_fp32, bool *a8, nb_err *err);

#endif

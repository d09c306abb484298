/* cmd_bench_serve.h - the part of `nibble bench` that talks to a server. */
#ifndef NB_CLI_CMD_BENCH_SERVE_H
#define NB_CLI_CMD_BENCH_SERVE_H

#include "cli/cli.h"

/* `bench serve`: argv[argc] are the words behind it. NB_NO when no request was answered. */
nb_status nb_bench_serve(nb_cli *cli, int argc, char **argv, nb_err *err);

#endif

/* progress.h - the program's end of nb_host: a bar on a terminal, plain lines elsewhere, signals. One per process. */
#ifndef NB_CLI_PROGRESS_H
#define NB_CLI_PROGRESS_H

#include "cli/cli.h"

/* Fill cli from the environment and the terminal, install the signal handlers. Once, at start. */
void nb_cli_setup(nb_cli *cli);
/* "nibble: error: ..." on stderr, or one JSON object with --errors=json. */
void nb_cli_print_err(const nb_cli *cli, const nb_err *err);
/* The reader of stdout went away: say nothing, end with 141. */
bool nb_cli_pipe_gone(void);
/* The status, or 128 + signal after SIGINT, SIGTERM or SIGHUP stopped the work, or SIGPIPE on stdout. */
int nb_cli_exit_code(nb_status rc);

#endif

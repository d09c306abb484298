/* journal.h - what makes a job resumable: the directory OUT.nibble-job beside the output.
 *
 *   job.json        recipe of the job and, per finished block, what was written and its SHA-256; replaced atomically
 *   result/         the output so far; it becomes OUT by one rename
 *   inputs-NNNNN    activations that enter block NNNNN, the next one
 *
 * A process that works in it holds a lock that the kernel drops at its death. A job with another recipe is refused, never
 * mixed in, unless it has finished nothing. One owner. Source: hardening DU-12 to DU-18, DU-21. */
#ifndef NB_JOB_JOURNAL_H
#define NB_JOB_JOURNAL_H

#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"
#include "base/json.h"
#include "job/spill.h"

typedef struct nb_journal nb_journal;

/* "OUT.nibble-job", freed with nb_free; NULL when out of memory. */
char *nb_journal_path(const char *output);

/* Make or find the directory of this output, lock it, and read or begin the record of the job.
 *   recipe   flat object; taken in any case
 *   restart  drop what an earlier process did
 * Errors: NB_EBUSY "job.busy"; NB_EMISMATCH "job.mismatch" naming the first field that differs, old and new value; NB_EWRITE. */
nb_status nb_journal_open(nb_journal **out, const char *output, nb_json *recipe, bool restart, nb_err *err);
const char *nb_journal_dir(const nb_journal *j);
const char *nb_journal_staging(const nb_journal *j); /* DIR/result */

/* Finished blocks, in order, as given to add. */
size_t nb_journal_blocks(const nb_journal *j);
const nb_json *nb_journal_block(const nb_journal *j, size_t i);
/* All of `blocks` (array; taken) are finished and on disk, and h (n floats; may be NULL) enters the next one. Durable on return. */
nb_status nb_journal_add(nb_journal *j, nb_json *blocks, const nb_spill *h, size_t n, nb_err *err);
/* The activations that were given last. NB_EREAD "job.inputs" when they are not what was written. */
nb_status nb_journal_inputs(const nb_journal *j, nb_spill *h, size_t n, nb_err *err);
/* Are they still what was given, as far as reading the file tells? True when none were. */
bool nb_journal_good_inputs(const nb_journal *j);
/* Begin anew: no block is finished, nothing is staged. */
nb_status nb_journal_forget(nb_journal *j, nb_err *err);
/* The output is complete but for its name. nb_journal_finished() tells a later process that found OUT that it was this job's. */
nb_status nb_journal_finish(nb_journal *j, nb_err *err);
bool nb_journal_finished(const nb_journal *j);

/* Unlock; keep: leave everything for a later process, else remove it. NULL is fine. */
void nb_journal_close(nb_journal *j, bool keep);

#endif

/* engines.h - `nibble inspect --engines`: will vLLM, SGLang, Transformers and others load this checkpoint, with which kernel, and
 * which rule decides. The rules are data (data/engines.json, embedded): engine, version, condition, verdict, message, source. */
#ifndef NB_JOB_ENGINES_H
#define NB_JOB_ENGINES_H

#include <stdbool.h>

#include "base/err.h"
#include "base/json.h"

typedef struct nb_engines_opts {
    const char *engines; /* "vllm,sglang"; NULL or "all": every one                                         */
    const char *devices; /* "sm80,sm90,cpu"; NULL: "sm80,cpu". cpu is this machine; also cpu-avx2, cpu-avx512, cpu-amx, arm */
    int tp;              /* tensor-parallel ranks; 0 counts as 1                                            */
    const char *rules;   /* a file in place of the embedded rules, or NULL                                  */
} nb_engines_opts;

/* Judge the model at `path` from headers and configuration; every quantized linear is asked, the worst answer counts.
 * *out, freed by the caller:
 *   {"model", "layout", "verdicts": [{"engine", "title", "version", "device", "verdict", "rule", "kernel", "message", "fix", "source",
 *     "module", "linears", "of", "skipped": [{"kernel", "rule", "why"}]}]}
 * verdict: RUNS, RUNS-DEGRADED (slow path or changed numbers), UNKNOWN, CRASHES (at the first forward), REFUSES (at loading).
 * module is the first linear that the deciding rule was applied to, and `linears` of `of` got the same answer.
 * NB_EARG for an engine or device that is not known, else what opening and scanning say. */
nb_status nb_engines_judge(const char *path, const nb_engines_opts *o, nb_json **out, nb_err *err);

/* Is every comma-separated word of list the name of an engine, or "all"? For telling a list from a file name. */
bool nb_engines_known(const char *list);

#endif

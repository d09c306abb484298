/* eval_json.h - results of an evaluation as one JSON object: what `nibble eval --json` prints. */
#ifndef NB_JOB_EVAL_JSON_H
#define NB_JOB_EVAL_JSON_H

#include "base/json.h"
#include "job/eval_all.h"

/* NULL: no memory. Names of models are escaped where they are not UTF-8. With one model its numbers are also members of the
 * object itself ("ppl", "kl" ...). */
nb_json *nb_eval_json(const nb_eval_all *a);

#endif

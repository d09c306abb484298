/* explain.h - the long text of a rule ("SHP-003") or of a class of errors ("st.truncated"), and the table of layouts. */
#ifndef NB_JOB_EXPLAIN_H
#define NB_JOB_EXPLAIN_H

#include "base/err.h"
#include "base/json.h"
#include "base/mem.h"

/* What is known about `what`: an id of a rule (any case), a class, or the family of classes before its dot ("st").
 *   {"name", "kind": "rule" | "class" | "family", "title", "severity", "exit", "text", "rules": [{"id", "severity", "text"}]}
 * Members that do not apply are absent. NB_EARG when nothing has this name; the sentence names the nearest. */
nb_status nb_explain(const char *what, nb_json **out, nb_err *err);
/* All rules and families, for a list: {"rules": [{"id", "class", "severity", "text"}], "families": [{"name", "title"}]}. */
nb_status nb_explain_list(nb_json **out, nb_err *err);
/* Every layout as a row: {"name", "method", "version", "bits", "read", "write", "act_order", "zero_points"}. NULL: no memory. */
nb_json *nb_formats_json(void);

#endif

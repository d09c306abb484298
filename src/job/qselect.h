/* qselect.h - which linears are quantized, and how each: overrides and exclusions of the user.
 *
 * Overrides are those of GPTQModel's `dynamic`: an object of patterns that are matched from the start of a module's name; "+:" or
 * nothing in front: bits, group_size, sym, desc_act of what matches; "-:": it stays as it is. The first match counts. Patterns to
 * ignore may match anywhere in the name. Source: spec quantizers 7, formats 6.5. One thread at a time. */
#ifndef NB_JOB_QSELECT_H
#define NB_JOB_QSELECT_H

#include "job/qmods.h"

typedef struct nb_qselect nb_qselect;

/* dynamic: JSON, or a file of it; ignore[n]. All may be absent: *out is NULL then. The strings are not needed afterwards. NB_EFORMAT,
 * NB_EUNSUPPORTED or NB_ELIMIT (CFG-016) for what is not JSON, not a pattern, or not a value. */
nb_status nb_qselect_open(nb_qselect **out, const char *dynamic, const char *const *ignore, size_t n, const nb_qspec *spec, nb_err *err);
void nb_qselect_close(nb_qselect *s); /* NULL is fine */
/* An nb_qmod_rule; s may be NULL. What goes wrong is kept for the next call. */
bool nb_qselect_rule(void *s, const nb_qmod *m, nb_qspec *spec);
/* What went wrong in calls of the rule; NB_EARG "quantize.dynamic" when a pattern to ignore matched no module. */
nb_status nb_qselect_check(const nb_qselect *s, nb_err *err);

#endif

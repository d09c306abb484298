/* inferred.h - checkpoints without a quantization config, such as what llm-awq writes: read by the layout that shapes and user say.
 *
 * Shapes tell layout, bits and group size of most models (formats 3.16). Where they do not, CFG-001 asks the user. */
#ifndef NB_JOB_INFERRED_H
#define NB_JOB_INFERRED_H

#include "quant/quant.h"

/* nb_scan_open for a store whose directory has no quantization config.
 *   hint  what the user says, or NULL; it is believed where it fits the shapes
 *   own   the config made for it, NULL when nothing is packed; freed by the caller after the scan
 *   note  one line of what was taken, "" when nothing is packed
 * Returns NB_OK, NB_EFORMAT CFG-001 when no layout fits or more than one reading is left, NB_ENOMEM. On failure *own is NULL and
 * *scan empty. */
nb_status nb_infer_scan(const nb_store *s, const nb_qhint *hint, nb_json **own, nb_scan *scan, char *note, size_t cap, nb_err *err);

/* A hint from the spellings of options. format as --to takes it, or NULL; bits and group_size 0: not said. NB_EARG. */
nb_status nb_infer_hint(const char *format, int64_t bits, int64_t group_size, nb_qhint *out, nb_err *err);
bool nb_infer_said(const nb_qhint *hint); /* hint is not NULL and says something */
/* Such options beside a config that decides: NB_EARG. */
nb_status nb_infer_conflict(const char *source, nb_err *err);

#endif

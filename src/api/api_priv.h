/* api_priv.h - what the two files of this floor share: errors, callbacks. */
#ifndef NB_API_API_PRIV_H
#define NB_API_API_PRIV_H

#include "base/err.h"
#include "base/fp.h"
#include "base/log.h"
#include "nibble/nibble.h"

/* The caller's record from ours (e may be NULL); returns the status, for `return nb_api_end(...)`. */
int nb_api_end(nb_status rc, const nb_err *err, nibble_error *e);
/* The same behind nb_fp_enter(fp). */
int nb_api_leave(const nb_fp *fp, nb_status rc, const nb_err *err, nibble_error *e);
/* NB_EARG naming the argument that is NULL. */
nb_status nb_api_null(nb_err *err, const char *name);

/* The caller's callbacks as ours. The struct must stay where it is while in use. */
typedef struct nb_api_host {
    nibble_host theirs; /* a copy */
    nb_host ours;
} nb_api_host;
/* h NULL: silence. Returns &to->ours. */
const nb_host *nb_api_bridge(nb_api_host *to, const nibble_host *h);

#endif

/* parts.h - what the layouts share: checks of part tensors, scales, group tables, pieces of the written config. */
#ifndef NB_QUANT_PARTS_H
#define NB_QUANT_PARTS_H

#include "quant/quant.h"

/* Types and ranks of all parts as the format row says (SHP-001, SHP-002, SHP-015), and the rank of bias. */
nb_status nb_check_parts(const nb_linear *lin, nb_err *err);
nb_status nb_check_bias(const nb_linear *lin, uint64_t n, nb_err *err); /* SHP-011 */
/* "16, 32, 64, -1": the usual group sizes that divide k, into out. */
const char *nb_fitting_groups(char *out, size_t cap, uint64_t k);
/* Stripe [n0, n0 + q->n) against the linear: a fault of the caller otherwise. */
nb_status nb_check_stripe(const nb_linear *lin, size_t n0, const nb_qlin *q, nb_err *err);

/* Scales of outputs [n0, n0 + q->n) from t [n_groups, n], or [n, n_groups] (by_output), [n, 1] or [1]. */
void nb_get_scales(const nb_tensor *t, size_t n0, nb_qlin *q);
void nb_get_scales_by_output(const nb_tensor *t, size_t n0, nb_qlin *q);
/* The mirror, n outputs in all; a scale that the type cannot hold exactly is CNV-030. */
nb_status nb_put_scales(const nb_qlin *q, size_t n0, size_t n, unsigned char *out, nb_err *err);
nb_status nb_put_scales_by_output(const nb_qlin *q, size_t n0, size_t n, unsigned char *out, nb_err *err);

/* Group table of lin: SHP-010, VAL-006, VAL-007; sets lin->act_order. k, g must be set. A table of zeros under desc_act false,
 * or of -1 throughout, is none (hardening QT-07). t may be NULL. */
nb_status nb_check_g_idx(nb_linear *lin, const nb_tensor *t, nb_err *err);
/* q->g_idx from the table, or NULL when the linear has none. */
nb_status nb_get_g_idx(const nb_linear *lin, const nb_tensor *t, nb_qlin *q, nb_err *err);
void nb_put_g_idx(const nb_qlin *q, unsigned char *out); /* I32 [k], natural order when q has none */

/* {"quantizer": ["nibble:X"]}. NULL: no memory. */
nb_json *nb_config_meta(void);

#endif

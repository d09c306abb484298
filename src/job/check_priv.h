/* check_priv.h - what the stages of check share. One nb_checker lives for one nb_check call. */
#ifndef NB_JOB_CHECK_PRIV_H
#define NB_JOB_CHECK_PRIV_H

#include "io/io.h"
#include "job/check.h"
#include "model/plan.h"
#include "quant/qrules.h"

typedef struct nb_checker {
    const nb_check_opts *o;
    nb_report *report;
    nb_hfdir *dir;
    nb_store *store;
    const nb_json *config;              /* config.json                              */
    const nb_json *qjson;               /* quantization config as found, or NULL     */
    nb_json *inferred;                  /* made for packed tensors without one; qjson is NULL then */
    const char *qsource;                /* its file                                  */
    nb_qconfig qcfg;                    /* when qjson is usable                      */
    bool has_qcfg, has_plan, use_skips; /* use_skips: the exclusion list is short enough to compare (CF-23) */
    nb_qrules *rules;                   /* of qcfg; NULL: none, or unusable (told by the scan) */
    nb_scan scan;
    nb_config cfg; /* with has_plan */
    nb_plan plan;  /* with has_plan */
} nb_checker;

/* Each stage adds findings and fails only when it cannot go on (memory, reading, cancelled). */
nb_status nb_check_config(nb_checker *c, nb_err *err);  /* check_config.c: FIL-010, CFG rules */
nb_status nb_check_names(nb_checker *c, nb_err *err);   /* check_names.c: NAM, SHP-013, SHP-014, CFG-015 */
nb_status nb_check_numbers(nb_checker *c, nb_err *err); /* check_numbers.c: NAM-010, NAM-011 */
nb_status nb_check_order(nb_checker *c, nb_err *err);   /* check_order.c: ORD */
nb_status nb_check_values(nb_checker *c, nb_err *err);  /* check_values.c: VAL, CFG-012, CFG-013 */

#endif

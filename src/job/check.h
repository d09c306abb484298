/* check.h - `nibble check`: every rule of formats 7 that applies to a safetensors checkpoint, over every byte.
 *
 * Order (hardening U-04): container, configuration, names, shapes, values. Container failures end the call with their
 * own status; everything behind is a finding. Packed tensors without a quantization config are read as their shapes say, with CFG-001
 * as a warning; where these leave more than one reading it is an error and their values are not judged. Findings do not depend on the number of threads. */
#ifndef NB_JOB_CHECK_H
#define NB_JOB_CHECK_H

#include <stdint.h>

#include "base/err.h"
#include "base/json.h"
#include "base/log.h"
#include "base/pool.h"
#include "quant/quant.h"
#include "tensor/report.h"

typedef struct nb_check_opts {
    nb_pool *pool; /* NULL: one thread */
    const nb_host *host;
    nb_qhint hint; /* how packed tensors without a quantization config are read; zeros: as their shapes say */
} nb_check_opts;

typedef struct nb_check_sum {
    char format[32]; /* "awq-gemm"; "" when nothing is quantized */
    unsigned bits;
    int64_t group_size;
    size_t n_linears, n_tensors, n_files;
    uint64_t n_bytes; /* tensor bytes read */
} nb_check_sum;

/* Check a directory, file or index. Findings go to the caller's report.
 * Returns NB_OK when no rule of severity reject failed, NB_NO when one did; NB_EOPEN, NB_EFORMAT, NB_EUNSUPPORTED,
 * NB_ELIMIT, NB_EREAD, NB_ENOMEM, NB_ECANCELED with err filled when it could not be judged. */
nb_status nb_check(const char *path, const nb_check_opts *o, nb_report *report, nb_check_sum *sum, nb_err *err);

/* check_json.c: verdict, sums and the findings of at least this severity as an object. NULL: no memory. */
nb_json *nb_check_json(const char *path, const nb_report *report, const nb_check_sum *sum, nb_severity least);
/* check_sarif.c: the findings of at least this severity as a SARIF 2.1.0 log; version of the program. NULL: no memory. */
nb_json *nb_check_sarif(const char *path, const nb_report *report, nb_severity least, const char *version);
const char *nb_check_severity(nb_severity s); /* "note", "warning", "error" */
/* `file` without the checked directory in front: a pointer into it. */
const char *nb_check_short_file(const char *path, const char *file);

#endif

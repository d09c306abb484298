/* report.h - findings of checks: rule, severity, place, sentence, next command. Not thread safe. */
#ifndef NB_TENSOR_REPORT_H
#define NB_TENSOR_REPORT_H

#include <stddef.h>

#include "base/err.h"
#include "base/json.h"
#include "base/log.h"

typedef enum nb_severity { NB_SEV_INFO, NB_SEV_WARN, NB_SEV_REJECT } nb_severity;

typedef struct nb_finding {
    nb_severity sev;
    char rule[16];    /* "AWQ-004", "SHP-003"; "" for container errors */
    char cls[32];     /* stable class, "awq.order", "st.truncated"     */
    const char *file; /* "" when none; strings live in the report     */
    const char *subject;
    const char *what; /* sentence, escaped                             */
    const char *next; /* suggestion after the arrow, or ""             */
} nb_finding;

typedef struct nb_report nb_report;

nb_report *nb_report_new(void); /* NULL when out of memory */
void nb_report_free(nb_report *r);
/* Add a finding. All text arguments are copied; untrusted parts must be escaped by the caller (nb_esc). Beyond 10,000
 * findings of one rule only counts rise. */
nb_status nb_report_add(nb_report *r, nb_severity sev, const char *cls, const char *rule, const char *file, const char *subject,
                        const char *next, const char *fmt, ...)
#if defined(__GNUC__)
    __attribute__((format(printf, 8, 9)))
#endif
    ;
/* A failed call as a finding of severity reject. */
nb_status nb_report_err(nb_report *r, const nb_err *err);
size_t nb_report_count(const nb_report *r);
const nb_finding *nb_report_at(const nb_report *r, size_t i);
size_t nb_report_count_sev(const nb_report *r, nb_severity sev); /* including those beyond the cap */
nb_status nb_report_merge(nb_report *into, const nb_report *from);
/* Every finding as one line of the host's log: notes as information, the rest as warnings. r may be NULL. */
void nb_report_log(const nb_report *r, const nb_host *host);

#endif

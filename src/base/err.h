/* err.h - status codes and the caller-owned error record.
 *
 * Every call that can fail returns nb_status and takes `nb_err *err` last (NULL is allowed). The frame that sees
 * the fault writes the sentence with nb_fail(); frames above add only the place with nb_err_at(). The first
 * failure wins. A status value IS the exit code of the program (hardening 3.1). Nothing here allocates. */
#ifndef NB_BASE_ERR_H
#define NB_BASE_ERR_H

#include <stdarg.h>
#include <stddef.h>

typedef enum nb_status {
    NB_OK = 0,
    NB_NO = 1,           /* ran properly, the answer is negative (check, diff)    */
    NB_EARG = 2,         /* bad option, value or argument                         */
    NB_EOPEN = 3,        /* input missing, not permitted, not a regular file      */
    NB_EFORMAT = 4,      /* the bytes break a rule                                */
    NB_EUNSUPPORTED = 5, /* legal, but not ours (yet); never guess a way past it  */
    NB_ELIMIT = 6,       /* over a limit of hardening 4                           */
    NB_EREAD = 7,        /* I/O error, or the input changed while in use          */
    NB_EWRITE = 8,       /* no space, read-only, rename failed                    */
    NB_ENOMEM = 9,       /* allocation failed or a budget would be exceeded       */
    NB_ENUMERIC = 10,    /* NaN, Inf or an unusable scale                         */
    NB_EMISMATCH = 11,   /* resume data belongs to another job                    */
    NB_EEXISTS = 12,     /* output present without --force, or output is an input */
    NB_EBUSY = 13,       /* lock held, port in use                                */
    NB_EVERIFY = 14,     /* written, but the read-back differs                    */
    NB_EINTERNAL = 70,   /* a broken invariant of ours                            */
    NB_ECANCELED = 130   /* the caller's cancel callback said stop                */
} nb_status;

typedef struct nb_err {
    nb_status code;
    char cls[32];      /* stable class: "st.truncated" (hardening 3.2); never empty after nb_fail */
    char rule[16];     /* "AWQ-004", or "" when no written rule applies                            */
    char file[256];    /* path as typed, or base name; "" when unknown                             */
    char subject[192]; /* tensor, key or offset; "" when none                                      */
    char what[768];    /* one sentence: found, expected, what to do; already escaped (U-06)        */
} nb_err;

/* Record a failure and return `code`, so that callers write `return nb_fail(...)`.
 *   err   filled unless NULL or already filled (first failure wins)
 *   cls   stable class, such as "st.truncated"
 *   rule  rule ID or ""
 *   fmt   printf format of the sentence; untrusted strings go through nb_esc() first
 * Thread safety: none on one nb_err; distinct records are independent. */
nb_status nb_fail(nb_err *err, nb_status code, const char *cls, const char *rule, const char *fmt, ...)
#if defined(__GNUC__)
    __attribute__((format(printf, 5, 6)))
#endif
    ;
nb_status nb_vfail(nb_err *err, nb_status code, const char *cls, const char *rule, const char *fmt, va_list ap)
#if defined(__GNUC__)
    __attribute__((format(printf, 5, 0)))
#endif
    ;

/* Add the place. Does nothing while err is clear or where the field is already set. NULL arguments add nothing.
 * Both strings are escaped and cut. */
void nb_err_at(nb_err *err, const char *file, const char *subject);

/* Forget an error, so that the record can be used again. */
void nb_err_clear(nb_err *err);

/* Write the one-line form "class [RULE]: file: subject: what" without prefix and newline into out[cap]; empty parts are
 * left out. The program prints it after "nibble: error: ". NB_ERR_CAP holds any result. */
#define NB_ERR_CAP 1280
void nb_err_format(const nb_err *err, char *out, size_t cap);

/* Escape untrusted bytes for messages (hardening U-06): control bytes, DEL, invalid UTF-8 and bidi controls become
 * \xNN or \u{...}; longer than 120 bytes is cut and followed by "...(N bytes)".
 *   out, cap  destination, always terminated; cap of NB_ESC_CAP holds any result
 * Returns out. */
#define NB_ESC_CAP 640
const char *nb_esc(char *out, size_t cap, const char *s, size_t n);

#endif

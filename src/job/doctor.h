/* doctor.h - what this machine can do for the program, and whether it computes what it should.
 *
 * The self-test runs every kernel of every table that the processor supports on made-up data and compares the bits with those of
 * the scalar table: the promise of kernels 4, on the user's own machine. */
#ifndef NB_JOB_DOCTOR_H
#define NB_JOB_DOCTOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/log.h"
#include "base/pool.h"
#include "kern/kern.h"

enum { NB_DOCTOR_OPS = 24, NB_DOCTOR_TABLES = 12 };

typedef struct nb_doctor_op {
    const char *name; /* "4-bit product" */
    const char *tier; /* table whose function the chosen table runs: the first, from scalar up, that has the same */
    bool agrees;      /* bits of the chosen table equal scalar's */
} nb_doctor_op;

typedef struct nb_doctor_table {
    const char *name;
    bool runs, agrees; /* all operations; true where it cannot run */
    char lacks[128];   /* features of the processor that it needs and that are missing, "" */
} nb_doctor_table;

typedef struct nb_doctor {
    const char *cpu;
    int family, cores, threads;
    char features[256];
    const char *chosen;
    nb_doctor_table table[NB_DOCTOR_TABLES]; /* best first */
    size_t n_tables;
    nb_doctor_op op[NB_DOCTOR_OPS];
    size_t n_ops;
    size_t mem_total, mem_free;
    char huge_mode[32];          /* "always", "madvise", "never", "" when unknown */
    size_t huge_asked, huge_got; /* bytes of a test block, and of it in huge pages; SIZE_MAX: unknown */
    double read_1, read_all;     /* bytes/s with one thread, with all   */
    double fork_us;              /* of handing out work to all threads and back */
    int small_threads;           /* the fastest number of them for a made-up step of a small model (nb_pool_tune) */
    double small_all_s, small_s; /* of that step, with all threads and with so many */
    bool bits_ok;
    char advice[6][200];
    size_t n_advice;
} nb_doctor;

/* kern: the table that would be used. NB_ENOMEM, NB_ECANCELED; that bits differ is an answer (bits_ok). */
nb_status nb_doctor_run(const nb_kern *kern, nb_pool *pool, const nb_host *host, nb_doctor *out, nb_err *err);

/* Bytes per second of plain reads of so many bytes (0: 256 MB) by every thread of the pool (NULL: one): the median of `rounds`. */
nb_status nb_read_bandwidth(const nb_kern *kern, nb_pool *pool, size_t bytes, int rounds, double *out, nb_err *err);

/* doctor_ops.c: the operations. Bytes that one writes by table t, at most cap; deterministic. SIZE_MAX: no memory. */
size_t nb_doctor_ops(void);
const char *nb_doctor_op_name(size_t i);
size_t nb_doctor_op_run(size_t i, const nb_kern *t, unsigned char *out, size_t cap);
/* Do two tables have the same function for it? */
bool nb_doctor_op_same(size_t i, const nb_kern *a, const nb_kern *b);

#endif

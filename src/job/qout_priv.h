/* qout_priv.h - the output of quantize: qout.c writes it, qout_check.c reads it back. */
#ifndef NB_JOB_QOUT_PRIV_H
#define NB_JOB_QOUT_PRIV_H

#include "base/map.h"
#include "base/strmap.h"
#include "job/qout.h"
#include "tensor/sink.h"

struct nb_qout {
    nb_outdir *dir;
    nb_sink *sink;
    nb_loaded *src;
    const nb_plan *plan;
    const nb_qmods *mods;
    const nb_qwrites *writes;
    const nb_format *fmt;
    nb_qspec spec;
    nb_pool *pool;
    const nb_host *host;
    void *part[NB_MAX_PARTS]; /* of the linear at work; the buffers serve the next one too */
    uint64_t part_bytes[NB_MAX_PARTS], part_cap[NB_MAX_PARTS];
    nb_strmap *replaced; /* name of a stored tensor that is not copied -> what stands there: see below */
    size_t *next;        /* [mods->n] the next linear of the same tensor, SIZE_MAX: none */
    nb_json *notes;      /* further values of the config */
    nb_json *taken;      /* names of tensors, see nb_qout_taken */
    bool failed;         /* no memory for one */
    nb_json *files;      /* name -> the same of a small file */
    nb_strmap *prints;   /* name -> nb_print_bytes of what was written */
    nb_dtype norm_dtype;
    uint64_t bytes;
};

/* Tensors that stay are compared so many bytes at a time. */
enum { NB_QOUT_PIECE = 4 << 20 };

/* All files are complete under their names in the staging directory: is what they hold what was written (hardening DU-16)? Reads them
 * with the reader of every other verb. NB_EVERIFY "out.verify". */
nb_status nb_qout_read_back(nb_qout *o, nb_err *err);

#endif

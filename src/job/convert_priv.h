/* convert_priv.h - what the two halves of convert share: opening the input, copying the small files, fingerprints. */
#ifndef NB_JOB_CONVERT_PRIV_H
#define NB_JOB_CONVERT_PRIV_H

#include "io/io.h"
#include "job/convert.h"
#include "quant/quant.h"

typedef struct nb_conv_in {
    nb_store *store;
    nb_hfdir *dir;
    nb_scan scan;
    const nb_json *qcfg; /* as found, inferred, or NULL */
    nb_json *inferred;
} nb_conv_in;

/* Open a checkpoint and scan it; warnings go to the host. A zeroed *in is the caller's; nb_conv_close in any case. */
nb_status nb_conv_open(const char *path, const nb_host *host, nb_conv_in *in, nb_err *err);
void nb_conv_close(nb_conv_in *in);
/* Every small file but the configurations, byte for byte. */
nb_status nb_conv_small_files(const nb_conv_in *in, const nb_host *host, nb_outdir *out, nb_err *err);
/* config.json: the object, two spaces deep. */
nb_status nb_conv_put_json(nb_outdir *out, const char *name, const nb_json *v, nb_err *err);
/* State the dtype where the object has one; `top`: in any case. false: no memory. */
bool nb_conv_set_dtype(nb_json *o, const char *value, bool top);
/* Remove what describes a quantization, also inside text_config and its like. false: no memory. */
bool nb_conv_drop_quant(nb_json *config);

/* relayout.c: nb_convert with o->format or o->repair set. */
nb_status nb_conv_relayout(const char *in, const char *out, const nb_convert_opts *o, nb_convert_sum *sum, nb_err *err);

/* convert_gguf.c: nb_convert with o->gguf; `out` is a file. */
nb_status nb_conv_gguf(const char *in, const char *out, const nb_convert_opts *o, nb_convert_sum *sum, nb_err *err);

/* fingerprint.c: 64-bit sums that do not depend on how the rows or bytes were cut, for comparing what was written with what was
 * meant. They find accidents, not forgeries. */
uint64_t nb_print_rows(const nb_qlin *q, size_t n0);           /* codes if any, zeros, scales; adds up over stripes; g_idx with output 0 */
uint64_t nb_print_bytes(const void *p, size_t n, uint64_t at); /* adds up over pieces; `at`: index of the piece */

#endif

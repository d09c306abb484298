/* convention.h - what stored values themselves say about how they were stored (formats 8). */
#ifndef NB_QUANT_CONVENTION_H
#define NB_QUANT_CONVENTION_H

#include "base/pool.h"
#include "quant/quant.h"

/* What zero points of GPTQ linears say. */
typedef struct nb_zero_verdict {
    int reading;  /* NB_ZEROS_TRUE, NB_ZEROS_FIELD, NB_ZEROS_LEGACY3; -1: they do not tell */
    char why[96]; /* "stored 7 everywhere", "mean offset +0.98"                            */
} nb_zero_verdict;

/* Look at a few of the linears of the rows gptq and gptq_v2. Constant words decide symmetric models, the mean offset the others.
 * Reads a few stripes of s and drops their pages. NB_ENOMEM, or what unpack() says. */
nb_status nb_zero_convention(const nb_store *s, const nb_linear *linears, size_t n, nb_zero_verdict *out, nb_err *err);

/* Stored fields of a v1 linear that are all ones: zero points of 0 from which 1 was subtracted; and of these the ones whose higher
 * fields in the word are all ones too, which is how AutoGPTQ overwrote them (formats 3.10, 8.5). 0 for other linears. */
void nb_zero_wraps(const nb_linear *lin, uint64_t *n_wrapped, uint64_t *n_over);

/* How well codes, zero points and scales of linears fit each other, as declared and in other ways (formats 8.1 to 8.3). Zeroed at
 * first; sums over linears. */
typedef struct nb_order_test {
    size_t n_linears;                /* of more than one group                                                                   */
    double spread[2];                /* variance of centred ln(scale) + ln(deviation): as declared, columns in the other order    */
    double zero_spread[2];           /* variance of code mean - zero point: as declared, zero points in the other order           */
    size_t n_square;                 /* linears with as many groups as outputs                                                    */
    double square[2];                /* spread of these: as declared, scales transposed                                           */
    double offset;                   /* sum of code mean - zero point over n_pairs (group, output) pairs                          */
    size_t n_pairs, n_over, n_under; /* pairs; those above +0.5, below -0.5                                              */
    double reach;                    /* sum of |code - middle| / 2^bits over n_codes codes                                        */
    size_t n_codes;
    double inner; /* the same over the n_inner codes that are neither 0 nor the largest: ends of groups */
    size_t n_inner;
} nb_order_test;

/* The other order of columns inside a word that files of this layout were seen in: the permutation of `*period` columns, or NULL. */
const uint8_t *nb_order_other(const nb_linear *lin, size_t *period);
/* Add one linear: at most 256 of its outputs. */
nb_status nb_order_add(const nb_linear *lin, nb_order_test *t, nb_err *err);
/* Add a sample of the linears of s, all of the layout and width of the first: *first, or NULL when none can be tested. */
nb_status nb_order_sample(const nb_store *s, const nb_linear *linears, size_t n, nb_pool *pool, const nb_linear **first, nb_order_test *t,
                          nb_err *err);

/* What the sums prove (formats 8): nothing is decided below the bounds given there. */
typedef struct nb_order_verdict {
    bool columns; /* codes were packed in the other order (ORD-001, ORD-008)              */
    bool zeros;   /* zero points alone were (ORD-004)                                     */
    int offset;   /* true zero point minus the stored one, 1 or -1 (ORD-002, AWQ); else 0 */
    double mean;  /* of code mean - zero point                                            */
    bool wrapped; /* codes without the offset of half the range (ORD-009)                 */
} nb_order_verdict;
nb_order_verdict nb_order_judge(const nb_linear *first, const nb_order_test *t);

#endif

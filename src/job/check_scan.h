/* check_scan.h - a piece of the values of a checkpoint, and what is counted in it (check_values.c cuts and judges). */
#ifndef NB_JOB_CHECK_SCAN_H
#define NB_JOB_CHECK_SCAN_H

#include "quant/quant.h"

/* HUB: outputs of a linear, all its parts at once, through the layout's own unpack. GRID: the same without the codes, which are
 * CODES then. The others are tensors as they lie; four-bit AWQ GEMM is checked by those alone. BLOCKS: the values of GGUF blocks, as
 * reading gives them. */
typedef enum nb_piece_kind {
    NB_PIECE_PLAIN,
    NB_PIECE_SCALES,
    NB_PIECE_CODES,
    NB_PIECE_ZEROS,
    NB_PIECE_HUB,
    NB_PIECE_GRID,
    NB_PIECE_BLOCKS
} nb_piece_kind;

typedef struct nb_piece {
    nb_piece_kind kind;
    const nb_tensor *t;
    const nb_linear *lin; /* NULL for plain */
    nb_store *s;
    uint64_t begin, end; /* elements; HUB, GRID: outputs */
    /* results */
    uint64_t n_bad, first_bad;            /* NaN, Inf                                   */
    uint64_t n_zero, n_neg, n_sub, n_big; /* scales                                     */
    bool row_zero;                        /* an output without any non-zero scale        */
    bool no_memory;
    uint32_t word;   /* first word                                  */
    bool same;       /* all words equal `word`                      */
    unsigned seen;   /* bit v: code v occurs                        */
    uint64_t n_off;  /* zero points other than the middle           */
    unsigned lo, hi; /* HUB: least and greatest code                */
    nb_err err;      /* HUB, GRID, BLOCKS: reading failed           */
} nb_piece;

/* Fill the results. Reads every byte of the piece. */
void nb_piece_scan(nb_piece *p);

#endif

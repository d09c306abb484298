/* gguf_blocks.h - block types of GGUF tensors: sizes, names, and their values as f32.
 *
 * Values follow the published formulas with every step rounded to f32, in the order of the reference package `gguf`
 * 0.19 (quants.py), so that the bits agree with it. Any byte pattern is fine: indices are masked (GG-25). */
#ifndef NB_IO_GGUF_BLOCKS_H
#define NB_IO_GGUF_BLOCKS_H

#include "tensor/dtype.h"

enum { NB_GGUF_MAX_BLOCK = 256 };

typedef struct nb_gguf_type {
    const char *name;                                    /* "Q4_1"; NULL for numbers that are unknown or withdrawn        */
    unsigned block;                                      /* values per block                                              */
    unsigned bytes;                                      /* stored bytes per block                                        */
    nb_dtype plain;                                      /* element type when the bytes are plain values, else NONE       */
    void (*unpack)(float *out, const unsigned char *in); /* one block; NULL: listed only */
} nb_gguf_type;

/* Row of a type number; one with name NULL when there is none. */
const nb_gguf_type *nb_gguf_type_at(unsigned number);

#endif

/* words.h - four-bit codes moved as words, eight at a time, where layouts differ only in where the words lie.
 *
 * A tile holds the codes of 8 * rows inputs and cols outputs as little-endian words [rows][cols]: nibble i of word (r, c) is the
 * code of input 8 (r0 + r) + i of output n0 + c. This is how gptq stores them; the other layouts of nb_words_kind transpose words
 * or nibbles. Where the tile spans all outputs (or, by output, all inputs) its stored bytes are contiguous. */
#ifndef NB_QUANT_WORDS_H
#define NB_QUANT_WORDS_H

#include "quant/quant.h"

enum { NB_WORDS_SEGMENT = 128 }; /* outputs that are summed as one: tiles begin at multiples of it */

/* May the codes of this linear be moved as words? Four bits in whole words both ways, a layout that has a kind, and
 * a little-endian machine. */
bool nb_words_fit(const nb_linear *lin);

/* The tile of rows [r0, r0 + rows) and outputs [n0, n0 + cols) of lin, n0 and cols in multiples of 8. Returns where it is: `tile`,
 * 4 * rows * cols bytes, or where the tensor holds just these bytes. */
const unsigned char *nb_words_get(const nb_linear *lin, size_t r0, size_t rows, size_t n0, size_t cols, unsigned char *tile);
/* The same bytes as a tensor of this kind of layout holds them, that tensor being no larger than the tile. Returns where they are:
 * tile itself, or scratch, which is as large. cols in multiples of 8. */
const unsigned char *nb_words_put(nb_words_kind kind, const unsigned char *tile, size_t rows, size_t cols, unsigned char *scratch);

#endif

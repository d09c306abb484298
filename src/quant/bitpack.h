/* bitpack.h - codes of 2 to 8 bits in little-endian 32-bit words.
 *
 * Eight codes of b bits fill b bytes and 32 codes fill b words, in all but the aligned packing; the functions go by these units.
 * Source: formats 2.1 (P-STREAM), 2.4 (P-PLANAR), 3.13 (aligned words of older compressed-tensors). */
#ifndef NB_QUANT_BITPACK_H
#define NB_QUANT_BITPACK_H

#include <stddef.h>
#include <stdint.h>

typedef enum nb_packing {
    NB_PACK_STREAM, /* code i in bits [i*b, i*b + b) of the word sequence; may straddle two words   */
    NB_PACK_PLANAR, /* blocks of 32 codes split in bit planes; the same as the stream for 2, 4, 8   */
    NB_PACK_ALIGNED /* 32 div b codes per word, upper bits unused; the same as the stream for 2, 4, 8 */
} nb_packing;

/* Words that hold m codes. bits in 2..8; m below 2^58. */
uint64_t nb_packed_words(nb_packing p, unsigned bits, uint64_t m);

/* Exactly 32 codes from or to exactly `bits` words at src or dst (4 * bits bytes). Not for NB_PACK_ALIGNED.
 * Only the low `bits` bits of each input are used. */
void nb_unpack32(nb_packing p, unsigned bits, const unsigned char *src, uint8_t out[32]);
void nb_pack32(nb_packing p, unsigned bits, const uint8_t in[32], unsigned char *dst);

/* Codes [first, first + n) of the sequence of words at src; reads no byte of words behind the last of these codes.
 * For NB_PACK_PLANAR whole blocks of 32 are read. */
void nb_unpack_codes(nb_packing p, unsigned bits, const unsigned char *src, size_t first, size_t n, uint8_t *out);
/* n codes into nb_packed_words() words at dst; unused bits are 0. NB_PACK_PLANAR needs n in multiples of 32. */
void nb_pack_codes(nb_packing p, unsigned bits, const uint8_t *in, size_t n, unsigned char *dst);

#endif

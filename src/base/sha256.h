/* sha256.h - SHA-256 (FIPS 180-4) and HMAC (RFC 2104): names of cached blocks, and namespaces of tenants. Not for secrets that need
 * constant time comparison beyond nb_same_bytes(). No state beyond the caller's struct; thread safe. */
#ifndef NB_BASE_SHA256_H
#define NB_BASE_SHA256_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Take n blocks of 64 bytes into the state. */
typedef void nb_sha256_fn(uint32_t h[8], const uint8_t *p, size_t n);
nb_sha256_fn nb_sha256_blocks;         /* in plain C, which defines the result; faster: nb_kern_sha256 in kern/kern.h */
extern const uint32_t nb_sha256_k[64]; /* constants of the rounds */

typedef struct nb_sha256 {
    uint32_t h[8];
    uint64_t n; /* bytes so far */
    uint8_t part[64];
    nb_sha256_fn *blocks;
} nb_sha256;

void nb_sha256_init(nb_sha256 *s);
void nb_sha256_init_by(nb_sha256 *s, nb_sha256_fn *blocks); /* for much data: not by plain C */
void nb_sha256_add(nb_sha256 *s, const void *p, size_t n);
void nb_sha256_add_le32(nb_sha256 *s, uint32_t v);
void nb_sha256_end(nb_sha256 *s, uint8_t out[32]);

/* HMAC-SHA256 over several pieces: begin with the key, add to *s, end with the key again. */
void nb_hmac_init(nb_sha256 *s, const uint8_t *key, size_t n_key); /* n_key <= 64 */
void nb_hmac_end(nb_sha256 *s, const uint8_t *key, size_t n_key, uint8_t out[32]);

/* Equal, in a time that depends on n only. */
bool nb_same_bytes(const void *a, const void *b, size_t n);
/* Overwrite with zeros, in spite of the compiler (PC-11). */
void nb_wipe(void *p, size_t n);
/* n bytes from the system's random source; false when it has none. */
bool nb_random_bytes(void *out, size_t n);

#endif

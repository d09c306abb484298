/* chunks.h - the framing of a chunked body, checked strictly before the HTTP library reads it.
 *
 * Pure: bytes in, verdict out, in pieces of any size. Taken is what RFC 9112 7.1 writes and nothing else: sizes of 1 to 16 hexadecimal
 * digits, CR LF at every end of a line, extensions and trailers within the limits of a head. Source: hardening HT-08, 09, 11. */
#ifndef NB_SERVE_CHUNKS_H
#define NB_SERVE_CHUNKS_H

#include "serve/head.h"

typedef struct nb_chunks {
    int state, digits;
    uint64_t left;       /* bytes of the chunk that is open */
    uint64_t total;      /* of the body so far */
    size_t line, fields; /* bytes of the line that is open; trailer fields */
    size_t trailer;      /* bytes of all trailer fields */
    bool named;          /* the trailer field has its colon */
} nb_chunks;             /* zeroed: the beginning */

/* Look at the next n bytes. *used, of a DONE: bytes up to and with the body's last one. BAD: *fault is the answer. */
nb_head_verdict nb_chunks_check(nb_chunks *c, const char *p, size_t n, const nb_head_limits *lim, size_t *used, nb_head_fault *fault);

#endif

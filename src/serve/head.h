/* head.h - the head of an HTTP/1.1 request, checked strictly before anything acts on it.
 *
 * Pure: bytes in, verdict out. gate.c runs it over the first request of a connection before the HTTP library sees a byte,
 * http.c over every request after it. Source: RFC 9112; hardening 4 and 6.1 (HT-01, 02, 06, 07, 10, 12, 13, 14). */
#ifndef NB_SERVE_HEAD_H
#define NB_SERVE_HEAD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct nb_head_limits {
    size_t line;     /* bytes of the request line                */
    size_t header;   /* bytes of one header line                 */
    size_t total;    /* bytes of all header lines                */
    size_t count;    /* header lines                             */
    size_t max_body; /* declared length of the body              */
} nb_head_limits;
#define NB_HEAD_LIMITS                                                                                                                     \
    {                                                                                                                                      \
        8192, 8192, 65536, 100, (size_t)16 << 20                                                                                           \
    }

typedef struct nb_head_fault {
    int status;       /* HTTP status of the answer; the connection closes after it */
    const char *code; /* error.code                                                */
    const char *what; /* one sentence                                              */
} nb_head_fault;

/* Has this head, checked and `end` bytes long, a body in chunks? */
bool nb_head_is_chunked(const char *p, size_t end);

typedef enum nb_head_verdict { NB_HEAD_MORE, NB_HEAD_DONE, NB_HEAD_BAD } nb_head_verdict;

/* Look at the first n bytes of a request.
 *   end    DONE: bytes of the head, its empty line included
 *   fault  BAD: the answer
 * MORE: nothing is wrong so far and the head is not complete. */
nb_head_verdict nb_head_check(const char *p, size_t n, const nb_head_limits *lim, size_t *end, nb_head_fault *fault);

#endif

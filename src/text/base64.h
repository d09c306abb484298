/* base64.h - reading base64 (RFC 4648, section 4), as vocabularies use it. */
#ifndef NB_TEXT_BASE64_H
#define NB_TEXT_BASE64_H

#include <stdbool.h>
#include <stddef.h>

#include "base/mem.h"

/* Append the bytes of s[n]. false: not base64 (alphabet, length or padding), or out->failed. */
bool nb_base64(nb_buf *out, const char *s, size_t n);

#endif

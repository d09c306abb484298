/* sha.h - SHA-256 by the instructions that x86 has for it. Contract: nb_sha256_fn in base/sha256.h. */
#ifndef NB_KERN_SHA_SHA_H
#define NB_KERN_SHA_SHA_H

#include "base/sha256.h"

nb_sha256_fn nb_sha256_blocks_sha;

#endif

/* wide.h - loops for whatever vectors the machine has, without writing them twice. */
#ifndef NB_BASE_WIDE_H
#define NB_BASE_WIDE_H

/* A loop compiled for wider vectors too, chosen when the program is loaded. Same bits: no sum is reordered, nothing is contracted.
 * Not where the loader or a sanitizer cannot choose that early. */
#if defined(__has_feature)
#if __has_feature(thread_sanitizer) || __has_feature(address_sanitizer) || __has_feature(memory_sanitizer)
#define NB_WIDE
#endif
#endif
#if !defined(NB_WIDE) && defined(__x86_64__) && defined(__GLIBC__) && !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
#define NB_WIDE __attribute__((target_clones("avx512f", "avx2", "default")))
#endif
#ifndef NB_WIDE
#define NB_WIDE
#endif

#endif

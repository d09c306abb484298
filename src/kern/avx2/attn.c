/* attn.c - attention over paged KV for AVX2 and FMA. */
#include "kern/avx2/avx2.h"
#include "kern/avx2/vec.h"

#define nb_kv_put     nb_kv_put_avx2
#define nb_attn_task  nb_attn_avx2
#define nb_attn_part  nb_attn_part_avx2
#define nb_attn_merge nb_attn_merge_avx2

#include "kern/attn_body.inc"

/* attn.c - attention over paged KV for AVX-512. */
#include "kern/avx512vnni/avx512vnni.h"
#include "kern/avx512vnni/vec.h"

#define nb_kv_put     nb_kv_put_avx512vnni
#define nb_attn_task  nb_attn_avx512vnni
#define nb_attn_part  nb_attn_part_avx512vnni
#define nb_attn_merge nb_attn_merge_avx512vnni

#include "kern/attn_body.inc"

/* attn.c - attention over paged KV for NEON. */
#include "kern/neon/neon.h"
#include "kern/neon/vec.h"

#define nb_kv_put     nb_kv_put_neon
#define nb_attn_task  nb_attn_neon
#define nb_attn_part  nb_attn_part_neon
#define nb_attn_merge nb_attn_merge_neon

#include "kern/attn_body.inc"

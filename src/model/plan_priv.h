/* plan_priv.h - inside of the plan: what its files share. Not for other files. */
#ifndef NB_MODEL_PLAN_PRIV_H
#define NB_MODEL_PLAN_PRIV_H

#include "model/plan.h"

/* plan_names.c: prefix and head of a store; whether a linear is stored, packed or not. */
nb_status nb_plan_find_names(nb_plan *p, const nb_store *s, nb_err *err);
bool nb_plan_stored(const nb_store *s, const char *name);
/* plan_size.c */
void nb_plan_size_slots(nb_plan *p);
/* plan.c: append ops. MLPs and attention end in PROJ. */
void nb_plan_emit(nb_plan *p, nb_op op);
void nb_plan_emit_step(nb_plan *p, nb_op_kind kind, nb_slot in, nb_slot out);
void nb_plan_emit_norm(nb_plan *p, nb_slot in, nb_slot out, nb_vec vec);
void nb_plan_emit_linear(nb_plan *p, nb_slot in, nb_slot out, nb_role a, nb_role b, nb_role c);
void nb_plan_emit_scale(nb_plan *p, nb_slot slot, double gain);
void nb_plan_emit_add(nb_plan *p, double keep, double gain); /* PROJ to X */
void nb_plan_emit_attention(nb_plan *p, nb_slot in, bool fused);
void nb_plan_emit_dense(nb_plan *p, nb_slot in, bool fused);
void nb_plan_emit_mlp(nb_plan *p, nb_slot in, bool fused);
/* plan_mix.c: append the ops of mixers that the model has; their slots; sizes of their linears and vectors. */
bool nb_plan_has_mixer(const nb_config *c, nb_mixer m);
void nb_plan_emit_mixers(nb_plan *p, nb_slot in);
void nb_plan_size_mixers(nb_plan *p);
bool nb_plan_mix_linear(const nb_plan *p, nb_role role, size_t *n, size_t *k);
size_t nb_plan_mix_vec(const nb_plan *p, nb_vec vec);
/* plan_gemma.c: the same for layers with inputs of their own and several residual streams. */
void nb_plan_emit_gemma4(nb_plan *p);
void nb_plan_emit_gemma3n(nb_plan *p);
void nb_plan_size_gemma(nb_plan *p);
bool nb_plan_gemma_linear(const nb_plan *p, nb_role role, size_t *n, size_t *k);
size_t nb_plan_gemma_vec(const nb_plan *p, nb_vec vec);
/* plan_shared.c: the same for blocks that layers share. */
void nb_plan_emit_zamba(nb_plan *p);
void nb_plan_emit_adapters(nb_plan *p, nb_slot in); /* of q, k, v */
void nb_plan_size_shared(nb_plan *p);
bool nb_plan_shared_linear(const nb_plan *p, nb_role role, size_t *n, size_t *k);
/* plan_v4.c: the same for DeepSeek-V4. */
void nb_plan_emit_v4(nb_plan *p);
void nb_plan_size_v4(nb_plan *p);
bool nb_plan_v4_linear(const nb_plan *p, nb_role role, size_t *n, size_t *k);
size_t nb_plan_v4_vec(const nb_plan *p, nb_vec vec);
size_t nb_plan_v4_state(const nb_plan *p, size_t layer);

#endif

/* mod.h - the linears of a layer, those of experts included, one by one: their names, sizes and stored values. For those who
 * rewrite checkpoints.
 *
 * A number names a linear inside its layer: a role of the plan, or a role of the MLP of an expert; the shared expert follows the
 * others. Source: spec models 4.2, 4.3. Any thread. */
#ifndef NB_MODEL_MOD_H
#define NB_MODEL_MOD_H

#include <stdint.h>

#include "model/plan.h"

typedef uint32_t nb_mod;
enum {
    NB_MOD_KVB = 0x7fffff00, /* kv_b of latent attention; its op is the ABSORB op */
    NB_MOD_ROUTER,           /* these two are never quantized; the MOE op */
    NB_MOD_SHARED_GATE,      /* where the shared expert has one */
    NB_MOD_HEAD,             /* the head of the model or the embedding as such, of no layer; sizes and op: see its tensor */
    NB_NO_EXPERT = 0x7fffffff
};

static inline nb_mod nb_mod_in_expert(size_t e, nb_role role)
{
    return (nb_mod)(NB_ROLE_COUNT + e * 4 + (size_t)(role - NB_ROLE_GATE));
}

static inline nb_role nb_mod_role(nb_mod mod)
{
    if (mod >= NB_MOD_KVB)
        return NB_ROLE_NONE;
    return mod < NB_ROLE_COUNT ? (nb_role)mod : (nb_role)(NB_ROLE_GATE + (mod - NB_ROLE_COUNT) % 4);
}

/* Number of the expert, n_experts for the shared one; NB_NO_EXPERT: a linear outside experts. */
static inline uint32_t nb_mod_expert(nb_mod mod)
{
    return mod < NB_ROLE_COUNT || mod >= NB_MOD_KVB ? (uint32_t)NB_NO_EXPERT : (mod - NB_ROLE_COUNT) / 4;
}

/* Small, and read by what decides: rates, decays, gates, low-rank paths, weights of indexers; blocks that layers share. They stay
 * floats, as in other programs (spec models-2026 S7). */
static inline bool nb_mod_stays(const nb_plan *p, nb_mod mod)
{
    const nb_role r = nb_mod_role(mod);

    if (p->cfg->uses && (r < NB_ROLE_MIX_IN || r > NB_ROLE_BLEND))
        return true;
    return r == NB_ROLE_OGATE || (r >= NB_ROLE_MIX_ZA && r <= NB_ROLE_MIX_DT) || r == NB_ROLE_SIDE_IN || r == NB_ROLE_SIDE_OUT ||
           r == NB_ROLE_INDEX_W || (r >= NB_ROLE_COMP_KV && r <= NB_ROLE_ICOMP_GATE) || (r == NB_ROLE_INDEX_Q && p->cfg->v4.on);
}

/* Outputs and inputs. */
void nb_mod_size(const nb_plan *p, size_t layer, nb_mod mod, size_t *n, size_t *k);
/* The op that runs it: a LINEAR op, or the MOE op of all experts. n_ops when none of the layer does. */
size_t nb_mod_op(const nb_plan *p, size_t layer, nb_mod mod);

/* Linears that layer `layer` runs, in the order of ops, expert by expert, the shared one last, without routers and gates of shared
 * experts, and without experts that lie behind a projection: the first `cap` into out (NULL with cap 0). Returns how many there are. s decides whether gate and up are stored as one. */
size_t nb_layer_mods(const nb_plan *p, const nb_store *s, size_t layer, nb_mod *out, size_t cap);

/* Where one is stored, unquantized. Views into the store. */
typedef struct nb_stored {
    char name[256];        /* as its own linear: "model.layers.0.mlp.experts.3.up_proj", also where it is part of a larger tensor */
    const nb_tensor *w;    /* holds it; MXFP4: the blocks */
    const nb_tensor *more; /* scales of MXFP4 blocks, or NULL */
    const nb_tensor *bias; /* or NULL */
    bool part, bias_part;  /* others lie in the same tensor */
    bool serves;           /* the embedding, which serves as head: stays where it is */
    size_t n, k;
    uint64_t at, rs, cs; /* element (row, column) of w is at + row * rs + column * cs; rs 0: all of w, row by row; MXFP4: of blocks */
} nb_stored;
/* NB_EFORMAT "cfg.missing_tensor", "cfg.shape_mismatch". */
nb_status nb_stored_find(const nb_plan *p, const nb_store *s, size_t layer, nb_mod mod, nb_stored *out, nb_err *err);
/* All of it as f32 into w[n][k], or its bias into b[n]. */
nb_status nb_stored_read(const nb_plan *p, nb_store *s, size_t layer, nb_mod mod, float *w, nb_err *err);
/* Rows [n0, n0 + rows) of it, rows <= 64, in scratch[rows][k] or where they lie. From several threads at once. NULL: *err says why. */
const float *nb_stored_rows(nb_store *s, const nb_stored *at, size_t n0, size_t rows, float *scratch, nb_err *err);
nb_status nb_stored_bias(const nb_plan *p, nb_store *s, size_t layer, nb_mod mod, float *b, nb_err *err);

#endif

/* scalar.h - the scalar kernels, which define every bit. Contracts: the fields of nb_kern in kern/kern.h. */
#ifndef NB_KERN_SCALAR_SCALAR_H
#define NB_KERN_SCALAR_SCALAR_H

#include "kern/kern.h"

extern const nb_kern nb_kern_scalar;

/* 4-bit and 8-bit matrices: pack_q4.c, act.c, gemm_q4.c, probe.c. The form of activations is seen from their lo. */
void nb_pack_q4_scalar(nb_q4 *p, size_t row0, size_t n0, const nb_qlin *q, const uint32_t *perm);
void nb_pack_words_scalar(nb_q4 *p, size_t row0, size_t n0, const nb_qlin *q, const nb_words *w);
void nb_act_scalar(nb_act *a, const float *x, size_t ldx, size_t m0, size_t m1, const uint32_t *perm);
void nb_gemm_q4_scalar(const nb_q4 *w, const nb_act *a, float *y, size_t ldy, size_t s0, size_t s1);
void nb_gemm_q4_f32_scalar(const nb_q4 *w, const float *x, size_t ldx, size_t m, float *y, size_t ldy, size_t s0, size_t s1);
void nb_pack_q8_scalar(nb_q8 *p, size_t row0, size_t n0, const nb_qlin *q, const uint32_t *perm);
void nb_gemm_q8_scalar(const nb_q8 *w, const nb_act *a, float *y, size_t ldy, size_t s0, size_t s1);
void nb_gemm_q8_f32_scalar(const nb_q8 *w, const float *x, size_t ldx, size_t m, float *y, size_t ldy, size_t s0, size_t s1);
uint64_t nb_read_probe_scalar(const void *p, size_t bytes);

/* Float matrices: dense.c */
void nb_pack_dense_scalar(nb_dense *p, size_t row0, const void *src, size_t rows);
void nb_gemm_dense_scalar(const nb_dense *w, const float *x, size_t ldx, size_t m, float *y, size_t ldy, size_t s0, size_t s1);
/* Panels: panel.c */
void nb_tile_f32_scalar(size_t k, const float *a, const float *b, float *t);
void nb_tile_f64_scalar(size_t k, const double *a, const double *b, double *t);
void nb_row_dense_scalar(const nb_dense *w, size_t n, float *out);

/* Attention: attn.c */
void nb_kv_put_scalar(unsigned char *k, unsigned char *v, nb_dtype t, size_t slot, size_t d, const float *ks, const float *vs);
void nb_attn_scalar(const nb_attn *t, float *scratch);
void nb_attn_part_scalar(const nb_attn *t, size_t t0, size_t t1, float *part, float *scratch);
void nb_attn_merge_scalar(const nb_attn *t, size_t n_tiles, const float *part);

/* Norms, rotations, activations: misc.c */
void nb_rmsnorm_scalar(float *y, const float *x, const float *w, float offset, float eps, size_t n);
void nb_layernorm_scalar(float *y, const float *x, const float *w, const float *b, float eps, size_t n);
void nb_rope_half_scalar(float *x, const float *cs, const float *sn, size_t r);
void nb_rope_pair_scalar(float *x, const float *cs, const float *sn, size_t r);
void nb_silu_mul_scalar(float *y, const float *gate, const float *up, size_t n);
void nb_gelu_tanh_mul_scalar(float *y, const float *gate, const float *up, size_t n);
void nb_gelu_erf_mul_scalar(float *y, const float *gate, const float *up, size_t n);
void nb_add_scalar(float *y, const float *x, size_t n);
void nb_axpy_scalar(float *y, const float *x, float a, size_t n);
void nb_softcap_scalar(float *x, float cap, size_t n);
size_t nb_row_max_scalar(const float *x, size_t n, float *top);
double nb_exp_sum_scalar(float *y, const float *x, float top, size_t n);
/* Recurrences: recur.c */
void nb_delta_scalar(const nb_recur *r);
void nb_linrec_scalar(const nb_recur *r);
void nb_ssm1_scalar(float *S, size_t ld, size_t dk, size_t n, const float *A, const float *dt, const float *u, const float *skip,
                    const float *B, const float *C, float *o);
void nb_conv_scalar(float *y, const float *bias, const float *w, size_t ldw, const float *const *u, size_t taps, size_t n);
void nb_gate_scalar(float *y, const float *gate, size_t n);

#endif

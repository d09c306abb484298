/* quant.h - stored layouts of quantized linears: detect, describe, unpack to the hub, pack from it, check.
 *
 * A format is a row (format.c lists all); a linear is a prefix such as "model.layers.0.self_attn.q_proj" whose parts
 * (qweight, qzeros, scales ...) are tensors of a store. Rules: rules.c. Bit layouts: docs/formats. */
#ifndef NB_QUANT_QUANT_H
#define NB_QUANT_QUANT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/json.h"
#include "tensor/qlin.h"
#include "tensor/report.h"
#include "tensor/sink.h"
#include "tensor/store.h"

enum { NB_MAX_PARTS = 6 };

/* What the configuration declares for one linear. */
typedef struct nb_qspec {
    unsigned bits;
    int64_t group_size; /* -1: per channel */
    bool sym;           /* zero_point false / sym true */
    bool desc_act;
    nb_dtype scale_dtype; /* for writing */
} nb_qspec;

typedef struct nb_format nb_format;

/* The tensors found beside each other under one prefix: what a layout is recognised by (formats 3.16). NULL: absent. */
typedef struct nb_evidence {
    const nb_tensor *qweight, *qzeros, *scales, *g_idx, *scaled_zeros; /* AWQ, GPTQ      */
    const nb_tensor *packed, *packed_scale;                            /* weight_packed, weight_scale */
    const nb_tensor *packed_zero, *packed_shape, *packed_idx;          /* weight_zero_point, weight_shape, weight_g_idx */
    const nb_tensor *b, *s;                                            /* GPTQ Marlin: B, s */
    const nb_tensor *weight, *bias;
} nb_evidence;

/* One quantized linear of a store. Views into the store. */
typedef struct nb_linear {
    const char *prefix;
    const nb_format *format;
    nb_qspec spec;
    size_t n, k, g;                       /* resolved sizes, g = k when per channel */
    unsigned variant;                     /* the layout's own: how zero points or words were written */
    bool act_order;                       /* the group of an input is its g_idx, not k / g */
    const nb_tensor *parts[NB_MAX_PARTS]; /* in the order of format->parts; NULL when an optional one is absent */
    const nb_tensor *bias;                /* "<prefix>.bias" or NULL                */
} nb_linear;

typedef enum nb_part_role { NB_PART_OTHER, NB_PART_CODES, NB_PART_ZEROS, NB_PART_SCALES, NB_PART_G_IDX } nb_part_role;
typedef enum nb_part_when { NB_STORE_ALWAYS, NB_STORE_ASYM, NB_STORE_ACT_ORDER } nb_part_when;

/* How four-bit codes fill 32-bit words, where a word holds eight codes of an output (or AWQ's eight outputs) and no more: words.h. */
typedef enum nb_words_kind {
    NB_WORDS_NONE,
    NB_WORDS_AWQ,      /* [k][n/8], eight outputs in the order of AWQ */
    NB_WORDS_BY_INPUT, /* [k/8][n] */
    NB_WORDS_BY_OUTPUT /* [n][k/8] */
} nb_words_kind;

typedef struct nb_part {
    const char *suffix; /* "qweight" */
    nb_dtype dtype;     /* NB_DT_NONE: F16, BF16 or F32 */
    const char *shape;  /* in n k g, b bits, z = nb_awq_zeros_width: "k n*b/32", "n 8*z" */
    bool optional;      /* for readers                                         */
    nb_part_role role;
    nb_part_when when; /* what a writer stores: nb_format_stores() */
} nb_part;

struct nb_format {
    const char *name;    /* "awq-gemm": what --to takes        */
    const char *family;  /* name of the row whose shapes it shares, NULL: its own. Only that row's match() finds something */
    const char *method;  /* quant_method                       */
    const char *version; /* version / checkpoint_format        */
    size_t stripe;       /* outputs per stripe are a multiple of this */
    bool offsets;        /* zero points are stored as float offsets; unpack fills q->offsets */
    nb_words_kind words; /* with a kind, parts[0] are the codes, and unpack and pack leave them out when q->codes is NULL */
    nb_part parts[NB_MAX_PARTS];
    /* Do these tensors have the shapes of this layout? Any bit width; broken shapes match nothing. */
    bool (*match)(const nb_evidence *e);
    /* Sizes from the part shapes and the spec, every shape checked (SHP rules; loading stops at the first). */
    nb_status (*shape)(nb_linear *lin, nb_err *err);
    /* Rows [n0, n0+q->n) into q (initialised for that many rows). */
    nb_status (*unpack)(const nb_linear *lin, size_t n0, nb_qlin *q, nb_err *err);
    /* Pack rows [n0, n0+q->n) of n into the whole-tensor buffers out[part] (host memory of full size). What the layout
     * cannot hold exactly is an error, never a rounding. Stripes that begin at multiples of `stripe` write disjoint
     * bytes, so threads may pack (and unpack) different stripes at once. Parts that do not depend on outputs (g_idx) are
     * written with the stripe of output 0. out[part] may be NULL for parts that nb_format_stores() leaves out.
     * NULL: the layout is only read. */
    nb_status (*pack)(const nb_qlin *q, size_t n0, size_t n, void *const out[NB_MAX_PARTS], nb_err *err);
    /* Stored values outside the matrix that should be 0 and are not; reading ignores them (VAL-005). NULL: no padding. */
    uint64_t (*padding)(const nb_linear *lin);
    bool pads_bits; /* what padding() counts are unused bits of words (VAL-013) */
    /* The object for config.json "quantization_config" and, equally, quantize_config.json (formats 6.8). NULL: no memory. */
    nb_json *(*config)(const nb_qspec *spec, const char *const *skip, size_t n_skip);
    /* Add to an object made by config() that one module differs from its global values. false: no memory.
     * NULL: the layout has one setting for all modules. */
    bool (*override)(nb_json *config, const char *module, const nb_qspec *spec);
};

const nb_format *nb_format_find(const char *name); /* "awq-gemm"; NULL when unknown */
size_t nb_format_count(void);
const nb_format *nb_format_at(size_t i);
/* Does a writer store this part for linears of this spec (sym, desc_act)? */
bool nb_format_stores(const nb_format *f, size_t part, const nb_qspec *spec);
/* Shape of a part for sizes n, k, g. Returns rank; shape[] holds up to 4. */
unsigned nb_format_part_shape(const nb_format *f, size_t part, size_t n, size_t k, size_t g, unsigned bits, uint64_t shape[4]);
/* Can this layout, which has pack(), hold a linear of n outputs and k inputs in groups of g? Its own pack() is asked, with no
 * output to pack: what is wrong is its error. */
nb_status nb_format_holds(const nb_format *f, size_t n, size_t k, size_t g, const nb_qspec *spec, nb_err *err);

/* The layout of these tensors, also one that is known but not built; NULL when no row, or more than one, matches. */
const char *nb_format_detect(const nb_evidence *e);

/* All quantized linears of a store. */
typedef struct nb_scan {
    const nb_format *format;  /* of the model; NULL when nothing is quantized */
    const nb_linear *linears; /* [n_linears], in store order                  */
    size_t n_linears;
    nb_qspec spec;  /* global values of the config */
    char note[256]; /* "": what was read otherwise than the config says, for one log line */
    void *impl;
} nb_scan;

/* Group the tensors of `s` into linears and decide the format from config and shapes.
 *   qcfg    quantization config or NULL;  source  its file name for messages
 *   report  when not NULL, rule violations are added there and the scan goes on; when NULL, the first must-rule is
 *           the error
 * Unknown methods: NB_EUNSUPPORTED with CFG-003. Caller clears with nb_scan_clear. */
nb_status nb_scan_open(const nb_store *s, const nb_json *qcfg, const char *source, nb_report *report, nb_scan *out, nb_err *err);
void nb_scan_clear(nb_scan *sc);
/* What the user says about packed tensors without a config. Zeros: nothing is said. */
typedef struct nb_qhint {
    const nb_format *format;
    unsigned bits;
    int64_t group_size;
} nb_qhint;
/* A config for packed tensors that come without one (infer.c): the first layout, width and group size whose shapes all of them have,
 * 4 bits before others; *note says in one line what was taken. hint, NULL or not, leaves only what it says. *config, freed by the
 * caller, is NULL when nothing fits. Zero points of GPTQ are then settled by the scan. NB_ENOMEM. */
nb_status nb_quant_infer(const nb_store *s, const nb_qhint *hint, nb_json **config, char *note, size_t cap, nb_err *err);
const nb_linear *nb_scan_find(const nb_scan *sc, const char *prefix); /* NULL: not quantized */

/* One row per written rule. Loader and `check` run the same rows. */
typedef struct nb_rule {
    const char *id;   /* "SHP-003" */
    const char *cls;  /* "qt.shape" (hardening 3.2) */
    nb_severity sev;  /* as formats 7 says: R reject, W warn, I info */
    nb_status code;   /* status of a loader that stops at it; 0 for W and I */
    const char *text; /* long text for explain */
} nb_rule;
const nb_rule *nb_rule_find(const char *id);
size_t nb_rule_count(void);
const nb_rule *nb_rule_at(size_t i);

/* Rule `id` is violated. The sentence may end in " → what to do". With a report the finding is added and NB_OK returned
 * (or NB_ENOMEM); without one a reject rule becomes the error and its code is returned, and a warning is dropped.
 * file and subject may be NULL and are escaped here; other untrusted text is escaped by the caller. */
nb_status nb_rule_hit(nb_report *report, nb_err *err, const char *id, const char *file, const char *subject, const char *fmt, ...)
#if defined(__GNUC__)
    __attribute__((format(printf, 6, 7)))
#endif
    ;
/* The same for a case of the rule that is only a warning. */
nb_status nb_rule_warn(nb_report *report, const char *id, const char *file, const char *subject, const char *fmt, ...)
#if defined(__GNUC__)
    __attribute__((format(printf, 5, 6)))
#endif
    ;
/* A failed call as a finding, its suggestion split off. */
nb_status nb_rule_report_err(nb_report *report, const nb_err *err);

#endif

/* nibble.h - the public interface: open, check, quantize, measure and run 4-bit Hugging Face checkpoints.
 *
 * In rising order: errors, reports on checkpoints, jobs, models, text, answers. Handles are opaque and owned by the
 * caller, who closes them (NULL is fine everywhere). The library prints nothing, never exits, installs no signal handler and
 * opens only the files it is told to. Strings are UTF-8. A call that fails returns a status other than NIBBLE_OK and
 * fills the nibble_error, if one was given (after a good one its status is NIBBLE_OK). Distinct handles may be used from distinct
 * threads; one handle by one at a time.
 * Rounding mode, flushing of subnormals and the like that the caller's thread has set change no result: calls that compute set the
 * default environment, in which callbacks run too, and put back what they found. */
#ifndef NIBBLE_NIBBLE_H
#define NIBBLE_NIBBLE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define NIBBLE_API __attribute__((visibility("default")))
#else
#define NIBBLE_API
#endif

/* ---- errors ---- */

/* Also the exit codes of the program. */
typedef enum nibble_status {
    NIBBLE_OK = 0,
    NIBBLE_NO = 1, /* ran properly, the answer is negative              */
    NIBBLE_ARGUMENT = 2,
    NIBBLE_OPEN = 3,      /* input missing or not permitted                    */
    NIBBLE_MALFORMED = 4, /* the input breaks a rule of its format             */
    NIBBLE_UNSUPPORTED = 5,
    NIBBLE_LIMIT = 6,
    NIBBLE_READ = 7,
    NIBBLE_WRITE = 8,
    NIBBLE_MEMORY = 9,
    NIBBLE_NUMERIC = 10,
    NIBBLE_MISMATCH = 11, /* data to resume from belongs to another job        */
    NIBBLE_EXISTS = 12,   /* the output is already there                       */
    NIBBLE_BUSY = 13,     /* a lock is held                                    */
    NIBBLE_VERIFY = 14,
    NIBBLE_INTERNAL = 70,
    NIBBLE_CANCELED = 130 /* a callback asked to stop                          */
} nibble_status;

typedef struct nibble_error {
    int status;
    char cls[32];  /* stable class: "st.truncated"            */
    char rule[16]; /* written rule: "SHP-004", or ""          */
    char file[256];
    char subject[192]; /* tensor, key or offset                   */
    char message[768]; /* found, expected, what to do             */
} nibble_error;

NIBBLE_API const char *nibble_version(void); /* "0.1.0" */

/* ---- callbacks of long calls; any may be NULL ---- */

typedef struct nibble_host {
    void (*log)(void *user, int level, const char *line); /* level: 0 error, 1 warning, 2 information, 3 debug */
    void (*progress)(void *user, const char *what, const char *item, uint64_t done, uint64_t total);
    int (*cancelled)(void *user); /* not 0: stop soon with NIBBLE_CANCELED */
    void *user;
} nibble_host;

/* ---- checkpoints ---- */

/* What `nibble inspect --json` and `nibble check --json` print, without the last newline; the caller frees it with nibble_free. check returns
 * NIBBLE_NO when a must-rule fails; *json is filled then too, in every other failure it is NULL. threads <= 0: every core. */
NIBBLE_API int nibble_inspect(const char *path, char **json, nibble_error *e);
NIBBLE_API int nibble_check(const char *path, int threads, const nibble_host *host, char **json, nibble_error *e);
NIBBLE_API void nibble_free(void *p);

typedef struct nibble_quantize_options {
    const char *method;      /* "awq", "gptq" or "rtn"                                           */
    int bits;                /* 4; gptq 2 to 8                                                   */
    int group_size;          /* 128, 64, 32, or -1 for one group a row                           */
    int symmetric;           /* not 0: zero points fixed in the middle                           */
    const char *calibration; /* text, JSON Lines, .safetensors with token ids [rows, length], or "self"; may be NULL for rtn */
    int force;               /* replace an existing output                                       */
    int threads;             /* <= 0: every core                                                 */
    const nibble_host *host;
} nibble_quantize_options;

/* Quantize the checkpoint at `model` into the new directory `out` (AWQ GEMM layout; gptq: GPTQ v1 when symmetric, v2
 * otherwise). The resident size stays below 60 % of the free memory. A call that ends early, cancelled or for want of disk, leaves the
 * directory "<out>.nibble-job": the same call goes on after the last finished layer and gives the same bytes. */
NIBBLE_API int nibble_quantize(const char *model, const char *out, const nibble_quantize_options *o, nibble_error *e);

/* ---- models ---- */

typedef struct nibble_model nibble_model;

typedef struct nibble_model_options {
    int threads;             /* <= 0: every core                                      */
    const char *cpu;         /* cap: "scalar", "avx2", "avx512-vnni", "amx"; NULL: the best */
    size_t context;          /* longest prompt + answer; 0: the model's               */
    const nibble_host *host; /* copied; serves nibble_open, nibble_generate and nibble_logits */
} nibble_model_options;

/* Open a directory, file or index for running; o may be NULL. Everything is read and packed; the files may go away afterwards.
 * A model without a tokenizer that can be read opens too; the calls on text and nibble_generate then say why. */
NIBBLE_API int nibble_open(const char *path, const nibble_model_options *o, nibble_model **out, nibble_error *e);
NIBBLE_API void nibble_close(nibble_model *m);
NIBBLE_API size_t nibble_vocab(const nibble_model *m);
NIBBLE_API size_t nibble_context(const nibble_model *m);
NIBBLE_API const char *nibble_kernel(const nibble_model *m); /* kernel tier in use */

/* ---- text ---- */

/* Ids of text[n] as a block for nibble_free. add_special: BOS and EOS as the model's configuration says; parse_special: special
 * tokens written in the text become their ids. */
NIBBLE_API int nibble_tokenize(nibble_model *m, const char *text, size_t n, int add_special, int parse_special, int32_t **ids,
                               size_t *n_ids, nibble_error *e);
/* Text of ids, terminated, for nibble_free. */
NIBBLE_API int nibble_detokenize(nibble_model *m, const int32_t *ids, size_t n_ids, int skip_special, char **text, size_t *n,
                                 nibble_error *e);
/* The prompt for chat messages: JSON text, an array of {"role","content"} or an object with "messages", "tools" and further
 * variables of the template. NIBBLE_UNSUPPORTED when the model has no template. */
NIBBLE_API int nibble_chat_prompt(nibble_model *m, const char *json, char **text, size_t *n, nibble_error *e);

/* ---- answers ---- */

typedef struct nibble_sampling {
    float temperature;        /* 0: greedy */
    int top_k;                /* 0: all    */
    float top_p, min_p;       /* 1 and 0: off */
    float repetition_penalty; /* 1: off    */
    uint64_t seed;
    size_t max_tokens; /* 0: what the context holds */
} nibble_sampling;

NIBBLE_API nibble_sampling nibble_greedy(void);

/* A piece of the answer: always whole characters, text[n] not terminated. Not 0: stop (NIBBLE_OK all the same). */
typedef int nibble_piece_fn(void *user, const char *text, size_t n);

/* Answer the prompt ids, handing text to `piece` (may be NULL) as it comes; s NULL: greedy, to the end. Ends at an end-of-sequence id, at max_tokens, or when asked.
 * n_answer (may be NULL): tokens of the answer. */
NIBBLE_API int nibble_generate(nibble_model *m, const int32_t *ids, size_t n_ids, const nibble_sampling *s, nibble_piece_fn *piece,
                               void *user, size_t *n_answer, nibble_error *e);
/* Logits after each of ids[n]: out[n][vocab]. Bit for bit what nibble_generate samples from, with any number of threads. */
NIBBLE_API int nibble_logits(nibble_model *m, const int32_t *ids, size_t n_ids, float *out, nibble_error *e);

#ifdef __cplusplus
}
#endif
#endif

/* fmt_awq_gemm.c - AWQ GEMM: what AutoAWQ writes as version "gemm" with 4 bits, and GPTQModel 7.7 also with others.
 *
 * 4 bit: word j of input row k holds the codes of outputs 8j .. 8j+7:
 *
 *   bits    31-28 27-24 23-20 19-16 15-12 11-8  7-4   3-0
 *   output   +7    +5    +3    +1    +6    +4    +2    +0
 *
 * 2, 3, 5 to 8 bit: a row is one little-endian stream of bits, output n at bit n*b, the last word filled up with 0.
 * Zero points are packed the same way, one row per group, and are the value subtracted.
 * Source: formats 2.1, 2.2, 3.1, 3.2 (AutoAWQ awq/modules/linear/gemm.py at 88e4c76); docs/formats/awq-gemm.md. */
#include <inttypes.h>
#include <string.h>

#include "base/bits.h"
#include "base/mem.h"
#include "base/wide.h"
#include "quant/awq.h"
#include "quant/bitpack.h"
#include "quant/formats.h"
#include "quant/parts.h"

enum { P_QWEIGHT, P_QZEROS, P_SCALES };
enum { PER_WORD = 8 };             /* outputs in one word                                    */
enum { TILE_K = 64, TILE_W = 16 }; /* inputs x words moved at a time: one cache line per row */

/* Bits of a code when `words` hold n of them; 0: no width fits. */
static unsigned fitting_bits(uint64_t words, uint64_t n)
{
    if (n == 0 || n > UINT64_MAX / 64 || words > UINT64_MAX / 32)
        return 0;
    if (words * 32 % n == 0 && words * 32 / n >= 2 && words * 32 / n <= 8)
        return (unsigned)(words * 32 / n);
    for (unsigned b = 2; b <= 8; b++)
        if (b != 4 && nb_packed_words(NB_PACK_STREAM, b, n) == words)
            return b;
    return 0;
}

static bool match(const nb_evidence *e)
{
    const nb_tensor *w = e->qweight, *s = e->scales;

    if (!w || !s || w->rank != 2 || s->rank != 2 || !nb_awq_is_word(w->dtype) || s->shape[1] == 0 || w->shape[1] > UINT64_MAX / 32)
        return false;
    if (e->qzeros && (e->qzeros->rank != 2 || e->qzeros->shape[1] != w->shape[1])) /* small GEMV layers look alike otherwise */
        return false;
    return fitting_bits(w->shape[1], s->shape[1]) && s->shape[0] <= w->shape[0];
}

/* Outputs: from the words where they agree with scales, else the fault decides which rule is broken. */
static nb_status find_outputs(const nb_linear *lin, uint64_t *n, nb_err *err)
{
    const nb_tensor *w = lin->parts[P_QWEIGHT], *s = lin->parts[P_SCALES];
    const uint64_t words = w->shape[1], cols = s->shape[1];
    const unsigned bits = lin->spec.bits, fits = fitting_bits(words, cols);
    char name[NB_ESC_CAP];

    nb_esc(name, sizeof name, lin->prefix, strlen(lin->prefix));

    if (words == 0 || words > SIZE_MAX / 64 || w->shape[0] == 0)
        return nb_rule_hit(NULL, err, "SHP-016", w->file, w->name,
                           "qweight is %" PRIu64 "x%" PRIu64 ", expected at least one input and one word.", w->shape[0], words);
    *n = words * 32 / bits;
    if (cols && bits != 4 && cols <= *n && nb_packed_words(NB_PACK_STREAM, bits, cols) == words)
        *n = cols; /* a tail of zeros behind the last output */
    if (cols == *n)
        return NB_OK;
    if (bits == 4 && cols && cols % PER_WORD && (cols / PER_WORD == words || (cols + PER_WORD - 1) / PER_WORD == words))
        return nb_rule_hit(NULL, err, "SHP-003", w->file, name,
                           "%s: %" PRIu64 " outputs cannot fill whole 32-bit words at %u bits (needs a multiple of %d).", name, cols, bits,
                           PER_WORD);
    if (fits && fits != bits)
        return nb_rule_hit(NULL, err, "CFG-006", w->file, name,
                           "Config says %u-bit, but %s.qweight has %" PRIu64 " words for %" PRIu64 " values, which only fits %u-bit.", bits,
                           name, words, cols, fits);
    return NB_OK; /* the shape of scales is judged with the groups */
}

static nb_status check_groups(const nb_linear *lin, uint64_t k, uint64_t n, nb_err *err)
{
    const nb_tensor *s = lin->parts[P_SCALES], *z = lin->parts[P_QZEROS];
    const uint64_t rows = s->shape[0];
    char a[64], b[64], name[NB_ESC_CAP];
    uint64_t want[2], g;
    nb_status rc;

    if ((rc = nb_awq_check_group(lin, k, &g, err)) != NB_OK)
        return rc;
    nb_esc(name, sizeof name, lin->prefix, strlen(lin->prefix));
    want[0] = k / g;
    want[1] = n;
    nb_shape_str(a, sizeof a, s->shape, s->rank);
    nb_shape_str(b, sizeof b, want, 2);
    if (rows != want[0] || s->shape[1] != want[1]) {
        if (rows == want[1] && s->shape[1] == want[0])
            return nb_rule_hit(NULL, err, "SHP-005", s->file, s->name, "scales look transposed: found %s, expected %s.", a, b);
        if (s->shape[1] == n && rows && k % rows == 0)
            return nb_rule_hit(NULL, err, "CFG-007", s->file, name,
                               "Config says group_size %" PRId64 " (%" PRIu64 " groups for %" PRIu64 " inputs), but scales has %" PRIu64
                               " rows: the tensors were made with group size %" PRIu64 ".",
                               lin->spec.group_size, want[0], k, rows, k / rows);
        return nb_rule_hit(NULL, err, "SHP-016", s->file, s->name, "scales is %s, expected %s.", a, b);
    }
    want[1] = lin->parts[P_QWEIGHT]->shape[1];
    if (z && (z->shape[0] != want[0] || z->shape[1] != want[1]))
        return nb_rule_hit(NULL, err, "SHP-006", z->file, z->name, "qzeros is %s, expected %s.",
                           nb_shape_str(a, sizeof a, z->shape, z->rank), nb_shape_str(b, sizeof b, want, 2));
    return NB_OK;
}

static nb_status shape(nb_linear *lin, nb_err *err)
{
    nb_status rc = nb_check_parts(lin, err);
    uint64_t n = 0, k;

    if (rc != NB_OK)
        return rc;
    k = lin->parts[P_QWEIGHT]->shape[0];
    if ((rc = find_outputs(lin, &n, err)) != NB_OK || (rc = check_groups(lin, k, n, err)) != NB_OK ||
        (rc = nb_check_bias(lin, n, err)) != NB_OK)
        return rc;
    lin->n = (size_t)n;
    lin->k = (size_t)k;
    lin->g = lin->spec.group_size < 0 ? lin->k : (size_t)lin->spec.group_size;
    lin->spec.scale_dtype = lin->parts[P_SCALES]->dtype;
    return NB_OK;
}

/* One word of TILE_K inputs, in[i][b] that of input 4b + i, into the codes of its eight outputs: row o of out has those of inputs
 * 4b .. 4b+3 in out[o][b]. Still packed, halves and then bytes of four words change places; after that byte c of each holds two
 * outputs of input 4b + c. The loop is made for vectors of any width. */
static void unpack_word(uint32_t (*restrict in)[TILE_K / 4], uint32_t (*restrict out)[TILE_K / 4])
{
    const uint32_t even = 0x00ff00ffu, odd = 0xff00ff00u, code = 0x0f0f0f0fu;

    for (size_t b = 0; b < TILE_K / 4; b++) {
        const uint32_t lo02 = (in[0][b] & 0xffffu) | in[2][b] << 16, hi02 = in[0][b] >> 16 | (in[2][b] & 0xffff0000u);
        const uint32_t lo13 = (in[1][b] & 0xffffu) | in[3][b] << 16, hi13 = in[1][b] >> 16 | (in[3][b] & 0xffff0000u);
        const uint32_t b0 = (lo02 & even) | (lo13 & even) << 8, b1 = (lo02 >> 8 & even) | (lo13 & odd);
        const uint32_t b2 = (hi02 & even) | (hi13 & even) << 8, b3 = (hi02 >> 8 & even) | (hi13 & odd);
        out[0][b] = b0 & code;
        out[1][b] = b2 & code;
        out[2][b] = b0 >> 4 & code;
        out[3][b] = b2 >> 4 & code;
        out[4][b] = b1 & code;
        out[5][b] = b3 & code;
        out[6][b] = b1 >> 4 & code;
        out[7][b] = b3 >> 4 & code;
    }
}

/* Codes of words [0, nw) and inputs [0, nk): src points at the first word, row_bytes apart; out[8*nw rows][pitch]. A full tile
 * writes whole cache lines and asks for the tile below it, which no hardware prefetcher sees coming. */
static void unpack_tile(const unsigned char *src, size_t row_bytes, size_t nw, size_t nk, uint8_t *out, size_t pitch)
{
    uint32_t word[TILE_W][4][TILE_K / 4], codes[PER_WORD][TILE_K / 4];
    const bool full = nk == TILE_K;

    if (!full)
        memset(word, 0, sizeof word);
    for (size_t k = 0; k < nk; k++) {
        if (full)
            __builtin_prefetch((const void *)((uintptr_t)src + (TILE_K + k) * row_bytes));
        for (size_t j = 0; j < nw; j++)
            word[j][k % 4][k / 4] = nb_le32(src + k * row_bytes + 4 * j);
    }
    for (size_t j = 0; j < nw; j++) {
        uint8_t *to = out + PER_WORD * j * pitch;
        unpack_word(word[j], codes);
        for (size_t o = 0; o < PER_WORD; o++)
            if (full)
                memcpy(to + o * pitch, codes[o], TILE_K);
            else
                memcpy(to + o * pitch, codes[o], nk);
    }
}

/* rows x words of a packed tensor, beginning at word w0, into out[8*nw][rows]. */
static void unpack_matrix(const nb_tensor *t, size_t w0, size_t nw, uint8_t *out)
{
    const size_t rows = (size_t)t->shape[0], row_bytes = (size_t)t->shape[1] * 4;

    for (size_t k = 0; k < rows; k += TILE_K) {
        const size_t nk = rows - k < TILE_K ? rows - k : TILE_K;
        for (size_t j = 0; j < nw; j += TILE_W) {
            const size_t w = nw - j < TILE_W ? nw - j : TILE_W;
            const unsigned char *src = t->data + k * row_bytes + 4 * (w0 + j);
            uint8_t *to = out + PER_WORD * j * rows + k;
            unpack_tile(src, row_bytes, w, nk, to, rows);
        }
    }
}

/* Outputs [n0, n0 + n) of a packed tensor of `bits` codes, not 4, into out[n][rows]. */
static void unpack_stream(const nb_tensor *t, unsigned bits, size_t n0, size_t n, uint8_t *out)
{
    const size_t rows = (size_t)t->shape[0], row_bytes = (size_t)t->shape[1] * 4;
    uint8_t buf[8][64];

    for (size_t o = 0; o < n; o += 64) {
        const size_t w = n - o < 64 ? n - o : 64;
        for (size_t k = 0; k < rows; k += 8) {
            const size_t nk = rows - k < 8 ? rows - k : 8;
            for (size_t x = 0; x < nk; x++)
                nb_unpack_codes(NB_PACK_STREAM, bits, t->data + (k + x) * row_bytes, n0 + o, w, buf[x]);
            for (size_t i = 0; i < w; i++)
                for (size_t x = 0; x < nk; x++)
                    out[(o + i) * rows + k + x] = buf[x][i];
        }
    }
}

static void unpack_part(const nb_tensor *t, unsigned bits, size_t n0, size_t n, uint8_t *out)
{
    if (bits == 4)
        unpack_matrix(t, n0 / PER_WORD, n / PER_WORD, out);
    else
        unpack_stream(t, bits, n0, n, out);
}

static nb_status unpack(const nb_linear *lin, size_t n0, nb_qlin *q, nb_err *err)
{
    const unsigned bits = lin->spec.bits;
    const nb_status rc = nb_awq_check_stripe(lin, n0, q, err);

    if (rc != NB_OK)
        return rc;
    if (q->codes)
        unpack_part(lin->parts[P_QWEIGHT], bits, n0, q->n, q->codes);
    if (lin->parts[P_QZEROS])
        unpack_part(lin->parts[P_QZEROS], bits, n0, q->n, q->zeros);
    else
        memset(q->zeros, 1 << (bits - 1), q->n * q->n_groups); /* formats 9: symmetric without qzeros */
    q->bits = bits;
    nb_get_scales(lin->parts[P_SCALES], n0, q);
    return NB_OK;
}

/* Words of n inputs of eight outputs, row o of in at in + o * pitch. Returns the OR of all codes. */
NB_WIDE static uint32_t pack_words(const uint8_t *restrict in, size_t pitch, size_t n, uint32_t *restrict word)
{
    const uint8_t *a = in, *b = in + pitch, *c = in + 2 * pitch, *d = in + 3 * pitch;
    const uint8_t *e = a + 4 * pitch, *f = b + 4 * pitch, *g = c + 4 * pitch, *h = d + 4 * pitch;
    uint32_t seen = 0;

    for (size_t i = 0; i < n; i++) {
        const uint32_t lo = (uint32_t)a[i] | (uint32_t)c[i] << 4 | (uint32_t)e[i] << 8 | (uint32_t)g[i] << 12;
        const uint32_t hi = (uint32_t)b[i] | (uint32_t)d[i] << 4 | (uint32_t)f[i] << 8 | (uint32_t)h[i] << 12;
        seen |= (uint32_t)(a[i] | b[i] | c[i] | d[i] | e[i] | f[i] | g[i] | h[i]);
        word[i] = lo | hi << 16;
    }
    return seen;
}

/* The mirror of unpack_matrix: in[8*nw][rows] into words w0 .. w0+nw of out[rows][width]. Returns the OR of all codes. */
static uint8_t pack_matrix(const uint8_t *in, size_t rows, size_t width, size_t w0, size_t nw, unsigned char *out)
{
    uint32_t word[TILE_W][TILE_K], seen = 0;

    for (size_t j = 0; j < nw; j += TILE_W)
        for (size_t k = 0; k < rows; k += TILE_K) {
            const size_t n = nw - j < TILE_W ? nw - j : TILE_W, nk = rows - k < TILE_K ? rows - k : TILE_K;
            for (size_t i = 0; i < n; i++)
                seen |= pack_words(in + PER_WORD * (j + i) * rows + k, rows, nk, word[i]);
            for (size_t x = 0; x < nk; x++) {
                unsigned char *to = out + ((k + x) * width + w0 + j) * 4;
                for (size_t i = 0; i < n; i++)
                    nb_put_le32(to + 4 * i, word[i][x]);
            }
        }
    return (uint8_t)seen;
}

/* in[n][rows], n a multiple of 8, into outputs n0 .. n0+n of out[rows][n_total * bits / 32 words]. Eight codes fill `bits` bytes, so
 * stripes share none. Returns the OR of all codes. */
static uint8_t pack_stream(const uint8_t *in, size_t rows, unsigned bits, size_t n_total, size_t n0, size_t n, unsigned char *out)
{
    const size_t row_bytes = (size_t)nb_packed_words(NB_PACK_STREAM, bits, n_total) * 4;
    uint8_t seen = 0, codes[64];
    unsigned char words[64];

    for (size_t k = 0; k < rows; k++)
        for (size_t o = 0; o < n; o += 64) {
            const size_t w = n - o < 64 ? n - o : 64;
            for (size_t i = 0; i < w; i++) {
                codes[i] = in[(o + i) * rows + k];
                seen |= codes[i];
            }
            nb_pack_codes(NB_PACK_STREAM, bits, codes, w, words);
            memcpy(out + k * row_bytes + (n0 + o) / 8 * bits, words, w / 8 * bits);
        }
    return seen;
}

static uint8_t pack_part(const uint8_t *in, size_t rows, unsigned bits, size_t n_total, size_t n0, size_t n, unsigned char *out)
{
    if (bits == 4)
        return pack_matrix(in, rows, n_total / PER_WORD, n0 / PER_WORD, n / PER_WORD, out);
    return pack_stream(in, rows, bits, n_total, n0, n, out);
}

static nb_status pack(const nb_qlin *q, size_t n0, size_t n, void *const out[NB_MAX_PARTS], nb_err *err)
{
    const unsigned unit = q->bits == 4 ? PER_WORD : 32;
    nb_status rc = nb_awq_check_pack(q, n0, n, q->bits, err);
    uint8_t seen = 0;

    if (rc != NB_OK)
        return rc;
    if (n % unit || n0 % PER_WORD || q->n % PER_WORD)
        return nb_fail(err, NB_EFORMAT, "qt.shape", "SHP-003",
                       "%zu outputs cannot fill whole 32-bit words at %u bits (needs a multiple of %u).", n, q->bits, unit);
    if (q->codes)
        seen = pack_part(q->codes, q->k, q->bits, n, n0, q->n, out[P_QWEIGHT]);
    seen |= pack_part(q->zeros, q->n_groups, q->bits, n, n0, q->n, out[P_QZEROS]);
    if (seen >> q->bits)
        return nb_fail(err, NB_EARG, "arg.codes", "", "codes or zero points above %u do not fit %u bits", (1u << q->bits) - 1, q->bits);
    return nb_put_scales(q, n0, n, out[P_SCALES], err);
}

static nb_json *config(const nb_qspec *spec, const char *const *skip, size_t n_skip)
{
    return nb_awq_config(spec, "gemm", false, skip, n_skip);
}

const nb_format nb_fmt_awq_gemm = {
    .name = "awq-gemm",
    .method = "awq",
    .version = "gemm",
    .stripe = PER_WORD,
    .words = NB_WORDS_AWQ,
    .parts = { [P_QWEIGHT] = { "qweight", NB_DT_I32, "k n*b/32", false, NB_PART_CODES, NB_STORE_ALWAYS },
               /* absent only when symmetric: every zero point is the middle code */
               [P_QZEROS] = { "qzeros", NB_DT_I32, "k/g n*b/32", true, NB_PART_ZEROS, NB_STORE_ALWAYS },
               [P_SCALES] = { "scales", NB_DT_NONE, "k/g n", false, NB_PART_SCALES, NB_STORE_ALWAYS } },
    .match = match,
    .shape = shape,
    .unpack = unpack,
    .pack = pack,
    .config = config,
};

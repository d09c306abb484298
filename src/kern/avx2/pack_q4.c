/* pack_q4.c - hub rows into packed blocks, 8 rows x 32 inputs at a time, and stored words, 64 rows x 8 inputs. Same bytes as scalar/pack_q4.c. */
#include "kern/avx2/avx2.h"
#include "kern/avx2/dot_avx2.h"
#include "kern/avx2/turn8.h"

enum { ROWS = 8, STEP = 32 };

/* Rows a and b: every 64 bits hold one step of each as it lies in a block, a in the low half. Codes are at most 15, so
 * shifts by 4 and 28 carry nothing across bytes. */
NB_INLINE __m256i pair(const uint8_t *a, const uint8_t *b)
{
    const __m256i x = nb_load32(a), y = nb_load32(b);
    const __m256i low = _mm256_or_si256(x, _mm256_srli_epi64(x, 28));
    const __m256i high = _mm256_or_si256(_mm256_slli_epi64(y, 32), _mm256_slli_epi64(y, 4));

    return _mm256_blend_epi32(low, high, 0xaa);
}

/* Four steps (32 inputs) of eight rows; only those inside the group are stored. */
NB_INLINE void put_inputs(unsigned char *out, const uint8_t *const row[ROWS], size_t at, size_t left, const bool byte)
{
    const __m256i p0 = pair(row[0] + at, row[1] + at), p1 = pair(row[2] + at, row[3] + at);
    const __m256i p2 = pair(row[4] + at, row[5] + at), p3 = pair(row[6] + at, row[7] + at);
    const __m256i a02 = _mm256_unpacklo_epi64(p0, p1), a13 = _mm256_unpackhi_epi64(p0, p1); /* rows 0..3 of steps 0, 2 and 1, 3 */
    const __m256i b02 = _mm256_unpacklo_epi64(p2, p3), b13 = _mm256_unpackhi_epi64(p2, p3); /* rows 4..7 */
    const __m256i step[4] = { _mm256_permute2x128_si256(a02, b02, 0x20), _mm256_permute2x128_si256(a13, b13, 0x20),
                              _mm256_permute2x128_si256(a02, b02, 0x31), _mm256_permute2x128_si256(a13, b13, 0x31) };

    (void)byte; /* 8-bit codes are packed by scalar code */
    for (size_t t = 0; t < 4 && 8 * t < left; t++)
        _mm256_storeu_si256((void *)(out + 256 * t), step[t]);
}

NB_INLINE void put_halves(unsigned char *out, const float *s)
{
    for (size_t r = 0; r < NB_STRIP; r += 8)
        _mm_storeu_si128((void *)(out + 2 * r), _mm256_cvtps_ph(_mm256_loadu_ps(s + r), _MM_FROUND_TO_NEAREST_INT));
}

#include "kern/pack_body.inc"

void nb_pack_q4_avx2(nb_q4 *p, size_t row0, size_t n0, const nb_qlin *q, const uint32_t *perm)
{
    pack(p, row0, n0, q, perm, false);
}

/* Scales (16 bits) and zeros of eight full rows of eight blocks; q->zeros and q->scales begin at `at`. */
NB_INLINE void put_affine8(const nb_q4 *p, unsigned char *block, const nb_qlin *q, size_t at, size_t row)
{
    const unsigned char *z = q->zeros + at;
    unsigned char *scales = block + nb_q4_scales_at(p) + 2 * row, *zeros = block + nb_q4_zeros_at(p) + row;
    __m256 s[8];
    __m128i a[4], b[4];

    NB_UNROLL
    for (size_t i = 0; i < 8; i++)
        s[i] = _mm256_loadu_ps(q->scales + at + i * q->n_groups);
    nb_turn8(s);
    NB_UNROLL
    for (size_t i = 0; i < 8; i++)
        _mm_storeu_si128((void *)(scales + i * p->block_bytes), _mm256_cvtps_ph(s[i], _MM_FROUND_TO_NEAREST_INT));
    NB_UNROLL
    for (size_t i = 0; i < 4; i++)
        a[i] = _mm_unpacklo_epi8(_mm_loadl_epi64((const void *)(z + 2 * i * q->n_groups)),
                                 _mm_loadl_epi64((const void *)(z + (2 * i + 1) * q->n_groups)));
    NB_UNROLL
    for (size_t i = 0; i < 2; i++) { /* b[i]: groups 4i .. 4i+3 of rows 0 .. 3; b[2 + i] of rows 4 .. 7 */
        b[2 * i] = _mm_unpacklo_epi16(a[2 * i], a[2 * i + 1]);
        b[2 * i + 1] = _mm_unpackhi_epi16(a[2 * i], a[2 * i + 1]);
    }
    NB_UNROLL
    for (size_t i = 0; i < 2; i++) {
        const __m128i lo = _mm_unpacklo_epi32(b[i], b[2 + i]), hi = _mm_unpackhi_epi32(b[i], b[2 + i]);
        _mm_storel_epi64((void *)(zeros + 4 * i * p->block_bytes), lo);
        _mm_storel_epi64((void *)(zeros + (4 * i + 1) * p->block_bytes), _mm_unpackhi_epi64(lo, lo));
        _mm_storel_epi64((void *)(zeros + (4 * i + 2) * p->block_bytes), hi);
        _mm_storel_epi64((void *)(zeros + (4 * i + 3) * p->block_bytes), _mm_unpackhi_epi64(hi, hi));
    }
}

/* Scales and zeros of one strip, inputs in natural order. */
static void put_affines(const nb_q4 *p, size_t s, const nb_qlin *q, size_t first, size_t rows)
{
    size_t grp = 0;

    for (; rows == NB_STRIP && !p->wide && !q->g_idx && q->g == p->g && grp + 8 <= q->n_groups; grp += 8)
        for (size_t r = 0; r < NB_STRIP; r += 8)
            put_affine8(p, nb_q4_block(p, s, grp), q, (first + r) * q->n_groups + grp, r);
    for (; grp < p->n_groups; grp++)
        put_affine(p, nb_q4_block(p, s, grp), q, first, rows, q->g_idx ? q->g_idx[grp * p->g] : grp * p->g / q->g);
}

/* Bytes b (low nibbles) or b >> 4 of a in the low, of b in the high half of every byte. */
NB_INLINE __m256i low_nibbles(__m256i a, __m256i b)
{
    const __m256i low = _mm256_set1_epi8(0x0f);

    return _mm256_or_si256(_mm256_and_si256(a, low), _mm256_andnot_si256(low, _mm256_slli_epi16(b, 4)));
}

NB_INLINE __m256i high_nibbles(__m256i a, __m256i b)
{
    const __m256i low = _mm256_set1_epi8(0x0f);

    return _mm256_or_si256(_mm256_and_si256(_mm256_srli_epi16(a, 4), low), _mm256_andnot_si256(low, b));
}

/* out[i]: byte i of every 32-bit place of the four v side by side; place 0 and 1 of a 128-bit lane in out[0] ... */
NB_INLINE void quads(const __m256i v[4], __m256i out[4])
{
    const __m256i a = _mm256_unpacklo_epi8(v[0], v[1]), b = _mm256_unpacklo_epi8(v[2], v[3]);
    const __m256i c = _mm256_unpackhi_epi8(v[0], v[1]), d = _mm256_unpackhi_epi8(v[2], v[3]);

    out[0] = _mm256_unpacklo_epi16(a, b);
    out[1] = _mm256_unpackhi_epi16(a, b);
    out[2] = _mm256_unpacklo_epi16(c, d);
    out[3] = _mm256_unpackhi_epi16(c, d);
}

/* Eight inputs of 64 rows from AWQ words: byte i of word j holds in its low nibble row 8j + 0, 4, 1, 5, in its high one 2, 6, 3, 7. */
NB_INLINE void put_awq(unsigned char *out, const unsigned char *at, size_t pitch)
{
    __m256i e[4], o[4], eq[4], oq[4];

    NB_UNROLL
    for (size_t c = 0; c < 4; c++) {
        const __m256i a = nb_load32(at + c * pitch), b = nb_load32(at + (c + 4) * pitch);
        e[c] = low_nibbles(a, b);
        o[c] = high_nibbles(a, b);
    }
    quads(e, eq);
    quads(o, oq);
    NB_UNROLL
    for (int j = 0; j < 4; j++) { /* words j and 4 + j: rows 0, 4, 1, 5 and 2, 6, 3, 7 of each */
        const __m256 x = _mm256_castsi256_ps(eq[j]), y = _mm256_castsi256_ps(oq[j]);
        const __m256i r0 = _mm256_castps_si256(_mm256_shuffle_ps(x, y, 0x88)), r4 = _mm256_castps_si256(_mm256_shuffle_ps(x, y, 0xdd));

        _mm256_storeu_si256((void *)(out + 32 * j), _mm256_permute2x128_si256(r0, r4, 0x20));
        _mm256_storeu_si256((void *)(out + 32 * (j + 4)), _mm256_permute2x128_si256(r0, r4, 0x31));
    }
}

/* Eight inputs of 64 rows from words by input. */
NB_INLINE void put_by_input(unsigned char *out, const unsigned char *at)
{
    const __m256i first =
        _mm256_setr_epi8(0, 0, 1, 1, 4, 4, 5, 5, 8, 8, 9, 9, 12, 12, 13, 13, 0, 0, 1, 1, 4, 4, 5, 5, 8, 8, 9, 9, 12, 12, 13, 13);
    const __m256i last = _mm256_add_epi8(first, _mm256_set1_epi8(2)), even = _mm256_set1_epi16(0x00ff);

    NB_UNROLL
    for (size_t j = 0; j < 8; j++) { /* inputs 0, 1 | 2, 3 and 4, 5 | 6, 7, each pair twice */
        const __m256i w = nb_load32(at + 32 * j), a = _mm256_shuffle_epi8(w, first), b = _mm256_shuffle_epi8(w, last);
        const __m256i lo = low_nibbles(a, b), hi = high_nibbles(a, b);

        _mm256_storeu_si256((void *)(out + 32 * j), _mm256_or_si256(_mm256_and_si256(lo, even), _mm256_andnot_si256(even, hi)));
    }
}

/* Codes of one block, of which `rows` rows are there; w begins at its first word. What follows it one group on is asked for, since no
 * hardware prefetcher sees rows of words coming. */
NB_INLINE void put_words(unsigned char *out, const nb_words *w, size_t rows, size_t g, const bool by_input)
{
    const size_t n = by_input ? 1 : 8, bytes = by_input ? 4 * rows : rows / 2;
    unsigned char copy[256] = { 0 };

    for (size_t t = 0; t < g / 8; t++, out += 256) {
        const unsigned char *at = w->at + n * t * w->pitch;
        size_t pitch = w->pitch;

        for (size_t c = 0; c < 8 && !by_input; c++)
            _mm_prefetch((const char *)((uintptr_t)at + (g + c) * pitch), _MM_HINT_T0);
        if (rows < NB_STRIP) {
            for (size_t c = 0; c < n; c++)
                memcpy(copy + 32 * c, at + c * pitch, bytes);
            at = copy;
            pitch = 32;
        }
        if (by_input)
            put_by_input(out, at);
        else
            put_awq(out, at, pitch);
    }
}

void nb_pack_words_avx2(nb_q4 *p, size_t row0, size_t n0, const nb_qlin *q, const nb_words *w)
{
    const size_t s0 = (row0 + n0) / NB_STRIP;

    assert((row0 + n0) % NB_STRIP == 0 && q->k == p->k && row0 + n0 + q->n <= p->n && p->k % p->g == 0 && q->n % 8 == 0);
    for (size_t first = 0; first < q->n; first += NB_STRIP)
        put_affines(p, s0 + first / NB_STRIP, q, first, q->n - first < NB_STRIP ? q->n - first : NB_STRIP);
    for (size_t grp = 0; grp < p->n_groups; grp++)
        for (size_t first = 0; first < q->n; first += NB_STRIP) {
            const size_t rows = q->n - first < NB_STRIP ? q->n - first : NB_STRIP;
            const nb_words part = nb_words_at(w, grp * p->g, first);
            unsigned char *block = nb_q4_block(p, s0 + first / NB_STRIP, grp);

            if (part.by_input)
                put_words(block, &part, rows, p->g, true);
            else
                put_words(block, &part, rows, p->g, false);
        }
}

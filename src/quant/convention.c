/* convention.c - see convention.h. */
#include "quant/convention.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/bits.h"
#include "base/mem.h"
#include "quant/formats.h"

enum { SAMPLES = 4, OUTPUTS = 64, MIN_PAIRS = 256, MIN_CODES = 4096, ORDER_SAMPLES = 24 };
enum { PART_QZEROS = 1 }; /* of the gptq rows */

/* Code means minus zero points over groups, under three readings. */
typedef struct nb_zero_test {
    double sum[3], square[3]; /* by reading: TRUE, FIELD, LEGACY3 (formats.h without WORD, whose inner fields equal FIELD) */
    size_t n_pairs;           /* (group, output) pairs with spread, whose stored field is neither 0 nor the largest        */
} nb_zero_test;

static bool is_gptq(const nb_linear *lin)
{
    return lin->format == &nb_fmt_gptq || lin->format == &nb_fmt_gptq_v2;
}

/* Words of symmetric checkpoints, period 3 at 3 bits (formats 3.10): by reading. */
static bool is_constant(const nb_linear *lin, int reading)
{
    static const uint32_t one[9][2] = {
        [2] = { 0xaaaaaaaau, 0x55555555u }, [4] = { 0x88888888u, 0x77777777u }, [8] = { 0x80808080u, 0x7f7f7f7fu }
    };
    static const uint32_t three[3][3] = { { 0x24924924u, 0x49249249u, 0x92492492u }, /* true */
                                          { 0xdb6db6dbu, 0xb6db6db6u, 0x6db6db6du },
                                          { 0x00000000u, 0xb6db6db7u, 0x49249249u } };
    const nb_tensor *t = lin->parts[PART_QZEROS];
    const unsigned b = lin->spec.bits;
    const size_t width = (size_t)t->shape[1], n = (size_t)(t->n_bytes / 4) < 65536 ? (size_t)(t->n_bytes / 4) : 65536;
    const int row = reading == NB_ZEROS_TRUE ? 0 : reading == NB_ZEROS_FIELD ? 1 : 2;

    if (row == 2 && b != 3)
        return false;
    for (size_t i = 0; i < n; i++)
        if (nb_le32(t->data + 4 * i) != (b == 3 ? three[row][i % width % 3] : one[b][row]))
            return false;
    return true;
}

/* Sums of the codes and of their squares, and their number, for each group of output o. */
static void group_means(const nb_qlin *q, size_t o, double *sum, double *square, double *count)
{
    const uint8_t *c = q->codes + o * q->k;

    memset(sum, 0, q->n_groups * sizeof *sum);
    memset(square, 0, q->n_groups * sizeof *square);
    memset(count, 0, q->n_groups * sizeof *count);
    if (q->g_idx) {
        for (size_t i = 0; i < q->k; i++) {
            sum[q->g_idx[i]] += c[i];
            square[q->g_idx[i]] += c[i] * c[i];
            count[q->g_idx[i]]++;
        }
        return;
    }
    for (size_t g = 0; g < q->n_groups; g++) {
        const size_t at = g * q->g, n = q->k - at < q->g ? q->k - at : q->g;
        for (size_t i = 0; i < n;) { /* 2^16 squares of a byte fit 32 bits */
            const size_t end = n - i < 65536 ? n : i + 65536;
            uint32_t s1 = 0, s2 = 0;
            for (; i < end; i++) {
                s1 += c[at + i];
                s2 += (uint32_t)c[at + i] * c[at + i];
            }
            sum[g] += s1;
            square[g] += s2;
        }
        count[g] = (double)n;
    }
}

static void add_pairs(const nb_qlin *q, const uint8_t *zeros[3], double *buf, nb_zero_test *t)
{
    const unsigned maxq = (1u << q->bits) - 1;
    double *sum = buf, *square = buf + q->n_groups, *count = buf + 2 * q->n_groups;

    for (size_t o = 0; o < q->n; o++) {
        group_means(q, o, sum, square, count);
        for (size_t g = 0; g < q->n_groups; g++) {
            const size_t at = o * q->n_groups + g;
            const double m = sum[g] / count[g];
            if (count[g] < 2 || square[g] / count[g] - m * m <= 0 || zeros[0][at] == 0 || zeros[0][at] == maxq)
                continue;
            for (int r = 0; r < 3; r++) {
                t->sum[r] += m - zeros[r][at];
                t->square[r] += (m - zeros[r][at]) * (m - zeros[r][at]);
            }
            t->n_pairs++;
        }
    }
}

/* One stripe of a linear into the test. Linears with negative scales are left out: their means are shifted. */
static nb_status test_linear(const nb_linear *lin, nb_zero_test *t, nb_err *err)
{
    static const unsigned readings[3] = { NB_ZEROS_TRUE, NB_ZEROS_FIELD, NB_ZEROS_LEGACY3 };
    const size_t n = lin->n < OUTPUTS ? lin->n : OUTPUTS;
    nb_linear as = *lin;
    nb_qlin q[3] = { { 0 } };
    const uint8_t *zeros[3];
    double *buf = NULL;
    bool negative = false;
    nb_status rc = NB_OK;

    for (int r = 0; r < 3 && rc == NB_OK; r++) { /* codes three times: a stripe is small */
        as.variant = readings[r] == NB_ZEROS_LEGACY3 && lin->spec.bits != 3 ? NB_ZEROS_FIELD : readings[r];
        rc = nb_qlin_init(&q[r], n, lin->k, lin->g, lin->spec.bits, err);
        if (rc == NB_OK)
            rc = lin->format->unpack(&as, 0, &q[r], err);
        zeros[r] = q[r].zeros;
    }
    if (rc == NB_OK && !(buf = nb_alloc_array(q[0].n_groups, 3 * sizeof *buf)))
        rc = nb_enomem(err, "the test of zero points");
    for (size_t i = 0; rc == NB_OK && i < n * q[0].n_groups; i++)
        negative = negative || q[0].scales[i] < 0;
    if (rc == NB_OK && !negative)
        add_pairs(&q[0], zeros, buf, t);
    nb_free(buf);
    for (int r = 0; r < 3; r++)
        nb_qlin_clear(&q[r]);
    return rc;
}

/* TRUE or FIELD, whichever has the smaller mean offset, when it is below 0.35 and the other one above 0.65. Misplaced constants shift
 * some fields up and others down, which the mean hides; there zero points must follow the means far better (formats 8.3). */
static int decide(const nb_zero_test *t, bool three, double *mean)
{
    const double n = (double)t->n_pairs;
    const int best = fabs(t->sum[1]) < fabs(t->sum[0]);

    if (t->n_pairs < MIN_PAIRS)
        return -1;
    *mean = t->sum[best] / n;
    if (three && 4 * t->square[2] < t->square[0] && 4 * t->square[2] < t->square[1] && fabs(t->sum[2]) < 0.35 * n) {
        *mean = t->sum[2] / n;
        return NB_ZEROS_LEGACY3;
    }
    if (!(fabs(t->sum[best]) < 0.35 * n && fabs(t->sum[!best]) > 0.65 * n))
        return -1;
    return best ? NB_ZEROS_FIELD : NB_ZEROS_TRUE;
}

/* A few outputs of a linear may lie in all of its pages. */
static void drop(const nb_store *s, const nb_linear *lin)
{
    for (size_t p = 0; p < NB_MAX_PARTS; p++)
        if (lin->parts[p])
            nb_store_drop(s, lin->parts[p]);
}

/* Every linear, or SAMPLES of them spread over the model, of the rows gptq and gptq_v2 with tensors that can be read. */
static size_t choose(const nb_linear *linears, size_t n, const nb_linear *out[SAMPLES])
{
    size_t all = 0, seen = 0, got = 0;

    for (size_t i = 0; i < n; i++)
        all += is_gptq(&linears[i]);
    for (size_t i = 0; i < n && got < SAMPLES; i++) {
        if (!is_gptq(&linears[i]))
            continue;
        if (seen++ >= got * all / SAMPLES && linears[i].parts[PART_QZEROS]->data && linears[i].parts[0]->data)
            out[got++] = &linears[i];
    }
    return got;
}

nb_status nb_zero_convention(const nb_store *s, const nb_linear *linears, size_t n, nb_zero_verdict *out, nb_err *err)
{
    static const int readings[3] = { NB_ZEROS_TRUE, NB_ZEROS_FIELD, NB_ZEROS_LEGACY3 };
    const nb_linear *some[SAMPLES];
    const size_t m = choose(linears, n, some);
    nb_zero_test t = { 0 };
    bool three = m > 0;
    double mean = 0;

    *out = (nb_zero_verdict){ .reading = -1 };
    for (int r = 0; r < 3 && m; r++) {
        size_t same = 0;
        while (same < m && is_constant(some[same], readings[r]))
            same++;
        if (same == m) {
            out->reading = readings[r];
            snprintf(out->why, sizeof out->why, "stored %08X everywhere", (unsigned)nb_le32(some[0]->parts[PART_QZEROS]->data));
            return NB_OK;
        }
    }
    for (size_t i = 0; i < m; i++) {
        three = three && some[i]->spec.bits == 3;
        if (some[i]->spec.bits <= 4) { /* noise grows with the range of the codes */
            const nb_status rc = test_linear(some[i], &t, err);
            drop(s, some[i]);
            if (rc != NB_OK)
                return rc;
        }
    }
    out->reading = decide(&t, three, &mean);
    snprintf(out->why, sizeof out->why, "mean offset %+.2f", mean);
    return NB_OK;
}

void nb_zero_wraps(const nb_linear *lin, uint64_t *n_wrapped, uint64_t *n_over)
{
    const nb_tensor *t = lin->parts[PART_QZEROS];
    const unsigned b = lin->spec.bits, maxq = (1u << b) - 1;

    *n_wrapped = *n_over = 0;
    if (lin->format != &nb_fmt_gptq || lin->variant != NB_ZEROS_FIELD || 32 % b != 0 || !t->data)
        return;
    for (uint64_t i = 0; i < t->n_bytes / 4; i++) {
        const uint32_t w = nb_le32(t->data + 4 * i);
        unsigned run = 0;
        for (unsigned at = 0; at < 32; at += b) {
            const bool top = (w >> at & maxq) == maxq;
            *n_wrapped += top;
            run = top ? run + 1 : 0;
        }
        *n_over += run > 1; /* the run reaches the highest field */
    }
}

/* ---- order ---------------------------------------------------------------------------------------------------- */

const uint8_t *nb_order_other(const nb_linear *lin, size_t *period)
{
    static const uint8_t nibbles[8] = { 0, 2, 4, 6, 1, 3, 5, 7 }, bytes[4] = { 0, 2, 1, 3 };

    if (lin->format != &nb_fmt_awq_gemm || (lin->spec.bits != 4 && lin->spec.bits != 8))
        return NULL;
    *period = lin->spec.bits == 4 ? 8 : 4;
    return lin->spec.bits == 4 ? nibbles : bytes;
}

/* Statistics of a stripe: [n][gn] each. */
typedef struct stripe_stats {
    size_t n, gn;
    double *mean, *zero, *log_dev, *log_scale;
    double *row, *col; /* [n], [gn] */
} stripe_stats;

/* Variance of a(n, g) + b(other(n), g), both centred over outputs and over groups. */
static double centred_variance(const stripe_stats *s, const double *a, const double *b, const uint8_t *order, size_t period,
                               bool transposed)
{
    double grand = 0, sum = 0;

    memset(s->row, 0, s->n * sizeof *s->row);
    memset(s->col, 0, s->gn * sizeof *s->col);
    for (int pass = 0; pass < 2; pass++)
        for (size_t n = 0; n < s->n; n++) {
            const size_t from = order ? n / period * period + order[n % period] : n;
            for (size_t g = 0; g < s->gn; g++) {
                const double v = b[from * s->gn + g] + (transposed ? a[g * s->gn + n] : a[n * s->gn + g]);
                if (pass == 0) {
                    s->row[n] += v / (double)s->gn;
                    s->col[g] += v / (double)s->n;
                    grand += v / (double)(s->n * s->gn);
                } else {
                    const double c = v - s->row[n] - s->col[g] + grand;
                    sum += c * c;
                }
            }
        }
    return sum / (double)(s->n * s->gn);
}

/* Plain variance of mean - zero, zero points taken from another column. */
static double zero_variance(const stripe_stats *s, const uint8_t *order, size_t period)
{
    double sum = 0, square = 0;
    const double count = (double)(s->n * s->gn);

    for (size_t n = 0; n < s->n; n++) {
        const size_t from = order ? n / period * period + order[n % period] : n;
        for (size_t g = 0; g < s->gn; g++) {
            const double d = s->mean[n * s->gn + g] - s->zero[from * s->gn + g];
            sum += d;
            square += d * d;
        }
    }
    return square / count - sum / count * (sum / count);
}

/* Fill s from q; outputs are kept in whole blocks of `period` and only where every group has spread and a scale. */
static void fill_stats(stripe_stats *s, const nb_qlin *q, size_t period, nb_order_test *t)
{
    const unsigned half = 1u << (q->bits - 1), maxq = 2 * half - 1;
    double *sum = s->row + q->n, *square = sum + q->n_groups, *count = square + q->n_groups;

    s->n = 0;
    for (size_t o = 0; o < q->n; o++) {
        bool usable = true;
        double *mean = s->mean + s->n * s->gn, *zero = s->zero + s->n * s->gn;
        group_means(q, o, sum, square, count);
        for (size_t g = 0; g < s->gn; g++) {
            const size_t at = o * q->n_groups + g;
            const double m = sum[g] / count[g], var = square[g] / count[g] - m * m, sc = fabs((double)q->scales[at]);
            const double d = m - q->zeros[at];
            usable = usable && var > 1e-6 && sc > 0 && isfinite(sc);
            mean[g] = m;
            zero[g] = q->zeros[at];
            s->log_dev[s->n * s->gn + g] = log(var > 1e-6 ? sqrt(var) : 1);
            s->log_scale[s->n * s->gn + g] = log(sc > 0 && isfinite(sc) ? sc : 1);
            if (var > 1e-6 && q->zeros[at] > 0 && q->zeros[at] < maxq && q->scales[at] > 0) {
                t->offset += d;
                t->n_pairs++;
                t->n_over += d > 0.5;
                t->n_under += d < -0.5;
            }
        }
        s->n += usable;
        if ((o + 1) % period == 0) /* a block with an unusable output is dropped as a whole */
            s->n = s->n / period * period;
    }
    s->n = s->n / period * period;
    for (size_t o = 0; o < q->n; o++) {
        uint64_t reach = 0, inner = 0;
        for (size_t i = 0; i < q->k; i++) {
            const unsigned c = q->codes[o * q->k + i], d = c < half ? half - c : c - half, inside = c != 0 && c != maxq;
            reach += d;
            inner += inside * d;
            t->n_inner += inside;
        }
        t->reach += (double)reach / (2.0 * half);
        t->inner += (double)inner / (2.0 * half);
    }
    t->n_codes += q->n * q->k;
}

nb_status nb_order_add(const nb_linear *lin, nb_order_test *t, nb_err *err)
{
    const size_t n = lin->n < 256 ? lin->n : 256, gn = lin->k / lin->g + (lin->k % lin->g != 0), cells = n * gn;
    size_t period = 8;
    const uint8_t *order = nb_order_other(lin, &period);
    stripe_stats s = { .gn = gn };
    nb_qlin q = { 0 };
    double *mem = nb_alloc_array(4 * cells + n + 4 * gn, sizeof *mem);
    nb_status rc = mem ? nb_qlin_init(&q, n, lin->k, lin->g, lin->spec.bits, err) : nb_enomem(err, "the test of orders");

    if (rc == NB_OK)
        rc = lin->format->unpack(lin, 0, &q, err);
    if (rc == NB_OK) {
        s.mean = mem;
        s.zero = mem + cells;
        s.log_dev = mem + 2 * cells;
        s.log_scale = mem + 3 * cells;
        s.row = mem + 4 * cells;
        s.col = s.row + n + 3 * gn;
        fill_stats(&s, &q, period, t);
        if (s.n >= 2 * period && gn >= 2) {
            t->n_linears++;
            t->spread[0] += centred_variance(&s, s.log_scale, s.log_dev, NULL, 1, false);
            t->zero_spread[0] += zero_variance(&s, NULL, 1);
            t->spread[1] += centred_variance(&s, s.log_scale, s.log_dev, order, period, false);
            t->zero_spread[1] += zero_variance(&s, order, period);
            if (s.n == gn && lin->n == gn) {
                t->n_square++;
                t->square[0] += centred_variance(&s, s.log_scale, s.log_dev, NULL, 1, false);
                t->square[1] += centred_variance(&s, s.log_scale, s.log_dev, NULL, 1, true);
            }
        }
    }
    nb_qlin_clear(&q);
    nb_free(mem);
    return rc;
}

typedef struct order_sample {
    const nb_store *store;
    const nb_linear *lin[2 * ORDER_SAMPLES];
    nb_order_test test[2 * ORDER_SAMPLES];
    nb_err err[2 * ORDER_SAMPLES];
    size_t n;
} order_sample;

static void sample_orders(void *ctx, size_t begin, size_t end, int thread)
{
    order_sample *v = ctx;

    (void)thread;
    for (size_t i = begin; i < end; i++) {
        nb_order_add(v->lin[i], &v->test[i], &v->err[i]);
        drop(v->store, v->lin[i]);
    }
}

static void add_order(nb_order_test *t, const nb_order_test *a)
{
    t->n_linears += a->n_linears;
    for (int i = 0; i < 2; i++) {
        t->spread[i] += a->spread[i];
        t->zero_spread[i] += a->zero_spread[i];
        t->square[i] += a->square[i];
    }
    t->n_square += a->n_square;
    t->offset += a->offset;
    t->n_pairs += a->n_pairs;
    t->n_over += a->n_over;
    t->n_under += a->n_under;
    t->reach += a->reach;
    t->n_codes += a->n_codes;
    t->inner += a->inner;
    t->n_inner += a->n_inner;
}

nb_status nb_order_sample(const nb_store *s, const nb_linear *linears, size_t n, nb_pool *pool, const nb_linear **first, nb_order_test *t,
                          nb_err *err)
{
    const size_t step = n > ORDER_SAMPLES ? n / ORDER_SAMPLES : 1;
    order_sample *v = nb_calloc(1, sizeof *v);
    nb_status rc = NB_OK;

    *first = NULL;
    if (!v)
        return nb_enomem(err, "the test of orders");
    v->store = s;
    for (size_t i = 0; i < n && v->n < NB_LEN(v->lin); i += step) {
        const nb_linear *lin = &linears[i];
        bool plain = true;
        for (size_t p = 0; p < NB_MAX_PARTS; p++)
            plain = plain && (!lin->parts[p] || lin->parts[p]->data);
        if (!plain || (*first && (lin->format != (*first)->format || lin->spec.bits != (*first)->spec.bits)))
            continue;
        *first = *first ? *first : lin;
        v->lin[v->n++] = lin;
    }
    nb_parallel_for(pool, v->n, 1, sample_orders, v);
    for (size_t i = 0; i < v->n && rc == NB_OK; i++) { /* in their order: the sums do not depend on the threads */
        rc = v->err[i].code;
        if (rc == NB_OK)
            add_order(t, &v->test[i]);
        else if (err)
            *err = v->err[i];
    }
    nb_free(v);
    return rc;
}

/* Codes lie at both ends of the range, and not only because small groups, or weights of two values, end there: those between the ends
 * thin out towards the middle too, where they would be as many as anywhere else. */
static bool looks_signed(unsigned bits, const nb_order_test *t)
{
    const double range = (double)(1u << bits), even = (range / 2 - 1) / 2 / range; /* what evenly spread ones reach */

    return bits >= 3 && t->n_codes >= MIN_CODES && t->reach > 0.29 * (double)t->n_codes && t->n_inner >= MIN_CODES / 4 &&
           t->inner > 1.15 * even * (double)t->n_inner;
}

nb_order_verdict nb_order_judge(const nb_linear *first, const nb_order_test *t)
{
    nb_order_verdict v = { .mean = t->n_pairs ? t->offset / (double)t->n_pairs : 0 };

    v.columns = t->n_linears >= 2 && t->spread[1] > 0 && t->spread[0] >= 1.4 * t->spread[1];
    v.zeros = !v.columns && t->n_linears >= 2 && t->zero_spread[1] > 0 && t->zero_spread[0] >= 2.5 * t->zero_spread[1];
    v.wrapped = looks_signed(first->spec.bits, t); /* their means say nothing about zero points */
    if (!v.wrapped && strcmp(first->format->method, "awq") == 0 && first->spec.bits <= 4 && t->n_pairs >= MIN_PAIRS &&
        fabs(v.mean) > 0.65 && fabs(v.mean) < 1.35)
        v.offset = v.mean > 0 ? 1 : -1;
    return v;
}

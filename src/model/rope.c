/* Rotary tables: frequencies per kind, cos and sin per position. Source: spec models 8.1, 8.3, 8.5. */
#include <math.h>

#include "model/config.h"

#define PI 3.14159265358979323846

size_t nb_rope_dims(const nb_config *c)
{
    const size_t head = c->global_head_dim ? c->global_head_dim : c->head_dim;

    return c->rope.kind == NB_ROPE_PROPORTIONAL ? head : (size_t)((double)head * c->rope.partial);
}

/* Full layers may have heads of their own size. */
size_t nb_rope_dims_local(const nb_config *c)
{
    return (size_t)((double)c->head_dim * c->rope_local.partial);
}

size_t nb_rope_key(const nb_config *c, size_t total)
{
    switch (c->rope.kind) {
    case NB_ROPE_DYNAMIC:
        return total > c->context ? total : 0;
    case NB_ROPE_LONGROPE:
        return total > c->rope.orig_context;
    default:
        return 0;
    }
}

/* Llama 3: long waves are slowed down, short ones kept, those between blended. */
static double llama3_freq(const nb_rope *r, double f)
{
    const double orig = (double)r->orig_context;
    const double wave = 2 * PI / f;
    double s;

    if (wave > orig / r->low_freq_factor)
        return f / r->factor;
    if (wave < orig / r->high_freq_factor)
        return f;
    s = (orig / wave - r->low_freq_factor) / (r->high_freq_factor - r->low_freq_factor);
    return (1 - s) * f / r->factor + s * f;
}

static double yarn_freq(const nb_rope *r, size_t dims, size_t i, double f)
{
    const double scale = (double)dims / (2 * log(r->theta));
    const double orig = (double)r->orig_context;
    double low = scale * log(orig / (2 * PI * r->beta_fast));
    double high = scale * log(orig / (2 * PI * r->beta_slow));
    double ramp;

    if (r->truncate) {
        low = floor(low);
        high = ceil(high);
    }
    low = fmax(low, 0);
    high = fmin(high, (double)dims - 1);
    if (low == high)
        high += 0.001;
    ramp = fmin(fmax(((double)i - low) / (high - low), 0), 1);
    return f * (1 - ramp) + f / r->factor * ramp;
}

static double freq(const nb_config *c, const nb_rope *r, size_t key, size_t i)
{
    const size_t dims = r == &c->rope_local ? nb_rope_dims_local(c) : nb_rope_dims(c);
    const double e = -2.0 * (double)i / (double)dims;
    const double f = pow(r->theta, e);

    switch (r->kind) {
    case NB_ROPE_LINEAR:
        return f / r->factor;
    case NB_ROPE_DYNAMIC:
        if (key > 0 && dims > 2) {
            const double grow = r->factor * (double)key / (double)c->context - (r->factor - 1);
            return pow(r->theta * pow(grow, (double)dims / ((double)dims - 2)), e);
        }
        return f;
    case NB_ROPE_LLAMA3:
        return llama3_freq(r, f);
    case NB_ROPE_YARN:
        return yarn_freq(r, dims, i, f);
    case NB_ROPE_LONGROPE:
        return f / (key ? r->long_factor[i] : r->short_factor[i]);
    case NB_ROPE_PROPORTIONAL:
        return i < (size_t)(r->partial * (double)dims / 2) ? f / r->factor : 0;
    case NB_ROPE_ALPHA:
        return dims > 2 ? pow(r->theta * pow(r->alpha, (double)dims / ((double)dims - 2)), e) : f;
    default:
        return f;
    }
}

double nb_rope_mscale(double s, double m)
{
    return s <= 1 ? 1 : 0.1 * m * log(s) + 1;
}

static double attention_factor(const nb_rope *r, size_t key)
{
    const double own = key ? r->long_mscale : r->short_mscale;

    if (r->kind == NB_ROPE_LONGROPE && own > 0)
        return own;
    if (r->kind == NB_ROPE_LONGROPE) {
        if (r->has_attention_factor)
            return r->attention_factor;
        return r->factor <= 1 ? 1 : sqrt(1 + log(r->factor) / log((double)r->orig_context));
    }
    if (r->kind != NB_ROPE_YARN)
        return 1;
    if (r->has_attention_factor)
        return r->attention_factor;
    if (r->mscale != 0 && r->mscale_all_dim != 0)
        return nb_rope_mscale(r->factor, r->mscale) / nb_rope_mscale(r->factor, r->mscale_all_dim);
    return nb_rope_mscale(r->factor, 1);
}

static void table(const nb_config *c, const nb_rope *r, size_t key, size_t pos, size_t n, float *cs, float *sn)
{
    const size_t half = (r == &c->rope_local ? nb_rope_dims_local(c) : nb_rope_dims(c)) / 2;
    const double a = attention_factor(r, key);

    for (size_t i = 0; i < half; i++) {
        const double f = freq(c, r, key, i);
        for (size_t p = 0; p < n; p++) {
            const double angle = (double)(pos + p) * f;
            cs[p * half + i] = (float)(cos(angle) * a);
            sn[p * half + i] = (float)(r->back ? -sin(angle) * a : sin(angle) * a);
        }
    }
}

double nb_rope_freq(const nb_config *c, size_t key, size_t i)
{
    return freq(c, &c->rope, key, i);
}

double nb_rope_attention_factor(const nb_config *c)
{
    return attention_factor(&c->rope, 0);
}

nb_layer_rope nb_rope_layer(const nb_config *c, size_t layer)
{
    return c->rope_of ? (nb_layer_rope)c->rope_of[layer] : NB_ROPE_MAIN;
}

void nb_rope_table(const nb_config *c, size_t key, size_t pos, size_t n, float *cs, float *sn)
{
    table(c, &c->rope, key, pos, n, cs, sn);
}

void nb_rope_table_local(const nb_config *c, size_t pos, size_t n, float *cs, float *sn)
{
    table(c, &c->rope_local, 0, pos, n, cs, sn);
}

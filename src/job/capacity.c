/* capacity.c - see capacity.h. */
#include "job/capacity.h"

#include <math.h>
#include <string.h>

#include "base/mem.h"

double nb_cap_linear_bytes(double n, double k, unsigned bits, double group, bool sym)
{
    const double groups = group > 0 ? ceil(k / group) : 1;

    return n * k * bits / 8 + n * groups * 2 + (sym ? 0 : n * groups * bits / 8);
}

static double element_bytes(nb_cap_kv kv)
{
    return kv == NB_CAP_KV_32 ? 4 : kv == NB_CAP_KV_16 ? 2 : 1;
}

/* Elements of a device: heads are split, but never below one; a latent is kept whole. */
static double part(const nb_cap_model *m, const nb_cap_opts *o, double elements)
{
    const double heads = m->kv_heads ? (double)m->kv_heads : 1;

    return m->latent ? elements : elements * ceil(heads / (double)o->tp) / heads;
}

static double token_bytes(const nb_cap_model *m, const nb_cap_opts *o, uint64_t elements, uint64_t heads)
{
    const double scales = o->kv == NB_CAP_KV_8 ? 2.0 * (double)heads : 0;

    return part(m, o, (double)elements * element_bytes(o->kv) + scales);
}

uint64_t nb_cap_seq_bytes(const nb_cap_model *m, const nb_cap_opts *o, size_t tokens)
{
    const size_t block = o->block ? o->block : 1, whole = (tokens + block - 1) / block * block;
    const bool own = !o->gpu && m->kv_own + m->kv_own_window;
    const size_t limit = m->window + o->chunk, seen = m->window && whole > limit ? limit : whole;

    return (uint64_t)ceil(token_bytes(m, o, own ? m->kv_own : m->kv_full, m->kv_full_heads) * (double)whole +
                          token_bytes(m, o, own ? m->kv_own_window : m->kv_window, m->kv_window_heads) * (double)seen +
                          part(m, o, (double)m->state_bytes));
}

uint64_t nb_cap_workspace(const nb_cap_model *m, bool own, size_t t, size_t rows)
{
    const uint64_t width = 3 * m->d_model + 2 * m->d_ff + (m->heads + 2 * m->kv_heads) * m->head_dim;

    return (own && m->step_bytes ? m->step_bytes : 4 * width) * (uint64_t)t + 4 * (uint64_t)rows * m->vocab;
}

static nb_status check(const nb_cap_model *m, const nb_cap_opts *o, nb_err *err)
{
    if (o->tp == 0 || o->tp > 1024 || (m->heads && m->heads % o->tp))
        return nb_fail(err, NB_EARG, "plan.tp", "", "%zu attention heads cannot be split over %zu devices; use a divisor", m->heads, o->tp);
    if (m->kv_heads && !m->latent && m->kv_heads % o->tp && o->tp % m->kv_heads)
        return nb_fail(err, NB_EARG, "plan.tp", "", "%zu key heads cannot be split over %zu devices or copied evenly; use a divisor",
                       m->kv_heads, o->tp);
    if (o->prompt + o->output == 0 || (m->context && o->prompt + o->output > m->context))
        return nb_fail(err, NB_EARG, "plan.lengths", "", "%zu + %zu tokens; the model's context is %zu", o->prompt, o->output, m->context);
    return NB_OK;
}

/* The largest context of one sequence that `pool` holds. */
static uint64_t longest(const nb_cap_model *m, const nb_cap_opts *o, uint64_t pool)
{
    uint64_t low = 0, high = (uint64_t)1 << 40;

    if (nb_cap_seq_bytes(m, o, 1) > pool)
        return 0;
    while (high - low > 1) {
        const uint64_t mid = low + (high - low) / 2;
        if (nb_cap_seq_bytes(m, o, (size_t)mid) <= pool)
            low = mid;
        else
            high = mid;
    }
    return low;
}

/* Weight bytes that a step of b tokens reads on a device: of experts the expected distinct ones. */
static double step_weights(const nb_cap_model *m, const nb_cap_opts *o, double b)
{
    const double stored = (double)m->file_bytes, scale = o->gpu || stored <= 0 ? 1 : (double)m->packed_bytes / stored;
    const double experts = (double)m->expert_bytes, dense = stored - experts - (double)m->table_bytes;
    const double share = m->n_experts ? 1 - pow(1 - (double)m->n_active / (double)m->n_experts, b) : 0;

    return (dense + experts * share) * scale / (double)o->tp;
}

static void speeds(const nb_cap_model *m, const nb_cap_opts *o, nb_cap_plan *p)
{
    const double seq = (double)nb_cap_seq_bytes(m, o, o->prompt + o->output / 2), b = (double)p->batch;

    if (o->bandwidth > 0) {
        p->decode_1 = o->bandwidth / (step_weights(m, o, 1) + seq);
        p->decode_batch = p->batch ? b * o->bandwidth / (step_weights(m, o, b) + b * seq) : 0;
    }
    if (o->flops > 0)
        p->prefill_s = 2 * (double)m->active_params * (double)o->prompt / (o->flops * (double)o->tp);
}

static uint64_t pool_left(const nb_cap_plan *p)
{
    const uint64_t used = p->weights + p->workspace + p->reserve;

    return p->budget > used ? p->budget - used : 0;
}

/* Attention's part of the workspace, for the pool that `serve` takes: what max_seqs of the longest need, if there is so much. */
static uint64_t split_bytes(const nb_cap_model *m, const nb_cap_plan *p, size_t max_seqs)
{
    const double wanted = (double)max_seqs * (double)p->tokens_max, room = p->kv_token > 0 ? (double)p->kv_pool / p->kv_token : wanted;
    const double bytes = m->split_bytes * (wanted < room ? wanted : room);

    return bytes < (double)m->split_most ? (uint64_t)bytes : m->split_most;
}

nb_status nb_cap_plan_run(const nb_cap_model *m, const nb_cap_opts *o, nb_cap_plan *out, nb_err *err)
{
    const size_t max_seqs = o->max_seqs ? o->max_seqs : 64;
    const uint64_t weights = o->gpu ? m->file_bytes : m->packed_bytes;
    size_t prompt = o->prompt_max ? o->prompt_max : 2 * o->prompt, output = o->output_max ? o->output_max : 2 * o->output;
    nb_status rc = check(m, o, err);

    memset(out, 0, sizeof *out);
    if (rc != NB_OK)
        return rc;
    if (m->context && prompt + output > m->context) {
        output = output < m->context ? output : m->context / 2;
        prompt = m->context - output;
    }
    out->tokens_mean = o->prompt + o->output;
    out->tokens_max = prompt + output > out->tokens_mean ? prompt + output : out->tokens_mean;
    out->budget = (uint64_t)((double)o->memory * o->share);
    out->weights = (weights + o->tp - 1) / o->tp;
    out->workspace = nb_cap_workspace(m, !o->gpu, o->chunk, max_seqs) / o->tp;
    out->reserve = o->reserve;
    out->kv_token = token_bytes(m, o, !o->gpu && m->kv_own ? m->kv_own : m->kv_full, m->kv_full_heads);
    out->kv_pool = pool_left(out);
    if (!o->gpu)
        out->workspace += split_bytes(m, out, max_seqs);
    out->kv_pool = pool_left(out);
    out->seq_mean = nb_cap_seq_bytes(m, o, out->tokens_mean);
    out->seq_max = nb_cap_seq_bytes(m, o, out->tokens_max);
    out->fits = out->kv_pool > 0 && out->seq_max <= out->kv_pool;
    out->seqs_mean = out->seq_mean ? out->kv_pool / out->seq_mean : out->kv_pool ? max_seqs : 0;
    out->seqs_max = out->seq_max ? out->kv_pool / out->seq_max : out->kv_pool ? max_seqs : 0;
    out->longest = out->kv_pool ? longest(m, o, out->kv_pool) : 0;
    if (m->context && out->longest > m->context) {
        out->longest = m->context;
        out->longest_is_model = true;
    }
    out->weights_dominate = out->weights > out->budget / 2;
    out->batch = out->seqs_mean < max_seqs ? (size_t)out->seqs_mean : max_seqs;
    speeds(m, o, out);
    return NB_OK;
}

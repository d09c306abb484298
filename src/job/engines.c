/* engines.c - see engines.h. A rule is a condition over facts of one linear on one device; facts and conditions are JSON. */
#include "job/engines.h"

#include <stdio.h>
#include <string.h>

#include "base/cpu.h"
#include "base/mem.h"
#include "base/num.h"
#include "job/convert_priv.h"
#include "job/embedded.h"

enum { MAX_WORDS = 32 };

/* Linears that every rule judges alike. */
typedef struct kind {
    size_t n, k, g;
    int64_t group_size;
    unsigned bits;
    bool sym, act_order, expert, row_parallel, fused_differs;
    nb_dtype scale_dtype;
    const nb_format *format;
    const char *module; /* the first one */
    size_t count;
} kind;

typedef struct judge {
    const nb_engines_opts *o;
    nb_conv_in in;
    const nb_json *rules;
    const nb_json *config;
    kind *kinds;
    size_t n_kinds, cap;
    nb_json *verdicts;
} judge;

/* ---- facts ----------------------------------------------------------------------------------------------------- */

static bool ends_in(const char *s, const char *end)
{
    const size_t n = strlen(s), m = strlen(end);

    return n >= m && strcmp(s + n - m, end) == 0;
}

/* Does tensor parallelism split the inputs of this module? */
static bool is_row_parallel(const char *prefix)
{
    static const char *const ends[] = { ".o_proj", ".down_proj", ".out_proj", ".fc2", ".w2", ".dense_4h_to_h", ".c_proj" };

    for (size_t i = 0; i < NB_LEN(ends); i++)
        if (ends_in(prefix, ends[i]))
            return true;
    return false;
}

/* Projections that servers fuse into one layer must be quantized alike. */
static bool fused_differs(const nb_scan *scan, const nb_store *store, const nb_linear *lin)
{
    static const char *const sets[][3] = { { "q_proj", "k_proj", "v_proj" }, { "gate_proj", "up_proj", NULL }, { "w1", "w3", NULL } };
    const char *dot = strrchr(lin->prefix, '.');
    const char *last = dot ? dot + 1 : lin->prefix;
    char name[512];

    for (size_t s = 0; s < NB_LEN(sets); s++) {
        bool in = false;
        for (size_t i = 0; i < 3 && sets[s][i]; i++)
            in = in || strcmp(last, sets[s][i]) == 0;
        for (size_t i = 0; in && i < 3 && sets[s][i]; i++) {
            const nb_linear *x;
            snprintf(name, sizeof name, "%.*s%s", (int)(last - lin->prefix), lin->prefix, sets[s][i]);
            x = nb_scan_find(scan, name);
            if (x && (x->spec.bits != lin->spec.bits || x->g != lin->g || x->spec.sym != lin->spec.sym))
                return true;
            snprintf(name, sizeof name, "%.*s%s.weight", (int)(last - lin->prefix), lin->prefix, sets[s][i]);
            if (!x && nb_store_find(store, name))
                return true;
        }
    }
    return false;
}

static nb_status add_kind(judge *j, const kind *k, nb_err *err)
{
    for (size_t i = 0; i < j->n_kinds; i++) {
        kind same = *k;
        same.module = j->kinds[i].module;
        same.count = j->kinds[i].count;
        if (memcmp(&same, &j->kinds[i], sizeof same) == 0) {
            j->kinds[i].count++;
            return NB_OK;
        }
    }
    if (j->n_kinds == j->cap) {
        const size_t cap = j->cap ? j->cap * 2 : 16;
        kind *p = nb_realloc(j->kinds, cap * sizeof *p);
        if (!p)
            return nb_enomem(err, "the kinds of linears");
        j->kinds = p;
        j->cap = cap;
    }
    j->kinds[j->n_kinds++] = *k;
    return NB_OK;
}

static nb_status find_kinds(judge *j, nb_err *err)
{
    nb_status rc = NB_OK;

    for (size_t i = 0; i < j->in.scan.n_linears && rc == NB_OK; i++) {
        const nb_linear *lin = &j->in.scan.linears[i];
        kind k;
        memset(&k, 0, sizeof k); /* compared as bytes */
        k.n = lin->n;
        k.k = lin->k;
        k.g = lin->g;
        k.group_size = lin->spec.group_size;
        k.bits = lin->spec.bits;
        k.sym = lin->spec.sym;
        k.act_order = lin->act_order;
        k.expert = strstr(lin->prefix, ".experts.") != NULL;
        k.row_parallel = is_row_parallel(lin->prefix);
        k.fused_differs = fused_differs(&j->in.scan, j->in.store, lin);
        k.scale_dtype = lin->spec.scale_dtype;
        k.format = lin->format;
        k.module = lin->prefix;
        k.count = 1;
        rc = add_kind(j, &k, err);
    }
    if (rc == NB_OK && j->n_kinds == 0) { /* nothing quantized: one kind that stands for all */
        kind k;
        memset(&k, 0, sizeof k);
        k.count = 1;
        rc = add_kind(j, &k, err);
    }
    return rc;
}

static bool set_int(nb_json *o, const char *key, int64_t v)
{
    return nb_json_set(o, key, nb_json_new_int(v));
}

static bool set_bool(nb_json *o, const char *key, bool v)
{
    return nb_json_set(o, key, nb_json_new_bool(v));
}

static bool set_str(nb_json *o, const char *key, const char *v)
{
    return nb_json_set(o, key, nb_json_new_str(v));
}

static const struct {
    const char *name;
    unsigned cpu; /* NB_CPU bits of x86 */
    bool x86;
} cpus[] = {
    { "cpu-avx2", NB_CPU_AVX2, true },
    { "cpu-avx512", NB_CPU_AVX2 | NB_CPU_AVX512, true },
    { "cpu-amx", NB_CPU_AVX2 | NB_CPU_AVX512 | NB_CPU_AMX_INT8, true },
    { "arm", 0, false },
};

/* "sm80", "cpu" ...: device, and what rules ask about it. false: no such device, or no memory. */
static bool device_facts(const char *device, nb_json *o)
{
    unsigned cpu = nb_cpu_features();
    bool x86 = (cpu & NB_CPU_NEON) == 0, known = strcmp(device, "cpu") == 0;

    if (strncmp(device, "sm", 2) == 0) {
        uint64_t sm;
        const char *end = nb_num_u64(device + 2, 999, &sm);
        return end && *end == '\0' && sm >= 30 && set_str(o, "device", "cuda") && set_int(o, "sm", (int64_t)sm);
    }
    for (size_t i = 0; i < NB_LEN(cpus); i++)
        if (strcmp(device, cpus[i].name) == 0) {
            cpu = cpus[i].cpu;
            x86 = cpus[i].x86;
            known = true;
        }
    return known && set_str(o, "device", "cpu") && set_bool(o, "x86", x86) && set_bool(o, "avx2", (cpu & NB_CPU_AVX2) != 0) &&
           set_bool(o, "avx512", (cpu & NB_CPU_AVX512) != 0) && set_bool(o, "amx", (cpu & NB_CPU_AMX_INT8) != 0);
}

/* n and k are those of one rank. */
static bool linear_facts(const judge *j, const kind *k, nb_json *o)
{
    const size_t tp = j->o->tp > 1 ? (size_t)j->o->tp : 1;
    const size_t n = k->row_parallel ? k->n : k->n / tp, in = k->row_parallel ? k->k / tp : k->k;
    const char *dtype = nb_json_str(nb_json_get(j->config, "dtype"), nb_json_str(nb_json_get(j->config, "torch_dtype"), ""));
    const bool gguf = strcmp(j->in.store->kind, "gguf") == 0;

    if (!set_str(o, "dtype", dtype) ||
        !set_str(o, "layout",
                 gguf        ? "gguf"
                 : k->format ? k->format->name
                             : "dense") ||
        !set_str(o, "method",
                 gguf        ? "gguf"
                 : k->format ? k->format->method
                             : "none"))
        return false;
    if (!k->format)
        return true;
    return set_str(o, "checkpoint", k->format->version) && set_bool(o, "checkpoint_wrong", j->in.scan.note[0] != '\0') &&
           set_int(o, "bits", k->bits) && set_int(o, "group_size", k->group_size) && set_bool(o, "sym", k->sym) &&
           set_bool(o, "act_order", k->act_order) && set_bool(o, "act_order_sharded", k->act_order && k->row_parallel && tp > 1) &&
           set_bool(o, "zero_and_order", k->act_order && !k->sym) && set_bool(o, "expert", k->expert) && set_int(o, "n", (int64_t)n) &&
           set_int(o, "k", (int64_t)in) && set_bool(o, "group_even", k->group_size < 0 || k->group_size % 2 == 0) &&
           set_int(o, "k_mod_group", k->group_size < 0 ? 0 : (int64_t)(in % k->g)) && set_bool(o, "fused_differs", k->fused_differs) &&
           set_str(o, "scale_dtype", nb_dtype_info(k->scale_dtype)->name) && set_int(o, "tp", (int64_t)tp);
}

/* ---- conditions ------------------------------------------------------------------------------------------------ */

static bool is_one_of(const nb_json *fact, const nb_json *want)
{
    if (nb_json_typeof(want) != NB_JARR)
        return nb_json_equal(fact, want);
    for (size_t i = 0; i < nb_json_len(want); i++)
        if (nb_json_equal(fact, nb_json_at(want, i)))
            return true;
    return false;
}

/* A fact that the linear or the device does not have meets no condition. */
static bool holds(const nb_json *fact, const nb_json *want)
{
    const double v = nb_json_num(fact, 0);
    int64_t mod;

    if (!fact)
        return false;
    if (nb_json_typeof(want) != NB_JOBJ)
        return is_one_of(fact, want);
    mod = nb_json_int(nb_json_get(want, "mod"), 1);
    if (nb_json_get(want, "not") && is_one_of(fact, nb_json_get(want, "not")))
        return false;
    return v >= nb_json_num(nb_json_get(want, "min"), v) && v <= nb_json_num(nb_json_get(want, "max"), v) &&
           (mod <= 1 || nb_json_int(fact, 0) % mod == 0);
}

/* Key of the first member of `when` that does not hold, or NULL. */
static const char *first_failing(const nb_json *facts, const nb_json *when)
{
    for (size_t i = 0; i < nb_json_len(when); i++) {
        const char *key;
        const nb_json *want = nb_json_member(when, i, &key);
        if (!holds(nb_json_get(facts, key), want))
            return key;
    }
    return NULL;
}

/* "group_size is 32, needs [-1,64,128]" */
static nb_json *why_not(const nb_json *facts, const nb_json *when, const char *key)
{
    char *have = nb_json_get(facts, key) ? nb_json_dump(nb_json_get(facts, key), 0, true) : NULL;
    char *want = nb_json_dump(nb_json_get(when, key), 0, true);
    nb_buf b = { 0 };
    nb_json *v;

    nb_buf_printf(&b, "%s is %s, needs %s", key, have ? have : "not known", want ? want : "?");
    v = b.failed ? NULL : nb_json_new_strn(b.p, b.n);
    nb_buf_clear(&b);
    nb_free(have);
    nb_free(want);
    return v;
}

/* ---- one engine on one device ---------------------------------------------------------------------------------- */

static int badness(const char *verdict)
{
    static const char *const order[] = { "RUNS", "RUNS-DEGRADED", "UNKNOWN", "CRASHES", "REFUSES" };

    for (size_t i = 0; i < NB_LEN(order); i++)
        if (strcmp(verdict, order[i]) == 0)
            return (int)i;
    return 2;
}

typedef struct answer {
    const nb_json *row; /* a refuse rule, a kernel, or `none` */
    const kind *k;
    nb_json *skipped; /* kernels that came before */
    int bad;
    size_t count; /* linears with this answer */
} answer;

static bool skip_kernel(nb_json *skipped, const nb_json *kernel, const nb_json *facts, const char *key)
{
    nb_json *o = nb_json_new_obj();

    if (o && nb_json_set(o, "kernel", nb_json_copy(nb_json_get(kernel, "kernel"))) &&
        nb_json_set(o, "rule", nb_json_copy(nb_json_get(kernel, "id"))) &&
        nb_json_set(o, "why", why_not(facts, nb_json_get(kernel, "need"), key)))
        return nb_json_push(skipped, o);
    nb_json_free(o);
    return false;
}

static nb_status ask(const nb_json *engine, const nb_json *facts, answer *out, nb_err *err)
{
    const nb_json *refuse = nb_json_get(engine, "refuse"), *kernels = nb_json_get(engine, "kernels");
    const char *device = nb_json_str(nb_json_get(facts, "device"), "");

    out->row = nb_json_get(engine, "none");
    for (size_t i = 0; i < nb_json_len(refuse); i++)
        if (!first_failing(facts, nb_json_get(nb_json_at(refuse, i), "when"))) {
            out->row = nb_json_at(refuse, i);
            return NB_OK;
        }
    out->skipped = nb_json_new_arr();
    if (!out->skipped)
        return nb_enomem(err, "the answer");
    for (size_t i = 0; i < nb_json_len(kernels); i++) {
        const nb_json *kernel = nb_json_at(kernels, i), *need = nb_json_get(kernel, "need");
        const char *key = first_failing(facts, need), *on = nb_json_str(nb_json_get(need, "device"), device);
        if (!key) {
            out->row = kernel;
            return NB_OK;
        }
        if (strcmp(on, device) == 0 && strcmp(key, "method") != 0 && strcmp(key, "layout") != 0 && strcmp(key, "expert") != 0 &&
            !skip_kernel(out->skipped, kernel, facts, key))
            return nb_enomem(err, "the answer");
    }
    return NB_OK;
}

static bool copy_or_null(nb_json *o, const char *key, const nb_json *v)
{
    return nb_json_set(o, key, v ? nb_json_copy(v) : nb_json_new_null());
}

/* The sentence of the deciding row; where no kernel takes the linear, with what the last of them misses. */
static nb_json *sentence(const nb_json *says, const answer *a)
{
    const nb_json *message = nb_json_get(a->row, "message"), *last;
    nb_buf b = { 0 };
    nb_json *v;

    if (!message)
        message = nb_json_get(a->row, "note");
    if (a->row != nb_json_get(says, "none") || nb_json_len(a->skipped) == 0)
        return message ? nb_json_copy(message) : nb_json_new_null();
    last = nb_json_at(a->skipped, nb_json_len(a->skipped) - 1);
    nb_buf_printf(&b, "%s (%s: %s)", nb_json_str(message, ""), nb_json_str(nb_json_get(last, "kernel"), ""),
                  nb_json_str(nb_json_get(last, "why"), ""));
    v = b.failed ? NULL : nb_json_new_strn(b.p, b.n);
    nb_buf_clear(&b);
    return v;
}

static bool build(const judge *j, const nb_json *engine, const nb_json *says, const char *device, answer *a, nb_json *o)
{
    const nb_json *source = nb_json_get(a->row, "source");
    size_t of = 0;
    bool ok;

    for (size_t i = 0; i < j->n_kinds; i++)
        of += j->kinds[i].count;
    ok = copy_or_null(o, "engine", nb_json_get(engine, "name")) && copy_or_null(o, "title", nb_json_get(engine, "title")) &&
         copy_or_null(o, "version", nb_json_get(engine, "version")) && set_str(o, "device", device) &&
         copy_or_null(o, "verdict", nb_json_get(a->row, "verdict")) && copy_or_null(o, "rule", nb_json_get(a->row, "id")) &&
         copy_or_null(o, "kernel", nb_json_get(a->row, "kernel")) && nb_json_set(o, "message", sentence(says, a)) &&
         copy_or_null(o, "fix", nb_json_get(a->row, "fix")) && copy_or_null(o, "note", nb_json_get(says, "note")) &&
         copy_or_null(o, "source", source ? source : nb_json_get(says, "source")) &&
         nb_json_set(o, "module", a->k->module ? nb_json_new_str(a->k->module) : nb_json_new_null()) &&
         set_int(o, "linears", a->k->module ? (int64_t)a->count : 0) && set_int(o, "of", a->k->module ? (int64_t)of : 0);
    if (ok) {
        ok = nb_json_set(o, "skipped", a->skipped ? a->skipped : nb_json_new_arr());
        a->skipped = NULL;
    }
    return ok;
}

static const nb_json *engine_named(const nb_json *rules, const char *name, size_t n)
{
    const nb_json *list = nb_json_get(rules, "engines");

    for (size_t i = 0; i < nb_json_len(list); i++) {
        const char *have = nb_json_str(nb_json_get(nb_json_at(list, i), "name"), "");
        if (strlen(have) == n && memcmp(have, name, n) == 0)
            return nb_json_at(list, i);
    }
    return NULL;
}

/* The worst answer over all kinds of linears. */
static nb_status judge_one(judge *j, const nb_json *engine, const char *device, nb_err *err)
{
    const char *as = nb_json_str(nb_json_get(engine, "same_as"), "");
    const nb_json *says = as[0] ? engine_named(j->rules, as, strlen(as)) : engine;
    answer worst = { .bad = -1 };
    nb_json *o = nb_json_new_obj();
    nb_status rc = o && says ? NB_OK : nb_enomem(err, "the answer");

    for (size_t i = 0; i < j->n_kinds && rc == NB_OK; i++) {
        nb_json *facts = nb_json_new_obj();
        answer a = { .k = &j->kinds[i] };
        if (!facts || !linear_facts(j, a.k, facts) || !device_facts(device, facts))
            rc = nb_enomem(err, "facts");
        if (rc == NB_OK)
            rc = ask(says, facts, &a, err);
        a.bad = badness(nb_json_str(nb_json_get(a.row, "verdict"), "UNKNOWN"));
        a.count = a.k->count;
        if (rc == NB_OK && a.bad > worst.bad) {
            nb_json_free(worst.skipped);
            worst = a;
        } else {
            worst.count += a.row == worst.row ? a.count : 0;
            nb_json_free(a.skipped);
        }
        nb_json_free(facts);
    }
    if (rc == NB_OK && !build(j, engine, says, device, &worst, o))
        rc = nb_enomem(err, "the answer");
    nb_json_free(worst.skipped);
    if (rc == NB_OK && !nb_json_push(j->verdicts, o))
        return nb_enomem(err, "the answer");
    if (rc != NB_OK)
        nb_json_free(o);
    return rc;
}

/* ---- lists ----------------------------------------------------------------------------------------------------- */

/* Words of a comma-separated list into words[MAX_WORDS][32]; the count, or 0 when one does not fit. */
static size_t split(const char *list, char words[MAX_WORDS][32])
{
    size_t n = 0;

    while (*list) {
        const size_t len = strcspn(list, ",");
        if (n == MAX_WORDS || len == 0 || len >= 32)
            return 0;
        memcpy(words[n], list, len);
        words[n++][len] = '\0';
        list += len + (list[len] == ',');
    }
    return n;
}

static nb_status load_rules(const char *path, nb_json **out, nb_err *err)
{
    if (path)
        return nb_json_parse_file(path, 16u << 20, "rules", out, err);
    return nb_json_parse((const char *)nb_data_engines, nb_data_engines_size, "rules", 0, out, err);
}

bool nb_engines_known(const char *list)
{
    char words[MAX_WORDS][32];
    const size_t n = split(list, words);
    nb_json *rules = NULL;
    bool known = n > 0 && load_rules(NULL, &rules, NULL) == NB_OK;

    for (size_t i = 0; i < n && known; i++)
        known = strcmp(words[i], "all") == 0 || engine_named(rules, words[i], strlen(words[i]));
    nb_json_free(rules);
    return known;
}

static nb_status judge_devices(judge *j, const nb_json *engine, nb_err *err)
{
    char words[MAX_WORDS][32], esc[NB_ESC_CAP];
    const char *list = j->o->devices ? j->o->devices : "sm80,cpu";
    const size_t n = split(list, words);
    nb_status rc = NB_OK;

    for (size_t i = 0; i < n && rc == NB_OK; i++) {
        nb_json *o = nb_json_new_obj();
        if (!o || !device_facts(words[i], o))
            rc = nb_fail(err, NB_EARG, "arg.value", "",
                         "no device \"%s\"; expected sm75, sm80, sm89, sm90 ..., cpu, cpu-avx2, cpu-avx512, cpu-amx or arm",
                         nb_esc(esc, sizeof esc, words[i], strlen(words[i])));
        nb_json_free(o);
        if (rc == NB_OK)
            rc = judge_one(j, engine, words[i], err);
    }
    if (n == 0)
        return nb_fail(err, NB_EARG, "arg.value", "", "the list of devices is empty or too long");
    return rc;
}

static nb_status judge_engines(judge *j, nb_err *err)
{
    const nb_json *list = nb_json_get(j->rules, "engines");
    char words[MAX_WORDS][32], esc[NB_ESC_CAP];
    const char *want = j->o->engines ? j->o->engines : "all";
    const size_t n = split(want, words);
    nb_status rc = NB_OK;

    if (n == 0)
        return nb_fail(err, NB_EARG, "arg.value", "", "the list of engines is empty or too long");
    for (size_t i = 0; i < n && rc == NB_OK; i++) {
        const nb_json *engine = engine_named(j->rules, words[i], strlen(words[i]));
        if (strcmp(words[i], "all") == 0)
            for (size_t e = 0; e < nb_json_len(list) && rc == NB_OK; e++)
                rc = judge_devices(j, nb_json_at(list, e), err);
        else if (engine)
            rc = judge_devices(j, engine, err);
        else
            rc = nb_fail(err, NB_EARG, "arg.value", "", "no rules for engine \"%s\"; nibble inspect MODEL --engines lists all",
                         nb_esc(esc, sizeof esc, words[i], strlen(words[i])));
    }
    return rc;
}

nb_status nb_engines_judge(const char *path, const nb_engines_opts *o, nb_json **out, nb_err *err)
{
    judge j = { .o = o };
    nb_json *rules = NULL, *answer_obj = NULL;
    const char *bytes;
    size_t n;
    nb_status rc = load_rules(o->rules, &rules, err);

    *out = NULL;
    j.rules = rules;
    if (rc == NB_OK)
        rc = nb_conv_open(path, NULL, &j.in, err);
    if (rc == NB_OK && nb_hfdir_file(j.in.dir, "config.json", &bytes, &n, NULL) == NB_OK && bytes)
        rc = nb_hfdir_config(j.in.dir, &j.config, err);
    if (rc == NB_OK && !(j.verdicts = nb_json_new_arr()))
        rc = nb_enomem(err, "the answer");
    if (rc == NB_OK)
        rc = find_kinds(&j, err);
    if (rc == NB_OK)
        rc = judge_engines(&j, err);
    if (rc == NB_OK) {
        bool ok = (answer_obj = nb_json_new_obj()) && set_str(answer_obj, "model", path) &&
                  set_str(answer_obj, "layout", j.in.scan.format ? j.in.scan.format->name : "");
        if (ok) {
            ok = nb_json_set(answer_obj, "verdicts", j.verdicts);
            j.verdicts = NULL;
        }
        rc = ok ? NB_OK : nb_enomem(err, "the answer");
    }
    if (rc == NB_OK)
        *out = answer_obj;
    else
        nb_json_free(answer_obj);
    nb_json_free(j.verdicts);
    nb_json_free(rules);
    nb_free(j.kinds);
    nb_conv_close(&j.in);
    return rc;
}

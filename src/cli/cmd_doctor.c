/* cmd_doctor.c - `nibble doctor`: processor, kernels, memory, and whether the bits are right. */
#include <stdio.h>

#include "base/mem.h"
#include "cli/cli.h"
#include "job/doctor.h"

static nb_status run_doctor(nb_cli *cli, int argc, char **argv, nb_err *err);

extern const nb_cmd nb_cmd_doctor;
const nb_cmd nb_cmd_doctor = {
    .name = "doctor",
    .usage = "doctor [options]",
    .brief = "what this machine can do, which kernels run and why, whether the bits are right",
    .help = "Features of the processor, the kernel table in use and what better ones lack, the tier of every operation, threads, huge\n"
            "pages, read bandwidth; and a self-test: every kernel that runs here against the scalar one, bit by bit. Exit 1 when\n"
            "something is wrong.\n\n"
            "  nibble doctor\n"
            "  nibble doctor --cpu avx2 --json",
    .run = run_doctor,
};

/* Why this table and no other. */
static const char *why(const nb_doctor *d)
{
    for (size_t i = 0; i < d->n_tables; i++)
        if (d->table[i].runs)
            return d->table[i].name == d->chosen ? "the best that runs here" : "capped by --cpu or NIBBLE_CPU";
    return "";
}

static nb_json *tables_json(const nb_doctor *d)
{
    nb_json *list = nb_json_new_arr();
    bool ok = list != NULL;

    for (size_t i = 0; ok && i < d->n_tables; i++) {
        const nb_doctor_table *t = &d->table[i];
        nb_json *o = nb_json_new_obj();
        ok = nb_json_push(list, o) && nb_json_set(o, "name", nb_json_new_str(t->name)) &&
             nb_json_set(o, "runs", nb_json_new_bool(t->runs)) && nb_json_set(o, "lacks", nb_json_new_str(t->lacks)) &&
             nb_json_set(o, "bits", t->runs ? nb_json_new_bool(t->agrees) : nb_json_new_null());
    }
    if (ok)
        return list;
    nb_json_free(list);
    return NULL;
}

static nb_json *ops_json(const nb_doctor *d)
{
    nb_json *o = nb_json_new_obj();
    bool ok = o != NULL;

    for (size_t i = 0; ok && i < d->n_ops; i++) {
        nb_json *v = nb_json_new_obj();
        ok = nb_json_set(o, d->op[i].name, v) && nb_json_set(v, "tier", nb_json_new_str(d->op[i].tier)) &&
             nb_json_set(v, "bits", nb_json_new_bool(d->op[i].agrees));
    }
    if (ok)
        return o;
    nb_json_free(o);
    return NULL;
}

static nb_json *advice_json(const nb_doctor *d)
{
    nb_json *list = nb_json_new_arr();

    for (size_t i = 0; list && i < d->n_advice; i++)
        if (!nb_json_push(list, nb_json_new_str(d->advice[i]))) {
            nb_json_free(list);
            return NULL;
        }
    return list;
}

static nb_status print_json(const nb_doctor *d, nb_err *err)
{
    nb_json *o = nb_json_new_obj();
    const bool ok =
        nb_json_set(o, "version", nb_json_new_str(NB_VERSION)) && nb_json_set(o, "cpu", nb_json_new_str(d->cpu)) &&
        nb_json_set(o, "family", nb_json_new_int(d->family)) && nb_json_set(o, "features", nb_json_new_str(d->features)) &&
        nb_json_set(o, "cores", nb_json_new_int(d->cores)) && nb_json_set(o, "threads", nb_json_new_int(d->threads)) &&
        nb_json_set(o, "kernels", nb_json_new_str(d->chosen)) && nb_json_set(o, "why", nb_json_new_str(why(d))) &&
        nb_json_set(o, "tables", tables_json(d)) && nb_json_set(o, "operations", ops_json(d)) &&
        nb_json_set(o, "bits_ok", nb_json_new_bool(d->bits_ok)) && nb_json_set(o, "memory_bytes", nb_json_new_int((int64_t)d->mem_total)) &&
        nb_json_set(o, "free_bytes", nb_json_new_int((int64_t)d->mem_free)) &&
        nb_json_set(o, "huge_pages", nb_json_new_str(d->huge_mode)) &&
        nb_json_set(o, "huge_share",
                    d->huge_got == SIZE_MAX ? nb_json_new_null() : nb_json_new_real((double)d->huge_got / (double)d->huge_asked)) &&
        nb_json_set(o, "read_bytes_s_one_thread", nb_json_new_real(d->read_1)) &&
        nb_json_set(o, "read_bytes_s", nb_json_new_real(d->read_all)) && nb_json_set(o, "fork_us", nb_json_new_real(d->fork_us)) &&
        nb_json_set(o, "small_model_threads", nb_json_new_int(d->small_threads)) &&
        nb_json_set(o, "small_model_step_s", nb_json_new_real(d->small_s)) &&
        nb_json_set(o, "small_model_step_all_s", nb_json_new_real(d->small_all_s)) && nb_json_set(o, "advice", advice_json(d));

    if (ok)
        nb_cli_json(o);
    nb_json_free(o);
    return ok ? NB_OK : nb_enomem(err, "the result");
}

static void print_table(const nb_doctor *d)
{
    char a[32], b[32];

    printf("nibble %s on %s (family %d), %d of %d cores\n\n", NB_VERSION, d->cpu, d->family, d->threads, d->cores);
    printf("  features      %s\n", d->features[0] ? d->features : "none that matter");
    for (size_t i = 0; i < d->n_tables; i++) {
        const nb_doctor_table *t = &d->table[i];
        printf("  %-13s %-13s %s", i ? "" : "kernels", t->name,
               !t->runs    ? "not here, lacks "
               : t->agrees ? "bits as scalar"
                           : "WRONG BITS");
        if (t->name == d->chosen)
            printf("; in use: %s\n", why(d));
        else
            printf("%s\n", t->lacks);
    }
    printf("\n");
    for (size_t i = 0; i < d->n_ops; i++) {
        printf("  %-20s %-13s %s", d->op[i].name, d->op[i].tier, d->op[i].agrees ? "ok" : "WRONG");
        if (d->op[i].tier != d->chosen)
            printf("; %s has none of its own", d->chosen);
        putchar('\n');
    }
    printf("\n  memory        %s, %s free\n", nb_human_bytes(a, sizeof a, d->mem_total), nb_human_bytes(b, sizeof b, d->mem_free));
    if (d->huge_got == SIZE_MAX)
        printf("  huge pages    %s\n", d->huge_mode[0] ? d->huge_mode : "unknown");
    else
        printf("  huge pages    %s; %.0f %% of a test block\n", d->huge_mode[0] ? d->huge_mode : "unknown",
               100.0 * (double)d->huge_got / (double)d->huge_asked);
    printf("  reading       %s/s, one thread %s/s\n", nb_human_bytes(a, sizeof a, (uint64_t)d->read_all),
           nb_human_bytes(b, sizeof b, (uint64_t)d->read_1));
    printf("  threads       %.1f us to hand out work; small models decode on %d", d->fork_us, d->small_threads);
    if (d->small_threads < d->threads)
        printf(": a step takes %.1f ms, with all %.1f ms", 1e3 * d->small_s, 1e3 * d->small_all_s);
    putchar('\n');
    for (size_t i = 0; i < d->n_advice; i++)
        printf("%s  advice: %s\n", i ? "" : "\n", d->advice[i]);
}

static nb_status run_doctor(nb_cli *cli, int argc, char **argv, nb_err *err)
{
    const char *args[1];
    const nb_kern *kern;
    nb_pool *pool = NULL;
    nb_doctor d;
    bool help;
    size_t n;
    nb_status rc = nb_cli_parse(cli, &nb_cmd_doctor, NULL, 0, argc, argv, args, 1, &n, &help, err);

    if (help)
        return NB_OK;
    if (rc == NB_OK && n > 0)
        rc = nb_fail(err, NB_EARG, "arg.extra", "", "doctor looks at the machine, not at a model; nibble check looks at a model");
    if (rc == NB_OK)
        rc = nb_cli_cpu(cli, &kern, err);
    if (rc == NB_OK)
        rc = nb_cli_pool(cli, &pool, err);
    if (rc == NB_OK)
        rc = nb_doctor_run(kern, pool, &cli->host, &d, err);
    nb_cli_progress_end(cli);
    if (rc == NB_OK && cli->json)
        rc = print_json(&d, err);
    else if (rc == NB_OK)
        print_table(&d);
    nb_pool_close(pool);
    return rc == NB_OK && !d.bits_ok ? NB_NO : rc;
}

/* progress.c - terminal, log lines, progress, signals. stderr only: stdout is data. */
#include "cli/progress.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cpu.h"
#include "base/mem.h"

static volatile sig_atomic_t caught; /* the first signal */

static void on_signal(int sig)
{
    if (caught) /* the second one ends the process at once */
        _exit(128 + sig);
    caught = sig;
}

/* Nobody reads a pipe of ours. When it is stdout the work stops, in silence; stderr is not worth stopping for (CL-03, CL-04). */
static void on_pipe(int sig)
{
    struct pollfd out = { .fd = 1, .events = POLLOUT };
    const int saved = errno;

    if (poll(&out, 1, 0) > 0 && out.revents & (POLLERR | POLLHUP)) {
        if (caught == sig) /* still writing */
            _exit(128 + sig);
        if (!caught)
            caught = sig;
    }
    errno = saved;
}

/* A mapped file that shrinks raises SIGBUS on the next read: one sentence and the code of a failed read (hardening 3.1). */
static void on_bus(int sig)
{
    static const char text[] = "nibble: error: io.changed: an input file shrank while it was being read\n";
    ssize_t n = write(2, text, sizeof text - 1);

    (void)sig;
    (void)n;
    _exit(NB_EREAD);
}

bool nb_cli_interrupted(void)
{
    return caught != 0;
}

bool nb_cli_pipe_gone(void)
{
    return caught == SIGPIPE;
}

int nb_cli_exit_code(nb_status rc)
{
    if (caught == SIGPIPE || (rc == NB_ECANCELED && caught))
        return 128 + caught;
    return (int)rc;
}

/* ---- errors as JSON lines (hardening 3.2) ---- */

static const char *const level_name[] = { [NB_LOG_ERROR] = "error", [NB_LOG_WARN] = "warning" };

static nb_json *err_json(const nb_err *err)
{
    nb_json *o = nb_json_new_obj();

    if (nb_json_set(o, "level", nb_json_new_str("error")) && nb_json_set(o, "class", nb_json_new_str(err->cls)) &&
        nb_json_set(o, "exit", nb_json_new_int(err->code)) && nb_json_set(o, "file", nb_json_new_str(err->file)) &&
        nb_json_set(o, "subject", nb_json_new_str(err->subject)) && nb_json_set(o, "rule", nb_json_new_str(err->rule)) &&
        nb_json_set(o, "detail", nb_json_new_str(err->what)))
        return o;
    nb_json_free(o);
    return NULL;
}

static nb_json *log_json(const char *level, const char *line)
{
    nb_json *o = nb_json_new_obj();

    if (nb_json_set(o, "level", nb_json_new_str(level)) && nb_json_set(o, "detail", nb_json_new_str(line)))
        return o;
    nb_json_free(o);
    return NULL;
}

/* Takes o, which may be NULL; false when there was no memory for it. */
static bool print_json_line(nb_json *o)
{
    char *text = o ? nb_json_dump(o, 0, true) : NULL;
    const bool ok = text != NULL;

    if (ok)
        fprintf(stderr, "%s\n", text);
    nb_free(text);
    nb_json_free(o);
    return ok;
}

/* ---- host callbacks ---- */

static struct {
    double t0, last; /* when this kind of work began, when anything was last shown */
    uint64_t first_done;
    const char *what;
    bool shown; /* a bar is on the screen */
} bar;

static void clear_bar(void)
{
    if (bar.shown)
        fputs("\r\033[K", stderr);
    bar.shown = false;
}

static void host_log(void *user, nb_level level, const char *line)
{
    const nb_cli *cli = user;

    if ((level >= NB_LOG_INFO && cli->quiet) || (level == NB_LOG_DEBUG && cli->verbose == 0))
        return;
    clear_bar();
    if (level >= NB_LOG_INFO)
        fprintf(stderr, "%s\n", line);
    else if (!cli->errors_json || !print_json_line(log_json(level_name[level], line)))
        fprintf(stderr, "nibble: %s: %s\n", level_name[level], line);
}

static void put_amount(char *out, size_t cap, const nb_progress *p, uint64_t v)
{
    if (p->unit && strcmp(p->unit, "bytes") == 0)
        nb_human_bytes(out, cap, v);
    else
        snprintf(out, cap, "%llu", (unsigned long long)v);
}

static void host_progress(void *user, const nb_progress *p)
{
    const nb_cli *cli = user;
    const double now = nb_now();
    const double every = cli->tty_err ? 1.0 : 5.0; /* at most one a second, whatever is shown (DU-25) */
    const bool fresh = !bar.what || strcmp(bar.what, p->what) != 0;
    char done[32], total[32], rss[32], left[64] = "";
    double rate;

    if (cli->quiet)
        return;
    if (fresh) {
        bar.what = p->what;
        bar.t0 = now;
        bar.first_done = p->done;
        if (!cli->tty_err)
            bar.last = now;
    }
    if (now - bar.last < every)
        return;
    bar.last = now;
    rate = now > bar.t0 ? (double)(p->done - bar.first_done) / (now - bar.t0) : 0;
    put_amount(done, sizeof done, p, p->done);
    put_amount(total, sizeof total, p, p->total);
    if (rate > 0) {
        char per[32];
        if (p->unit && strcmp(p->unit, "bytes") == 0)
            nb_human_bytes(per, sizeof per, (uint64_t)rate);
        else
            snprintf(per, sizeof per, rate < 10 ? "%.1f" : "%.0f", rate);
        snprintf(left, sizeof left, ", %s/s", per);
    }
    if (p->total > p->done && rate > 0)
        snprintf(left + strlen(left), sizeof left - strlen(left), ", %.0f s left", (double)(p->total - p->done) / rate);
    nb_human_bytes(rss, sizeof rss, nb_rss_now());
    if (cli->tty_err)
        fputs("\r\033[K", stderr);
    fprintf(stderr, "%s %s/%s %s%s, %s%s%.80s", p->what, done, total, p->unit ? p->unit : "", left, rss, p->item ? ", " : "",
            p->item ? p->item : "");
    if (cli->tty_err) {
        fflush(stderr);
        bar.shown = true;
    } else {
        fputc('\n', stderr);
    }
}

static bool host_cancelled(void *user)
{
    (void)user;
    return nb_cli_interrupted();
}

void nb_cli_progress_end(const nb_cli *cli)
{
    (void)cli;
    clear_bar();
    bar.what = NULL;
}

/* A standard descriptor that is missing, so that no file of ours gets its number (CL-05). Output to a closed stdout must
 * fail as a write, so that one is opened for reading. */
static void fill_descriptors(void)
{
    for (int fd = 0; fd <= 2; fd++)
        if (fcntl(fd, F_GETFD) < 0 && errno == EBADF && open("/dev/null", fd == 2 ? O_WRONLY : O_RDONLY) != fd)
            _exit(NB_EINTERNAL);
}

void nb_cli_setup(nb_cli *cli)
{
    const char *no_color = getenv("NO_COLOR");
    const char *term = getenv("TERM");
    const char *cpu = getenv("NIBBLE_CPU");
    struct sigaction sa;

    fill_descriptors();
    cli->cpu = cpu && *cpu ? cpu : NULL; /* --cpu goes before it */
    cli->tty_err = isatty(2) && !(term && strcmp(term, "dumb") == 0);
    cli->color = cli->tty_err && !(no_color && *no_color);
    cli->host.log = host_log;
    cli->host.progress = host_progress;
    cli->host.cancelled = host_cancelled;
    cli->host.user = cli;
    memset(&sa, 0, sizeof sa);
    sigemptyset(&sa.sa_mask);
    sa.sa_handler = on_signal;
    sigaction(SIGINT, &sa, NULL);
    sigaction(SIGTERM, &sa, NULL);
    sigaction(SIGHUP, &sa, NULL);
    sa.sa_handler = on_pipe;
    sigaction(SIGPIPE, &sa, NULL);
    sa.sa_handler = on_bus;
    sigaction(SIGBUS, &sa, NULL);
    sa.sa_handler = SIG_IGN; /* a write beyond RLIMIT_FSIZE fails with EFBIG instead, and is told like a full disk */
    sigaction(SIGXFSZ, &sa, NULL);
}

/* ---- output ---- */

void nb_cli_print_err(const nb_cli *cli, const nb_err *err)
{
    char line[2048];

    clear_bar();
    if (cli->errors_json && print_json_line(err_json(err)))
        return;
    nb_err_format(err, line, sizeof line);
    fprintf(stderr, cli->color ? "nibble: \033[1;31merror:\033[0m %s\n" : "nibble: error: %s\n", line);
}

void nb_cli_json(const nb_json *v)
{
    char *text = nb_json_dump(v, 2, false);

    puts(text ? text : "null");
    nb_free(text);
}

void nb_cli_note(const nb_cli *cli, const char *fmt, ...)
{
    va_list ap;

    if (cli->quiet)
        return;
    clear_bar();
    va_start(ap, fmt);
    vfprintf(stderr, fmt, ap);
    va_end(ap);
    fputc('\n', stderr);
}

void nb_cli_dim(const nb_cli *cli, const char *fmt, ...)
{
    va_list ap;

    if (cli->quiet)
        return;
    clear_bar();
    if (cli->color)
        fputs("\033[2m", stderr);
    va_start(ap, fmt);
    vfprintf(stderr, fmt, ap);
    va_end(ap);
    fputs(cli->color ? "\033[0m\n" : "\n", stderr);
}

const char *nb_human_bytes(char *out, size_t cap, uint64_t n)
{
    static const char *const unit[] = { "B", "KB", "MB", "GB", "TB" };
    double v = (double)n;
    size_t u = 0;

    while (v >= 999.5 && u + 1 < NB_LEN(unit)) {
        v /= 1000;
        u++;
    }
    snprintf(out, cap, u && v < 99.95 ? "%.1f %s" : "%.0f %s", v, unit[u]);
    return out;
}

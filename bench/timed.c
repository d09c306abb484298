/* timed.c - run a command without its output; print seconds of wall and of processor time, and its peak memory in kB.
 *
 * usage: nibble_timed COMMAND [ARGUMENT...]     exits with the command's status; its messages are shown when it fails */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static double now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static double seconds(struct timeval t)
{
    return (double)t.tv_sec + 1e-6 * (double)t.tv_usec;
}

int main(int argc, char **argv)
{
    FILE *said = tmpfile();
    struct rusage u;
    const double t0 = now();
    const pid_t child = argc > 1 && said ? fork() : -1;
    int status, c;

    if (child == 0) {
        const int null = open("/dev/null", O_WRONLY);
        if (null < 0 || dup2(null, 1) < 0 || dup2(fileno(said), 2) < 0)
            _exit(126);
        execvp(argv[1], argv + 1);
        _exit(127);
    }
    if (child < 0 || wait4(child, &status, 0, &u) != child) {
        fprintf(stderr, "usage: nibble_timed COMMAND [ARGUMENT...]\n");
        return 2;
    }
    printf("%.3f %.3f %ld\n", now() - t0, seconds(u.ru_utime) + seconds(u.ru_stime), u.ru_maxrss);
    status = WIFEXITED(status) ? WEXITSTATUS(status) : 128;
    rewind(said);
    while (status && (c = getc(said)) != EOF)
        putc(c, stderr);
    fclose(said);
    return status;
}

/* timed.c - run a command without its output; print seconds of wall and of processor time, and its peak memory in kB.
 *
 * usage: nibble_timed [-m MB] COMMAND [ARGUMENT...]     exits with the command's status; its messages are shown when it fails
 *
 * -m: before the clock starts, MB of memory are written to and given back. The host of a virtual machine may have taken free memory
 * away, and brings it back page by page, twenty times as slowly as a system clears pages that it has. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
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

static void touch(size_t bytes)
{
    char *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (p == MAP_FAILED)
        return;
    madvise(p, bytes, MADV_HUGEPAGE);
    for (size_t i = 0; i < bytes; i += 4096)
        p[i] = 1;
    munmap(p, bytes);
}

int main(int argc, char **argv)
{
    if (argc > 2 && strcmp(argv[1], "-m") == 0) {
        touch((size_t)strtoul(argv[2], NULL, 10) << 20);
        argc -= 2;
        argv += 2;
    }
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
        fprintf(stderr, "usage: nibble_timed [-m MB] COMMAND [ARGUMENT...]\n");
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

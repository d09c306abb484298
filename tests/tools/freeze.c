/* freeze.c - stop one thread of a process, by name, and leave the others running: how tests make an engine hang.
 * usage: freeze PID NAME. Prints "frozen" and stays until the process ends or this one is killed (the thread then goes on).
 * Exit 77: not allowed to. */
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

static pid_t find(const char *pid, const char *name)
{
    char path[320], comm[32];
    DIR *d;
    pid_t hit = 0;

    snprintf(path, sizeof path, "/proc/%s/task", pid);
    d = opendir(path);
    for (struct dirent *e; d && !hit && (e = readdir(d));) {
        FILE *f;

        snprintf(path, sizeof path, "/proc/%s/task/%s/comm", pid, e->d_name);
        f = fopen(path, "r");
        if (f && fgets(comm, sizeof comm, f) && strncmp(comm, name, strlen(name)) == 0)
            hit = (pid_t)atoi(e->d_name);
        if (f)
            fclose(f);
    }
    if (d)
        closedir(d);
    return hit;
}

int main(int argc, char **argv)
{
    const pid_t tid = argc == 3 ? find(argv[1], argv[2]) : 0;
    int status;

    if (!tid)
        return 2;
    if (ptrace(PTRACE_SEIZE, tid, 0, 0) != 0)
        return errno == EPERM || errno == EACCES ? 77 : 1;
    if (ptrace(PTRACE_INTERRUPT, tid, 0, 0) != 0 || waitpid(tid, &status, __WALL) != tid)
        return 1;
    puts("frozen");
    fflush(stdout);
    while (waitpid(tid, &status, __WALL) == tid && !WIFEXITED(status) && !WIFSIGNALED(status))
        ;
    return 0;
}

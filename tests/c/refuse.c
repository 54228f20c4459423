/* Runs a program to which one system call is refused with EPERM, as under the seccomp profile of a strict container. Used by
 * tests/tests/softefa/edges.rs and by tests of the tools: refuse CALL PROGRAM ARGUMENTS. */
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

static const struct {
    const char *name;
    int number;
} calls[] = {
    {"pidfd_open", __NR_pidfd_open},         {"memfd_create", __NR_memfd_create},
    {"eventfd2", __NR_eventfd2},             {"epoll_create1", __NR_epoll_create1},
    {"timerfd_create", __NR_timerfd_create}, {"sched_setaffinity", __NR_sched_setaffinity},
    {"userfaultfd", __NR_userfaultfd},       {"process_vm_readv", __NR_process_vm_readv},
};

static int number(const char *name) {
    for (unsigned i = 0; i < sizeof(calls) / sizeof(*calls); i++)
        if (!strcmp(calls[i].name, name))
            return calls[i].number;
    fprintf(stderr, "refuse: %s is not in the list\n", name);
    _exit(97);
}

int main(int argc, char **argv) {
    if (argc < 3)
        return 99;
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number(argv[1]), 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog filter = {sizeof(code) / sizeof(*code), code};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter)) {
        perror("refuse");
        return 99;
    }
    execvp(argv[2], argv + 2);
    perror(argv[2]);
    return 98;
}

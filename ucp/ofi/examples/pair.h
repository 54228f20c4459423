/* Two processes of one host, and what every program here needs: errors that end it, an exchange of bytes that is not
 * libfabric's, and the choice of the provider: FI_PROVIDER in the environment, efa4 without it. */
#ifndef PAIR_H
#define PAIR_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#include <rdma/fabric.h>
#include <rdma/fi_atomic.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>
#include <rdma/fi_tagged.h>

/* Rank of this process, 0 or 1. */
static int rank;
static int channel;
static pid_t child;

#define CHECK(condition) do { \
    if (!(condition)) { \
        fprintf(stderr, "%s:%d: rank %d: %s\n", __FILE__, __LINE__, rank, #condition); \
        exit(1); \
    } \
} while (0)
#define OK(call) do { \
    long status_ = (long)(call); \
    if (status_ != 0) { \
        fprintf(stderr, "%s:%d: rank %d: %s: %ld (%s)\n", __FILE__, __LINE__, rank, #call, status_, \
                fi_strerror((int)-status_)); \
        exit(1); \
    } \
} while (0)

/* Becomes two processes, before anything of libfabric is used. None runs for more than a minute. */
static inline void start_pair(void)
{
    int ends[2];
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
    child = fork();
    CHECK(child >= 0);
    rank    = child == 0;
    channel = ends[rank];
    close(ends[1 - rank]);
    alarm(60);
}

/* Gives bytes to the other process, and gets as many from it. */
static inline void exchange(const void *mine, void *theirs, size_t len)
{
    size_t got = 0;
    ssize_t n;
    CHECK(write(channel, mine, len) == (ssize_t)len);
    while (got < len) {
        n = read(channel, (char*)theirs + got, len - got);
        CHECK(n > 0);
        got += (size_t)n;
    }
}

/* Ends the process; the first one reports the failure of the second. */
static inline int end_pair(void)
{
    int status = 0;
    if (rank == 0) {
        CHECK(waitpid(child, &status, 0) == child);
        CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
    return 0;
}

/* Name of the provider. */
static inline const char *provider(void)
{
    const char *name = getenv("FI_PROVIDER");
    return name == NULL ? "efa4" : name;
}

/* Name of an endpoint, padded, and that of the other process. */
struct names {
    char bytes[512];
    size_t len;
};

/* Inserts the names of both processes, so that the rank is the address. */
static inline void insert_ranks(struct fid_ep *ep, struct fid_av *av, fi_addr_t addrs[2])
{
    struct names both[2] = {{.len = sizeof(both[0].bytes)}, {.len = sizeof(both[0].bytes)}};
    int at;
    OK(fi_getname(&ep->fid, both[rank].bytes, &both[rank].len));
    exchange(&both[rank], &both[1 - rank], sizeof(both[0]));
    for (at = 0; at < 2; at++) {
        CHECK(fi_av_insert(av, both[at].bytes, 1, &addrs[at], 0, NULL) == 1);
    }
}

#endif

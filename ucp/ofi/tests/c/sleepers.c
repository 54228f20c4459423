/* Threads that sleep for queues and counters of one endpoint, in calls and on descriptors: each wakes up for what is its
 * own, and for endpoints that are bound and closed meanwhile. Without timers of the engine, which would wake them. */
#define _GNU_SOURCE
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <rdma/fi_tagged.h>

#include "ends.h"

enum { MESSAGES = 100, SOON = 30 };

struct sleeper {
    struct fid_cq *cq;
    struct fid_cntr *cntr;
    int has_fd;
    pthread_t thread;
    atomic_int got;
    atomic_int is_over;
};

static char in[8], out[8];

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

/* Sleeps for a queue until it has an entry or is signalled. */
static ssize_t next_entry(struct sleeper *by, struct fi_cq_tagged_entry *entry)
{
    struct fid *fids[] = { &by->cq->fid };
    struct pollfd fd = { .events = POLLIN };
    ssize_t got;

    if (!by->has_fd) {
        return fi_cq_sread(by->cq, entry, 1, NULL, -1);
    }
    OK(fi_control(&by->cq->fid, FI_GETWAIT, &fd.fd));
    while ((got = fi_cq_read(by->cq, entry, 1)) == -FI_EAGAIN && !by->is_over) {
        if (fi_trywait(fabric, fids, 1) == 0) {
            CHECK(poll(&fd, 1, -1) == 1);
        }
    }
    return got;
}

static void *read_on(void *arg)
{
    struct sleeper *by = arg;
    struct fi_cq_tagged_entry entry;

    while (!by->is_over) {
        ssize_t got = next_entry(by, &entry);
        CHECK(got == 1 || got == -FI_EAGAIN);
        by->got += got == 1;
    }
    return NULL;
}

/* A counter whose next change it waits for. */
static void *count_on(void *arg)
{
    struct sleeper *by = arg;

    while (!by->is_over) {
        OK(fi_cntr_wait(by->cntr, (uint64_t)by->got + 1, -1));
        by->got++;
    }
    return NULL;
}

static struct fid_cq *open_cq(enum fi_wait_obj wait)
{
    struct fi_cq_attr attr = { .format = FI_CQ_FORMAT_TAGGED, .wait_obj = wait };
    struct fid_cq *cq;
    OK(fi_cq_open(domain, &attr, &cq, NULL));
    return cq;
}

static void start(struct sleeper *by, int has_fd)
{
    *by = (struct sleeper){ .has_fd = has_fd, .cq = open_cq(has_fd ? FI_WAIT_FD : FI_WAIT_UNSPEC) };
    OK(pthread_create(&by->thread, NULL, read_on, by));
}

/* Waits until it has woken up so often. The queue of another endpoint makes progress, if there is one. */
static void expect(struct sleeper *by, int number, struct fid_cq *progress)
{
    double until = now() + SOON;
    struct fi_cq_tagged_entry entry;

    while (by->got < number) {
        CHECK(now() < until);
        if (progress != NULL) {
            fi_cq_read(progress, &entry, 1);
        }
        usleep(50);
    }
}

static void stop(struct sleeper *by)
{
    by->is_over = 1;
    OK(fi_cq_signal(by->cq));
    OK(pthread_join(by->thread, NULL));
    OK(fi_close(&by->cq->fid));
}

static struct fid_ep *open_ep(struct fid_av *av, struct fid_cq *tx, struct fid_cq *rx, struct fid_cntr *cntr)
{
    struct fid_ep *ep;
    OK(fi_endpoint(domain, info, &ep, NULL));
    OK(fi_ep_bind(ep, &av->fid, 0));
    OK(fi_ep_bind(ep, &tx->fid, FI_TRANSMIT));
    OK(fi_ep_bind(ep, &rx->fid, FI_RECV));
    if (cntr != NULL) {
        OK(fi_ep_bind(ep, &cntr->fid, FI_RECV));
    }
    OK(fi_enable(ep));
    return ep;
}

static fi_addr_t address_of(struct fid_ep *ep, struct fid_av *av)
{
    char name[1024];
    size_t len = sizeof(name);
    fi_addr_t address;
    OK(fi_getname(&ep->fid, name, &len));
    IS(fi_av_insert(av, name, 1, &address, 0, NULL), 1);
    return address;
}

/* One sleeps for sends, of which there are none, others for receives: for one queue, and for a counter. */
static void on_one_endpoint(int has_fd)
{
    struct sleeper sends, receives, counts = {0};
    struct fid_cq *cq = open_cq(FI_WAIT_NONE);
    struct fid_ep *ep, *other;
    fi_addr_t to;
    int n;

    start(&sends, has_fd);
    start(&receives, has_fd);
    OK(fi_cntr_open(domain, NULL, &counts.cntr, NULL));
    OK(pthread_create(&counts.thread, NULL, count_on, &counts));
    usleep(20000);
    ep = open_ep(a.av, sends.cq, receives.cq, counts.cntr);
    other = open_ep(b.av, cq, cq, NULL);
    to = address_of(ep, b.av);
    for (n = 1; n <= MESSAGES; n++) {
        OK(fi_trecv(ep, in, sizeof(in), NULL, FI_ADDR_UNSPEC, 1, 0, NULL));
        usleep(n % 2 == 0 ? 0 : 300);
        OK(fi_tinject(other, out, sizeof(out), to, 1));
        expect(&receives, n, cq);
        expect(&counts, n, cq);
    }
    IS(sends.got, 0);
    counts.is_over = 1;
    OK(fi_cntr_add(counts.cntr, 1));
    OK(pthread_join(counts.thread, NULL));
    OK(fi_close(&ep->fid));
    OK(fi_close(&other->fid));
    OK(fi_close(&counts.cntr->fid));
    OK(fi_close(&cq->fid));
    stop(&sends);
    stop(&receives);
}

/* An endpoint sends to itself that is bound when the thread already sleeps on another one. Then both are closed. */
static void bound_meanwhile(int has_fd)
{
    struct sleeper by, counts = {0};
    struct fid_cq *cq = open_cq(FI_WAIT_NONE);
    struct fid_ep *first, *late;
    fi_addr_t self;
    int n;

    start(&by, has_fd);
    OK(fi_cntr_open(domain, NULL, &counts.cntr, NULL));
    first = open_ep(a.av, cq, by.cq, counts.cntr);
    OK(pthread_create(&counts.thread, NULL, count_on, &counts));
    usleep(50000);
    late = open_ep(b.av, cq, by.cq, counts.cntr);
    self = address_of(late, b.av);
    usleep(50000);
    for (n = 1; n <= 3; n++) {
        OK(fi_trecv(late, in, sizeof(in), NULL, FI_ADDR_UNSPEC, 1, 0, NULL));
        OK(fi_tinject(late, out, sizeof(out), self, 1));
        expect(&by, n, NULL);
        expect(&counts, n, NULL);
        usleep(20000);
    }
    OK(fi_close(&first->fid));
    OK(fi_close(&late->fid));
    usleep(20000);
    counts.is_over = 1;
    OK(fi_cntr_add(counts.cntr, 1));
    OK(pthread_join(counts.thread, NULL));
    OK(fi_close(&counts.cntr->fid));
    OK(fi_close(&cq->fid));
    stop(&by);
}

/* A message waits for a receive, which is posted at a shared context while the thread sleeps. */
static void shared_receives(int has_fd)
{
    struct fid_cq *cq = open_cq(FI_WAIT_NONE);
    size_t contexts = info->ep_attr->rx_ctx_cnt;
    struct fid_ep *ep, *srx;
    struct sleeper by;
    fi_addr_t self;
    int n;

    start(&by, has_fd);
    OK(fi_srx_context(domain, NULL, &srx, NULL));
    info->ep_attr->rx_ctx_cnt = FI_SHARED_CONTEXT;
    OK(fi_endpoint(domain, info, &ep, NULL));
    info->ep_attr->rx_ctx_cnt = contexts;
    OK(fi_ep_bind(ep, &a.av->fid, 0));
    OK(fi_ep_bind(ep, &cq->fid, FI_TRANSMIT));
    OK(fi_ep_bind(ep, &by.cq->fid, FI_RECV));
    OK(fi_ep_bind(ep, &srx->fid, 0));
    OK(fi_enable(ep));
    self = address_of(ep, a.av);
    for (n = 1; n <= 5; n++) {
        OK(fi_tinject(ep, out, sizeof(out), self, 1));
        usleep(20000);
        IS(by.got, n - 1);
        OK(fi_trecv(srx, in, sizeof(in), NULL, FI_ADDR_UNSPEC, 1, 0, NULL));
        expect(&by, n, NULL);
    }
    OK(fi_close(&ep->fid));
    OK(fi_close(&srx->fid));
    OK(fi_close(&cq->fid));
    stop(&by);
}

/* Two threads that sleep for one queue, in calls or on its descriptor. */
static void for_one_queue(int has_fd)
{
    struct sleeper one, two;
    struct fid_cq *cq = open_cq(FI_WAIT_NONE);
    struct fid_ep *ep, *other;
    fi_addr_t to;
    int n;

    start(&one, has_fd);
    two = (struct sleeper){ .has_fd = has_fd, .cq = one.cq };
    ep = open_ep(a.av, cq, one.cq, NULL);
    other = open_ep(b.av, cq, cq, NULL);
    to = address_of(ep, b.av);
    OK(pthread_create(&two.thread, NULL, read_on, &two));
    for (n = 2; n <= MESSAGES; n += 2) {
        double until = now() + SOON;
        struct fi_cq_tagged_entry entry;
        usleep(300);
        for (int i = 0; i < 2; i++) {
            OK(fi_trecv(ep, in, sizeof(in), NULL, FI_ADDR_UNSPEC, 1, 0, NULL));
            OK(fi_tinject(other, out, sizeof(out), to, 1));
        }
        while (one.got + two.got < n) {
            CHECK(now() < until);
            fi_cq_read(cq, &entry, 1);
            usleep(50);
        }
    }
    one.is_over = two.is_over = 1;
    /* A signal is for one of them. */
    while (pthread_tryjoin_np(two.thread, NULL) != 0) {
        OK(fi_cq_signal(one.cq));
        usleep(100);
    }
    OK(fi_close(&ep->fid));
    OK(fi_close(&other->fid));
    OK(fi_close(&cq->fid));
    stop(&one);
}

int main(int argc, char **argv)
{
    int has_fd;

    alarm(170);
    setenv("UCX_KEEPALIVE_INTERVAL", "inf", 1);
    open_ends(FI_TAGGED, argc, argv);
    for (has_fd = 0; has_fd < 2; has_fd++) {
        on_one_endpoint(has_fd);
        bound_meanwhile(has_fd);
        for_one_queue(has_fd);
        shared_receives(has_fd);
    }
    close_ends();
    return 0;
}

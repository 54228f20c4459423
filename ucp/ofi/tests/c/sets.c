/* Poll sets, wait sets, thresholds of sleeping readers, and options, with an endpoint that sends to itself. */
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <time.h>
#include <unistd.h>
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_ext.h>

#include "check.h"

static struct fid_fabric *fabric;
static struct fid_domain *domain;
static struct fid_wait *set;
static struct fid_cq *cq;
static struct fid_cntr *cntr;
static struct fid_eq *eq;
static struct fid_ep *ep;
static fi_addr_t self;
static char out[64], in[64];

static void open_all(struct fi_info *info)
{
    struct fi_wait_attr wait_attr = { .wait_obj = FI_WAIT_FD };
    struct fi_cq_attr cq_attr     = { .wait_obj = FI_WAIT_SET, .wait_cond = FI_CQ_COND_THRESHOLD, .size = 1 };
    struct fi_cntr_attr cntr_attr = { .wait_obj = FI_WAIT_SET };
    struct fi_eq_attr eq_attr     = { .wait_obj = FI_WAIT_SET };
    struct fi_av_attr av_attr     = {0};
    struct fid_av *av;
    char name[512];
    size_t len = sizeof(name);

    OK(fi_fabric(info->fabric_attr, &fabric, NULL));
    OK(fi_domain(fabric, info, &domain, NULL));
    IS(fi_cq_open(domain, &cq_attr, &cq, NULL), -FI_EINVAL);
    OK(fi_wait_open(fabric, &wait_attr, &set));
    cq_attr.wait_set = cntr_attr.wait_set = eq_attr.wait_set = set;
    OK(fi_cq_open(domain, &cq_attr, &cq, &cq));
    OK(fi_cntr_open(domain, &cntr_attr, &cntr, &cntr));
    OK(fi_eq_open(fabric, &eq_attr, &eq, &eq));
    OK(fi_av_open(domain, &av_attr, &av, NULL));
    OK(fi_endpoint(domain, info, &ep, NULL));
    OK(fi_ep_bind(ep, &av->fid, 0));
    OK(fi_ep_bind(ep, &cq->fid, FI_SEND | FI_RECV));
    OK(fi_ep_bind(ep, &cntr->fid, FI_RECV));
    OK(fi_enable(ep));
    OK(fi_getname(&ep->fid, name, &len));
    IS(fi_av_insert(av, name, 1, &self, 0, NULL), 1);
}

static void message(void)
{
    OK(fi_recv(ep, in, sizeof(in), NULL, FI_ADDR_UNSPEC, NULL));
    OK(fi_send(ep, out, sizeof(out), NULL, self, NULL));
}

static void drain(int count)
{
    struct fi_cq_entry entry;
    ssize_t n;
    while (count > 0) {
        n = fi_cq_read(cq, &entry, 1);
        CHECK(n == 1 || n == -FI_EAGAIN);
        count -= n == 1;
    }
}

static void poll_set(void)
{
    struct fid_poll *poll;
    void *contexts[4];
    int seen = 0, n;

    OK(fi_poll_open(domain, &(struct fi_poll_attr){0}, &poll));
    OK(fi_poll_add(poll, &cq->fid, 0));
    OK(fi_poll_add(poll, &cntr->fid, 0));
    OK(fi_poll_add(poll, &eq->fid, 0));
    IS(fi_poll_add(poll, &cq->fid, 0), -FI_EINVAL);
    IS(fi_poll_add(poll, &domain->fid, 0), -FI_EINVAL);
    IS(fi_close(&cq->fid), -FI_EBUSY);
    IS(fi_poll(poll, contexts, 4), 0);
    message();
    while (seen != 3) {
        n = fi_poll(poll, contexts, 4);
        CHECK(n >= 0);
        while (n-- > 0) {
            CHECK(contexts[n] == &cq || contexts[n] == &cntr);
            seen |= contexts[n] == &cq ? 1 : 2;
        }
    }
    drain(2);
    IS(fi_poll(poll, contexts, 4), 0);
    OK(fi_poll_del(poll, &cntr->fid, 0));
    IS(fi_poll_del(poll, &cntr->fid, 0), -FI_EINVAL);
    IS(fi_eq_write(eq, 7, "x", 1, 0), 1);
    IS(fi_poll(poll, contexts, 4), 1);
    CHECK(contexts[0] == &eq);
    OK(fi_close(&poll->fid));
}

static void *write_later(void *arg)
{
    usleep(50000);
    IS(fi_eq_write(eq, 8, "y", 1, 0), 1);
    return arg;
}

static void wait_set(void)
{
    struct fid *fids[1] = { &set->fid };
    struct pollfd fd = { .events = POLLIN };
    pthread_t thread;
    uint32_t event;
    char data;

    IS(fi_eq_read(eq, &event, &data, 1, 0), 1);
    CHECK(event == 7 && data == 'x');
    /* A counter that has changed counts once. */
    (void)fi_wait(set, 0);
    IS(fi_wait(set, 20), -FI_ETIMEDOUT);
    message();
    OK(fi_wait(set, 20000));
    drain(2);
    (void)fi_wait(set, 0);
    pthread_create(&thread, NULL, write_later, NULL);
    OK(fi_wait(set, 20000));
    pthread_join(thread, NULL);
    IS(fi_eq_read(eq, &event, &data, 1, 0), 1);
    OK(fi_control(&set->fid, FI_GETWAIT, &fd.fd));
    OK(fi_trywait(fabric, fids, 1));
    pthread_create(&thread, NULL, write_later, NULL);
    IS(poll(&fd, 1, 20000), 1);
    pthread_join(thread, NULL);
    IS(fi_trywait(fabric, fids, 1), -FI_EAGAIN);
}

/* A program that has read a counter must not sleep if a read of the queue has counted since. */
static void counted_elsewhere(void)
{
    struct fid *fids[1] = { &cntr->fid };
    uint64_t before = fi_cntr_read(cntr);
    int n;

    while (fi_trywait(fabric, fids, 1) == -FI_EAGAIN) {
        CHECK(fi_cntr_read(cntr) == before);
    }
    message();
    drain(2);
    for (n = 0; n < 20; n++) {
        IS(fi_trywait(fabric, fids, 1), -FI_EAGAIN);
    }
    CHECK(fi_cntr_read(cntr) == before + 1);
    while (fi_trywait(fabric, fids, 1) == -FI_EAGAIN) {
        fi_cntr_read(cntr);
    }
}

static void threshold(void)
{
    struct fi_cq_entry entries[8];
    struct timespec from, to;

    message();
    message();
    IS(fi_cq_sread(cq, entries, 8, (void*)4, 20000), 4);
    message();
    clock_gettime(CLOCK_MONOTONIC, &from);
    IS(fi_cq_sread(cq, entries, 8, (void*)4, 50), 2);
    clock_gettime(CLOCK_MONOTONIC, &to);
    CHECK((to.tv_sec - from.tv_sec) * 1000000 + (to.tv_nsec - from.tv_nsec) / 1000 >= 49000);
}

/* More entries than the endpoint has room for: no operation more can start until some are read. */
static void threshold_beyond_the_room(struct fi_info *info)
{
    enum { ROOM = 16 };
    struct fi_cq_attr sends_attr = { .wait_obj = FI_WAIT_UNSPEC, .wait_cond = FI_CQ_COND_THRESHOLD };
    struct fi_av_attr av_attr    = {0};
    struct fid_cq *sends, *receives;
    struct fi_cq_entry entries[64];
    struct timespec from, to;
    struct fid_ep *small;
    struct fid_av *av;
    size_t len = 512, size = info->tx_attr->size;
    char name[512];
    fi_addr_t peer;
    int n;

    OK(fi_cq_open(domain, &sends_attr, &sends, NULL));
    OK(fi_cq_open(domain, NULL, &receives, NULL));
    OK(fi_av_open(domain, &av_attr, &av, NULL));
    info->tx_attr->size = ROOM;
    OK(fi_endpoint(domain, info, &small, NULL));
    info->tx_attr->size = size;
    OK(fi_ep_bind(small, &av->fid, 0));
    OK(fi_ep_bind(small, &sends->fid, FI_SEND));
    OK(fi_ep_bind(small, &receives->fid, FI_RECV));
    OK(fi_enable(small));
    OK(fi_getname(&small->fid, name, &len));
    IS(fi_av_insert(av, name, 1, &peer, 0, NULL), 1);
    for (n = 0; n < ROOM; n++) {
        OK(fi_send(small, out, sizeof(out), NULL, peer, NULL));
    }
    IS(fi_send(small, out, sizeof(out), NULL, peer, NULL), -FI_EAGAIN);
    clock_gettime(CLOCK_MONOTONIC, &from);
    IS(fi_cq_sread(sends, entries, 64, (void*)32, 10000), ROOM);
    clock_gettime(CLOCK_MONOTONIC, &to);
    CHECK(to.tv_sec - from.tv_sec < 8);
    OK(fi_close(&small->fid));
    OK(fi_close(&av->fid));
    OK(fi_close(&sends->fid));
    OK(fi_close(&receives->fid));
}

static int open_files(void)
{
    int n = 0, fd;
    for (fd = 0; fd < 1024; fd++) {
        n += fcntl(fd, F_GETFD) >= 0;
    }
    return n;
}

/* The kernel refuses to add to a set that is deep inside of others. What cannot join is not left over. */
static void full(void)
{
    struct fi_wait_attr wait_attr = { .wait_obj = FI_WAIT_FD };
    struct fi_cq_attr cq_attr     = { .wait_obj = FI_WAIT_SET };
    struct fi_cntr_attr cntr_attr = { .wait_obj = FI_WAIT_SET };
    struct fid_wait *deep;
    struct fid_cq *none = NULL;
    struct fid_cntr *no_cntr = NULL;
    int inner, outer[5], n, before;

    OK(fi_wait_open(fabric, &wait_attr, &deep));
    OK(fi_control(&deep->fid, FI_GETWAIT, &inner));
    for (n = 0; n < 5; n++) {
        outer[n] = epoll_create1(0);
        CHECK(outer[n] >= 0);
        if (epoll_ctl(outer[n], EPOLL_CTL_ADD, inner, &(struct epoll_event){0}) != 0) {
            break;
        }
        inner = outer[n];
    }
    before = open_files();
    cq_attr.wait_set = cntr_attr.wait_set = deep;
    IS(fi_cq_open(domain, &cq_attr, &none, NULL), -FI_ENOMEM);
    IS(fi_cntr_open(domain, &cntr_attr, &no_cntr, NULL), -FI_ENOMEM);
    CHECK(none == NULL && no_cntr == NULL && open_files() == before);
    for (n = n < 5 ? n : 4; n >= 0; n--) {
        OK(close(outer[n]));
    }
    OK(fi_close(&deep->fid));
}

/* A queue grows beyond the size that it was opened with: nothing is lost. */
static void unread(void)
{
    int n;
    for (n = 0; n < 300; n++) {
        message();
    }
    drain(2 * 300);
}

static void options(void)
{
    int p2p = FI_HMEM_P2P_DISABLED, required = FI_HMEM_P2P_REQUIRED;
    size_t retries = 3;

    OK(fi_setopt(&ep->fid, FI_OPT_ENDPOINT, FI_OPT_FI_HMEM_P2P, &p2p, sizeof(p2p)));
    IS(fi_setopt(&ep->fid, FI_OPT_ENDPOINT, FI_OPT_FI_HMEM_P2P, &required, sizeof(required)), -FI_EOPNOTSUPP);
    OK(fi_setopt(&ep->fid, FI_OPT_ENDPOINT, FI_OPT_EFA_RNR_RETRY, &retries, sizeof(retries)));
    IS(fi_setopt(&ep->fid, FI_OPT_ENDPOINT, 4711, &retries, sizeof(retries)), -FI_ENOPROTOOPT);
}

/* Options by their numbers, as the headers may be older than they are. */
enum { CUDA = 10, SHARED_MEMORY, MAX_MSG, MAX_TAGGED, MAX_RMA, MAX_ATOMIC, INJECT_MSG, INJECT_TAGGED, INJECT_RMA, INJECT_ATOMIC,
       EFA = -(0xefa << 16), EMULATED_READ = EFA + 1, EMULATED_WRITE, EMULATED_ATOMICS, DEVICE_RDMA, SENDRECV_ORDER, WRITE_ORDER,
       HOMOGENEOUS, UNSOLICITED };

static int set_bool(int name, int value)
{
    bool on = value != 0;
    return fi_setopt(&ep->fid, FI_OPT_ENDPOINT, name, &on, sizeof(on));
}

static int get_bool(int name)
{
    bool on = 0;
    size_t len = sizeof(on);
    OK(fi_getopt(&ep->fid, FI_OPT_ENDPOINT, name, &on, &len));
    CHECK(len == sizeof(on));
    return on;
}

static size_t get_size(int name)
{
    size_t value = 0, len = 1;
    IS(fi_getopt(&ep->fid, FI_OPT_ENDPOINT, name, &value, &len), -FI_ETOOSMALL);
    CHECK(len == sizeof(value));
    OK(fi_getopt(&ep->fid, FI_OPT_ENDPOINT, name, &value, &len));
    return value;
}

static void options_of_later_releases(struct fi_info *info, int is_efa)
{
    size_t less = 100, more, len = sizeof(int);
    int p2p, name;

    for (name = MAX_MSG; name <= INJECT_ATOMIC; name++) {
        size_t most = name >= INJECT_MSG ? info->tx_attr->inject_size : name == MAX_ATOMIC ? 1024 : info->ep_attr->max_msg_size;
        CHECK(get_size(name) == most);
        more = most + 1;
        IS(fi_setopt(&ep->fid, FI_OPT_ENDPOINT, name, &more, sizeof(more)), -FI_EINVAL);
        IS(fi_setopt(&ep->fid, FI_OPT_ENDPOINT, name, &less, 4), -FI_EINVAL);
        OK(fi_setopt(&ep->fid, FI_OPT_ENDPOINT, name, &less, sizeof(less)));
        CHECK(get_size(name) == less);
    }
    OK(fi_getopt(&ep->fid, FI_OPT_ENDPOINT, FI_OPT_FI_HMEM_P2P, &p2p, &len));
    CHECK(p2p == FI_HMEM_P2P_DISABLED && len == sizeof(p2p));
    CHECK(get_size(EFA) == 3);
    OK(set_bool(CUDA, 0));
    CHECK(get_bool(CUDA) == 0);
    OK(set_bool(SHARED_MEMORY, 1));
    IS(set_bool(SHARED_MEMORY, 0), is_efa ? 0 : -FI_EOPNOTSUPP);
    CHECK(get_bool(SHARED_MEMORY) == !is_efa);
    /* The device of the only NIC moves the bytes, if there is one. */
    CHECK(get_bool(EMULATED_READ) == !is_efa && get_bool(EMULATED_WRITE) == !is_efa && get_bool(EMULATED_ATOMICS) == 1);
    IS(set_bool(EMULATED_WRITE, 0), -FI_ENOPROTOOPT);
    IS(set_bool(DEVICE_RDMA, is_efa), 0);
    IS(set_bool(DEVICE_RDMA, !is_efa), -FI_EOPNOTSUPP);
    for (name = SENDRECV_ORDER; name <= WRITE_ORDER; name++) {
        OK(set_bool(name, 0));
        IS(set_bool(name, 1), -FI_EOPNOTSUPP);
    }
    for (name = HOMOGENEOUS; name <= UNSOLICITED; name++) {
        OK(set_bool(name, 1));
        CHECK(get_bool(name) == 1);
    }
}

int main(int argc, char **argv)
{
    struct fi_info *hints = fi_allocinfo(), *info;

    alarm(60);
    hints->ep_attr->type          = FI_EP_RDM;
    hints->caps                   = FI_MSG;
    hints->fabric_attr->prov_name = strdup("efa4");
    OK(fi_getinfo(FI_VERSION(1, 17), NULL, NULL, 0, hints, &info));
    open_all(info);
    poll_set();
    wait_set();
    counted_elsewhere();
    threshold();
    threshold_beyond_the_room(info);
    full();
    unread();
    options();
    options_of_later_releases(info, argc > 1 && strcmp(argv[1], "efa") == 0);
    IS(fi_close(&set->fid), -FI_EBUSY);
    OK(fi_close(&ep->fid));
    OK(fi_close(&cq->fid));
    OK(fi_close(&cntr->fid));
    OK(fi_close(&eq->fid));
    OK(fi_close(&set->fid));
    fi_freeinfo(info);
    fi_freeinfo(hints);
    return 0;
}

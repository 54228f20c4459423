/* Versions of the interface, formats of queues, calls that have a form with data or lists, levels of completion, flags that an
 * endpoint has by default, insertions of many addresses, and functions that are not there. Two endpoints of one process. */
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <rdma/fi_ext.h>
#include <rdma/fi_tagged.h>
#include <rdma/fi_trigger.h>

#include "ends.h"

enum { LEN = 300000 };

static char out[LEN], in[LEN];
static fi_addr_t to_b;
/* One with other flags; its queue is null while there is none. */
static struct end c;

/* Result of a read of a queue, for which all endpoints make progress. */
static ssize_t poll_of(struct end *e, struct fi_cq_tagged_entry *entry)
{
    struct fi_cq_tagged_entry none;
    fi_cq_read(a.cq, &none, 0);
    fi_cq_read(b.cq, &none, 0);
    if (c.cq != NULL) {
        fi_cq_read(c.cq, &none, 0);
    }
    return fi_cq_read(e->cq, entry, 1);
}

static struct fi_cq_tagged_entry next(struct end *e)
{
    struct fi_cq_tagged_entry entry;
    ssize_t got;
    while ((got = poll_of(e, &entry)) == -FI_EAGAIN) {
    }
    IS(got, 1);
    return entry;
}

/* Each version has an answer to hints of its time, of those that the tutorial of libfabric has. */
static void versions(void)
{
    unsigned minor;
    for (minor = 0; minor <= 17; minor++) {
        struct fi_info *hints = fi_allocinfo(), *found = NULL;
        hints->caps                        = FI_MSG | FI_TAGGED | FI_MULTI_RECV | FI_RMA | FI_ATOMIC;
        hints->mode                        = FI_CONTEXT;
        hints->ep_attr->type               = FI_EP_RDM;
        hints->fabric_attr->prov_name      = strdup("efa4");
        hints->domain_attr->threading      = FI_THREAD_ENDPOINT;
        hints->domain_attr->data_progress  = hints->domain_attr->control_progress = FI_PROGRESS_AUTO;
        hints->domain_attr->resource_mgmt  = FI_RM_ENABLED;
        hints->domain_attr->mr_mode        = minor < 5 ? FI_MR_SCALABLE : 0;
        hints->tx_attr->op_flags           = FI_DELIVERY_COMPLETE | FI_COMPLETION;
        OK(fi_getinfo(FI_VERSION(1, minor), NULL, NULL, 0, hints, &found));
        IS(found->domain_attr->mr_mode, minor < 5 ? FI_MR_SCALABLE : 0);
        IS(found->domain_attr->data_progress, FI_PROGRESS_AUTO);
        CHECK(found->tx_attr->op_flags == (FI_DELIVERY_COMPLETE | FI_COMPLETION) && found->mode == 0);
        fi_freeinfo(found);
        /* Programs before 1.5 that leave the mode open get one of the two that were then. */
        fi_freeinfo(hints);
        hints = fi_allocinfo();
        hints->caps                   = FI_RMA;
        hints->fabric_attr->prov_name = strdup("efa4");
        OK(fi_getinfo(FI_VERSION(1, minor), NULL, NULL, 0, hints, &found));
        IS(found->domain_attr->mr_mode, minor < 5 ? FI_MR_BASIC : 0);
        fi_freeinfo(found);
        fi_freeinfo(hints);
    }
}

/* An endpoint that sends to itself and reads what it receives in a format. Functions that have a second form are called by it. */
static void format(enum fi_cq_format format)
{
    static const size_t sizes[] = { 0, sizeof(struct fi_cq_entry), sizeof(struct fi_cq_msg_entry), sizeof(struct fi_cq_data_entry),
                                    sizeof(struct fi_cq_tagged_entry) };
    struct fi_cq_attr tx_attr = { .format = FI_CQ_FORMAT_CONTEXT }, rx_attr = { .format = format, .wait_obj = FI_WAIT_UNSPEC };
    struct iovec pieces[3] = { { out, 3 }, { out + 10, 4 }, { out + 20, 5 } };
    unsigned char entries[4 * sizeof(struct fi_cq_tagged_entry)];
    fi_addr_t sources[4] = { 7, 7, 7, 7 }, self;
    struct fid_domain *second;
    struct fid_cq *tx, *rx;
    struct fi_cq_entry sent;
    struct fid_av *av;
    struct fid_ep *ep;
    char name[512];
    size_t len = sizeof(name), size = sizes[format];
    ssize_t got, all = 0;
    int n;

    OK(fi_domain2(fabric, info, &second, 0, NULL));
    IS(fi_domain2(fabric, info, &second, FI_PEER, NULL), -FI_ENOSYS);
    OK(fi_endpoint2(second, info, &ep, 0, NULL));
    OK(fi_av_open(second, &av_attr, &av, NULL));
    OK(fi_cq_open(second, &tx_attr, &tx, NULL));
    OK(fi_cq_open(second, &rx_attr, &rx, NULL));
    OK(fi_ep_bind(ep, &av->fid, 0));
    OK(fi_ep_bind(ep, &tx->fid, FI_TRANSMIT));
    OK(fi_ep_bind(ep, &rx->fid, FI_RECV));
    OK(fi_enable(ep));
    OK(fi_getname(&ep->fid, name, &len));
    IS(fi_av_insert(av, name, 1, &self, 0, NULL), 1);
    for (n = 0; n < 60; n++) {
        out[n] = (char)(n + 1);
    }
    memset(entries, 0x77, sizeof(entries));
    memset(in, 0, 300);
    for (n = 0; n < 3; n++) {
        OK(n < 2 ? fi_recv(ep, in + n * 100, 100, NULL, FI_ADDR_UNSPEC, in + n)
                 : fi_trecv(ep, in + 200, 100, NULL, FI_ADDR_UNSPEC, 5, 0, in + n));
    }
    OK(fi_senddata(ep, out, 50, NULL, 0xabcdef, self, out));
    OK(fi_injectdata(ep, out, 60, 0x123, self));
    OK(fi_tsendv(ep, pieces, NULL, 3, self, 5, out + 1));
    /* The first three entries of the queue's format, and nothing behind them. */
    while (all < 3) {
        got = fi_cq_sreadfrom(rx, entries + all * size, 4 - all, sources + all, NULL, 20000);
        CHECK(got > 0);
        all += got;
    }
    CHECK(all == 3 && entries[3 * size] == 0x77 && sources[3] == 7);
    for (n = 0; n < 3; n++) {
        unsigned char *entry = entries + n * size;
        CHECK(sources[n] == self && ((struct fi_cq_entry *)entry)->op_context == in + n);
        if (format >= FI_CQ_FORMAT_MSG) {
            static const size_t lengths[] = { 50, 60, 12 };
            uint64_t flags = FI_RECV | (n < 2 ? FI_MSG | FI_REMOTE_CQ_DATA : FI_TAGGED);
            CHECK(((struct fi_cq_msg_entry *)entry)->len == lengths[n] && ((struct fi_cq_msg_entry *)entry)->flags == flags);
        }
        if (format >= FI_CQ_FORMAT_DATA && n < 2) {
            CHECK(((struct fi_cq_data_entry *)entry)->data == (n == 0 ? 0xabcdef : 0x123));
        }
        if (format == FI_CQ_FORMAT_TAGGED && n == 2) {
            CHECK(((struct fi_cq_tagged_entry *)entry)->tag == 5);
        }
    }
    CHECK(memcmp(in, out, 50) == 0 && memcmp(in + 100, out, 60) == 0);
    CHECK(memcmp(in + 200, out, 3) == 0 && memcmp(in + 203, out + 10, 4) == 0 && memcmp(in + 207, out + 20, 5) == 0);
    /* Sends that were not injected. */
    for (n = 0; n < 2; n++) {
        while ((got = fi_cq_read(tx, &sent, 1)) == -FI_EAGAIN) {
        }
        CHECK(got == 1 && sent.op_context == out + n);
    }
    IS(fi_cq_read(tx, &sent, 1), -FI_EAGAIN);
    OK(fi_close(&ep->fid));
    OK(fi_close(&tx->fid));
    OK(fi_close(&rx->fid));
    OK(fi_close(&av->fid));
    OK(fi_close(&second->fid));
}

static ssize_t send_by(uint64_t flags, size_t len, uint64_t tag)
{
    struct iovec iov = { out, len };
    struct fi_msg_tagged msg = { &iov, NULL, 1, to_b, tag, 0, out + tag, 0 };
    return fi_tsendmsg(a.ep, &msg, flags);
}

/* Sends to `b` from an endpoint. The end is there before the receive is posted, or not. */
static void complete(struct end *from, ssize_t started, uint64_t tag, int before_receive)
{
    struct fi_cq_tagged_entry entry;
    int n;
    OK(started);
    if (before_receive) {
        CHECK(next(from).op_context == out + tag);
    }
    for (n = 0; n < 3000; n++) {
        IS(poll_of(from, &entry), -FI_EAGAIN);
        IS(poll_of(&b, &entry), -FI_EAGAIN);
    }
    OK(fi_trecv(b.ep, in, LEN, NULL, FI_ADDR_UNSPEC, tag, 0, in));
    CHECK(next(&b).tag == tag);
    if (!before_receive) {
        CHECK(next(from).op_context == out + tag);
    }
}

static void levels(void)
{
    static const uint64_t levels[] = { FI_INJECT_COMPLETE, FI_TRANSMIT_COMPLETE, FI_DELIVERY_COMPLETE, FI_MATCH_COMPLETE };
    uint64_t flags = FI_TRANSMIT | FI_DELIVERY_COMPLETE, tag = 1;
    int n;
    for (n = 0; n < 4; n++) {
        int waits = n >= 2;
        complete(&a, send_by(levels[n], 8, tag), tag, !waits);
        tag++;
        /* A long one waits for its receive in any case, unless it is copied. */
        if (waits) {
            complete(&a, send_by(levels[n], LEN, tag), tag, 0);
            tag++;
        }
    }
    /* The same as a default of the endpoint, and back. */
    complete(&a, fi_tsend(a.ep, out, 8, NULL, to_b, tag, out + tag), tag, 1);
    tag++;
    OK(fi_control(&a.ep->fid, FI_SETOPSFLAG, &flags));
    flags = FI_TRANSMIT;
    OK(fi_control(&a.ep->fid, FI_GETOPSFLAG, &flags));
    CHECK(flags & FI_DELIVERY_COMPLETE);
    complete(&a, fi_tsend(a.ep, out, 8, NULL, to_b, tag, out + tag), tag, 0);
    tag++;
    flags = FI_TRANSMIT;
    OK(fi_control(&a.ep->fid, FI_SETOPSFLAG, &flags));
    complete(&a, fi_tsend(a.ep, out, 8, NULL, to_b, tag, out + tag), tag, 1);
}

/* Flags of the answer, with which an endpoint is made. */
static void defaults_of_attributes(void)
{
    struct fi_cq_err_entry error = { 0 };
    struct fi_cq_tagged_entry entry;
    fi_addr_t to_c;
    ssize_t got;
    int n;
    info->tx_attr->op_flags = FI_DELIVERY_COMPLETE;
    info->rx_attr->op_flags = FI_MULTI_RECV;
    open_end(&c);
    info->tx_attr->op_flags = info->rx_attr->op_flags = 0;
    IS(fi_av_insert(c.av, b.name, 1, &to_b, 0, NULL), 1);
    complete(&c, fi_tsend(c.ep, out, 8, NULL, to_b, 99, out + 99), 99, 0);
    /* One receive of several messages, without a flag. */
    IS(fi_av_insert(b.av, c.name, 1, &to_c, 0, NULL), 1);
    OK(fi_recv(c.ep, in, 1000, NULL, FI_ADDR_UNSPEC, in));
    for (n = 0; n < 3; n++) {
        OK(fi_inject(b.ep, out, 100, to_c));
    }
    for (n = 0; n < 3; n++) {
        entry = next(&c);
        CHECK(entry.op_context == in && entry.len == 100 && (char *)entry.buf == in + n * 100);
    }
    OK(fi_cancel(&c.ep->fid, in));
    while ((got = poll_of(&c, &entry)) == -FI_EAGAIN) {
    }
    IS(got, -FI_EAVAIL);
    IS(fi_cq_readerr(c.cq, &error, 0), 1);
    IS(error.err, FI_ECANCELED);
    OK(fi_close(&c.ep->fid));
    OK(fi_close(&c.cq->fid));
    OK(fi_close(&c.av->fid));
    c.cq = NULL;
}

/* Regions by a list and by attributes: the key is the program's. */
static void regions(void)
{
    struct iovec one = { in, 64 };
    struct fi_mr_attr attr = { .mr_iov = &one, .iov_count = 1, .access = FI_REMOTE_WRITE, .requested_key = 3 };
    struct fid_mr *mr, *again;
    OK(fi_mr_regattr(domain, &attr, 0, &mr));
    IS(fi_mr_key(mr), 3);
    IS(fi_mr_regv(domain, &one, 1, FI_REMOTE_WRITE, 0, 3, 0, &again, NULL), -FI_ENOKEY);
    OK(fi_mr_regv(domain, &one, 1, FI_REMOTE_WRITE, 0, 9, 0, &again, &one));
    CHECK(fi_mr_key(again) == 9 && again->fid.context == &one && fi_mr_desc(again) == NULL);
    OK(fi_close(&mr->fid));
    OK(fi_close(&again->fid));
}

/* A thread that may ask the system for memory alone inserts many addresses. */
static void *insert_many(void *arg)
{
    enum { COUNT = 20000 };
    static const unsigned allowed[] = { SYS_brk, SYS_mmap, SYS_mprotect, SYS_mremap, SYS_munmap, SYS_madvise, SYS_futex, SYS_exit,
                                        SYS_rt_sigprocmask };
    enum { CALLS = sizeof(allowed) / sizeof(*allowed) };
    struct sock_filter filter[CALLS + 3] = { BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)) };
    struct sock_fprog program = { CALLS + 3, filter };
    char *names = malloc(COUNT * a.len);
    fi_addr_t *numbers = calloc(COUNT, sizeof(*numbers));
    uint32_t n;
    for (n = 0; n < CALLS; n++) {
        filter[n + 1] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, allowed[n], CALLS - n, 0);
    }
    filter[CALLS + 1] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS);
    filter[CALLS + 2] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    /* Each name has another number in the identity that it begins with. */
    for (n = 0; n < COUNT; n++) {
        memcpy(names + n * a.len, b.name, a.len);
        memcpy(names + n * a.len + 4, &n, sizeof(n));
    }
    OK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
    OK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0));
    n = (uint32_t)fi_av_insert(a.av, names, COUNT, numbers, 0, NULL);
    free(names);
    free(numbers);
    *(uint32_t *)arg = n == COUNT;
    return arg;
}

static void insertions(void)
{
    uint32_t all = 0;
    pthread_t thread;
    OK(pthread_create(&thread, NULL, insert_many, &all));
    OK(pthread_join(thread, NULL));
    CHECK(all);
}

/* Functions that are not there say so. */
static void refused(void)
{
    struct fi_eq_attr eq_attr = { .wait_obj = FI_WAIT_UNSPEC };
    struct fi_cq_attr cq_attr = { .wait_obj = FI_WAIT_MUTEX_COND };
    struct fi_cntr_attr cntr_attr = { .wait_obj = FI_WAIT_MUTEX_COND };
    struct fid *exported;
    struct fid_cntr *cntr;
    struct fid_cq *cq;
    struct fid_eq *eq;
    struct fid_mr *mr;
    uint64_t base, key;
    uint8_t raw[64];
    size_t size = sizeof(raw);
    void *ops;
    int value;
    OK(fi_eq_open(fabric, &eq_attr, &eq, NULL));
    IS(fi_domain_bind(domain, &eq->fid, FI_REG_MR), -FI_ENOSYS);
    OK(fi_close(&eq->fid));
    OK(fi_mr_reg(domain, in, LEN, FI_REMOTE_READ, 0, 1, 0, &mr, NULL));
    IS(fi_mr_raw_attr(mr, &base, raw, &size, 0), -FI_ENOSYS);
    IS(fi_mr_map_raw(domain, 0, raw, 8, &key, 0), -FI_ENOSYS);
    IS(fi_mr_unmap_key(domain, 1), -FI_ENOSYS);
    IS(fi_mr_refresh(mr, &(struct iovec){ in, 8 }, 1, 0), -FI_ENOSYS);
    OK(fi_close(&mr->fid));
    IS(fi_get_val(&domain->fid, 1, &value), -FI_ENOSYS);
    IS(fi_set_val(&domain->fid, 1, &value), -FI_ENOSYS);
    IS(fi_open_ops(&domain->fid, "ops", 0, &ops, NULL), -FI_ENOSYS);
    IS(fi_set_ops(&domain->fid, "ops", 0, &ops, NULL), -FI_ENOSYS);
    IS(fi_export_fid(&domain->fid, 0, &exported, NULL), -FI_ENOSYS);
    IS(fi_cq_open(domain, &cq_attr, &cq, NULL), -FI_ENOSYS);
    cq_attr.wait_obj = FI_WAIT_POLLFD;
    IS(fi_cq_open(domain, &cq_attr, &cq, NULL), -FI_ENOSYS);
    IS(fi_cntr_open(domain, &cntr_attr, &cntr, NULL), -FI_ENOSYS);
    IS(send_by(FI_PRIORITY, 8, 1), -FI_EBADFLAGS);
    IS(send_by(FI_COMMIT_COMPLETE, 8, 1), -FI_EBADFLAGS);
}

int main(int argc, char **argv)
{
    enum fi_cq_format each;
    versions();
    open_ends(FI_MSG | FI_TAGGED | FI_RMA | FI_MULTI_RECV | FI_SOURCE, argc, argv);
    IS(fi_av_insert(a.av, b.name, 1, &to_b, 0, NULL), 1);
    for (each = FI_CQ_FORMAT_CONTEXT; each <= FI_CQ_FORMAT_TAGGED; each++) {
        format(each);
    }
    levels();
    defaults_of_attributes();
    regions();
    refused();
    insertions();
    close_ends();
    printf("ok\n");
    return 0;
}

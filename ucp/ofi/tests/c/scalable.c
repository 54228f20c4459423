/* Two scalable endpoints of one process, each with several contexts behind one address. */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>
#include <rdma/fi_tagged.h>
#include <rdma/fi_trigger.h>

#include "check.h"

enum { TX = 2, RX = 3, BITS = 2 };

struct end {
    struct fid_ep *sep, *tx[TX], *rx[RX];
    struct fid_cq *txcq[TX], *rxcq[RX];
    fi_addr_t addr;
};

static struct fi_info *info;
static struct fid_domain *domain;
static struct fid_av *av;
static struct end a, b;
static struct fid_cntr *writes, *start;
static char out[64], in[64];

static struct fi_info *hints_of(uint64_t caps, size_t tx, size_t rx)
{
    struct fi_info *hints = fi_allocinfo();
    hints->caps                   = caps;
    hints->ep_attr->type          = FI_EP_RDM;
    hints->ep_attr->tx_ctx_cnt    = tx;
    hints->ep_attr->rx_ctx_cnt    = rx;
    hints->domain_attr->mr_mode   = FI_MR_BASIC;
    hints->fabric_attr->prov_name = strdup("efa4");
    return hints;
}

static int find(struct fi_info *hints, struct fi_info **found)
{
    return fi_getinfo(FI_VERSION(1, 17), NULL, NULL, 0, hints, found);
}

/* What fi_getinfo answers by the numbers of contexts. */
static void offers(void)
{
    uint64_t caps = FI_MSG | FI_TAGGED | FI_RMA;
    struct fi_info *found, *hints = hints_of(caps, 0, 0);
    OK(find(hints, &found));
    CHECK(found->ep_attr->tx_ctx_cnt == 1 && found->ep_attr->rx_ctx_cnt == 1 && !(found->caps & FI_NAMED_RX_CTX));
    CHECK(found->domain_attr->max_ep_tx_ctx == 1 && found->domain_attr->max_ep_rx_ctx == 1);
    hints->domain_attr->max_ep_rx_ctx = 4;
    OK(find(hints, &found));
    CHECK(found->domain_attr->max_ep_tx_ctx == 16 && found->domain_attr->max_ep_rx_ctx == 16);
    CHECK(found->ep_attr->rx_ctx_cnt == 1);
    IS(find(hints_of(caps, 17, 1), &found), -FI_ENODATA);
    IS(find(hints_of(caps, 1, 17), &found), -FI_ENODATA);
    IS(find(hints_of(caps | FI_DIRECTED_RECV, 2, 2), &found), -FI_ENODATA);
    IS(find(hints_of(caps, FI_SHARED_CONTEXT, 2), &found), -FI_ENODATA);
    hints = hints_of(caps, 2, 2);
    hints->addr_format = FI_ADDR_EFA;
    IS(find(hints, &found), -FI_ENODATA);
    hints = hints_of(FI_MSG, 2, 2);
    hints->ep_attr->type = FI_EP_MSG;
    IS(find(hints, &found), -FI_ENODATA);
    caps |= FI_SOURCE | FI_NAMED_RX_CTX | FI_TRIGGER | FI_MULTI_RECV;
    OK(find(hints_of(caps, TX, RX), &info));
    CHECK(info->ep_attr->tx_ctx_cnt == TX && info->ep_attr->rx_ctx_cnt == RX && info->caps & FI_NAMED_RX_CTX);
}

static void open_rx(struct end *end, int n)
{
    OK(fi_rx_context(end->sep, n, NULL, &end->rx[n], end));
    CHECK(end->rx[n]->fid.fclass == FI_CLASS_RX_CTX && end->rx[n]->fid.context == end);
    IS(fi_ep_bind(end->rx[n], &end->rxcq[n]->fid, FI_TRANSMIT), -FI_EBADFLAGS);
    IS(fi_enable(end->rx[n]), -FI_ENOCQ);
    OK(fi_ep_bind(end->rx[n], &end->rxcq[n]->fid, FI_RECV));
    OK(fi_enable(end->rx[n]));
}

static void open_tx(struct end *end, int n)
{
    OK(fi_tx_context(end->sep, n, NULL, &end->tx[n], NULL));
    OK(fi_ep_bind(end->tx[n], &end->txcq[n]->fid, FI_TRANSMIT));
    OK(fi_enable(end->tx[n]));
}

static void open_end(struct end *end)
{
    struct fi_cq_attr cq_attr = { .format = FI_CQ_FORMAT_TAGGED };
    char name[2048];
    size_t len = 100;
    int n;
    OK(fi_scalable_ep(domain, info, &end->sep, end));
    CHECK(end->sep->fid.fclass == FI_CLASS_SEP);
    IS(fi_enable(end->sep), -FI_ENOAV);
    OK(fi_scalable_ep_bind(end->sep, &av->fid, 0));
    for (n = 0; n < TX; n++) {
        OK(fi_cq_open(domain, &cq_attr, &end->txcq[n], NULL));
        OK(fi_tx_context(end->sep, n, NULL, &end->tx[n], NULL));
        IS(fi_tx_context(end->sep, n, NULL, &end->tx[n], NULL), -FI_EINVAL);
        OK(fi_ep_bind(end->tx[n], &end->txcq[n]->fid, FI_TRANSMIT));
        if (end == &a && n == 1) {
            OK(fi_ep_bind(end->tx[n], &writes->fid, FI_WRITE));
        }
        OK(fi_enable(end->tx[n]));
    }
    for (n = 0; n < RX; n++) {
        OK(fi_cq_open(domain, &cq_attr, &end->rxcq[n], NULL));
        open_rx(end, n);
    }
    IS(fi_tx_context(end->sep, TX, NULL, &end->tx[0], NULL), -FI_EINVAL);
    IS(fi_rx_context(end->sep, RX, NULL, &end->rx[0], NULL), -FI_EINVAL);
    IS(fi_rx_context(end->sep, -1, NULL, &end->rx[0], NULL), -FI_EINVAL);
    OK(fi_enable(end->sep));
    IS(fi_getname(&end->sep->fid, name, &len), -FI_ETOOSMALL);
    CHECK(len <= sizeof(name));
    OK(fi_getname(&end->sep->fid, name, &len));
    IS(fi_av_insert(av, name, 1, &end->addr, 0, NULL), 1);
}

/* Reads all queues until the one that is wanted has an entry. */
static struct fi_cq_tagged_entry entry_of(struct fid_cq *wanted, fi_addr_t *from)
{
    struct end *ends[2] = { &a, &b };
    struct fi_cq_tagged_entry entry;
    int e, n;
    ssize_t got;
    for (;;) {
        for (e = 0; e < 2; e++) {
            for (n = 0; n < TX + RX; n++) {
                struct fid_cq *cq = n < TX ? ends[e]->txcq[n] : ends[e]->rxcq[n - TX];
                if (cq != wanted) {
                    IS(fi_cq_read(cq, NULL, 0), -FI_EAGAIN);
                    continue;
                }
                got = fi_cq_readfrom(cq, &entry, 1, from);
                if (got == 1) {
                    return entry;
                }
                IS(got, -FI_EAGAIN);
            }
        }
    }
}

/* From each transmit context to each receive context, and to nobody else. */
static void messages(void)
{
    int i, j;
    for (i = 0; i < TX; i++) {
        for (j = 0; j < RX; j++) {
            fi_addr_t to = fi_rx_addr(b.addr, j, BITS), from = 77;
            memset(out, 'a' + i * RX + j, sizeof(out));
            OK(fi_trecv(b.rx[j], in, 64, NULL, FI_ADDR_UNSPEC, 5, 0, &in[j]));
            OK(fi_tsend(a.tx[i], out, 32, NULL, to, 5, &out[i]));
            CHECK(entry_of(b.rxcq[j], &from).op_context == &in[j]);
            CHECK(from == a.addr && in[31] == out[0]);
            CHECK(entry_of(a.txcq[i], NULL).op_context == &out[i]);
        }
    }
    /* Untagged, from the other end; the address itself is the first context. */
    OK(fi_recv(a.rx[0], in, 64, NULL, FI_ADDR_UNSPEC, in));
    OK(fi_inject(b.tx[1], "hello", 6, a.addr));
    CHECK(entry_of(a.rxcq[0], NULL).op_context == in && strcmp(in, "hello") == 0);
}

static void memory(void)
{
    static uint64_t words[4];
    struct fid_mr *mr;
    OK(fi_mr_reg(domain, words, sizeof(words), FI_REMOTE_READ | FI_REMOTE_WRITE, 0, 0, 0, &mr, NULL));
    memset(out, 'w', sizeof(out));
    OK(fi_write(a.tx[1], out, 16, NULL, fi_rx_addr(b.addr, 2, BITS), (uintptr_t)words, fi_mr_key(mr), out));
    CHECK(entry_of(a.txcq[1], NULL).op_context == out);
    CHECK(fi_cntr_read(writes) == 1 && memcmp(words, out, 16) == 0 && words[2] == 0);
    OK(fi_close(&mr->fid));
}

static void bad(void)
{
    struct fid_ep *ep;
    IS(fi_endpoint(domain, info, &ep, NULL), -FI_EINVAL);
    IS(fi_send(b.sep, out, 8, NULL, a.addr, NULL), -FI_ENOSYS);
    IS(fi_send(a.tx[0], out, 8, NULL, fi_rx_addr(b.addr, RX, BITS), NULL), -FI_EINVAL);
    IS(fi_send(a.tx[0], out, 8, NULL, 12, NULL), -FI_EINVAL);
    IS(fi_close(&a.sep->fid), -FI_EBUSY);
    /* What a context has posted goes with it. */
    OK(fi_recv(b.rx[1], in, 64, NULL, FI_ADDR_UNSPEC, in));
    OK(fi_close(&b.rx[1]->fid));
    open_rx(&b, 1);
    memset(in, 0, sizeof(in));
    OK(fi_recv(b.rx[1], in + 32, 32, NULL, FI_ADDR_UNSPEC, out));
    OK(fi_send(a.tx[0], "again", 6, NULL, fi_rx_addr(b.addr, 1, BITS), in));
    CHECK(entry_of(b.rxcq[1], NULL).op_context == out && in[0] == 0 && strcmp(in + 32, "again") == 0);
    CHECK(entry_of(a.txcq[0], NULL).op_context == in);
}

static void wait_until_idle(void)
{
    struct end *ends[2] = { &a, &b };
    int e, n, rounds;
    for (rounds = 0; rounds < 1000; rounds++) {
        for (e = 0; e < 2; e++) {
            for (n = 0; n < TX + RX; n++) {
                IS(fi_cq_read(n < TX ? ends[e]->txcq[n] : ends[e]->rxcq[n - TX], NULL, 0), -FI_EAGAIN);
            }
        }
    }
}

/* A receive of many messages takes no room of the context that is opened again. */
static void room(void)
{
    struct iovec to = { in, 64 };
    struct fi_msg recv = { &to, NULL, 1, FI_ADDR_UNSPEC, in, 0 };
    ssize_t left = fi_rx_size_left(b.rx[1]);
    CHECK(left > 0);
    OK(fi_recvmsg(b.rx[1], &recv, FI_MULTI_RECV));
    IS(fi_rx_size_left(b.rx[1]), left - 1);
    OK(fi_close(&b.rx[1]->fid));
    open_rx(&b, 1);
    IS(fi_rx_size_left(b.rx[1]), left);
}

struct opener {
    struct fid_ep *sep;
    int number, is_tx;
    pthread_t thread;
};

static void *open_on(void *arg)
{
    struct opener *by = arg;
    int n;
    for (n = 0; n < 1000; n++) {
        struct fid_ep *context;
        OK(by->is_tx ? fi_tx_context(by->sep, by->number, NULL, &context, NULL)
                     : fi_rx_context(by->sep, by->number, NULL, &context, NULL));
        OK(fi_close(&context->fid));
    }
    return NULL;
}

/* Each thread opens and closes a context of its own. */
static void opened_by_threads(void)
{
    struct opener openers[TX + RX];
    struct fid_ep *sep;
    int n;
    OK(fi_scalable_ep(domain, info, &sep, NULL));
    OK(fi_scalable_ep_bind(sep, &av->fid, 0));
    OK(fi_enable(sep));
    for (n = 0; n < TX + RX; n++) {
        openers[n] = (struct opener){ .sep = sep, .number = n < TX ? n : n - TX, .is_tx = n < TX };
        OK(pthread_create(&openers[n].thread, NULL, open_on, &openers[n]));
    }
    for (n = 0; n < TX + RX; n++) {
        OK(pthread_join(openers[n].thread, NULL));
    }
    OK(fi_close(&sep->fid));
}

static void expect_cancelled(void *context)
{
    struct fi_cq_tagged_entry entry;
    struct fi_cq_err_entry error = {0};
    ssize_t got;

    while ((got = fi_cq_read(b.rxcq[1], &entry, 1)) == -FI_EAGAIN) {
    }
    IS(got, -FI_EAVAIL);
    IS(fi_cq_readerr(b.rxcq[1], &error, 0), 1);
    CHECK(error.err == FI_ECANCELED && error.op_context == context);
}

/* A handle of one direction cancels nothing of the other one. */
static void cancelled(void)
{
    struct fi_triggered_context2 later = { .event_type = FI_TRIGGER_THRESHOLD };
    struct iovec to = { in, 64 };
    struct fi_msg recv = { &to, NULL, 1, FI_ADDR_UNSPEC, &later, 0 };

    later.trigger.threshold.cntr      = start;
    later.trigger.threshold.threshold = 1;
    OK(fi_recv(b.rx[1], in, 32, NULL, FI_ADDR_UNSPEC, out));
    IS(fi_cancel(&b.tx[1]->fid, out), -FI_ENOENT);
    OK(fi_cancel(&b.rx[1]->fid, out));
    expect_cancelled(out);
    OK(fi_recvmsg(b.rx[1], &recv, FI_TRIGGER));
    IS(fi_cancel(&b.tx[1]->fid, &later), -FI_ENOENT);
    OK(fi_cancel(&b.rx[1]->fid, &later));
    expect_cancelled(&later);
}

/* A context takes with it the operations of its own direction that wait. */
static void waiting(void)
{
    struct fi_triggered_context2 first = { .event_type = FI_TRIGGER_THRESHOLD }, second;
    struct iovec to = { in, 64 }, from = { out, 8 };
    struct fi_msg recv = { &to, NULL, 1, FI_ADDR_UNSPEC, &first, 0 };
    struct fi_msg send = { &from, NULL, 1, a.addr, &second, 0 };
    struct fi_op_msg op = { b.tx[1], { &from, NULL, 1, a.addr, NULL, 0 }, 0 };
    struct fi_deferred_work work = { .threshold = 5, .op_type = FI_OP_SEND };

    first.trigger.threshold.cntr      = start;
    first.trigger.threshold.threshold = 1;
    second                            = first;
    OK(fi_recvmsg(b.rx[1], &recv, FI_TRIGGER));
    OK(fi_sendmsg(b.tx[1], &send, FI_TRIGGER));
    OK(fi_close(&b.tx[1]->fid));
    open_tx(&b, 1);
    OK(fi_cntr_add(start, 1));
    OK(fi_inject(a.tx[0], "late", 5, fi_rx_addr(b.addr, 1, BITS)));
    CHECK(entry_of(b.rxcq[1], NULL).op_context == &first && strcmp(in, "late") == 0);
    wait_until_idle();
    OK(fi_cntr_set(start, 0));
    OK(fi_recvmsg(b.rx[1], &recv, FI_TRIGGER));
    OK(fi_close(&b.rx[1]->fid));
    /* Nothing holds the counter any more. */
    OK(fi_close(&start->fid));
    OK(fi_cntr_open(domain, NULL, &start, NULL));
    open_rx(&b, 1);
    /* Deferred work holds its context, and nothing else. */
    op.ep                = b.tx[1];
    work.triggering_cntr = start;
    work.op.msg          = &op;
    OK(fi_control(&domain->fid, FI_QUEUE_WORK, &work));
    IS(fi_close(&b.tx[1]->fid), -FI_EBUSY);
    OK(fi_close(&b.rx[1]->fid));
    open_rx(&b, 1);
    OK(fi_control(&domain->fid, FI_CANCEL_WORK, &work));
    OK(fi_close(&b.tx[1]->fid));
    open_tx(&b, 1);
}

/* What a context has sent and nobody receives ends with it. */
static void unfinished(void)
{
    enum { LEN = 1 << 20 };
    char *large = calloc(1, LEN);
    ssize_t left = fi_tx_size_left(a.tx[0]);
    int n;
    for (n = 0; n < 3; n++) {
        OK(fi_tsend(a.tx[0], large, LEN, NULL, b.addr, 777, large));
    }
    CHECK(fi_tx_size_left(a.tx[0]) == left - 3);
    OK(fi_close(&a.tx[0]->fid));
    open_tx(&a, 0);
    IS(fi_tx_size_left(a.tx[0]), left);
    wait_until_idle();
    OK(fi_trecv(b.rx[0], in, 64, NULL, FI_ADDR_UNSPEC, 778, 0, in));
    OK(fi_tsend(a.tx[0], "more", 5, NULL, b.addr, 778, out));
    CHECK(entry_of(b.rxcq[0], NULL).op_context == in && strcmp(in, "more") == 0);
    CHECK(entry_of(a.txcq[0], NULL).op_context == out);
    free(large);
}

static void close_end(struct end *end)
{
    int n;
    for (n = 0; n < TX; n++) {
        OK(fi_close(&end->tx[n]->fid));
        OK(fi_close(&end->txcq[n]->fid));
    }
    for (n = 0; n < RX; n++) {
        OK(fi_close(&end->rx[n]->fid));
        OK(fi_close(&end->rxcq[n]->fid));
    }
    OK(fi_close(&end->sep->fid));
}

int main(int argc, char **argv)
{
    struct fi_av_attr av_attr = { .type = FI_AV_MAP, .rx_ctx_bits = BITS };
    struct fi_av_attr wide    = { .type = FI_AV_MAP, .rx_ctx_bits = 60 };
    struct fid_fabric *fabric;
    char name[2048], text[4096];
    size_t len = sizeof(name);
    offers();
    info->domain_attr->threading     = argc > 1 ? atoi(argv[1]) : FI_THREAD_SAFE;
    info->domain_attr->data_progress = argc > 2 ? atoi(argv[2]) : FI_PROGRESS_MANUAL;
    OK(fi_fabric(info->fabric_attr, &fabric, NULL));
    OK(fi_domain(fabric, info, &domain, NULL));
    IS(fi_av_open(domain, &wide, &av, NULL), -FI_EINVAL);
    OK(fi_av_open(domain, &av_attr, &av, NULL));
    OK(fi_cntr_open(domain, NULL, &writes, NULL));
    OK(fi_cntr_open(domain, NULL, &start, NULL));
    open_end(&a);
    open_end(&b);
    messages();
    memory();
    bad();
    room();
    cancelled();
    if (info->domain_attr->threading == FI_THREAD_SAFE) {
        opened_by_threads();
    }
    waiting();
    unfinished();
    OK(fi_av_lookup(av, fi_rx_addr(b.addr, 2, BITS), name, &len));
    len = sizeof(text);
    CHECK(fi_av_straddr(av, name, text, &len) == text && strncmp(text, "fi_addr_efa4://", 15) == 0);
    OK(fi_av_remove(av, &b.addr, 1, 0));
    IS(fi_send(a.tx[1], out, 8, NULL, fi_rx_addr(b.addr, 1, BITS), NULL), -FI_EINVAL);
    close_end(&a);
    close_end(&b);
    OK(fi_close(&writes->fid));
    OK(fi_close(&start->fid));
    OK(fi_close(&av->fid));
    OK(fi_close(&domain->fid));
    OK(fi_close(&fabric->fid));
    return 0;
}

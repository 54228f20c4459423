/* Deferred work: operations of an endpoint to itself that start when a counter reaches a threshold. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <rdma/fabric.h>
#include <rdma/fi_atomic.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>
#include <rdma/fi_tagged.h>
#include <rdma/fi_trigger.h>

#include "check.h"

enum { ROOM = 16 };

static enum fi_threading threading = FI_THREAD_SAFE;
static struct fi_info *info;
static struct fid_domain *domain;
static struct fid_av *av;
static struct fid_ep *ep;
static struct fid_cq *tx, *rx;
static struct fid_cntr *start, *done, *sent;
static struct fid_mr *mr;
static fi_addr_t self;
static char out[64], in[64];
static uint64_t words[8], old, key;

static struct fi_info *find(uint64_t caps)
{
    struct fi_info *hints = fi_allocinfo(), *found;
    hints->caps                   = caps;
    hints->ep_attr->type          = FI_EP_RDM;
    hints->domain_attr->threading = threading;
    hints->domain_attr->mr_mode   = FI_MR_BASIC;
    hints->fabric_attr->prov_name = strdup("efa4");
    OK(fi_getinfo(FI_VERSION(1, 17), NULL, NULL, 0, hints, &found));
    return found;
}

static void open_all(void)
{
    struct fid_fabric *fabric;
    struct fi_av_attr av_attr = { .type = FI_AV_TABLE };
    struct fi_cq_attr cq_attr = { .format = FI_CQ_FORMAT_TAGGED, .wait_obj = FI_WAIT_UNSPEC,
                                  .wait_cond = FI_CQ_COND_THRESHOLD };
    struct fi_deferred_work work = { 0 };
    char name[512];
    size_t len = sizeof(name);

    CHECK(!(find(FI_MSG)->caps & FI_TRIGGER));
    info = find(FI_MSG | FI_TAGGED | FI_RMA | FI_ATOMIC);
    OK(fi_fabric(info->fabric_attr, &fabric, NULL));
    OK(fi_domain(fabric, info, &domain, NULL));
    IS(fi_control(&domain->fid, FI_QUEUE_WORK, &work), -FI_ENOSYS);
    OK(fi_close(&domain->fid));
    info = find(FI_MSG | FI_TAGGED | FI_RMA | FI_ATOMIC | FI_TRIGGER);
    CHECK(info->caps & FI_TRIGGER);
    info->tx_attr->size = info->rx_attr->size = ROOM;
    OK(fi_domain(fabric, info, &domain, NULL));
    OK(fi_av_open(domain, &av_attr, &av, NULL));
    OK(fi_endpoint(domain, info, &ep, NULL));
    OK(fi_cq_open(domain, &cq_attr, &tx, NULL));
    OK(fi_cq_open(domain, &cq_attr, &rx, NULL));
    OK(fi_cntr_open(domain, NULL, &start, NULL));
    OK(fi_cntr_open(domain, NULL, &done, NULL));
    OK(fi_cntr_open(domain, NULL, &sent, NULL));
    OK(fi_ep_bind(ep, &av->fid, 0));
    OK(fi_ep_bind(ep, &tx->fid, FI_TRANSMIT));
    OK(fi_ep_bind(ep, &rx->fid, FI_RECV));
    OK(fi_ep_bind(ep, &sent->fid, FI_SEND));
    OK(fi_enable(ep));
    OK(fi_getname(&ep->fid, name, &len));
    IS(fi_av_insert(av, name, 1, &self, 0, NULL), 1);
    OK(fi_mr_reg(domain, words, sizeof(words), FI_REMOTE_READ | FI_REMOTE_WRITE, 0, 0, 0, &mr, NULL));
    key = fi_mr_key(mr);
}

static struct fi_deferred_work work_at(uint64_t threshold, enum fi_op_type type, void *op)
{
    struct fi_deferred_work work = { .threshold = threshold, .triggering_cntr = start, .completion_cntr = done,
                                     .op_type = type };
    work.op.msg = op;
    return work;
}

static void queue(struct fi_deferred_work *work)
{
    OK(fi_control(&domain->fid, FI_QUEUE_WORK, work));
}

/* Nothing has been reported to the queues. */
static void nothing(void)
{
    struct fi_cq_tagged_entry entry;
    int n;
    for (n = 0; n < 200; n++) {
        CHECK(fi_cq_read(tx, &entry, 1) == -FI_EAGAIN && fi_cq_read(rx, &entry, 1) == -FI_EAGAIN);
    }
}

static struct fi_cq_tagged_entry entry_of(struct fid_cq *cq)
{
    struct fi_cq_tagged_entry entry;
    ssize_t got;
    while ((got = fi_cq_read(cq, &entry, 1)) == -FI_EAGAIN) {
        fi_cntr_read(done);
    }
    IS(got, 1);
    return entry;
}

static void reset(void)
{
    OK(fi_cntr_set(start, 0));
    OK(fi_cntr_set(done, 0));
    OK(fi_cntr_set(sent, 0));
}

static void messages(void)
{
    struct iovec from = { out, 16 }, to = { in, 64 };
    struct fi_op_tagged send = { ep, { &from, NULL, 1, self, 7, 0, &from, 0 }, 0 };
    struct fi_op_tagged recv = { ep, { &to, NULL, 1, FI_ADDR_UNSPEC, 7, 0, &to, 0 }, FI_COMPLETION };
    struct fi_deferred_work works[2] = { work_at(3, FI_OP_TSEND, &send), work_at(2, FI_OP_TRECV, &recv) };
    struct fi_op_msg hello = { ep, { &from, NULL, 1, self, &hello, 0 }, FI_COMPLETION };
    struct fi_deferred_work immediate = work_at(3, FI_OP_SEND, &hello);
    struct fi_op_msg late = { ep, { &to, NULL, 1, FI_ADDR_UNSPEC, &late, 0 }, FI_COMPLETION };
    struct fi_deferred_work receive = work_at(4, FI_OP_RECV, &late);

    memset(out, 'a', sizeof(out));
    queue(&works[0]);
    queue(&works[1]);
    /* Descriptions and their lists may change after the call. */
    memset(works, 0, sizeof(works));
    memset(&send, 0, sizeof(send));
    memset(&recv, 0, sizeof(recv));
    memset(&from, 0, sizeof(from));
    nothing();
    OK(fi_cntr_add(start, 1));
    nothing();
    CHECK(fi_cntr_read(done) == 0);
    OK(fi_cntr_add(start, 1));
    nothing();
    IS(fi_close(&start->fid), -FI_EBUSY);
    IS(fi_close(&ep->fid), -FI_EBUSY);
    /* An error counts, too. */
    OK(fi_cntr_adderr(start, 1));
    CHECK(entry_of(rx).op_context == &to && in[0] == 'a');
    OK(fi_cntr_wait(done, 2, 60000));
    from.iov_base = out;
    from.iov_len  = 16;
    nothing();
    CHECK(fi_cntr_read(done) == 2 && fi_cntr_read(sent) == 0);
    /* The threshold has been reached before, and the operation asks for its completion. */
    OK(fi_recv(ep, in, 64, NULL, FI_ADDR_UNSPEC, in));
    queue(&immediate);
    CHECK(entry_of(rx).op_context == in && entry_of(tx).op_context == &hello);
    CHECK(fi_cntr_read(done) == 3 && fi_cntr_read(sent) == 1);
    /* A receive without a tag, which is later than its message. */
    to.iov_base = in;
    to.iov_len  = 64;
    queue(&receive);
    OK(fi_inject(ep, "late", 5, self));
    nothing();
    OK(fi_cntr_add(start, 1));
    CHECK(entry_of(rx).op_context == &late && strcmp(in, "late") == 0 && fi_cntr_read(done) == 4);
    OK(fi_cntr_seterr(start, 0));
    reset();
}

/* Each operation is started by the end of the one before. */
static void chain(void)
{
    uint64_t at = info->domain_attr->mr_mode == FI_MR_BASIC ? (uintptr_t)words : 0, one = 5, ten = 10;
    struct iovec from = { out, 8 }, to = { in, 8 };
    struct fi_rma_iov far = { at, 8, key };
    struct fi_ioc value = { &one, 1 }, other = { &ten, 1 }, result = { &old, 1 };
    struct fi_rma_ioc counted = { at + 8, 1, key };
    struct fi_op_rma write = { ep, { &from, NULL, 1, self, &far, 1, NULL, 0 }, FI_DELIVERY_COMPLETE };
    struct fi_op_rma read  = { ep, { &to, NULL, 1, self, &far, 1, NULL, 0 }, 0 };
    struct fi_op_atomic add = { ep, { &value, NULL, 1, self, &counted, 1, FI_UINT64, FI_SUM, NULL, 0 }, 0 };
    struct fi_op_fetch_atomic fetch = { ep, { &value, NULL, 1, self, &counted, 1, FI_UINT64, FI_SUM, NULL, 0 },
                                        { &result, NULL, 1 }, 0 };
    struct fi_op_compare_atomic swap = { ep, { &value, NULL, 1, self, &counted, 1, FI_UINT64, FI_CSWAP, NULL, 0 },
                                         { &result, NULL, 1 }, { &other, NULL, 1 }, 0 };
    struct fi_op_cntr set = { start, 77 };
    struct fi_deferred_work works[6] = {
        work_at(0, FI_OP_WRITE, &write), work_at(1, FI_OP_READ, &read), work_at(2, FI_OP_ATOMIC, &add),
        work_at(3, FI_OP_FETCH_ATOMIC, &fetch), work_at(4, FI_OP_COMPARE_ATOMIC, &swap), work_at(5, FI_OP_CNTR_SET, &set),
    };
    int n;
    memset(out, 'b', sizeof(out));
    for (n = 5; n >= 0; n--) {
        works[n].triggering_cntr = done;
        if (n == 5) {
            IS(fi_control(&domain->fid, FI_QUEUE_WORK, &works[n]), -FI_EINVAL);
            works[n].completion_cntr = NULL;
        }
        queue(&works[n]);
    }
    OK(fi_cntr_wait(start, 77, 60000));
    CHECK(fi_cntr_read(done) == 5);
    CHECK(memcmp(words, "bbbbbbbb", 8) == 0 && memcmp(in, "bbbbbbbb", 8) == 0);
    /* 5, then 10, of which the last is swapped for 5. */
    CHECK(old == 10 && words[1] == 5);
    nothing();
    reset();
}

static void taken_back(void)
{
    struct fi_op_cntr add = { done, 1 };
    struct fi_deferred_work works[3] = { work_at(1, FI_OP_CNTR_ADD, &add), work_at(1, FI_OP_CNTR_ADD, &add),
                                         work_at(1, FI_OP_CNTR_ADD, &add) };
    int n;
    for (n = 0; n < 3; n++) {
        works[n].completion_cntr = NULL;
        queue(&works[n]);
    }
    OK(fi_control(&domain->fid, FI_CANCEL_WORK, &works[1]));
    IS(fi_control(&domain->fid, FI_CANCEL_WORK, &works[1]), -FI_ENOENT);
    OK(fi_cntr_add(start, 1));
    CHECK(fi_cntr_read(done) == 2);
    OK(fi_cntr_set(start, 0));
    queue(&works[0]);
    queue(&works[1]);
    OK(fi_control(&domain->fid, FI_FLUSH_WORK, NULL));
    OK(fi_cntr_add(start, 1));
    CHECK(fi_cntr_read(done) == 2);
    reset();
}

static void bad(void)
{
    struct iovec from = { out, 16 };
    struct fi_op_msg send = { ep, { &from, NULL, 1, 12345, NULL, 0 }, 0 };
    struct fi_deferred_work work = work_at(0, FI_OP_SEND, &send), other = work;
    IS(fi_control(&domain->fid, FI_QUEUE_WORK, NULL), -FI_EINVAL);
    other.op.msg = NULL;
    IS(fi_control(&domain->fid, FI_QUEUE_WORK, &other), -FI_EINVAL);
    other = work;
    other.triggering_cntr = NULL;
    IS(fi_control(&domain->fid, FI_QUEUE_WORK, &other), -FI_EINVAL);
    other = work;
    other.op_type = 99;
    IS(fi_control(&domain->fid, FI_QUEUE_WORK, &other), -FI_ENOSYS);
    other = work;
    send.flags = FI_TRIGGER;
    IS(fi_control(&domain->fid, FI_QUEUE_WORK, &other), -FI_EBADFLAGS);
    send.flags = 0;
    IS(fi_control(&domain->fid, FI_BACKLOG, NULL), -FI_ENOSYS);
    /* A peer that is not there: only the counter can tell. */
    queue(&work);
    CHECK(fi_cntr_read(done) == 0 && fi_cntr_readerr(done) == 1);
    OK(fi_cntr_seterr(done, 0));
    /* What operations that are posted take is not deferred work's. */
    OK(fi_recv(ep, in, 64, NULL, FI_ADDR_UNSPEC, in));
    OK(fi_send(ep, out, 16, NULL, self, out));
    CHECK(entry_of(rx).op_context == in && entry_of(tx).op_context == out && fi_cntr_read(done) == 0);
}

/* A reader that waits for two entries starts the work that makes the second one. */
static void waited_for(void)
{
    struct fi_cq_tagged_entry entries[2];
    struct iovec from = { out, 16 };
    uint64_t flags = FI_COMPLETION | FI_DELIVERY_COMPLETE;
    struct fi_op_tagged send = { ep, { &from, NULL, 1, self, 7, 0, NULL, 0 }, flags };
    struct fi_deferred_work first = work_at(1, FI_OP_TSEND, &send), second = work_at(1, FI_OP_TSEND, &send);
    int n;
    second.triggering_cntr = done;
    queue(&second);
    queue(&first);
    for (n = 0; n < 2; n++) {
        OK(fi_trecv(ep, in, 64, NULL, FI_ADDR_UNSPEC, 7, 0, in));
    }
    OK(fi_cntr_add(start, 1));
    IS(fi_cq_sread(tx, entries, 2, (void*)2, 20000), 2);
    CHECK(entry_of(rx).op_context == in && entry_of(rx).op_context == in);
    reset();
}

/* Work needs room of its own direction only. */
static void room(void)
{
    struct iovec from = { out, 16 }, to = { in, 64 };
    struct fi_op_tagged send = { ep, { &from, NULL, 1, self, 55, 0, NULL, 0 }, 0 };
    struct fi_op_tagged recv = { ep, { &to, NULL, 1, FI_ADDR_UNSPEC, 66, 0, NULL, 0 }, 0 };
    struct fi_deferred_work sends = work_at(0, FI_OP_TSEND, &send), recvs = work_at(0, FI_OP_TRECV, &recv);
    int n;
    for (n = 0; n < ROOM; n++) {
        OK(fi_trecv(ep, in, 64, NULL, FI_ADDR_UNSPEC, 55, 0, in));
    }
    IS(fi_trecv(ep, in, 64, NULL, FI_ADDR_UNSPEC, 55, 0, in), -FI_EAGAIN);
    for (n = 0; n < ROOM; n++) {
        queue(&sends);
        OK(fi_cntr_wait(done, n + 1, 20000));
        CHECK(entry_of(rx).op_context == in);
    }
    reset();
    for (n = 0; n < ROOM; n++) {
        OK(fi_tsend(ep, out, 16, NULL, self, 66, out));
    }
    IS(fi_tsend(ep, out, 16, NULL, self, 66, out), -FI_EAGAIN);
    for (n = 0; n < ROOM; n++) {
        queue(&recvs);
        OK(fi_cntr_wait(done, n + 1, 20000));
    }
    for (n = 0; n < ROOM; n++) {
        CHECK(entry_of(tx).op_context == out);
    }
    nothing();
    reset();
}

int main(int argc, char **argv)
{
    if (argc > 1)
        threading = atoi(argv[1]);
    open_all();
    messages();
    chain();
    waited_for();
    room();
    taken_back();
    bad();
    /* A counter of deferred work may be closed before its endpoint. */
    OK(fi_close(&done->fid));
    OK(fi_close(&ep->fid));
    OK(fi_close(&start->fid));
    OK(fi_close(&sent->fid));
    OK(fi_close(&mr->fid));
    return 0;
}

/* Operations with FI_TRIGGER, of an endpoint to itself: each waits for the counter that its context names. */
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

static enum fi_threading threading = FI_THREAD_SAFE;
static struct fi_info *info;
static struct fid_domain *domain;
static struct fid_av *av;
static struct fid_ep *ep, *alias, *plain;
static struct fid_cq *tx, *rx;
static struct fid_cntr *start, *sent, *written;
static struct fid_mr *mr;
static fi_addr_t self;
static char out[64], in[64];
static uint64_t words[8], key;

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

static struct fid_ep *open_ep(struct fi_info *of)
{
    struct fid_ep *made;
    OK(fi_endpoint(domain, of, &made, NULL));
    OK(fi_ep_bind(made, &av->fid, 0));
    OK(fi_ep_bind(made, &tx->fid, FI_TRANSMIT));
    OK(fi_ep_bind(made, &rx->fid, FI_RECV));
    return made;
}

static void open_all(void)
{
    uint64_t caps = FI_MSG | FI_TAGGED | FI_RMA | FI_ATOMIC;
    struct fid_fabric *fabric;
    struct fi_av_attr av_attr = { .type = FI_AV_TABLE };
    struct fi_cq_attr cq_attr = { .format = FI_CQ_FORMAT_TAGGED };
    char name[512];
    size_t len = sizeof(name);

    info = find(caps | FI_TRIGGER);
    OK(fi_fabric(info->fabric_attr, &fabric, NULL));
    OK(fi_domain(fabric, info, &domain, NULL));
    OK(fi_av_open(domain, &av_attr, &av, NULL));
    OK(fi_cq_open(domain, &cq_attr, &tx, NULL));
    OK(fi_cq_open(domain, &cq_attr, &rx, NULL));
    OK(fi_cntr_open(domain, NULL, &start, NULL));
    OK(fi_cntr_open(domain, NULL, &sent, NULL));
    OK(fi_cntr_open(domain, NULL, &written, NULL));
    ep = open_ep(info);
    OK(fi_ep_bind(ep, &sent->fid, FI_SEND));
    OK(fi_ep_bind(ep, &written->fid, FI_WRITE));
    OK(fi_enable(ep));
    plain = open_ep(find(caps));
    OK(fi_enable(plain));
    OK(fi_ep_alias(ep, &alias, FI_TRANSMIT | FI_TRIGGER));
    OK(fi_getname(&ep->fid, name, &len));
    IS(fi_av_insert(av, name, 1, &self, 0, NULL), 1);
    OK(fi_mr_reg(domain, words, sizeof(words), FI_REMOTE_READ | FI_REMOTE_WRITE, 0, 0, 0, &mr, NULL));
    key = fi_mr_key(mr);
}

static struct fi_triggered_context2 at(uint64_t threshold)
{
    struct fi_triggered_context2 context = { .event_type = FI_TRIGGER_THRESHOLD };
    context.trigger.threshold.cntr      = start;
    context.trigger.threshold.threshold = threshold;
    return context;
}

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
        fi_cntr_read(start);
    }
    IS(got, 1);
    return entry;
}

/* A receive and two sends, whose lists may change after the calls, in the order of their thresholds. */
static void messages(void)
{
    struct fi_triggered_context2 first = at(1), second = at(2), third = at(3);
    struct iovec from[2] = { { out, 8 }, { out + 8, 8 } }, to = { in, 64 };
    struct fi_msg_tagged recv = { &to, NULL, 1, FI_ADDR_UNSPEC, 7, 0, &first, 0 };
    struct fi_msg_tagged send = { from, NULL, 2, self, 7, 0, &second, 99 };
    struct fi_msg hello = { from, NULL, 2, self, &third, 0 };
    struct fi_cq_tagged_entry entry;

    memset(out, 'a', sizeof(out));
    OK(fi_sendmsg(ep, &hello, FI_TRIGGER | FI_INJECT | FI_COMPLETION));
    memset(out, 'b', sizeof(out));
    OK(fi_tsendmsg(ep, &send, FI_TRIGGER | FI_REMOTE_CQ_DATA | FI_COMPLETION));
    OK(fi_trecvmsg(ep, &recv, FI_TRIGGER));
    memset(from, 0, sizeof(from));
    memset(&to, 0, sizeof(to));
    nothing();
    OK(fi_cntr_add(start, 1));
    nothing();
    OK(fi_cntr_add(start, 1));
    entry = entry_of(rx);
    CHECK(entry.op_context == &first && entry.len == 16 && entry.tag == 7 && entry.data == 99 && in[15] == 'b');
    CHECK(entry_of(tx).op_context == &second && fi_cntr_read(sent) == 1);
    OK(fi_recv(ep, in, 64, NULL, FI_ADDR_UNSPEC, in));
    nothing();
    OK(fi_cntr_add(start, 1));
    entry = entry_of(rx);
    CHECK(entry.op_context == in && entry.len == 16 && in[0] == 'a' && in[15] == 'a');
    CHECK(entry_of(tx).op_context == &third);
    OK(fi_cntr_set(start, 0));
}

/* Through an alias whose operations wait; an operation at its endpoint does not. */
static void memory(void)
{
    struct fi_triggered_context context = { .event_type = FI_TRIGGER_THRESHOLD };
    struct fi_triggered_context2 reads = at(2), adds = at(3);
    uint64_t five = 5, old = 0, where = (uintptr_t)words;
    context.trigger.threshold.cntr      = written;
    context.trigger.threshold.threshold = 1;
    memset(out, 'c', 16);
    OK(fi_write(alias, out, 8, NULL, self, where, key, &context));
    OK(fi_read(alias, in, 8, NULL, self, where, key, &reads));
    OK(fi_fetch_atomic(alias, &five, 1, NULL, &old, NULL, self, where + 8, key, FI_UINT64, FI_SUM, &adds));
    nothing();
    CHECK(words[0] == 0);
    OK(fi_write(ep, out, 8, NULL, self, where + 8, key, out));
    OK(fi_cntr_wait(written, 2, 60000));
    CHECK(words[0] == words[1] && memcmp(words, out, 8) == 0);
    CHECK(entry_of(tx).op_context == out && entry_of(tx).op_context == &context);
    OK(fi_cntr_add(start, 2));
    CHECK(entry_of(tx).op_context == &reads && memcmp(in, out, 8) == 0);
    nothing();
    OK(fi_cntr_add(start, 1));
    CHECK(entry_of(tx).op_context == &adds && old == words[0] && words[1] == old + 5);
    OK(fi_cntr_set(start, 0));
}

static void bad(void)
{
    struct fi_triggered_context2 context = at(1);
    struct fi_cq_err_entry error = { 0 };
    struct fi_cq_tagged_entry entry;
    struct iovec to = { in, 64 };
    struct fi_msg recv = { &to, NULL, 1, FI_ADDR_UNSPEC, &context, 0 };

    IS(fi_send(alias, out, 8, NULL, self, NULL), -FI_EINVAL);
    context.event_type = FI_TRIGGER_XPU;
    IS(fi_send(alias, out, 8, NULL, self, &context), -FI_ENOSYS);
    context = at(1);
    context.trigger.threshold.cntr = NULL;
    IS(fi_send(alias, out, 8, NULL, self, &context), -FI_EINVAL);
    context = at(1);
    IS(fi_sendmsg(plain, &recv, FI_TRIGGER), -FI_EBADFLAGS);
    IS(fi_recvmsg(plain, &recv, FI_TRIGGER), -FI_EBADFLAGS);
    IS(fi_recvmsg(ep, &recv, FI_TRIGGER | FI_PEEK), -FI_EOPNOTSUPP);
    /* A peer that is not there is an error entry, when the operation starts. */
    OK(fi_send(alias, out, 8, NULL, 12345, &context));
    nothing();
    IS(fi_close(&start->fid), -FI_EBUSY);
    OK(fi_cntr_add(start, 1));
    IS(fi_cq_read(tx, &entry, 1), -FI_EAVAIL);
    IS(fi_cq_readerr(tx, &error, 0), 1);
    CHECK(error.op_context == &context && error.err == FI_EINVAL);
    CHECK(fi_cntr_readerr(sent) == 1);
    OK(fi_cntr_set(start, 0));
}

static void check_cancelled(struct fid_cq *cq, void *context, uint64_t flags)
{
    struct fi_cq_err_entry error = { 0 };
    struct fi_cq_tagged_entry entry;
    OK(fi_cancel(&ep->fid, context));
    IS(fi_cancel(&ep->fid, context), -FI_ENOENT);
    IS(fi_cq_read(cq, &entry, 1), -FI_EAVAIL);
    IS(fi_cq_readerr(cq, &error, 0), 1);
    CHECK(error.op_context == context && error.err == FI_ECANCELED && error.flags == flags);
}

/* What waits can be cancelled. It frees its counter. */
static void cancelled(void)
{
    struct fi_triggered_context2 first = at(1), second = at(1), third = at(1);
    struct iovec to = { in, 64 };
    struct fi_msg_tagged recv = { &to, NULL, 1, FI_ADDR_UNSPEC, 7, 0, &second, 0 };
    OK(fi_send(alias, out, 8, NULL, self, &first));
    OK(fi_trecvmsg(ep, &recv, FI_TRIGGER));
    OK(fi_write(alias, out, 8, NULL, self, (uintptr_t)words, key, &third));
    check_cancelled(rx, &second, FI_TAGGED | FI_RECV);
    check_cancelled(tx, &first, FI_MSG | FI_SEND);
    IS(fi_close(&start->fid), -FI_EBUSY);
    check_cancelled(tx, &third, FI_RMA | FI_WRITE);
    OK(fi_cntr_add(start, 1));
    nothing();
    OK(fi_close(&start->fid));
    OK(fi_cntr_open(domain, NULL, &start, NULL));
}

/* A close that is refused changes nothing. */
static void refused(void)
{
    struct fi_triggered_context2 context = at(1);
    OK(fi_send(alias, out, 8, NULL, self, &context));
    IS(fi_close(&ep->fid), -FI_EBUSY);
    OK(fi_recv(ep, in, 64, NULL, FI_ADDR_UNSPEC, in));
    OK(fi_cntr_add(start, 1));
    CHECK(entry_of(rx).op_context == in && entry_of(tx).op_context == &context);
    OK(fi_cntr_set(start, 0));
}

int main(int argc, char **argv)
{
    struct fi_triggered_context2 context = at(1);
    if (argc > 1)
        threading = atoi(argv[1]);
    open_all();
    messages();
    memory();
    bad();
    cancelled();
    refused();
    /* What waits goes with its endpoint. */
    context = at(1);
    OK(fi_send(alias, out, 8, NULL, self, &context));
    IS(fi_close(&start->fid), -FI_EBUSY);
    OK(fi_close(&alias->fid));
    OK(fi_close(&ep->fid));
    OK(fi_close(&start->fid));
    OK(fi_close(&plain->fid));
    OK(fi_close(&mr->fid));
    return 0;
}

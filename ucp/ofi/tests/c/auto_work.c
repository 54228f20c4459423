/* Deferred work and an operation with FI_TRIGGER start while their process makes no call, with FI_PROGRESS_AUTO: one
 * process waits in a socket until the other has the replies. */
#include <rdma/fi_trigger.h>
#include "../../examples/pair.h"

enum { REPLIES = 3 };

static struct fid_domain *domain;
static struct fid_ep *ep;
static struct fid_cq *cq;
static struct fid_cntr *received, *done;
static fi_addr_t addrs[2];
static char in[REPLIES + 1][64], token;

static void open_all(void)
{
    struct fi_info *hints = fi_allocinfo(), *info;
    struct fi_av_attr av_attr = { .type = FI_AV_TABLE };
    struct fi_cq_attr cq_attr = { .format = FI_CQ_FORMAT_TAGGED };
    struct fid_fabric *fabric;
    struct fid_av *av;

    hints->caps                       = FI_MSG | FI_TRIGGER;
    hints->ep_attr->type              = FI_EP_RDM;
    hints->domain_attr->data_progress = FI_PROGRESS_AUTO;
    hints->fabric_attr->prov_name     = strdup(provider());
    OK(fi_getinfo(FI_VERSION(1, 17), NULL, NULL, 0, hints, &info));
    CHECK(info->domain_attr->data_progress == FI_PROGRESS_AUTO);
    OK(fi_fabric(info->fabric_attr, &fabric, NULL));
    OK(fi_domain(fabric, info, &domain, NULL));
    OK(fi_endpoint(domain, info, &ep, NULL));
    OK(fi_av_open(domain, &av_attr, &av, NULL));
    OK(fi_cq_open(domain, &cq_attr, &cq, NULL));
    OK(fi_cntr_open(domain, NULL, &received, NULL));
    OK(fi_cntr_open(domain, NULL, &done, NULL));
    OK(fi_ep_bind(ep, &av->fid, 0));
    OK(fi_ep_bind(ep, &cq->fid, FI_TRANSMIT | FI_RECV));
    OK(fi_ep_bind(ep, &received->fid, FI_RECV));
    OK(fi_enable(ep));
    insert_ranks(ep, av, addrs);
}

/* Three replies to one message: of deferred work, of an operation with FI_TRIGGER, and of one that waits for the end of
 * the first. */
static void reply(void)
{
    static char out[REPLIES][8] = { "first", "second", "third" };
    struct iovec pieces[REPLIES];
    struct fi_op_msg sends[REPLIES] = { 0 };
    struct fi_deferred_work work[REPLIES] = { 0 };
    struct fi_triggered_context triggered = { .event_type = FI_TRIGGER_THRESHOLD };
    int i;

    OK(fi_recv(ep, in[0], sizeof(in[0]), NULL, FI_ADDR_UNSPEC, in[0]));
    for (i = 0; i < REPLIES; i++) {
        pieces[i] = (struct iovec){ out[i], sizeof(out[i]) };
        sends[i]  = (struct fi_op_msg){ ep, { &pieces[i], NULL, 1, addrs[0], NULL, 0 }, 0 };
    }
    for (i = 0; i < REPLIES; i += 2) {
        work[i].threshold       = 1;
        work[i].triggering_cntr = i == 0 ? received : done;
        work[i].completion_cntr = i == 0 ? done : NULL;
        work[i].op_type         = FI_OP_SEND;
        work[i].op.msg          = &sends[i];
        OK(fi_control(&domain->fid, FI_QUEUE_WORK, &work[i]));
    }
    triggered.trigger.threshold.cntr      = received;
    triggered.trigger.threshold.threshold = 1;
    sends[1].msg.context                  = &triggered;
    OK(fi_sendmsg(ep, &sends[1].msg, FI_TRIGGER));
    exchange(&token, &token, 1);
    /* No call of libfabric until the other process has all. */
    exchange(&token, &token, 1);
    CHECK(fi_cntr_read(done) == 1);
}

static void ask(void)
{
    struct fi_cq_tagged_entry entry;
    int i, got = 0;

    for (i = 0; i < REPLIES; i++) {
        OK(fi_recv(ep, in[i], sizeof(in[i]), NULL, FI_ADDR_UNSPEC, in[i]));
    }
    exchange(&token, &token, 1);
    OK(fi_inject(ep, "hi", 2, addrs[1]));
    alarm(20);
    while (got < REPLIES) {
        if (fi_cq_read(cq, &entry, 1) == 1 && entry.flags & FI_RECV) {
            CHECK(entry.len == 8);
            got++;
        }
    }
    exchange(&token, &token, 1);
}

int main(void)
{
    start_pair();
    open_all();
    if (rank == 1) {
        reply();
    } else {
        ask();
    }
    OK(fi_close(&ep->fid));
    return end_pair();
}

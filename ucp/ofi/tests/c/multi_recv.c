/* Rank 0 sends messages of many lengths, rank 1 receives them into few buffers. Links to the system's libfabric, which
 * loads the provider from FI_PROVIDER_PATH. */
#include "../../examples/pair.h"

enum { MESSAGES = 400, BUFFERS = 3, ROOM = 4096, LONGEST = 600 };

static struct fid_ep *ep;
static struct fid_cq *cq;
static struct fid_cntr *received;
static fi_addr_t addrs[2];
static unsigned char buffers[BUFFERS][ROOM], out[MESSAGES][LONGEST];
static int freed[BUFFERS];

static size_t length_of(int nth)
{
    return 1 + (size_t)(nth * 37 % LONGEST);
}

static void open_all(void)
{
    struct fi_info *hints = fi_allocinfo(), *info;
    struct fi_av_attr av_attr     = { .type = FI_AV_TABLE };
    struct fi_cq_attr cq_attr     = { .format = FI_CQ_FORMAT_TAGGED };
    struct fid_fabric *fabric;
    struct fid_domain *domain;
    struct fid_av *av;
    size_t least = LONGEST, known = 0, size = sizeof(known);

    hints->caps          = FI_MSG | FI_MULTI_RECV | FI_SOURCE;
    hints->ep_attr->type = FI_EP_RDM;
    hints->fabric_attr->prov_name = strdup(provider());
    OK(fi_getinfo(FI_VERSION(1, 17), NULL, NULL, 0, hints, &info));
    CHECK(info->caps & FI_MULTI_RECV && info->rx_attr->caps & FI_MULTI_RECV);
    OK(fi_fabric(info->fabric_attr, &fabric, NULL));
    OK(fi_domain(fabric, info, &domain, NULL));
    OK(fi_endpoint(domain, info, &ep, NULL));
    OK(fi_av_open(domain, &av_attr, &av, NULL));
    OK(fi_cq_open(domain, &cq_attr, &cq, NULL));
    OK(fi_cntr_open(domain, NULL, &received, NULL));
    OK(fi_ep_bind(ep, &av->fid, 0));
    OK(fi_ep_bind(ep, &cq->fid, FI_TRANSMIT | FI_RECV));
    OK(fi_ep_bind(ep, &received->fid, FI_RECV));
    OK(fi_getopt(&ep->fid, FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV, &known, &size));
    CHECK(known > 0);
    CHECK(fi_setopt(&ep->fid, FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV, &least, 3) == -FI_EINVAL);
    OK(fi_setopt(&ep->fid, FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV, &least, sizeof(least)));
    OK(fi_getopt(&ep->fid, FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV, &known, &size));
    CHECK(known == LONGEST);
    CHECK(fi_tx_size_left(ep) == -FI_EOPBADSTATE);
    OK(fi_enable(ep));
    CHECK(fi_tx_size_left(ep) == (ssize_t)info->tx_attr->size && fi_rx_size_left(ep) == (ssize_t)info->rx_attr->size);
    insert_ranks(ep, av, addrs);
}

static void post(int at)
{
    struct iovec iov  = { buffers[at], ROOM };
    struct fi_msg msg = { &iov, NULL, 1, FI_ADDR_UNSPEC, &buffers[at], 0 };
    OK(fi_recvmsg(ep, &msg, FI_MULTI_RECV));
}

static ssize_t next(struct fi_cq_tagged_entry *entry, fi_addr_t *source)
{
    ssize_t got;
    while ((got = fi_cq_readfrom(cq, entry, 1, source)) == -FI_EAGAIN) {
    }
    return got;
}

static void send_all(void)
{
    struct fi_cq_tagged_entry entry;
    int nth;
    for (nth = 0; nth < MESSAGES; nth++) {
        memset(out[nth], nth, sizeof(out[nth]));
        OK(fi_send(ep, out[nth], length_of(nth), NULL, addrs[1], NULL));
    }
    for (nth = 0; nth < MESSAGES; nth++) {
        CHECK(next(&entry, NULL) == 1);
    }
}

static void receive_all(void)
{
    struct fi_cq_tagged_entry entry;
    struct fi_cq_err_entry error = {0};
    fi_addr_t source;
    int nth = 0, at;
    size_t i;

    for (at = 0; at < BUFFERS; at++) {
        post(at);
    }
    while (nth < MESSAGES) {
        CHECK(next(&entry, &source) == 1);
        at = (int)((unsigned char(*)[ROOM])entry.op_context - buffers);
        CHECK(at >= 0 && at < BUFFERS);
        if (entry.flags & FI_MULTI_RECV) {
            CHECK(!(entry.flags & FI_RECV));
            freed[at]++;
            post(at);
            continue;
        }
        CHECK(entry.flags == (FI_MSG | FI_RECV) && entry.len == length_of(nth) && source == addrs[0]);
        CHECK((unsigned char*)entry.buf >= buffers[at] && (unsigned char*)entry.buf + entry.len <= buffers[at] + ROOM);
        for (i = 0; i < entry.len; i++) {
            CHECK(((unsigned char*)entry.buf)[i] == (unsigned char)nth);
        }
        nth++;
    }
    CHECK(freed[0] > 5 && freed[1] > 5 && freed[2] > 5);
    CHECK(fi_cntr_read(received) == MESSAGES);
    /* A cancelled one ends with an error. */
    OK(fi_cancel(&ep->fid, &buffers[0]));
    while ((i = (size_t)next(&entry, NULL)) == 1) {
        CHECK(entry.flags & FI_MULTI_RECV);
    }
    CHECK((ssize_t)i == -FI_EAVAIL && fi_cq_readerr(cq, &error, 0) == 1);
    CHECK(error.err == FI_ECANCELED && error.op_context == &buffers[0]);
}

int main(void)
{
    char token = 0, other;
    start_pair();
    open_all();
    if (rank == 0) {
        send_all();
    } else {
        receive_all();
    }
    exchange(&token, &other, 1);
    OK(fi_close(&ep->fid));
    return end_pair();
}

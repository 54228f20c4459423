/* A shared receive context: two endpoints take their receives from it, and a third one sends to both. */
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

#include "check.h"

enum { LEN = 200000 };

static struct fi_info *info;
static struct fid_domain *domain;
static struct fid_av *av;
static struct fid_ep *receivers[2], *sender, *srx;
static struct fid_cq *queues[2], *tx;
static fi_addr_t addrs[2];
static char out[LEN], in[4][LEN];

static void open_ep(struct fid_ep **ep, struct fid_cq **rx, fi_addr_t *number)
{
    struct fi_cq_attr cq_attr = { .format = FI_CQ_FORMAT_TAGGED };
    char name[512];
    size_t len = sizeof(name);
    OK(fi_endpoint(domain, info, ep, NULL));
    OK(fi_cq_open(domain, &cq_attr, rx, NULL));
    OK(fi_ep_bind(*ep, &av->fid, 0));
    OK(fi_ep_bind(*ep, &(*rx)->fid, FI_TRANSMIT | FI_RECV));
    IS(fi_enable(*ep), -FI_EOPBADSTATE);
    OK(fi_ep_bind(*ep, &srx->fid, 0));
    IS(fi_ep_bind(*ep, &srx->fid, 0), -FI_EINVAL);
    OK(fi_enable(*ep));
    IS(fi_recv(*ep, in[0], 1, NULL, FI_ADDR_UNSPEC, NULL), -FI_EOPBADSTATE);
    OK(fi_getname(&(*ep)->fid, name, &len));
    IS(fi_av_insert(av, name, 1, number, 0, NULL), 1);
}

static void open_all(void)
{
    struct fi_info *hints = fi_allocinfo(), *plain;
    struct fid_fabric *fabric;
    struct fi_av_attr av_attr = { .type = FI_AV_TABLE };
    struct fi_cq_attr cq_attr = { .format = FI_CQ_FORMAT_TAGGED };
    struct fi_rx_attr rx_attr = { .size = 8 };

    hints->caps                     = FI_MSG | FI_TAGGED;
    hints->ep_attr->type            = FI_EP_RDM;
    hints->fabric_attr->prov_name   = strdup("efa4");
    OK(fi_getinfo(FI_VERSION(1, 17), NULL, NULL, 0, hints, &plain));
    CHECK(plain->ep_attr->rx_ctx_cnt == 1 && plain->domain_attr->max_ep_srx_ctx > 0);
    hints->ep_attr->rx_ctx_cnt = FI_SHARED_CONTEXT;
    OK(fi_getinfo(FI_VERSION(1, 17), NULL, NULL, 0, hints, &info));
    CHECK(info->ep_attr->rx_ctx_cnt == FI_SHARED_CONTEXT);
    OK(fi_fabric(info->fabric_attr, &fabric, NULL));
    OK(fi_domain(fabric, info, &domain, NULL));
    OK(fi_av_open(domain, &av_attr, &av, NULL));
    rx_attr.caps = FI_DIRECTED_RECV;
    IS(fi_srx_context(domain, &rx_attr, &srx, NULL), -FI_EOPNOTSUPP);
    rx_attr.caps = 0;
    OK(fi_srx_context(domain, &rx_attr, &srx, NULL));
    OK(fi_enable(srx));
    open_ep(&receivers[0], &queues[0], &addrs[0]);
    open_ep(&receivers[1], &queues[1], &addrs[1]);
    OK(fi_endpoint(domain, plain, &sender, NULL));
    OK(fi_cq_open(domain, &cq_attr, &tx, NULL));
    OK(fi_ep_bind(sender, &av->fid, 0));
    OK(fi_ep_bind(sender, &tx->fid, FI_TRANSMIT | FI_RECV));
    IS(fi_ep_bind(sender, &srx->fid, 0), -FI_EINVAL);
    OK(fi_enable(sender));
    IS(fi_close(&srx->fid), -FI_EBUSY);
}

/* The next entry of either receiver, and which of them. */
static int wait_any(struct fi_cq_tagged_entry *entry)
{
    struct fi_cq_tagged_entry none;
    for (;;) {
        int at;
        fi_cq_read(tx, &none, 1);
        for (at = 0; at < 2; at++) {
            ssize_t got = fi_cq_read(queues[at], entry, 1);
            if (got != -FI_EAGAIN) {
                CHECK(got == 1 || got == -FI_EAVAIL);
                return at;
            }
        }
    }
}

static void send_to(int to, size_t len, int salt)
{
    struct fi_cq_tagged_entry none;
    memset(out, salt, len);
    if (len <= 8) {
        while (fi_inject(sender, out, len, addrs[to]) == -FI_EAGAIN) {
            fi_cq_read(tx, &none, 0);
        }
        return;
    }
    OK(fi_send(sender, out, len, NULL, addrs[to], out));
}

static void messages(size_t len)
{
    struct fi_cq_tagged_entry entry;
    int at, n;
    for (n = 0; n < 4; n++) {
        OK(fi_recv(srx, in[n], LEN, NULL, FI_ADDR_UNSPEC, in[n]));
    }
    for (n = 0; n < 4; n++) {
        send_to(n % 2, len, n + 1);
        at = wait_any(&entry);
        CHECK(at == n % 2 && entry.op_context == in[n] && entry.len == len && entry.buf == in[n]);
        CHECK(entry.flags == (FI_MSG | FI_RECV) && in[n][0] == n + 1 && in[n][len - 1] == n + 1);
    }
}

static void tags_and_pieces(void)
{
    struct fi_cq_tagged_entry entry;
    struct iovec iov[2]      = { { in[0], 3 }, { in[1], 5 } };
    struct fi_msg_tagged msg = { iov, NULL, 2, FI_ADDR_UNSPEC, 0x10, 0xf, in[2], 0 };
    OK(fi_trecv(srx, in[3], 8, NULL, FI_ADDR_UNSPEC, 7, 0, in[3]));
    OK(fi_trecvmsg(srx, &msg, FI_COMPLETION));
    OK(fi_tinject(sender, "abcdefgh", 8, addrs[1], 0x1c));
    CHECK(wait_any(&entry) == 1 && entry.tag == 0x1c && entry.op_context == in[2]);
    CHECK(memcmp(in[0], "abc", 3) == 0 && memcmp(in[1], "defgh", 5) == 0);
    /* A message that nobody expects waits for a receive that matches. */
    OK(fi_tinject(sender, "one", 3, addrs[0], 9));
    OK(fi_tinject(sender, "two", 3, addrs[0], 7));
    CHECK(wait_any(&entry) == 0 && entry.tag == 7 && memcmp(in[3], "two", 3) == 0);
    OK(fi_trecv(srx, in[3], 8, NULL, FI_ADDR_UNSPEC, 9, 0, in[3]));
    CHECK(wait_any(&entry) == 0 && entry.tag == 9 && memcmp(in[3], "one", 3) == 0);
}

static void limits_and_errors(void)
{
    struct fi_cq_tagged_entry entry;
    struct fi_cq_err_entry error = { 0 };
    struct fi_msg msg            = { 0 };
    int n, at;
    CHECK(fi_rx_size_left(srx) == 8);
    for (n = 0; n < 8; n++) {
        OK(fi_recv(srx, in[0], 4, NULL, FI_ADDR_UNSPEC, in[n % 4]));
    }
    CHECK(fi_rx_size_left(srx) == 0);
    IS(fi_recv(srx, in[0], 4, NULL, FI_ADDR_UNSPEC, NULL), -FI_EAGAIN);
    IS(fi_cancel(&srx->fid, &error), -FI_ENOENT);
    for (n = 0; n < 7; n++) {
        OK(fi_cancel(&srx->fid, in[n % 4]));
    }
    /* A message that is too long. */
    OK(fi_inject(sender, "12345678", 8, addrs[1]));
    at = wait_any(&entry);
    CHECK(at == 1 && fi_cq_readerr(queues[1], &error, 0) == 1);
    CHECK(error.err == FI_ETRUNC && error.olen == 4 && error.op_context == in[3]);
    IS(fi_recvmsg(srx, &msg, FI_PEEK), -FI_EOPNOTSUPP);
    IS(fi_recv(srx, NULL, 8, NULL, FI_ADDR_UNSPEC, NULL), -FI_EINVAL);
    /* Nothing is sent by it. */
    IS(fi_send(srx, out, 8, NULL, addrs[0], NULL), -FI_ENOSYS);
    IS(fi_tinject(srx, out, 8, addrs[0], 1), -FI_ENOSYS);
    IS(fi_write(srx, out, 8, NULL, addrs[0], 0, 0, NULL), -FI_ENOSYS);
}

int main(void)
{
    open_all();
    messages(8);
    messages(4000);
    messages(LEN);
    tags_and_pieces();
    limits_and_errors();
    OK(fi_recv(srx, in[0], 4, NULL, FI_ADDR_UNSPEC, NULL));
    OK(fi_close(&sender->fid));
    OK(fi_close(&receivers[0]->fid));
    IS(fi_close(&srx->fid), -FI_EBUSY);
    OK(fi_close(&receivers[1]->fid));
    OK(fi_close(&srx->fid));
    return 0;
}

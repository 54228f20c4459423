/* Two endpoints of one process: messages, address vectors, queues, counters, and errors. Links to the system's
 * libfabric, which loads the provider from FI_PROVIDER_PATH. */
#include <poll.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_tagged.h>
#include <rdma/fi_rma.h>
#include <rdma/fi_atomic.h>

#include "check.h"

enum { BIG = 3 << 20 };

struct end {
    struct fid_ep *ep;
    struct fid_cq *tx, *rx;
    struct fid_cntr *sent, *received;
    char name[256];
    size_t len;
    fi_addr_t peer, self;
};

static struct fi_info *info;
static struct fid_fabric *fabric;
static struct fid_domain *domain;
static struct fid_av *av;
static struct end a, b;
static char *out, *in;

static struct fi_info *hints_of(uint64_t caps)
{
    struct fi_info *hints = fi_allocinfo();
    hints->caps = caps;
    hints->ep_attr->type = FI_EP_RDM;
    hints->fabric_attr->prov_name = strdup(getenv("PROVIDER") ? getenv("PROVIDER") : "efa4");
    return hints;
}

static int find(struct fi_info *hints, struct fi_info **found)
{
    return fi_getinfo(FI_VERSION(1, 17), NULL, NULL, 0, hints, found);
}

static void open_end(struct end *e, uint64_t tx_flags)
{
    struct fi_cq_attr attr = { .format = FI_CQ_FORMAT_TAGGED, .wait_obj = FI_WAIT_FD };
    OK(fi_endpoint(domain, info, &e->ep, e));
    CHECK(fi_send(e->ep, out, 8, NULL, 0, NULL) == -FI_EOPBADSTATE);
    CHECK(fi_enable(e->ep) == -FI_ENOAV);
    OK(fi_ep_bind(e->ep, &av->fid, 0));
    CHECK(fi_enable(e->ep) == -FI_ENOCQ);
    OK(fi_cq_open(domain, &attr, &e->tx, NULL));
    OK(fi_cq_open(domain, &attr, &e->rx, NULL));
    OK(fi_cntr_open(domain, NULL, &e->sent, NULL));
    OK(fi_cntr_open(domain, NULL, &e->received, NULL));
    OK(fi_ep_bind(e->ep, &e->tx->fid, FI_TRANSMIT | tx_flags));
    OK(fi_ep_bind(e->ep, &e->rx->fid, FI_RECV));
    OK(fi_ep_bind(e->ep, &e->sent->fid, FI_SEND));
    /* Nobody reads or writes memory of this endpoint: the counter counts receives alone. */
    OK(fi_ep_bind(e->ep, &e->received->fid, FI_RECV | FI_REMOTE_READ | FI_REMOTE_WRITE));
    OK(fi_enable(e->ep));
    CHECK(fi_ep_bind(e->ep, &e->rx->fid, FI_RECV) == -FI_EOPBADSTATE);
    e->len = 0;
    CHECK(fi_getname(&e->ep->fid, NULL, &e->len) == -FI_ETOOSMALL);
    CHECK(e->len > 0 && e->len <= sizeof(e->name));
    OK(fi_getname(&e->ep->fid, e->name, &e->len));
}

static ssize_t progress(void)
{
    struct fi_cq_tagged_entry none;
    fi_cq_read(a.rx, &none, 0);
    fi_cq_read(a.tx, &none, 0);
    fi_cq_read(b.rx, &none, 0);
    fi_cq_read(b.tx, &none, 0);
    return 0;
}

static struct fi_cq_tagged_entry wait_from(struct fid_cq *cq, fi_addr_t *source)
{
    struct fi_cq_tagged_entry entry;
    ssize_t got;
    while ((got = fi_cq_readfrom(cq, &entry, 1, source)) == -FI_EAGAIN)
        progress();
    if (got == -FI_EAVAIL) {
        struct fi_cq_err_entry error = {0};
        fi_cq_readerr(cq, &error, 0);
        fprintf(stderr, "error: %s\n", fi_cq_strerror(cq, error.prov_errno, error.err_data, NULL, 0));
    }
    CHECK(got == 1);
    return entry;
}

static struct fi_cq_tagged_entry wait_for(struct fid_cq *cq)
{
    return wait_from(cq, NULL);
}

static struct fi_cq_err_entry wait_error(struct fid_cq *cq, char *text, size_t room)
{
    struct fi_cq_tagged_entry entry;
    struct fi_cq_err_entry error = { .err_data = text, .err_data_size = room };
    ssize_t got;
    while ((got = fi_cq_read(cq, &entry, 1)) == -FI_EAGAIN)
        progress();
    CHECK(got == -FI_EAVAIL);
    CHECK(fi_cq_readerr(cq, &error, 0) == 1);
    CHECK(fi_cq_readerr(cq, &error, 0) == -FI_EAGAIN);
    return error;
}

static void fill(size_t len, int seed)
{
    for (size_t i = 0; i < len; i++)
        out[i] = (char)(i * 7 + (size_t)seed);
    memset(in, 0, len);
}

static void untagged(void)
{
    size_t sizes[] = { 0, 1, 8, 1000, 5000, 9000, 70000, BIG };
    for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++) {
        struct fi_cq_tagged_entry entry;
        fi_addr_t source = 12345;
        size_t len = sizes[i];
        fill(len, (int)i);
        OK(fi_recv(b.ep, in, BIG, NULL, FI_ADDR_UNSPEC, &b));
        OK(fi_send(a.ep, out, len, NULL, a.peer, &a));
        entry = wait_from(b.rx, &source);
        CHECK(entry.op_context == &b && entry.len == len && (entry.flags & FI_RECV) && (entry.flags & FI_MSG));
        CHECK(source == b.peer && !memcmp(in, out, len));
        entry = wait_for(a.tx);
        CHECK(entry.op_context == &a && (entry.flags & FI_SEND) && (entry.flags & FI_MSG));
    }
}

static void tagged(void)
{
    struct fi_cq_tagged_entry entry;
    size_t sizes[] = { 0, 8, 5000, 70000, BIG };
    for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++) {
        fill(sizes[i], (int)i);
        OK(fi_tsend(a.ep, out, sizes[i], NULL, a.peer, 0x1200 + i, &a));
        /* Unexpected, or not yet here. */
        progress();
        OK(fi_trecv(b.ep, in, BIG, NULL, FI_ADDR_UNSPEC, 0x1200, 0xff, &b));
        entry = wait_for(b.rx);
        CHECK(entry.tag == 0x1200 + i && entry.len == sizes[i] && (entry.flags & FI_TAGGED));
        CHECK(!memcmp(in, out, sizes[i]));
        wait_for(a.tx);
    }
    /* The data of the sender, in each form; and calls that report nothing at the sender. */
    fill(64, 1);
    OK(fi_trecv(b.ep, in, 64, NULL, FI_ADDR_UNSPEC, 5, 0, &b));
    OK(fi_tsenddata(a.ep, out, 64, NULL, 0x1122334455667788, a.peer, 5, &a));
    entry = wait_for(b.rx);
    CHECK((entry.flags & FI_REMOTE_CQ_DATA) && entry.data == 0x1122334455667788 && !memcmp(in, out, 64));
    wait_for(a.tx);
    OK(fi_tinject(a.ep, out, 64, a.peer, 6));
    OK(fi_tinjectdata(a.ep, out, 64, 99, a.peer, 7));
    memset(out, 0, 64);
    OK(fi_trecv(b.ep, in, 64, NULL, FI_ADDR_UNSPEC, 7, 0, &b));
    entry = wait_for(b.rx);
    CHECK(entry.data == 99 && in[1] == 8);
    OK(fi_trecv(b.ep, in, 64, NULL, FI_ADDR_UNSPEC, 6, 0, &b));
    entry = wait_for(b.rx);
    CHECK(!(entry.flags & FI_REMOTE_CQ_DATA) && in[2] == 15);
    CHECK(fi_tinject(a.ep, out, 1 << 20, a.peer, 6) == -FI_EMSGSIZE);
    CHECK(fi_cq_read(a.tx, &entry, 1) == -FI_EAGAIN);
}

static void vectors(void)
{
    struct fi_cq_tagged_entry entry;
    struct iovec from[3] = { { out, 3 }, { out + 100, 0 }, { out + 200, 6000 } };
    struct iovec to[2] = { { in, 10 }, { in + 50, 7000 } };
    struct fi_msg_tagged message = {
        .msg_iov = from, .iov_count = 3, .addr = a.peer, .tag = 77, .context = &a, .data = 4
    };
    struct fi_msg plain = { .msg_iov = from, .iov_count = 3, .addr = a.peer, .context = &a };
    fill(8000, 3);
    OK(fi_trecvv(b.ep, to, NULL, 2, FI_ADDR_UNSPEC, 77, 0, &b));
    OK(fi_tsendmsg(a.ep, &message, FI_REMOTE_CQ_DATA | FI_COMPLETION | FI_DELIVERY_COMPLETE));
    entry = wait_for(b.rx);
    CHECK(entry.len == 6003 && entry.data == 4);
    CHECK(!memcmp(in, out, 3) && !memcmp(in + 3, out + 200, 7) && !memcmp(in + 50, out + 207, 5993));
    wait_for(a.tx);
    /* A message whose buffer may be reused at once. */
    from[2].iov_len = 100;
    fill(8000, 4);
    OK(fi_sendmsg(a.ep, &plain, FI_INJECT | FI_COMPLETION));
    memset(out, 0, 8000);
    OK(fi_recvv(b.ep, to, NULL, 2, FI_ADDR_UNSPEC, &b));
    entry = wait_for(b.rx);
    CHECK(entry.len == 103 && in[0] == 4 && in[3] == (char)(200 * 7 + 4));
    CHECK(wait_for(a.tx).op_context == &a);
    CHECK(fi_sendv(a.ep, from, NULL, 1000, a.peer, NULL) == -FI_EINVAL);
}

static void directed_receives(void)
{
    struct fi_cq_tagged_entry entry;
    fi_addr_t source;
    /* A receive from one peer does not take the message of another. */
    fill(8, 1);
    OK(fi_trecv(b.ep, in, 8, NULL, b.self, 1, 0, &in));
    OK(fi_trecv(b.ep, in + 8, 8, NULL, b.peer, 1, 0, &out));
    OK(fi_tsend(a.ep, out, 8, NULL, a.peer, 1, NULL));
    entry = wait_from(b.rx, &source);
    CHECK(entry.op_context == &out && source == b.peer);
    OK(fi_tsend(b.ep, out, 8, NULL, b.self, 1, NULL));
    entry = wait_from(b.rx, &source);
    CHECK(entry.op_context == &in && source == b.self);
    wait_for(a.tx);
    wait_for(b.tx);
}

static ssize_t look(uint64_t flags, void *context, void *buf, size_t len)
{
    struct iovec iov = { buf, len };
    struct fi_msg_tagged message = {
        .msg_iov = &iov, .iov_count = buf ? 1 : 0, .addr = FI_ADDR_UNSPEC, .tag = 41, .context = context
    };
    return fi_trecvmsg(b.ep, &message, flags | FI_COMPLETION);
}

static void peeks(void)
{
    struct fi_cq_tagged_entry entry;
    struct fi_cq_err_entry answer;
    char text[8] = "kept";
    fi_addr_t source;
    int first, second;
    size_t sizes[] = { 8, 200000 };
    OK(look(FI_PEEK, &first, NULL, 0));
    answer = wait_error(b.rx, text, sizeof text);
    CHECK(answer.err == FI_ENOMSG && answer.err_data_size == 0 && !strcmp(text, "kept"));
    CHECK(look(FI_CLAIM, &first, in, 8) == -FI_EINVAL);
    for (int i = 0; i < 2; i++) {
        size_t len = sizes[i];
        fill(len, i);
        /* The message is looked at, claimed, and received; another one is discarded. */
        OK(fi_tsenddata(a.ep, out, len, NULL, 17, a.peer, 41, NULL));
        OK(fi_tsenddata(a.ep, out, len, NULL, 18, a.peer, 41, NULL));
        for (int round = 0; round < 2000; round++)
            progress();
        OK(look(FI_PEEK, &first, NULL, 0));
        entry = wait_from(b.rx, &source);
        CHECK(entry.op_context == &first && entry.len == len && entry.tag == 41 && entry.data == 17);
        CHECK(source == b.peer);
        OK(look(FI_PEEK | FI_CLAIM, &first, NULL, 0));
        CHECK(wait_for(b.rx).len == len);
        OK(look(FI_PEEK | FI_CLAIM, &second, NULL, 0));
        CHECK(wait_for(b.rx).data == 18);
        OK(look(FI_PEEK, &second, NULL, 0));
        CHECK(wait_error(b.rx, NULL, 0).err == FI_ENOMSG);
        OK(look(FI_CLAIM | FI_DISCARD, &second, NULL, 0));
        CHECK(wait_for(b.rx).op_context == &second);
        OK(look(FI_CLAIM, &first, in, len));
        entry = wait_for(b.rx);
        CHECK(entry.len == len && entry.data == 17 && !memcmp(in, out, len));
        wait_for(a.tx);
        wait_for(a.tx);
        OK(fi_tinject(a.ep, out, 8, a.peer, 41));
        for (int round = 0; round < 1000; round++)
            progress();
        OK(look(FI_PEEK | FI_DISCARD, &first, NULL, 0));
        CHECK(wait_for(b.rx).len == 8);
        OK(look(FI_PEEK, &second, NULL, 0));
        CHECK(wait_error(b.rx, NULL, 0).err == FI_ENOMSG);
    }
}

static void errors(void)
{
    char text[200] = "";
    struct fi_cq_err_entry error;
    uint64_t failed = fi_cntr_readerr(b.received);
    fill(100, 5);
    OK(fi_trecv(b.ep, in, 40, NULL, FI_ADDR_UNSPEC, 3, 0, &b));
    OK(fi_tsend(a.ep, out, 100, NULL, a.peer, 3, &a));
    error = wait_error(b.rx, text, sizeof(text));
    CHECK(error.err == FI_ETRUNC && error.op_context == &b && error.len == 40 && error.olen == 60);
    CHECK(strstr(text, "100 bytes") && error.err_data == text);
    CHECK(strstr(fi_cq_strerror(b.rx, error.prov_errno, NULL, NULL, 0), "runcated"));
    wait_for(a.tx);
    /* The same, of a message that is here before its receive. */
    OK(fi_tsend(a.ep, out, 100, NULL, a.peer, 3, &a));
    wait_for(a.tx);
    for (int i = 0; i < 1000; i++)
        progress();
    OK(fi_trecv(b.ep, in, 40, NULL, FI_ADDR_UNSPEC, 3, 0, &b));
    error = wait_error(b.rx, NULL, 0);
    CHECK(error.err == FI_ETRUNC && error.olen == 60 && error.err_data && strstr(error.err_data, "100 bytes"));
    CHECK(fi_cntr_readerr(b.received) == failed + 2);
    /* Cancelled. */
    OK(fi_trecv(b.ep, in, 40, NULL, FI_ADDR_UNSPEC, 3, 0, &error));
    CHECK(fi_cancel(&b.ep->fid, &failed) == -FI_ENOENT);
    OK(fi_cancel(&b.ep->fid, &error));
    CHECK(wait_error(b.rx, NULL, 0).err == FI_ECANCELED);
    CHECK(fi_cancel(&b.ep->fid, &error) == -FI_ENOENT);
    /* Bad calls. */
    CHECK(fi_tsend(a.ep, out, 8, NULL, 1000000, 3, NULL) == -FI_EINVAL);
    CHECK(fi_tsend(a.ep, NULL, 8, NULL, a.peer, 3, NULL) == -FI_EINVAL);
    CHECK(fi_tsend(a.ep, out, 8, NULL, FI_ADDR_UNSPEC, 3, NULL) == -FI_EINVAL);
    CHECK(fi_write(a.ep, out, 8, NULL, a.peer, 0, 0, NULL) == -FI_EOPNOTSUPP);
    CHECK(fi_atomic(a.ep, out, 1, NULL, a.peer, 0, 0, FI_UINT64, FI_SUM, NULL) == -FI_EOPNOTSUPP);
    CHECK(fi_listen((struct fid_pep *)a.ep) != 0);
}

static void counters(void)
{
    struct fi_cq_tagged_entry entry;
    uint64_t sent = fi_cntr_read(a.sent), received = fi_cntr_read(b.received);
    CHECK(sent > 0 && received > 0);
    CHECK(fi_cntr_wait(b.received, received + 1, 20) == -FI_ETIMEDOUT);
    for (int i = 0; i < 10; i++) {
        OK(fi_trecv(b.ep, in + i * 8, 8, NULL, FI_ADDR_UNSPEC, 9, 0, NULL));
        OK(fi_tinject(a.ep, out, 8, a.peer, 9));
    }
    OK(fi_cntr_wait(a.sent, sent + 10, 10000));
    OK(fi_cntr_wait(b.received, received + 10, 10000));
    OK(fi_cntr_set(a.sent, 5));
    OK(fi_cntr_add(a.sent, 2));
    CHECK(fi_cntr_read(a.sent) == 7);
    for (int i = 0; i < 10; i++)
        CHECK(wait_for(b.rx).len == 8);
    CHECK(fi_cq_read(a.tx, &entry, 1) == -FI_EAGAIN);
}

static void *send_later(void *arg)
{
    usleep(100000);
    if (arg)
        fi_cq_signal(b.rx);
    else
        fi_tinject(a.ep, out, 8, a.peer, 11);
    for (int i = 0; i < 200 && !arg; i++) {
        struct fi_cq_tagged_entry none;
        fi_cq_read(a.tx, &none, 0);
        usleep(1000);
    }
    return NULL;
}

static void *send_reported(void *arg)
{
    usleep(200000);
    OK(fi_tsend(a.ep, out, 8, NULL, a.peer, 12, &a));
    return arg;
}

static void sleeping(void)
{
    struct fi_cq_tagged_entry entry;
    struct fid *fids[] = { &b.rx->fid };
    pthread_t thread;
    int fd = -1, may_sleep;
    CHECK(fi_cq_sread(b.rx, &entry, 1, NULL, 30) == -FI_EAGAIN);
    OK(fi_trecv(b.ep, in, 8, NULL, FI_ADDR_UNSPEC, 11, 0, &b));
    pthread_create(&thread, NULL, send_later, NULL);
    CHECK(fi_cq_sread(b.rx, &entry, 1, NULL, 20000) == 1 && entry.op_context == &b);
    pthread_join(thread, NULL);
    pthread_create(&thread, NULL, send_later, &b);
    CHECK(fi_cq_sread(b.rx, &entry, 1, NULL, 20000) == -FI_EAGAIN);
    pthread_join(thread, NULL);
    /* What ends within a call of another thread wakes, too. */
    OK(fi_trecv(b.ep, in, 8, NULL, FI_ADDR_UNSPEC, 12, 0, &b));
    pthread_create(&thread, NULL, send_reported, NULL);
    CHECK(fi_cq_sread(a.tx, &entry, 1, NULL, 20000) == 1 && entry.op_context == &a);
    pthread_join(thread, NULL);
    wait_for(b.rx);
    /* The program sleeps itself. */
    OK(fi_control(&b.rx->fid, FI_GETWAIT, &fd));
    CHECK(fd >= 0);
    OK(fi_trecv(b.ep, in, 8, NULL, FI_ADDR_UNSPEC, 11, 0, &b));
    pthread_create(&thread, NULL, send_later, NULL);
    while (fi_cq_read(b.rx, &entry, 1) != 1) {
        may_sleep = fi_trywait(fabric, fids, 1);
        CHECK(may_sleep == 0 || may_sleep == -FI_EAGAIN);
        if (may_sleep == 0) {
            struct pollfd poll_fd = { .fd = fd, .events = POLLIN };
            poll(&poll_fd, 1, 100);
        }
    }
    pthread_join(thread, NULL);
}

static void address_vector(void)
{
    char name[256], text[300];
    size_t len = sizeof(name);
    fi_addr_t addrs[3];
    int errors[2];
    OK(fi_av_lookup(av, a.peer, name, &len));
    CHECK(len == b.len && !memcmp(name, b.name, len));
    CHECK(fi_av_lookup(av, 999, name, &len) == -FI_EINVAL);
    len = sizeof(text);
    CHECK(fi_av_straddr(av, b.name, text, &len) == text && !strncmp(text, "fi_addr_efa", 11) && strlen(text) + 1 == len);
    /* One of two is no address. */
    memset(name, 0x33, sizeof(name));
    CHECK(fi_av_insert(av, name, 1, addrs, 0, NULL) == 0 && addrs[0] == FI_ADDR_NOTAVAIL);
    CHECK(fi_av_insert(av, name, 1, addrs, FI_SYNC_ERR, errors) == 0 && errors[0] == FI_EINVAL);
    CHECK(fi_av_insert(av, b.name, 1, addrs, 0, NULL) == 1);
    fill(8, 9);
    OK(fi_trecv(b.ep, in, 8, NULL, FI_ADDR_UNSPEC, 1, 0, NULL));
    OK(fi_tinject(a.ep, out, 8, addrs[0], 1));
    CHECK(wait_for(b.rx).len == 8);
    OK(fi_av_remove(av, addrs, 1, 0));
    CHECK(fi_tinject(a.ep, out, 8, addrs[0], 1) == -FI_EINVAL);
    CHECK(fi_av_remove(av, addrs, 1, 0) == -FI_EINVAL);
    CHECK(fi_av_insertsvc(av, "localhost", "7471", addrs, 0, NULL) == -FI_EINVAL);
}

static void event_queue(void)
{
    struct fi_eq_attr attr = { .wait_obj = FI_WAIT_UNSPEC };
    struct fi_av_attr av_attr = { .type = FI_AV_MAP, .flags = FI_EVENT };
    struct fi_eq_entry entry = { .data = 42 };
    struct fid_eq *eq;
    struct fid_av *async;
    uint32_t event;
    fi_addr_t addr, addrs[4];
    struct fi_eq_err_entry error = {0};
    char *names;
    uint64_t at;
    OK(fi_eq_open(fabric, &attr, &eq, NULL));
    CHECK(fi_eq_read(eq, &event, &entry, sizeof(entry), 0) == -FI_EAGAIN);
    CHECK(fi_eq_sread(eq, &event, &entry, sizeof(entry), 20, 0) == -FI_EAGAIN);
    entry.data = 42;
    CHECK(fi_eq_write(eq, FI_NOTIFY, &entry, sizeof(entry), 0) == sizeof(entry));
    entry.data = 0;
    CHECK(fi_eq_sread(eq, &event, &entry, sizeof(entry), 1000, 0) == sizeof(entry));
    CHECK(event == FI_NOTIFY && entry.data == 42);
    OK(fi_av_open(domain, &av_attr, &async, NULL));
    CHECK(fi_av_insert(async, a.name, 1, &addr, 0, &addr) == -FI_ENOEQ);
    OK(fi_av_bind(async, &eq->fid, 0));
    CHECK(fi_close(&eq->fid) == -FI_EBUSY);
    OK(fi_av_insert(async, a.name, 1, &addr, 0, &addr));
    CHECK(fi_eq_read(eq, &event, &entry, sizeof(entry), 0) == sizeof(entry));
    CHECK(event == FI_AV_COMPLETE && entry.fid == &async->fid && entry.context == &addr && entry.data == 1);
    /* Each name that is no address is an error, before the completion. */
    names = malloc(4 * a.len);
    memset(names, 0x33, 4 * a.len);
    memcpy(names + a.len, a.name, a.len);
    OK(fi_av_insert(async, names, 4, addrs, 0, &addr));
    for (at = 0; at < 4; at++) {
        if (at == 1)
            continue;
        CHECK(addrs[at] == FI_ADDR_NOTAVAIL);
        CHECK(fi_eq_read(eq, &event, &entry, sizeof(entry), 0) == -FI_EAVAIL);
        CHECK(fi_eq_readerr(eq, &error, 0) == sizeof(error));
        CHECK(error.fid == &async->fid && error.context == &addr && error.data == at && error.err == FI_EINVAL);
        CHECK(strlen(fi_eq_strerror(eq, error.prov_errno, error.err_data, NULL, 0)) > 0);
    }
    CHECK(addrs[1] != FI_ADDR_NOTAVAIL);
    CHECK(fi_eq_read(eq, &event, &entry, sizeof(entry), 0) == sizeof(entry));
    CHECK(event == FI_AV_COMPLETE && entry.context == &addr && entry.data == 1);
    CHECK(fi_eq_read(eq, &event, &entry, sizeof(entry), 0) == -FI_EAGAIN);
    free(names);
    OK(fi_close(&async->fid));
    OK(fi_close(&eq->fid));
}

static void many(void)
{
    enum { COUNT = 20000 };
    struct fi_cq_tagged_entry entries[16];
    int sent = 0, posted = 0, done = 0;
    /* More than there is room for: calls answer EAGAIN, and nothing is lost. */
    while (done < COUNT) {
        while (posted < COUNT && fi_trecv(b.ep, in, 64, NULL, FI_ADDR_UNSPEC, 21, 0, &b) == 0)
            posted++;
        while (sent < COUNT && fi_tsend(a.ep, out, 64, NULL, a.peer, 21, &a) == 0)
            sent++;
        for (ssize_t got; (got = fi_cq_read(b.rx, entries, 16)) > 0;)
            done += (int)got;
        while (fi_cq_read(a.tx, entries, 16) > 0)
            ;
    }
    CHECK(sent == COUNT && posted == COUNT);
    for (int i = 0; i < 1000; i++)
        while (fi_cq_read(a.tx, entries, 16) > 0)
            ;
}

static void selective(void)
{
    struct fi_cq_tagged_entry entry;
    struct end c = {0};
    struct iovec iov = { out, 8 };
    struct fi_msg_tagged message = { .msg_iov = &iov, .iov_count = 1, .tag = 31, .context = &c };
    open_end(&c, FI_SELECTIVE_COMPLETION);
    CHECK(fi_av_insert(av, c.name, 1, &c.self, 0, NULL) == 1);
    message.addr = a.peer;
    for (int i = 0; i < 3; i++)
        OK(fi_trecv(b.ep, in, 8, NULL, FI_ADDR_UNSPEC, 31, 0, &b));
    OK(fi_tsend(c.ep, out, 8, NULL, a.peer, 31, &a));
    OK(fi_tsendmsg(c.ep, &message, 0));
    OK(fi_tsendmsg(c.ep, &message, FI_COMPLETION));
    for (int i = 0; i < 3; i++) {
        fi_addr_t source;
        while (fi_cq_readfrom(b.rx, &entry, 1, &source) != 1)
            fi_cq_read(c.rx, &entry, 0);
        /* An endpoint that b has sent nothing to. */
        CHECK(source == c.self);
    }
    while (fi_cq_read(c.tx, &entry, 1) != 1)
        progress();
    CHECK(entry.op_context == &c && fi_cq_read(c.tx, &entry, 1) == -FI_EAGAIN);
    CHECK(fi_close(&c.tx->fid) == -FI_EBUSY);
    OK(fi_close(&c.ep->fid));
    OK(fi_close(&c.tx->fid));
    OK(fi_close(&c.rx->fid));
    OK(fi_close(&c.sent->fid));
    OK(fi_close(&c.received->fid));
}

static void discovery(void)
{
    struct fi_info *hints, *found = NULL;
    hints = hints_of(FI_TAGGED);
    OK(find(hints, &found));
    CHECK((found->caps & FI_TAGGED) && !(found->caps & (FI_MSG | FI_SOURCE)) && (found->caps & FI_SEND));
    CHECK(found->tx_attr->inject_size >= 64 && found->domain_attr->cq_data_size == 8 && !found->mode);
    fi_freeinfo(found);
    hints->caps = FI_TAGGED | FI_SEND;
    OK(find(hints, &found));
    CHECK(!(found->caps & FI_RECV));
    fi_freeinfo(found);
    hints->caps = FI_TAGGED | FI_MULTICAST;
    CHECK(find(hints, &found) == -FI_ENODATA);
    hints->caps = FI_TAGGED;
    hints->tx_attr->size = 64;
    hints->domain_attr->threading = FI_THREAD_DOMAIN;
    hints->domain_attr->av_type = FI_AV_MAP;
    OK(find(hints, &found));
    CHECK(found->tx_attr->size == 64 && found->domain_attr->threading == FI_THREAD_DOMAIN);
    CHECK(found->domain_attr->av_type == FI_AV_MAP);
    fi_freeinfo(found);
    hints->tx_attr->msg_order = hints->rx_attr->msg_order = FI_ORDER_SAS | FI_ORDER_ATOMIC_WAW | FI_ORDER_ATOMIC_RAW;
    OK(find(hints, &found));
    fi_freeinfo(found);
    hints->tx_attr->msg_order = FI_ORDER_RMA_WAW;
    CHECK(find(hints, &found) == -FI_ENODATA);
    hints->tx_attr->msg_order = 0;
    hints->tx_attr->comp_order = FI_ORDER_STRICT;
    CHECK(find(hints, &found) == -FI_ENODATA);
    hints->tx_attr->comp_order = 0;
    hints->ep_attr->type = FI_EP_DGRAM;
    hints->ep_attr->max_msg_size = 1 << 20;
    CHECK(find(hints, &found) == -FI_ENODATA);
    hints->ep_attr->max_msg_size = 0;
    hints->ep_attr->type = FI_EP_RDM;
    hints->domain_attr->name = strdup("nobody");
    CHECK(find(hints, &found) == -FI_ENODATA);
    fi_freeinfo(hints);
}

static void close_all(void)
{
    CHECK(fi_close(&fabric->fid) == -FI_EBUSY);
    CHECK(fi_close(&domain->fid) == -FI_EBUSY);
    CHECK(fi_close(&av->fid) == -FI_EBUSY);
    CHECK(fi_close(&a.rx->fid) == -FI_EBUSY);
    struct end *ends[] = { &a, &b };
    for (int i = 0; i < 2; i++) {
        OK(fi_close(&ends[i]->ep->fid));
        OK(fi_close(&ends[i]->tx->fid));
        OK(fi_close(&ends[i]->rx->fid));
        OK(fi_close(&ends[i]->sent->fid));
        OK(fi_close(&ends[i]->received->fid));
    }
    OK(fi_close(&av->fid));
    OK(fi_close(&domain->fid));
    OK(fi_close(&fabric->fid));
}

int main(int argc, char **argv)
{
    struct fi_info *hints = hints_of(FI_MSG | FI_TAGGED | FI_SOURCE | FI_DIRECTED_RECV);
    struct fi_av_attr av_attr = {0};
    struct fid_mr *mr;
    size_t len;
    int threading = argc > 1 ? atoi(argv[1]) : FI_THREAD_SAFE;
    hints->domain_attr->threading = threading;
    hints->domain_attr->data_progress = argc > 2 ? atoi(argv[2]) : FI_PROGRESS_UNSPEC;
    hints->addr_format = argc > 3 ? (uint32_t)atoi(argv[3]) : FI_FORMAT_UNSPEC;
    out = calloc(1, BIG);
    in = calloc(1, BIG);
    discovery();
    OK(find(hints, &info));
    OK(fi_fabric(info->fabric_attr, &fabric, NULL));
    OK(fi_domain(fabric, info, &domain, NULL));
    OK(fi_av_open(domain, &av_attr, &av, NULL));
    CHECK(av_attr.type == FI_AV_TABLE);
    open_end(&a, 0);
    open_end(&b, 0);
    CHECK(a.len == b.len);
    CHECK(fi_av_insert(av, a.name, 1, &b.peer, 0, NULL) == 1 && b.peer == 0);
    CHECK(fi_av_insert(av, b.name, 1, &a.peer, 0, NULL) == 1 && a.peer == 1);
    a.self = b.peer;
    b.self = a.peer;
    OK(fi_mr_reg(domain, in, BIG, FI_REMOTE_READ | FI_REMOTE_WRITE, 0, 0, 0, &mr, NULL));
    CHECK(fi_close(&domain->fid) == -FI_EBUSY);
    OK(fi_close(&mr->fid));
    len = sizeof(size_t);
    OK(fi_getopt(&a.ep->fid, FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV, &len, &(size_t){ sizeof(len) }));
    CHECK(fi_getopt(&a.ep->fid, FI_OPT_ENDPOINT, 12345, &len, &(size_t){ sizeof(len) }) == -FI_ENOPROTOOPT);
    untagged();
    tagged();
    vectors();
    directed_receives();
    peeks();
    errors();
    counters();
    if (threading == FI_THREAD_SAFE)
        sleeping();
    address_vector();
    event_queue();
    many();
    selective();
    close_all();
    fi_freeinfo(info);
    fi_freeinfo(hints);
    free(out);
    free(in);
    printf("ok\n");
    return 0;
}

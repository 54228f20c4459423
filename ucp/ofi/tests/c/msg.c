/* Two endpoints of type FI_EP_MSG of one process, over a passive endpoint: names, data of connections, rejections,
 * messages both ways, shutdown. Prints nothing if all is well. */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <arpa/inet.h>
#include <netinet/in.h>
#include <unistd.h>
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>
#include <rdma/fi_tagged.h>

#include "check.h"

enum { LONG = 300000 };

struct event {
    struct fi_eq_cm_entry entry;
    char data[512];
};

static struct fid_fabric *fabric;
static struct fid_eq *eq;
static char sent[LONG], received[LONG];

struct end {
    struct fid_domain *domain;
    struct fid_ep *ep;
    struct fid_cq *cq;
    struct fid_mr *mr;
};

static struct fi_info *find(const char *node, const char *service, uint64_t flags, const struct fi_info *like)
{
    struct fi_info *hints = fi_allocinfo(), *info;

    hints->ep_attr->type          = FI_EP_MSG;
    hints->caps                   = FI_MSG | FI_TAGGED | FI_RMA | FI_FENCE;
    hints->domain_attr->mr_mode   = FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
    hints->fabric_attr->prov_name = strdup("efa4");
    if (like != NULL) {
        hints->dest_addrlen = like->src_addrlen;
        hints->dest_addr    = malloc(like->src_addrlen);
        memcpy(hints->dest_addr, like->src_addr, like->src_addrlen);
    }
    OK(fi_getinfo(FI_VERSION(1, 9), node, service, flags, hints, &info));
    CHECK(info->ep_attr->type == FI_EP_MSG && info->addr_format == FI_SOCKADDR_IN);
    fi_freeinfo(hints);
    return info;
}

/* Waits for an event, by its descriptor. Returns the number of bytes of data. */
static size_t await(uint32_t expected, struct event *event)
{
    struct fid *fids[1] = { &eq->fid };
    struct pollfd fd = { .events = POLLIN };
    uint32_t number;
    ssize_t n;

    OK(fi_control(&eq->fid, FI_GETWAIT, &fd.fd));
    while ((n = fi_eq_read(eq, &number, event, sizeof(*event), 0)) == -FI_EAGAIN) {
        OK(fi_trywait(fabric, fids, 1));
        CHECK(poll(&fd, 1, 20000) == 1);
    }
    CHECK(n >= (ssize_t)sizeof(event->entry));
    CHECK(number == expected);
    return (size_t)n - sizeof(event->entry);
}

static void open_end(struct end *end, struct fi_info *info)
{
    struct fi_cq_attr attr = { .format = FI_CQ_FORMAT_TAGGED, .wait_obj = FI_WAIT_UNSPEC };

    OK(fi_domain(fabric, info, &end->domain, NULL));
    OK(fi_cq_open(end->domain, &attr, &end->cq, NULL));
    OK(fi_endpoint(end->domain, info, &end->ep, end));
    IS(fi_enable(end->ep), -FI_ENOEQ);
    OK(fi_ep_bind(end->ep, &eq->fid, 0));
    OK(fi_ep_bind(end->ep, &end->cq->fid, FI_SEND | FI_RECV));
    OK(fi_enable(end->ep));
    IS(fi_send(end->ep, sent, 1, NULL, 0, NULL), -FI_ENOTCONN);
    OK(fi_mr_reg(end->domain, received, LONG, FI_REMOTE_WRITE, 0, 0, 0, &end->mr, NULL));
}

static void close_end(struct end *end)
{
    OK(fi_close(&end->mr->fid));
    OK(fi_close(&end->ep->fid));
    OK(fi_close(&end->cq->fid));
    OK(fi_close(&end->domain->fid));
}

/* Makes both ends make progress until one of them has a completion. */
static void complete(struct end *of, struct end *other, void *context)
{
    struct fi_cq_tagged_entry entry;
    ssize_t n;

    while ((n = fi_cq_read(of->cq, &entry, 1)) == -FI_EAGAIN) {
        (void)fi_cq_read(other->cq, &entry, 0);
    }
    IS(n, 1);
    CHECK(entry.op_context == context);
}

static void exchange(struct end *from, struct end *to, size_t len)
{
    struct iovec word = { sent, 1 };
    struct fi_msg behind = { .msg_iov = &word, .iov_count = 1, .context = &behind };
    char token;
    size_t at;

    for (at = 0; at < len; at++) {
        sent[at] = (char)(at * 7 + len);
    }
    memset(received, 0, len);
    OK(fi_recv(to->ep, received, len, NULL, 0, &received));
    /* The address is not looked at. */
    OK(fi_send(from->ep, sent, len, NULL, 77, &sent));
    complete(to, from, &received);
    complete(from, to, &sent);
    CHECK(memcmp(sent, received, len) == 0);
    OK(fi_trecv(to->ep, received, len, NULL, FI_ADDR_UNSPEC, 5, 0, &received));
    OK(fi_tsend(from->ep, sent, len, NULL, FI_ADDR_UNSPEC, 5, &sent));
    complete(to, from, &received);
    complete(from, to, &sent);
    memset(received, 0, len);
    OK(fi_write(from->ep, sent, len, NULL, 0, (uintptr_t)received, fi_mr_key(to->mr), &sent));
    complete(from, to, &sent);
    CHECK(memcmp(sent, received, len) == 0);
    /* A message with FI_FENCE is later than a write. */
    memset(received, 0, len);
    OK(fi_recv(to->ep, &token, 1, NULL, 0, &token));
    OK(fi_write(from->ep, sent, len, NULL, 0, (uintptr_t)received, fi_mr_key(to->mr), &sent));
    OK(fi_sendmsg(from->ep, &behind, FI_FENCE | FI_COMPLETION));
    complete(to, from, &token);
    CHECK(memcmp(sent, received, len) == 0);
    complete(from, to, &sent);
    complete(from, to, &behind);
}

static void names(struct fid_pep *pep, struct fi_info *info)
{
    struct sockaddr_in name, other;
    size_t len = sizeof(name), data = 0, size = sizeof(data);

    OK(fi_getname(&pep->fid, &name, &len));
    CHECK(len == sizeof(name) && name.sin_port != 0 && name.sin_addr.s_addr == htonl(INADDR_LOOPBACK));
    len = 3;
    IS(fi_getname(&pep->fid, &other, &len), -FI_ETOOSMALL);
    CHECK(len == sizeof(name));
    OK(fi_getopt(&pep->fid, FI_OPT_ENDPOINT, FI_OPT_CM_DATA_SIZE, &data, &size));
    CHECK(data >= 64);
    info->src_addr = realloc(info->src_addr, len);
    memcpy(info->src_addr, &name, len);
}

/* A name of a passive endpoint that is set until it listens. */
static void set_names(struct fid_pep *pep)
{
    struct sockaddr_in name = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK + 1) }, now;
    size_t len = sizeof(now);
    IS(fi_setname(&pep->fid, &name, 3), -FI_EINVAL);
    OK(fi_setname(&pep->fid, &name, sizeof(name)));
    OK(fi_getname(&pep->fid, &now, &len));
    CHECK(now.sin_addr.s_addr == name.sin_addr.s_addr);
    name.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    OK(fi_setname(&pep->fid, &name, sizeof(name)));
}

int main(void)
{
    struct fi_eq_attr eq_attr = { .wait_obj = FI_WAIT_FD };
    struct fi_info *of_server = find("127.0.0.1", NULL, FI_SOURCE | FI_NUMERICHOST, NULL), *of_client, *none = NULL;
    struct fi_eq_err_entry error = {0};
    struct sockaddr_in name = {0}, peer;
    struct end client, server;
    struct fid_pep *pep;
    struct fid *first;
    struct event event;
    size_t len = sizeof(name);
    char reason[8];
    struct fi_cq_tagged_entry entry;
    ssize_t n;
    int round;

    alarm(60);
    OK(fi_fabric(of_server->fabric_attr, &fabric, NULL));
    OK(fi_eq_open(fabric, &eq_attr, &eq, NULL));
    OK(fi_passive_ep(fabric, of_server, &pep, &pep));
    IS(fi_listen(pep), -FI_ENOEQ);
    OK(fi_pep_bind(pep, &eq->fid, 0));
    set_names(pep);
    OK(fi_listen(pep));
    IS(fi_setname(&pep->fid, &name, sizeof(name)), -FI_EINVAL);
    IS(fi_listen(pep), -FI_EOPBADSTATE);
    names(pep, of_server);
    of_client = find(NULL, NULL, 0, of_server);
    CHECK(of_client->dest_addrlen == sizeof(name) && of_client->src_addrlen == sizeof(name));

    /* Nobody listens. */
    open_end(&client, of_client);
    memcpy(&name, of_client->dest_addr, sizeof(name));
    name.sin_port = htons(1);
    OK(fi_connect(client.ep, &name, NULL, 0));
    IS(fi_eq_sread(eq, &(uint32_t){0}, &event, sizeof(event), 20000, 0), -FI_EAVAIL);
    IS(fi_eq_readerr(eq, &error, 0), sizeof(error));
    CHECK(error.fid == &client.ep->fid && error.context == &client && error.err == FI_ECONNREFUSED);
    IS(fi_eq_readerr(eq, &error, 0), -FI_EAGAIN);
    IS(fi_connect(client.ep, &name, NULL, 0), -FI_EOPBADSTATE);
    IS(fi_send(client.ep, sent, 1, NULL, 0, NULL), -FI_ENOTCONN);
    close_end(&client);

    /* A rejection, with data. */
    open_end(&client, of_client);
    OK(fi_connect(client.ep, of_client->dest_addr, "please", 7));
    CHECK(await(FI_CONNREQ, &event) == 7 && strcmp((char*)event.entry.data, "please") == 0);
    CHECK(event.entry.fid == &pep->fid && event.entry.info->handle != NULL);
    CHECK(event.entry.info->fabric_attr->prov_name && event.entry.info->fabric_attr->api_version == FI_VERSION(1, 9));
    OK(fi_reject(pep, event.entry.info->handle, "no", 3));
    IS(fi_reject(pep, event.entry.info->handle, NULL, 0), -FI_EINVAL);
    fi_freeinfo(event.entry.info);
    IS(fi_eq_sread(eq, &(uint32_t){0}, &event, sizeof(event), 20000, 0), -FI_EAVAIL);
    error = (struct fi_eq_err_entry){ .err_data = reason, .err_data_size = sizeof(reason) };
    IS(fi_eq_readerr(eq, &error, 0), sizeof(error));
    CHECK(error.err == FI_ECONNREFUSED && error.err_data_size == 3 && strcmp(reason, "no") == 0);
    IS(fi_send(client.ep, sent, 1, NULL, 0, NULL), -FI_ENOTCONN);
    close_end(&client);

    for (round = 0; round < 2; round++) {
        open_end(&client, of_client);
        name = (struct sockaddr_in){ .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK + 2 * round) };
        OK(fi_setname(&client.ep->fid, &name, sizeof(name)));
        OK(fi_connect(client.ep, round == 0 ? of_client->dest_addr : NULL, "hi", 3));
        IS(fi_connect(client.ep, of_client->dest_addr, NULL, 0), -FI_EISCONN);
        CHECK(await(FI_CONNREQ, &event) == 3);
        open_end(&server, event.entry.info);
        IS(fi_endpoint(server.domain, event.entry.info, &client.ep, NULL), -FI_EINVAL);
        fi_freeinfo(event.entry.info);
        OK(fi_accept(server.ep, "welcome", 8));
        IS(fi_accept(server.ep, NULL, 0), -FI_EOPBADSTATE);
        /* In either order. */
        len = await(FI_CONNECTED, &event);
        CHECK(event.entry.fid == (len == 8 ? &client.ep->fid : &server.ep->fid));
        CHECK(await(FI_CONNECTED, &event) == 8 - len);
        len = sizeof(name);
        OK(fi_getname(&client.ep->fid, &name, &len));
        len = sizeof(peer);
        OK(fi_getpeer(server.ep, &peer, &len));
        CHECK(memcmp(&name, &peer, sizeof(peer)) == 0);
        CHECK(name.sin_addr.s_addr == htonl(INADDR_LOOPBACK + 2 * round));
        exchange(&client, &server, 1);
        exchange(&server, &client, 5000);
        exchange(&client, &server, LONG);
        if (round == 0) {
            IS(fi_close(&eq->fid), -FI_EBUSY);
            OK(fi_shutdown(server.ep, 0));
            IS(fi_send(server.ep, sent, 1, NULL, 0, NULL), -FI_ESHUTDOWN);
            /* At both sides, in either order. */
            CHECK(await(FI_SHUTDOWN, &event) == 0);
            first = event.entry.fid;
            CHECK(await(FI_SHUTDOWN, &event) == 0 && event.entry.fid != first);
            CHECK(first == &server.ep->fid || first == &client.ep->fid);
            OK(fi_shutdown(client.ep, 0));
            IS(fi_eq_read(eq, &(uint32_t){0}, &event, sizeof(event), 0), -FI_EAGAIN);
            IS(fi_send(client.ep, sent, 1, NULL, 0, NULL), -FI_ESHUTDOWN);
            close_end(&client);
        } else {
            /* A close tells the peer, too, behind what was sent before it. */
            OK(fi_recv(server.ep, received, sizeof("last"), NULL, 0, &received));
            OK(fi_inject(client.ep, "last", sizeof("last"), 0));
            close_end(&client);
            usleep(200000);
            IS(fi_eq_read(eq, &(uint32_t){0}, &event, sizeof(event), 0), -FI_EAGAIN);
            while ((n = fi_cq_read(server.cq, &entry, 1)) == -FI_EAGAIN)
                ;
            CHECK(n == 1 && entry.op_context == &received && strcmp(received, "last") == 0);
            CHECK(await(FI_SHUTDOWN, &event) == 0 && event.entry.fid == &server.ep->fid);
        }
        close_end(&server);
    }
    /* A request that nobody reads is rejected with the passive endpoint. */
    open_end(&client, of_client);
    OK(fi_connect(client.ep, of_client->dest_addr, NULL, 0));
    OK(fi_close(&pep->fid));
    IS(fi_eq_sread(eq, &(uint32_t){0}, &event, sizeof(event), 20000, 0), -FI_EAVAIL);
    IS(fi_eq_readerr(eq, &error, 0), sizeof(error));
    close_end(&client);
    IS(fi_eq_read(eq, &(uint32_t){0}, &event, sizeof(event), 0), -FI_EAGAIN);
    OK(fi_close(&eq->fid));
    OK(fi_close(&fabric->fid));
    IS(fi_getinfo(FI_VERSION(1, 9), "no such node.", NULL, 0, of_client, &none), -FI_ENODATA);
    fi_freeinfo(of_client);
    fi_freeinfo(of_server);
    return 0;
}

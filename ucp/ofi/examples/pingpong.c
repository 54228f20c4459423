/* Ping-pong after the first example of the libfabric tutorial. Rank 0 is the server, rank 1 the client.
 * Over FI_EP_RDM the client knows the server's node and port, by which fi_getinfo finds its name; it sends its own as the
 * first message, and the server acknowledges that. Where a provider has no names by nodes, the server gives its name by
 * other means. With the argument `dgram` they do the same over FI_EP_DGRAM, with short messages: one in flight, which a network
 * may still lose. With `msg` the endpoints are of type FI_EP_MSG: the server listens, the client connects. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include "pair.h"

enum { ROUNDS = 50, LONGEST = 1 << 16, LONGEST_DATAGRAM = 1024 };

static enum fi_ep_type type;
static int connected;
static struct fi_info *info;
static struct fid_eq *eq;
static struct fid_pep *pep;
static struct fid_fabric *fabric;
static struct fid_domain *domain;
static struct fid_ep *ep;
static struct fid_av *av;
static struct fid_cq *tx_cq, *rx_cq;
static fi_addr_t remote_addr;
static unsigned char tx_buf[LONGEST], rx_buf[LONGEST];

/* Waits for one completion. */
static void wait_for_comp(struct fid_cq *cq)
{
    struct fi_cq_entry entry;
    ssize_t ret;

    for (;;) {
        ret = fi_cq_read(cq, &entry, 1);
        if (ret > 0) {
            return;
        }
        if (ret != -FI_EAGAIN) {
            struct fi_cq_err_entry error = {0};
            fi_cq_readerr(cq, &error, 0);
            fprintf(stderr, "%s %s\n", fi_strerror(error.err),
                    fi_cq_strerror(cq, error.prov_errno, error.err_data, NULL, 0));
            exit(1);
        }
    }
}

/* Calls that a full queue refuses are made again, after some progress. */
static void send_bytes(size_t len)
{
    struct fi_cq_entry entry;
    ssize_t ret;
    while ((ret = fi_send(ep, tx_buf, len, NULL, remote_addr, NULL)) == -FI_EAGAIN) {
        CHECK(fi_cq_read(tx_cq, &entry, 0) <= 0);
    }
    OK(ret);
    wait_for_comp(tx_cq);
}

/* The client asks for the way to a server: by node and port, or by its address. Returns 0, or an error of fi_getinfo. */
static int find_provider(const char *node, const char *port, uint64_t flags, const struct names *server)
{
    int status;
    struct fi_info *hints = fi_allocinfo();

    hints->ep_attr->type = type;
    hints->caps          = FI_MSG;
    /* Requirements of a provider that this program satisfies: it neither registers memory nor reads keys. */
    hints->domain_attr->mr_mode   = FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
    hints->fabric_attr->prov_name = strdup(provider());
    if (server != NULL) {
        hints->dest_addrlen = server->len;
        hints->dest_addr    = malloc(server->len);
        memcpy(hints->dest_addr, server->bytes, server->len);
    }
    status = fi_getinfo(FI_VERSION(1, 9), node, port, flags, hints, &info);
    fi_freeinfo(hints);
    return status;
}

/* A port of the loopback interface that nobody has at the moment. */
static int free_port(void)
{
    struct sockaddr_in at = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    socklen_t len = sizeof(at);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(fd >= 0 && bind(fd, (struct sockaddr*)&at, sizeof(at)) == 0);
    CHECK(getsockname(fd, (struct sockaddr*)&at, &len) == 0);
    close(fd);
    return ntohs(at.sin_port);
}

static void open_fabric(void)
{
    struct fi_eq_attr eq_attr = { .wait_obj = FI_WAIT_UNSPEC };

    OK(fi_fabric(info->fabric_attr, &fabric, NULL));
    OK(fi_eq_open(fabric, &eq_attr, &eq, NULL));
}

/* Waits for an event. Returns what came with it. */
static struct fi_info *wait_for_event(uint32_t expected)
{
    struct fi_eq_cm_entry entry;
    uint32_t event;
    CHECK(fi_eq_sread(eq, &event, &entry, sizeof(entry), 30000, 0) == sizeof(entry));
    CHECK(event == expected);
    return entry.info;
}

static void open_endpoint(void)
{
    struct fi_cq_attr cq_attr = { .wait_obj = FI_WAIT_NONE, .format = FI_CQ_FORMAT_CONTEXT };
    struct fi_av_attr av_attr = { .type = info->domain_attr->av_type, .count = 1 };

    OK(fi_domain(fabric, info, &domain, NULL));
    cq_attr.size = info->tx_attr->size;
    OK(fi_cq_open(domain, &cq_attr, &tx_cq, NULL));
    cq_attr.size = info->rx_attr->size;
    OK(fi_cq_open(domain, &cq_attr, &rx_cq, NULL));
    OK(fi_endpoint(domain, info, &ep, NULL));
    if (connected) {
        OK(fi_ep_bind(ep, &eq->fid, 0));
    } else {
        OK(fi_av_open(domain, &av_attr, &av, NULL));
        OK(fi_ep_bind(ep, &av->fid, 0));
    }
    OK(fi_ep_bind(ep, &tx_cq->fid, FI_TRANSMIT));
    OK(fi_ep_bind(ep, &rx_cq->fid, FI_RECV));
    OK(fi_enable(ep));
}

/* Makes a connection: the name of the passive endpoint is in place of the server's name on a command line. */
static void connect_pair(void)
{
    struct names mine = { .len = sizeof(mine.bytes) }, theirs;

    if (rank == 0) {
        OK(find_provider(NULL, NULL, 0, NULL));
        open_fabric();
        OK(fi_passive_ep(fabric, info, &pep, NULL));
        OK(fi_pep_bind(pep, &eq->fid, 0));
        OK(fi_listen(pep));
        OK(fi_getname(&pep->fid, mine.bytes, &mine.len));
        fi_freeinfo(info);
        exchange(&mine, &theirs, sizeof(mine));
        info = wait_for_event(FI_CONNREQ);
        open_endpoint();
        OK(fi_recv(ep, rx_buf, LONGEST, NULL, 0, NULL));
        OK(fi_accept(ep, NULL, 0));
    } else {
        exchange(&mine, &theirs, sizeof(mine));
        OK(find_provider(NULL, NULL, 0, &theirs));
        open_fabric();
        open_endpoint();
        OK(fi_recv(ep, rx_buf, LONGEST, NULL, 0, NULL));
        OK(fi_connect(ep, theirs.bytes, NULL, 0));
    }
    wait_for_event(FI_CONNECTED);
}

/* Opens both endpoints, the server's first. Returns whether the client has found its name by node and port. */
static int open_both(void)
{
    char port[16], token = 0, found = 0;

    if (rank == 0) {
        snprintf(port, sizeof(port), "%d", free_port());
        OK(find_provider(NULL, port, FI_SOURCE, NULL));
        open_fabric();
        open_endpoint();
        exchange(port, port, sizeof(port));
        exchange(&token, &found, 1);
    } else {
        memset(port, 0, sizeof(port));
        exchange(port, port, sizeof(port));
        found = find_provider("127.0.0.1", port, 0, NULL) == 0 && info->dest_addr != NULL;
        if (!found) {
            OK(find_provider(NULL, NULL, 0, NULL));
        }
        exchange(&found, &token, 1);
        open_fabric();
        open_endpoint();
    }
    return found;
}

/* Makes the two known to each other. */
static void connect_both(int found)
{
    struct names mine = { .len = sizeof(mine.bytes) }, theirs;

    OK(fi_getname(&ep->fid, mine.bytes, &mine.len));
    OK(fi_recv(ep, rx_buf, LONGEST, NULL, FI_ADDR_UNSPEC, NULL));
    if (!found) {
        exchange(&mine, &theirs, sizeof(mine));
    }
    if (rank == 1) {
        CHECK(fi_av_insert(av, found ? info->dest_addr : theirs.bytes, 1, &remote_addr, 0, NULL) == 1);
        memcpy(tx_buf, mine.bytes, mine.len);
        send_bytes(mine.len);
        wait_for_comp(rx_cq);
        CHECK(rx_buf[0] == 'K');
        OK(fi_recv(ep, rx_buf, LONGEST, NULL, FI_ADDR_UNSPEC, NULL));
    } else {
        wait_for_comp(rx_cq);
        CHECK(fi_av_insert(av, rx_buf, 1, &remote_addr, 0, NULL) == 1);
        OK(fi_recv(ep, rx_buf, LONGEST, NULL, FI_ADDR_UNSPEC, NULL));
        tx_buf[0] = 'K';
        send_bytes(1);
    }
    if (rank == 0) {
        fprintf(stderr, "the server's name was %s\n", found ? "found by node and port" : "exchanged");
    }
}

static void receive_bytes(size_t len, int round)
{
    wait_for_comp(rx_cq);
    CHECK(rx_buf[0] == (unsigned char)round && rx_buf[len - 1] == (unsigned char)(round + len - 1));
    OK(fi_recv(ep, rx_buf, LONGEST, NULL, FI_ADDR_UNSPEC, NULL));
}

static void exchange_messages(size_t len)
{
    int round;
    size_t at;

    for (round = 0; round < ROUNDS; round++) {
        for (at = 0; at < len; at++) {
            tx_buf[at] = (unsigned char)(round + at);
        }
        if (rank == 1) {
            send_bytes(len);
            receive_bytes(len, round);
        } else {
            receive_bytes(len, round);
            send_bytes(len);
        }
    }
    if (rank == 0) {
        printf("%zu bytes: %d round trips, data as sent\n", len, ROUNDS);
    }
}

int main(int argc, char **argv)
{
    static const size_t all[] = { 1, 64, LONGEST_DATAGRAM, 4096, LONGEST };
    const char *argument = argc > 1 ? argv[1] : "rdm";
    unsigned i;

    start_pair();
    type      = strcmp(argument, "msg") == 0 ? FI_EP_MSG : strcmp(argument, "dgram") == 0 ? FI_EP_DGRAM : FI_EP_RDM;
    connected = type == FI_EP_MSG;
    if (connected) {
        connect_pair();
    } else {
        connect_both(open_both());
    }
    for (i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
        if (type != FI_EP_DGRAM || all[i] <= LONGEST_DATAGRAM) {
            exchange_messages(all[i]);
        }
    }
    OK(fi_close(&ep->fid));
    if (pep != NULL) {
        OK(fi_close(&pep->fid));
    }
    if (av != NULL) {
        OK(fi_close(&av->fid));
    }
    OK(fi_close(&tx_cq->fid));
    OK(fi_close(&rx_cq->fid));
    OK(fi_close(&domain->fid));
    OK(fi_close(&eq->fid));
    OK(fi_close(&fabric->fid));
    fi_freeinfo(info);
    return end_pair();
}

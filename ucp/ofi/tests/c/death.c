/* The second process dies while the first one sends to it: every operation ends, with an error that names the peer, and
 * calls after that are refused at once. With the argument "asleep" it sleeps on the descriptor of the queue meanwhile; with
 * "remote" nothing but the peer's silence tells of its death. */
#include <poll.h>
#include <signal.h>
#include <time.h>
#include "../../examples/pair.h"

enum { LEN = 1 << 20, SENDS = 3 };

static struct fi_info *info;
static struct fid_fabric *fabric;
static struct fid_domain *domain;
static struct fid_ep *ep;
static struct fid_av *av;
static struct fid_cq *tx, *rx;
static struct fid_mr *mr;
static fi_addr_t addrs[2], peer;
static unsigned char *window, *bytes;
static uint64_t mine[2], theirs[2];
static int sleeps, error_of_death = FI_ECONNRESET;

static void open_all(void)
{
    struct fi_av_attr av_attr = { .type = FI_AV_TABLE };
    struct fi_cq_attr cq_attr = { .format = FI_CQ_FORMAT_TAGGED };
    struct fi_info *hints     = fi_allocinfo();

    hints->caps                 = FI_MSG | FI_TAGGED | FI_RMA;
    hints->ep_attr->type        = FI_EP_RDM;
    hints->domain_attr->mr_mode = FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
    hints->fabric_attr->prov_name = strdup(provider());
    OK(fi_getinfo(FI_VERSION(1, 17), NULL, NULL, 0, hints, &info));
    fi_freeinfo(hints);
    OK(fi_fabric(info->fabric_attr, &fabric, NULL));
    OK(fi_domain(fabric, info, &domain, NULL));
    OK(fi_endpoint(domain, info, &ep, NULL));
    OK(fi_av_open(domain, &av_attr, &av, NULL));
    OK(fi_cq_open(domain, &cq_attr, &rx, NULL));
    cq_attr.wait_obj = sleeps ? FI_WAIT_FD : FI_WAIT_NONE;
    OK(fi_cq_open(domain, &cq_attr, &tx, NULL));
    OK(fi_ep_bind(ep, &av->fid, 0));
    OK(fi_ep_bind(ep, &tx->fid, FI_TRANSMIT));
    OK(fi_ep_bind(ep, &rx->fid, FI_RECV));
    OK(fi_enable(ep));
    window = calloc(1, LEN);
    bytes  = calloc(1, LEN);
    OK(fi_mr_reg(domain, window, LEN, FI_REMOTE_READ | FI_REMOTE_WRITE, 0, 0, 0, &mr, NULL));
    mine[0] = (uintptr_t)window;
    mine[1] = fi_mr_key(mr);
    exchange(mine, theirs, sizeof(mine));
    insert_ranks(ep, av, addrs);
    peer = addrs[1 - rank];
}

/* One message each way, so that the endpoints have met. None is left that needs progress. */
static void meet(void)
{
    static char token, here;
    struct fi_cq_tagged_entry entry;
    int sent = 0, received = 0;
    OK(fi_recv(ep, &token, 1, NULL, FI_ADDR_UNSPEC, NULL));
    OK(fi_send(ep, &here, 1, NULL, peer, NULL));
    while (!sent || !received) {
        sent     += fi_cq_read(tx, &entry, 1) == 1;
        received += fi_cq_read(rx, &entry, 1) == 1;
    }
}

/* Sleeps until there may be something to read. The descriptor tells of timers of the provider, too. */
static void sleep_on_queue(void)
{
    struct fid *fids[] = { &tx->fid };
    struct pollfd fd = { .events = POLLIN };
    OK(fi_control(&tx->fid, FI_GETWAIT, &fd.fd));
    if (fi_trywait(fabric, fids, 1) == 0) {
        CHECK(poll(&fd, 1, 20000) == 1);
    }
}

/* Waits for the error of an operation. */
static void expect_error(void *context)
{
    struct fi_cq_err_entry error = { 0 };
    struct fi_cq_tagged_entry entry;
    const char *text;
    char name[64];
    ssize_t got;
    while ((got = fi_cq_read(tx, &entry, 1)) == -FI_EAGAIN) {
        if (sleeps) {
            sleep_on_queue();
        }
    }
    CHECK(got == -FI_EAVAIL && fi_cq_readerr(tx, &error, 0) == 1);
    CHECK(error.op_context == context);
    text = fi_cq_strerror(tx, error.prov_errno, error.err_data, NULL, 0);
    snprintf(name, sizeof(name), "the peer of address %d ", (int)peer);
    CHECK(error.err == error_of_death && strncmp(text, name, strlen(name)) == 0);
}

int main(int argc, char **argv)
{
    int sends[SENDS], status, at;
    struct timespec start, now;
    char token = 0;

    sleeps = argc > 1 && strcmp(argv[1], "asleep") == 0;
    if (argc > 1 && strcmp(argv[1], "remote") == 0) {
        error_of_death = FI_ETIMEDOUT;
    }
    start_pair();
    open_all();
    meet();
    if (rank == 1) {
        exchange(&token, &token, 1);
        raise(SIGKILL);
    }
    /* Nobody receives them. */
    for (at = 0; at < SENDS; at++) {
        OK(fi_tsend(ep, bytes, LEN, NULL, peer, 7, &sends[at]));
    }
    exchange(&token, &token, 1);
    CHECK(waitpid(child, &status, 0) == child && WIFSIGNALED(status));
    clock_gettime(CLOCK_MONOTONIC, &start);
    for (at = 0; at < SENDS; at++) {
        expect_error(&sends[at]);
    }
    CHECK(fi_read(ep, bytes, LEN, NULL, peer, theirs[0], theirs[1], bytes) == -error_of_death);
    CHECK(fi_tsend(ep, bytes, 8, NULL, peer, 7, window) == -error_of_death);
    CHECK(fi_inject(ep, bytes, 8, peer) == -error_of_death);
    clock_gettime(CLOCK_MONOTONIC, &now);
    CHECK(now.tv_sec - start.tv_sec < 30);
    OK(fi_close(&ep->fid));
    OK(fi_close(&mr->fid));
    OK(fi_close(&av->fid));
    OK(fi_close(&tx->fid));
    OK(fi_close(&rx->fid));
    OK(fi_close(&domain->fid));
    OK(fi_close(&fabric->fid));
    fi_freeinfo(info);
    return 0;
}

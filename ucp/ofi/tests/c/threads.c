/* Threads that count what is written to a region, open and close endpoints, bind counters to regions and close them, and
 * open and close queues and counters of a wait set on which others sleep, at the same time. In other modes than FI_THREAD_SAFE:
 * two threads share the calls of two endpoints and of their queues, as the mode permits. */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>
#include <rdma/fi_rma.h>
#include <rdma/fi_tagged.h>

#include "ends.h"

enum { ROUNDS = 300 };

static atomic_int is_over;
static struct fid_wait *set;
static char out[64], in[64], others[64];

/* Writes to itself until the others have ended. Each progress that serves one counts it. */
static void *write_on(void *arg)
{
    struct fi_cq_tagged_entry entry;
    struct fid_cntr *cntr;
    struct fid_mr *mr;
    fi_addr_t self;
    uint64_t written = 0;
    OK(fi_mr_reg(domain, in, sizeof(in), FI_REMOTE_WRITE, 0, 1, 0, &mr, NULL));
    OK(fi_cntr_open(domain, NULL, &cntr, NULL));
    OK(fi_mr_bind(mr, &cntr->fid, FI_REMOTE_WRITE));
    IS(fi_av_insert(a.av, a.name, 1, &self, 0, NULL), 1);
    while (!is_over) {
        OK(fi_write(a.ep, out, 8, NULL, self, (uintptr_t)in, fi_mr_key(mr), out));
        written++;
        while (fi_cntr_read(cntr) < written) {
        }
        while (fi_cq_read(a.cq, &entry, 1) == -FI_EAGAIN) {
        }
    }
    IS(fi_cntr_read(cntr), written);
    OK(fi_close(&mr->fid));
    OK(fi_close(&cntr->fid));
    return arg;
}

static void *open_endpoints(void *arg)
{
    struct fid_ep *ep;
    int n;
    for (n = 0; n < ROUNDS && !is_over; n++) {
        OK(fi_endpoint(domain, info, &ep, NULL));
        OK(fi_close(&ep->fid));
    }
    is_over = 1;
    return arg;
}

static void *close_counters(void *arg)
{
    struct fid_cntr *cntr;
    struct fid_mr *mr;
    while (!is_over) {
        OK(fi_mr_reg(domain, others, sizeof(others), FI_REMOTE_WRITE, 0, 2, 0, &mr, NULL));
        OK(fi_cntr_open(domain, NULL, &cntr, NULL));
        OK(fi_mr_bind(mr, &cntr->fid, FI_REMOTE_WRITE));
        OK(fi_close(&mr->fid));
        OK(fi_close(&cntr->fid));
    }
    return arg;
}

static void *close_queues(void *arg)
{
    struct fi_cq_attr cq_attr = { .wait_obj = FI_WAIT_SET, .wait_set = set };
    struct fi_cntr_attr cntr_attr = { .wait_obj = FI_WAIT_SET, .wait_set = set };
    struct fi_eq_attr eq_attr = { .wait_obj = FI_WAIT_SET, .wait_set = set };
    struct fid_cntr *cntr;
    struct fid_cq *cq;
    struct fid_eq *eq;
    while (!is_over) {
        OK(fi_cq_open(domain, &cq_attr, &cq, NULL));
        OK(fi_cntr_open(domain, &cntr_attr, &cntr, NULL));
        OK(fi_eq_open(fabric, &eq_attr, &eq, NULL));
        OK(fi_close(&cq->fid));
        OK(fi_close(&cntr->fid));
        OK(fi_close(&eq->fid));
        /* The others are to run, too. */
        usleep(500);
    }
    return arg;
}

static void *wait_in_set(void *arg)
{
    struct fid *fids[] = { &set->fid };
    while (!is_over) {
        IS(fi_wait(set, 2), -FI_ETIMEDOUT);
        IS(fi_trywait(fabric, fids, 1), 0);
        usleep(500);
    }
    return arg;
}

enum { MESSAGES = 1500, LEN = 2000, UNDER_WAY = 8 };

/* An endpoint with a queue for each direction, which sends to another one and receives from it. */
struct side {
    struct fid_ep *ep;
    struct fid_cq *tx, *rx;
    fi_addr_t addr, peer;
    atomic_int sent, ended, posted, received;
    unsigned char out[UNDER_WAY][LEN], in[UNDER_WAY][LEN];
    int number;
};

static struct side sides[2];
static enum fi_threading threading;

static void open_side(struct side *side, struct fid_av *av)
{
    struct fi_cq_attr cq_attr = { .format = FI_CQ_FORMAT_TAGGED };
    char name[512];
    size_t len = sizeof(name);
    OK(fi_endpoint(domain, info, &side->ep, NULL));
    OK(fi_cq_open(domain, &cq_attr, &side->tx, NULL));
    OK(fi_cq_open(domain, &cq_attr, &side->rx, NULL));
    OK(fi_ep_bind(side->ep, &av->fid, 0));
    OK(fi_ep_bind(side->ep, &side->tx->fid, FI_TRANSMIT));
    OK(fi_ep_bind(side->ep, &side->rx->fid, FI_RECV));
    OK(fi_enable(side->ep));
    OK(fi_getname(&side->ep->fid, name, &len));
    IS(fi_av_insert(av, name, 1, &side->addr, 0, NULL), 1);
}

static void send_some(struct side *side)
{
    while (side->sent < MESSAGES && side->sent - side->ended < UNDER_WAY) {
        unsigned char *buffer = side->out[side->sent % UNDER_WAY];
        memset(buffer, side->sent * 7 + side->number, LEN);
        if (fi_tsend(side->ep, buffer, LEN, NULL, side->peer, 1, side) != 0) {
            break;
        }
        side->sent++;
    }
}

static void post_window(struct side *side)
{
    while (side->posted < MESSAGES && side->posted - side->received < UNDER_WAY &&
           fi_trecv(side->ep, side->in[side->posted % UNDER_WAY], LEN, NULL, FI_ADDR_UNSPEC, 1, 0, side) == 0) {
        side->posted++;
    }
}

static void read_sends(struct side *side)
{
    struct fi_cq_tagged_entry entry;
    ssize_t got;
    while ((got = fi_cq_read(side->tx, &entry, 1)) == 1) {
        CHECK(entry.op_context == side);
        side->ended++;
    }
    IS(got, -FI_EAGAIN);
}

static void read_receives(struct side *side)
{
    struct fi_cq_tagged_entry entry;
    ssize_t got;
    while ((got = fi_cq_read(side->rx, &entry, 1)) == 1) {
        unsigned char *buffer = side->in[side->received % UNDER_WAY];
        unsigned char expected = (unsigned char)(side->received * 7 + 1 - side->number);
        CHECK(entry.op_context == side && entry.len == LEN && buffer[0] == expected && buffer[LEN - 1] == expected);
        side->received++;
    }
    IS(got, -FI_EAGAIN);
}

static int is_under_way(void)
{
    return sides[0].ended + sides[0].received + sides[1].ended + sides[1].received < 4 * MESSAGES;
}

/* By completion: all of one direction. Otherwise: all calls of endpoints. */
static void *first_half(void *arg)
{
    int n;
    while (is_under_way()) {
        for (n = 0; n < 2; n++) {
            send_some(&sides[n]);
            threading == FI_THREAD_COMPLETION ? read_sends(&sides[n]) : post_window(&sides[n]);
        }
        sched_yield();
    }
    return arg;
}

/* By completion: all of the other direction. Otherwise: all calls of queues. */
static void *second_half(void *arg)
{
    int n;
    while (is_under_way()) {
        for (n = 0; n < 2; n++) {
            threading == FI_THREAD_COMPLETION ? post_window(&sides[n]) : read_sends(&sides[n]);
            read_receives(&sides[n]);
        }
        sched_yield();
    }
    return arg;
}

/* Two endpoints send to each other. Two threads call them and their queues as a mode permits. */
static void two_halves(int argc, char **argv)
{
    pthread_t first, second;
    struct fid_av *av;
    int n;
    threading = atoi(argv[1]);
    open_domain(FI_MSG | FI_TAGGED, argc, argv);
    IS(info->domain_attr->threading, threading);
    OK(fi_av_open(domain, &av_attr, &av, NULL));
    for (n = 0; n < 2; n++) {
        sides[n].number = n;
        open_side(&sides[n], av);
    }
    sides[0].peer = sides[1].addr;
    sides[1].peer = sides[0].addr;
    CHECK(pthread_create(&first, NULL, first_half, NULL) == 0);
    CHECK(pthread_create(&second, NULL, second_half, NULL) == 0);
    OK(pthread_join(first, NULL));
    OK(pthread_join(second, NULL));
    for (n = 0; n < 2; n++) {
        OK(fi_close(&sides[n].ep->fid));
        OK(fi_close(&sides[n].tx->fid));
        OK(fi_close(&sides[n].rx->fid));
    }
    OK(fi_close(&av->fid));
    close_domain();
}

int main(int argc, char **argv)
{
    enum { THREADS = 5 };
    void *(*const runs[])(void *) = { write_on, open_endpoints, close_counters, close_queues, wait_in_set };
    struct fi_wait_attr attr = { .wait_obj = FI_WAIT_UNSPEC };
    pthread_t threads[THREADS];
    int n;
    alarm(170);
    if (argc > 1 && atoi(argv[1]) != FI_THREAD_SAFE) {
        two_halves(argc, argv);
        return 0;
    }
    mr_mode = FI_MR_BASIC;
    open_ends(FI_MSG | FI_RMA | FI_RMA_EVENT, argc, argv);
    OK(fi_wait_open(fabric, &attr, &set));
    for (n = 0; n < THREADS; n++) {
        CHECK(pthread_create(&threads[n], NULL, runs[n], NULL) == 0);
    }
    for (n = 0; n < THREADS; n++) {
        OK(pthread_join(threads[n], NULL));
    }
    OK(fi_close(&set->fid));
    close_ends();
    return 0;
}

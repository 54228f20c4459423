/* Threads that count what is written to a region, open and close endpoints, bind counters to regions and close them, and
 * open and close queues and counters of a wait set on which others sleep, at the same time. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>
#include <rdma/fi_rma.h>

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

int main(int argc, char **argv)
{
    enum { THREADS = 5 };
    void *(*const runs[])(void *) = { write_on, open_endpoints, close_counters, close_queues, wait_in_set };
    struct fi_wait_attr attr = { .wait_obj = FI_WAIT_UNSPEC };
    pthread_t threads[THREADS];
    int n;
    alarm(170);
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

/* OpenSHMEM on libfabric, after the tutorial: two processing elements with a symmetric heap. One endpoint puts and gets
 * everything; counters tell what has ended, and delivery complete makes that mean "visible at the target". With the
 * argument `scalable` one region of the whole address space, with key 0, stands for the heap, and no keys are exchanged. */
#include "pair.h"

enum { WORDS = 4096, MOST_PIECES = 4 };

static struct fi_info *info;
static struct fid_fabric *fabric;
static struct fid_domain *domain;
static struct fid_ep *ep;
static struct fid_av *av;
static struct fid_cq *cq;
static struct fid_cntr *putcntr, *getcntr;
static struct fid_mr *mr;
static fi_addr_t pes[2];
static uint64_t put_count, get_count;
static int is_scalable;

/* The symmetric heap: what one has at an offset, the other has at the same. */
static struct {
    volatile uint64_t arrived;
    volatile uint64_t longs[WORDS];
    volatile double reals[8];
} heap;
static struct target {
    uint64_t base, key;
} targets[2];

static uint64_t remote(const volatile void *symmetric, int pe)
{
    return targets[pe].base + (uint64_t)((const volatile char*)symmetric - (const volatile char*)&heap);
}

static struct fi_info *find_provider(enum fi_progress progress)
{
    struct fi_info *hints = fi_allocinfo(), *found = NULL;

    hints->caps                       = FI_RMA | FI_ATOMIC | FI_MSG;
    hints->ep_attr->type              = FI_EP_RDM;
    hints->tx_attr->op_flags          = FI_DELIVERY_COMPLETE;
    hints->domain_attr->data_progress = progress;
    hints->domain_attr->mr_mode       = is_scalable ? FI_MR_SCALABLE : FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
    hints->fabric_attr->prov_name     = strdup(provider());
    if (fi_getinfo(FI_VERSION(1, 9), NULL, NULL, 0, hints, &found) != 0) {
        found = NULL;
    }
    fi_freeinfo(hints);
    return found;
}

static void register_heap(void)
{
    struct target mine = { 0 };

    if (is_scalable) {
        OK(fi_mr_reg(domain, NULL, UINT64_MAX, FI_REMOTE_READ | FI_REMOTE_WRITE, 0, 0, 0, &mr, NULL));
        /* Addresses count from null; both processes are of one program. */
        targets[0] = targets[1] = (struct target){ (uintptr_t)&heap, 0 };
        /* No put may come before the other process has registered its memory. */
        exchange(&mine, &mine, sizeof(mine));
        return;
    }
    OK(fi_mr_reg(domain, &heap, sizeof(heap), FI_REMOTE_READ | FI_REMOTE_WRITE | FI_READ | FI_WRITE, 0, 1, 0, &mr, NULL));
    /* A provider with FI_MR_VIRT_ADDR counts from the address, others from the beginning of the region. */
    mine.base = info->domain_attr->mr_mode & FI_MR_VIRT_ADDR ? (uintptr_t)&heap : 0;
    mine.key  = fi_mr_key(mr);
    targets[rank] = mine;
    exchange(&mine, &targets[1 - rank], sizeof(mine));
}

static void shmem_init(void)
{
    struct fi_cntr_attr cntr_attr = { .events = FI_CNTR_EVENTS_COMP, .wait_obj = FI_WAIT_UNSPEC };
    struct fi_av_attr av_attr     = { .type = FI_AV_TABLE };
    struct fi_cq_attr cq_attr     = { .format = FI_CQ_FORMAT_CONTEXT };

    /* Without a call of the target's, where the provider can. */
    info = find_provider(FI_PROGRESS_AUTO);
    if (info == NULL) {
        info = find_provider(FI_PROGRESS_UNSPEC);
    }
    CHECK(info != NULL);
    OK(fi_fabric(info->fabric_attr, &fabric, NULL));
    OK(fi_domain(fabric, info, &domain, NULL));
    OK(fi_endpoint(domain, info, &ep, NULL));
    OK(fi_cntr_open(domain, &cntr_attr, &putcntr, NULL));
    OK(fi_ep_bind(ep, &putcntr->fid, FI_WRITE));
    OK(fi_cntr_open(domain, &cntr_attr, &getcntr, NULL));
    OK(fi_ep_bind(ep, &getcntr->fid, FI_READ));
    OK(fi_av_open(domain, &av_attr, &av, NULL));
    OK(fi_ep_bind(ep, &av->fid, 0));
    OK(fi_cq_open(domain, &cq_attr, &cq, NULL));
    OK(fi_ep_bind(ep, &cq->fid, FI_TRANSMIT | FI_RECV | FI_SELECTIVE_COMPLETION));
    OK(fi_enable(ep));
    insert_ranks(ep, av, pes);
    register_heap();
}

/* Makes a call again while its queue is full. */
#define POST(call) do { \
    ssize_t posted_; \
    while ((posted_ = (call)) == -FI_EAGAIN) { \
        fi_cntr_read(putcntr); \
    } \
    OK(posted_); \
} while (0)

/* Waits until all puts are visible at their targets. */
static void shmem_quiet(void)
{
    OK(fi_cntr_wait(putcntr, put_count, -1));
}

static void shmem_put64(volatile void *dest, const void *src, size_t nelems, int pe)
{
    POST(fi_write(ep, src, nelems * 8, NULL, pes[pe], remote(dest, pe), targets[pe].key, NULL));
    put_count++;
    OK(fi_cntr_wait(putcntr, put_count, -1));
}

static void shmem_get64(void *dest, const volatile void *src, size_t nelems, int pe)
{
    POST(fi_read(ep, dest, nelems * 8, NULL, pes[pe], remote(src, pe), targets[pe].key, NULL));
    get_count++;
    OK(fi_cntr_wait(getcntr, get_count, -1));
}

/* One element of a strided put; with FI_MORE the provider may wait for the next one before it rings a bell. */
static void put_element(volatile uint64_t *dest, const uint64_t *src, int pe, uint64_t flags)
{
    struct iovec local      = { (void*)src, 8 };
    struct fi_rma_iov there = { remote(dest, pe), 8, targets[pe].key };
    struct fi_msg_rma msg   = { &local, NULL, 1, pes[pe], &there, 1, NULL, 0 };
    POST(fi_writemsg(ep, &msg, flags | FI_DELIVERY_COMPLETE));
    put_count++;
}

static void shmem_iput64(volatile uint64_t *dest, const uint64_t *src, ptrdiff_t tst, ptrdiff_t sst, size_t nelems, int pe)
{
    size_t i;
    for (i = 0; i + 1 < nelems; i++) {
        put_element(dest + i * tst, src + i * sst, pe, FI_MORE);
    }
    put_element(dest + i * tst, src + i * sst, pe, 0);
    shmem_quiet();
}

/* The same by lists of pieces. */
static void shmem_iput64_lists(volatile uint64_t *dest, const uint64_t *src, ptrdiff_t tst, ptrdiff_t sst, size_t nelems,
                               int pe)
{
    struct iovec local[MOST_PIECES];
    struct fi_rma_iov there[MOST_PIECES];
    size_t most = info->tx_attr->iov_limit, i = 0, n;

    most = most > info->tx_attr->rma_iov_limit ? info->tx_attr->rma_iov_limit : most;
    most = most > MOST_PIECES ? MOST_PIECES : most;
    while (i < nelems) {
        struct fi_msg_rma msg = { local, NULL, 0, pes[pe], there, 0, NULL, 0 };
        for (n = 0; n < most && i < nelems; n++, i++) {
            local[n] = (struct iovec){ (void*)(src + i * sst), 8 };
            there[n] = (struct fi_rma_iov){ remote(dest + i * tst, pe), 8, targets[pe].key };
        }
        msg.iov_count = msg.rma_iov_count = n;
        POST(fi_writemsg(ep, &msg, FI_DELIVERY_COMPLETE));
        put_count++;
        OK(fi_cntr_wait(putcntr, put_count, -1));
    }
}

static double shmem_double_swap(volatile double *dest, double value, int pe)
{
    double old;
    POST(fi_fetch_atomic(ep, &value, 1, NULL, &old, NULL, pes[pe], remote(dest, pe), targets[pe].key, FI_DOUBLE,
                         FI_ATOMIC_WRITE, NULL));
    get_count++;
    OK(fi_cntr_wait(getcntr, get_count, -1));
    return old;
}

/* Swaps the bits that are set in a mask. */
static uint64_t masked_swap(volatile uint64_t *dest, uint64_t mask, uint64_t value, int pe)
{
    uint64_t old;
    POST(fi_compare_atomic(ep, &value, 1, NULL, &mask, NULL, &old, NULL, pes[pe], remote(dest, pe), targets[pe].key, FI_UINT64,
                           FI_MSWAP, NULL));
    get_count++;
    OK(fi_cntr_wait(getcntr, get_count, -1));
    return old;
}

static void shmem_barrier_all(void)
{
    static uint64_t barriers;
    uint64_t one = 1;

    shmem_quiet();
    POST(fi_atomic(ep, &one, 1, NULL, pes[1 - rank], remote(&heap.arrived, 1 - rank), targets[1 - rank].key, FI_UINT64,
                   FI_SUM, NULL));
    put_count++;
    barriers++;
    shmem_quiet();
    while (heap.arrived < barriers) {
        fi_cntr_read(putcntr);
    }
}

static void say(const char *what)
{
    shmem_barrier_all();
    if (rank == 0) {
        printf("%s: as expected\n", what);
    }
}

int main(int argc, char **argv)
{
    static uint64_t out[WORDS], in[WORDS];
    int other, i;

    is_scalable = argc > 1 && strcmp(argv[1], "scalable") == 0;
    start_pair();
    shmem_init();
    other = 1 - rank;
    for (i = 0; i < WORDS; i++) {
        out[i] = (uint64_t)(i * 3 + rank * 100000);
    }
    shmem_barrier_all();

    shmem_put64(heap.longs, out, WORDS, other);
    shmem_barrier_all();
    for (i = 0; i < WORDS; i++) {
        CHECK(heap.longs[i] == (uint64_t)(i * 3 + other * 100000));
    }
    say("shmem_put64");
    shmem_get64(in, heap.longs, WORDS, other);
    CHECK(memcmp(in, out, sizeof(in)) == 0);
    say("shmem_get64");
    shmem_iput64(heap.longs, out + 1000, 4, 2, 300, other);
    shmem_barrier_all();
    CHECK(heap.longs[299 * 4] == (uint64_t)((1000 + 299 * 2) * 3 + other * 100000) && heap.longs[1] == (uint64_t)(3 + other * 100000));
    say("shmem_iput64, by FI_MORE");
    shmem_iput64_lists(heap.longs + 2000, out, 3, 5, 301, other);
    shmem_barrier_all();
    CHECK(heap.longs[2000 + 300 * 3] == (uint64_t)(300 * 5 * 3 + other * 100000));
    say("shmem_iput64, by lists");
    heap.reals[0] = rank + 0.5;
    shmem_barrier_all();
    CHECK(shmem_double_swap(heap.reals, rank + 10.25, other) == other + 0.5);
    shmem_barrier_all();
    CHECK(heap.reals[0] == other + 10.25);
    heap.longs[0] = 0xff00 + (uint64_t)rank;
    shmem_barrier_all();
    CHECK(masked_swap(heap.longs, 0xfff0, 0x1234, other) == 0xff00 + (uint64_t)other);
    shmem_barrier_all();
    CHECK(heap.longs[0] == 0x1230 + (uint64_t)rank);
    say("masked swap");
    say("shmem_double_swap");
    shmem_barrier_all();
    /* The last arrival may still be on its way out of the other process. */
    exchange("x", in, 1);
    OK(fi_close(&ep->fid));
    OK(fi_close(&mr->fid));
    return end_pair();
}

/* Regions of memory that is not there when they are registered: the whole address space, as OpenSHMEM registers it, and
 * pages that come later. What is not there when a peer names it is an error of the peer, and harms nobody. */
#include <sys/mman.h>
#include "../../examples/pair.h"

enum { LEN = 1 << 16, WHOLE = 7, LATE = 8 };

static struct fi_info *info;
static struct fid_domain *domain;
static struct fid_ep *ep;
static struct fid_cq *cq;
static fi_addr_t addrs[2], peer;
static volatile unsigned char heap[LEN];
static volatile uint64_t word = 40;
static const char constant[64] = "of a page that nobody may write";
static unsigned char out[LEN], in[LEN];

/* The end of an operation: 0, or the error of its entry or call. */
static int end_of(ssize_t started)
{
    struct fi_cq_tagged_entry entry;
    struct fi_cq_err_entry error = { 0 };
    ssize_t got;
    if (started != 0) {
        return (int)-started;
    }
    while ((got = fi_cq_read(cq, &entry, 1)) == -FI_EAGAIN) {
    }
    if (got == -FI_EAVAIL) {
        CHECK(fi_cq_readerr(cq, &error, 0) == 1);
        return error.err;
    }
    CHECK(got == 1);
    return 0;
}

/* Waits until both have come here, with progress. */
static void meet(void)
{
    struct fi_cq_tagged_entry entry;
    static char token;
    OK(fi_recv(ep, &token, 1, NULL, FI_ADDR_UNSPEC, NULL));
    OK(fi_inject(ep, "", 1, peer));
    while (fi_cq_read(cq, &entry, 1) != 1) {
    }
    CHECK(entry.flags & FI_RECV);
}

static void open_all(int mr_mode)
{
    struct fi_info *hints = fi_allocinfo();
    struct fi_av_attr av_attr = { .type = FI_AV_TABLE };
    struct fi_cq_attr cq_attr = { .format = FI_CQ_FORMAT_TAGGED };
    struct fid_fabric *fabric;
    struct fid_av *av;

    hints->caps                   = FI_MSG | FI_RMA | FI_ATOMIC;
    hints->ep_attr->type          = FI_EP_RDM;
    hints->domain_attr->mr_mode   = mr_mode;
    hints->tx_attr->op_flags      = FI_DELIVERY_COMPLETE;
    hints->fabric_attr->prov_name = strdup(provider());
    OK(fi_getinfo(FI_VERSION(1, 17), NULL, NULL, 0, hints, &info));
    OK(fi_fabric(info->fabric_attr, &fabric, NULL));
    OK(fi_domain(fabric, info, &domain, NULL));
    OK(fi_endpoint(domain, info, &ep, NULL));
    OK(fi_av_open(domain, &av_attr, &av, NULL));
    OK(fi_cq_open(domain, &cq_attr, &cq, NULL));
    OK(fi_ep_bind(ep, &av->fid, 0));
    OK(fi_ep_bind(ep, &cq->fid, FI_TRANSMIT | FI_RECV));
    OK(fi_enable(ep));
    insert_ranks(ep, av, addrs);
    peer = addrs[1 - rank];
}

/* Both processes have the same addresses, as one is a fork of the other. */
static void whole(uint64_t key)
{
    uint64_t two = 2, old = 0, at = (uintptr_t)heap;
    size_t n;
    for (n = 0; n < LEN; n++) {
        out[n] = (unsigned char)(n * 7 + (size_t)rank);
    }
    for (n = 8; n <= LEN; n *= 32) {
        CHECK(end_of(fi_write(ep, out, n, NULL, peer, at, key, NULL)) == 0);
        meet();
        CHECK(heap[n - 1] == (unsigned char)((n - 1) * 7 + 1 - (size_t)rank));
        memset(in, 0, n);
        CHECK(end_of(fi_read(ep, in, n, NULL, peer, at, key, NULL)) == 0 && memcmp(in, out, n) == 0);
        meet();
    }
    CHECK(end_of(fi_fetch_atomic(ep, &two, 1, NULL, &old, NULL, peer, (uintptr_t)&word, key, FI_UINT64, FI_SUM, NULL)) == 0);
    CHECK(old == 40);
    CHECK(end_of(fi_read(ep, in, sizeof(constant), NULL, peer, (uintptr_t)constant, key, NULL)) == 0);
    CHECK(memcmp(in, constant, sizeof(constant)) == 0);
    meet();
    CHECK(word == 42);
}

/* What peers name is not there, or not for this: each is an error, and the process lives. */
static void absent(uint64_t key, uint64_t none)
{
    uint64_t last = UINT64_MAX - 8, constants = (uintptr_t)constant, value = 1;
    uint64_t bad[] = { none, 8, last };
    size_t i, n;
    for (i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
        for (n = 8; n <= LEN; n *= LEN / 8) {
            CHECK(end_of(fi_write(ep, out, n, NULL, peer, bad[i], key, NULL)) == FI_EACCES);
            CHECK(end_of(fi_read(ep, in, n, NULL, peer, bad[i], key, NULL)) == FI_EACCES);
        }
        CHECK(end_of(fi_atomic(ep, &value, 1, NULL, peer, bad[i], key, FI_UINT64, FI_SUM, NULL)) == FI_EACCES);
    }
    CHECK(end_of(fi_write(ep, out, 8, NULL, peer, constants, key, NULL)) == FI_EACCES);
    CHECK(end_of(fi_atomic(ep, &value, 1, NULL, peer, constants, key, FI_UINT64, FI_SUM, NULL)) == FI_EACCES);
    meet();
}

int main(int argc, char **argv)
{
    int mr_mode = argc > 1 ? atoi(argv[1]) : FI_MR_SCALABLE;
    struct fid_mr *all, *late, *refused;
    unsigned char *pages;
    uint64_t keys[2];

    pages = mmap(NULL, LEN, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(pages != MAP_FAILED);
    start_pair();
    open_all(mr_mode);
    CHECK(fi_mr_reg(domain, NULL, 4096, FI_REMOTE_READ, 0, 9, 0, &refused, NULL) == -FI_EINVAL);
    if (mr_mode & (FI_MR_ALLOCATED | FI_MR_BASIC)) {
        CHECK(fi_mr_reg(domain, NULL, UINT64_MAX, FI_REMOTE_READ, 0, WHOLE, 0, &all, NULL) == -FI_EINVAL);
        return end_pair();
    }
    OK(fi_mr_reg(domain, NULL, UINT64_MAX, FI_REMOTE_READ | FI_REMOTE_WRITE, 0, WHOLE, 0, &all, NULL));
    keys[rank] = fi_mr_key(all);
    exchange(&keys[rank], &keys[1 - rank], 8);
    whole(keys[1 - rank]);
    absent(keys[1 - rank], (uintptr_t)pages);
    if (!(mr_mode & (FI_MR_PROV_KEY | FI_MR_VIRT_ADDR))) {
        /* The pages come after their region. */
        OK(fi_mr_reg(domain, pages, LEN, FI_REMOTE_READ | FI_REMOTE_WRITE, 0, LATE, 0, &late, NULL));
        meet();
        CHECK(end_of(fi_write(ep, out, LEN, NULL, peer, 0, LATE, NULL)) == FI_EACCES);
        meet();
        CHECK(mprotect(pages, LEN, PROT_READ | PROT_WRITE) == 0);
        meet();
        CHECK(end_of(fi_write(ep, out, LEN, NULL, peer, 0, LATE, NULL)) == 0);
        meet();
        CHECK(pages[5] == (unsigned char)(5 * 7 + 1 - rank));
        CHECK(end_of(fi_write(ep, out, 16, NULL, peer, LEN - 8, LATE, NULL)) == FI_EACCES);
        meet();
        OK(fi_close(&late->fid));
    }
    OK(fi_close(&ep->fid));
    OK(fi_close(&all->fid));
    return end_pair();
}

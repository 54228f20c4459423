/* Two processes write, read and update each other's memory. Links to the system's libfabric, which loads the provider
 * from FI_PROVIDER_PATH. */
#include "../../examples/pair.h"

enum { LEN = 1 << 20, WORDS = 64, BASIC_BITS = FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY };

struct region {
    uint64_t addr, key;
};

static struct fi_info *info;
static struct fid_fabric *fabric;
static struct fid_domain *domain;
static struct fid_ep *ep;
static struct fid_av *av;
static struct fid_cq *tx, *rx;
static struct fid_cntr *reads, *writes, *served_reads, *served_writes, *region_reads, *region_writes;
static struct fid_mr *mr[2];
static fi_addr_t addrs[2], peer;
static unsigned char *window, *out, *in;
static uint64_t *words;
static struct region mine[2], theirs[2];
static uint64_t reads_done, writes_done;

static struct fi_info *find(uint64_t caps, int mr_mode)
{
    struct fi_info *hints = fi_allocinfo(), *found = NULL;
    hints->caps                 = caps;
    hints->ep_attr->type        = FI_EP_RDM;
    hints->domain_attr->mr_mode = mr_mode;
    hints->fabric_attr->prov_name = strdup(provider());
    if (fi_getinfo(FI_VERSION(1, 17), NULL, NULL, 0, hints, &found) != 0) {
        found = NULL;
    }
    fi_freeinfo(hints);
    return found;
}

static void progress(void)
{
    struct fi_cq_tagged_entry none;
    fi_cq_read(rx, &none, 0);
}

static struct fi_cq_tagged_entry wait_for(struct fid_cq *cq)
{
    struct fi_cq_tagged_entry entry;
    ssize_t got;
    while ((got = fi_cq_read(cq, &entry, 1)) == -FI_EAGAIN) {
        progress();
    }
    if (got == -FI_EAVAIL) {
        struct fi_cq_err_entry error = {0};
        fi_cq_readerr(cq, &error, 0);
        fprintf(stderr, "error: %s\n", fi_cq_strerror(cq, error.prov_errno, error.err_data, NULL, 0));
    }
    CHECK(got == 1);
    return entry;
}

static void done(uint64_t flags, void *context)
{
    struct fi_cq_tagged_entry entry = wait_for(tx);
    CHECK(entry.flags == flags && entry.op_context == context);
    if (flags & FI_READ) {
        reads_done++;
    } else {
        writes_done++;
    }
    CHECK(fi_cntr_read(reads) == reads_done && fi_cntr_read(writes) == writes_done);
}

/* Waits until both processes have come here, with progress. */
static void meet(void)
{
    static char token;
    OK(fi_recv(ep, &token, 1, NULL, FI_ADDR_UNSPEC, NULL));
    while (fi_inject(ep, "", 1, peer) == -FI_EAGAIN) {
        progress();
    }
    CHECK(wait_for(rx).flags == (FI_MSG | FI_RECV));
}

/* Which modes there are for the program's hints, best first. */
static void modes(void)
{
    struct fi_info *found = find(FI_RMA, 0);
    CHECK(found != NULL && found->domain_attr->mr_mode == 0 && found->domain_attr->mr_key_size == 4);
    CHECK(!(find(FI_MSG, 0)->caps & (FI_RMA | FI_RMA_EVENT)));
    found = find(FI_RMA, FI_MR_PROV_KEY | FI_MR_LOCAL);
    CHECK(found != NULL && found->domain_attr->mr_mode == FI_MR_PROV_KEY);
    found = find(FI_RMA, FI_MR_VIRT_ADDR | FI_MR_ALLOCATED);
    CHECK(found != NULL && found->domain_attr->mr_mode == FI_MR_ALLOCATED);
    found = find(FI_RMA, FI_MR_BASIC);
    CHECK(found != NULL && found->domain_attr->mr_mode == FI_MR_BASIC && found->domain_attr->mr_key_size == 8);
    found = find(FI_RMA, FI_MR_SCALABLE);
    CHECK(found != NULL && found->domain_attr->mr_mode == FI_MR_SCALABLE);
    found = find(FI_RMA, FI_MR_BASIC | FI_MR_SCALABLE);
    CHECK(found != NULL && found->domain_attr->mr_mode == FI_MR_BASIC);
    while (found != NULL && found->domain_attr->mr_mode != FI_MR_SCALABLE) {
        found = found->next;
    }
    CHECK(found != NULL);
}

static void open_all(int threading, int data_progress, int mr_mode, uint64_t events)
{
    struct fi_av_attr av_attr = { .type = FI_AV_TABLE };
    struct fi_cq_attr cq_attr = { .format = FI_CQ_FORMAT_TAGGED };
    uint64_t access = FI_REMOTE_READ | FI_REMOTE_WRITE, own_key = 0xff00 + (uint64_t)rank;
    int by_offset, has_own;

    modes();
    info = find(FI_MSG | FI_RMA | FI_ATOMIC | FI_FENCE | events, mr_mode | FI_MR_LOCAL);
    CHECK(info != NULL && info->caps & FI_REMOTE_WRITE && info->tx_attr->rma_iov_limit >= 2);
    if (mr_mode == FI_MR_VIRT_ADDR) {
        CHECK(info->domain_attr->mr_mode == 0);
        info->domain_attr->mr_mode = mr_mode; /* a program may keep to its own */
    }
    CHECK(info->domain_attr->mr_mode == mr_mode && (info->caps & FI_RMA_EVENT) == events);
    by_offset = mr_mode == FI_MR_SCALABLE || (mr_mode != FI_MR_BASIC && !(mr_mode & FI_MR_VIRT_ADDR));
    has_own   = mr_mode == FI_MR_SCALABLE || (mr_mode != FI_MR_BASIC && !(mr_mode & FI_MR_PROV_KEY));
    info->domain_attr->threading     = threading;
    info->domain_attr->data_progress = data_progress;
    OK(fi_fabric(info->fabric_attr, &fabric, NULL));
    OK(fi_domain(fabric, info, &domain, NULL));
    OK(fi_endpoint(domain, info, &ep, NULL));
    OK(fi_av_open(domain, &av_attr, &av, NULL));
    OK(fi_cq_open(domain, &cq_attr, &tx, NULL));
    OK(fi_cq_open(domain, &cq_attr, &rx, NULL));
    OK(fi_cntr_open(domain, NULL, &reads, NULL));
    OK(fi_cntr_open(domain, NULL, &writes, NULL));
    OK(fi_ep_bind(ep, &av->fid, 0));
    OK(fi_ep_bind(ep, &tx->fid, FI_TRANSMIT));
    OK(fi_ep_bind(ep, &rx->fid, FI_RECV));
    OK(fi_ep_bind(ep, &reads->fid, FI_READ));
    CHECK(fi_ep_bind(ep, &reads->fid, FI_READ) == -FI_EINVAL);
    if (events) {
        OK(fi_cntr_open(domain, NULL, &served_reads, NULL));
        OK(fi_cntr_open(domain, NULL, &served_writes, NULL));
        OK(fi_ep_bind(ep, &served_reads->fid, FI_REMOTE_READ));
        OK(fi_ep_bind(ep, &served_writes->fid, FI_REMOTE_WRITE));
    } else {
        CHECK(fi_ep_bind(ep, &reads->fid, FI_REMOTE_WRITE) == -FI_ENOSYS);
    }
    OK(fi_ep_bind(ep, &writes->fid, FI_WRITE));
    OK(fi_enable(ep));
    window = calloc(1, LEN);
    out    = malloc(LEN);
    in     = malloc(LEN);
    words  = calloc(WORDS, 8);
    OK(fi_mr_reg(domain, window, LEN, access, 0, own_key, 0, &mr[0], NULL));
    if (has_own) {
        CHECK(fi_mr_key(mr[0]) == own_key);
        CHECK(fi_mr_reg(domain, words, WORDS * 8, access, 0, own_key, 0, &mr[1], NULL) == -FI_ENOKEY);
        CHECK(fi_mr_reg(domain, words, WORDS * 8, access, 0, 1ull << 32, 0, &mr[1], NULL) == -FI_EINVAL);
        /* Local memory has no key that peers use. */
        OK(fi_mr_reg(domain, words, WORDS * 8, FI_SEND, 0, own_key, 0, &mr[1], NULL));
        OK(fi_close(&mr[1]->fid));
    }
    CHECK(fi_mr_reg(domain, words, WORDS * 8, access, 0, 5, FI_RMA_EVENT | FI_MORE, &mr[1], NULL) == -FI_EBADFLAGS);
    CHECK(events || fi_mr_reg(domain, words, WORDS * 8, access, 0, 5, FI_RMA_EVENT, &mr[1], NULL) == -FI_EBADFLAGS);
    OK(fi_mr_reg(domain, words, WORDS * 8, access, 0, 5, events, &mr[1], NULL));
    if (events) {
        int n;
        OK(fi_cntr_open(domain, NULL, &region_reads, NULL));
        OK(fi_cntr_open(domain, NULL, &region_writes, NULL));
        CHECK(fi_mr_bind(mr[0], &region_reads->fid, 0) == -FI_EBADFLAGS);
        CHECK(fi_mr_bind(mr[0], &region_reads->fid, FI_READ) == -FI_EBADFLAGS);
        CHECK(fi_mr_bind(mr[0], &tx->fid, FI_REMOTE_READ) == -FI_EINVAL);
        for (n = 0; n < 2; n++) {
            OK(fi_mr_bind(mr[n], &region_reads->fid, FI_REMOTE_READ));
            OK(fi_mr_bind(mr[n], &region_writes->fid, FI_REMOTE_WRITE));
            CHECK(fi_mr_bind(mr[n], &region_writes->fid, FI_REMOTE_READ) == -FI_EINVAL);
            OK(fi_mr_enable(mr[n]));
        }
    } else {
        CHECK(fi_mr_bind(mr[0], &reads->fid, FI_REMOTE_READ) == -FI_ENOSYS);
    }
    OK(fi_mr_bind(mr[0], &ep->fid, 0));
    mine[0] = (struct region){ by_offset ? 0 : (uintptr_t)window, fi_mr_key(mr[0]) };
    mine[1] = (struct region){ by_offset ? 0 : (uintptr_t)words, fi_mr_key(mr[1]) };
    exchange(mine, theirs, sizeof(mine));
    insert_ranks(ep, av, addrs);
    peer = addrs[1 - rank];
}

static void fill(size_t len, int salt)
{
    size_t at;
    for (at = 0; at < len; at++) {
        out[at] = (unsigned char)(at * 7 + at / 250 + salt + rank * 100);
    }
    memset(in, 0xee, len);
}

static void whole(void)
{
    static const size_t all[] = { 1, 8, 4096, 9000, 100000, LEN };
    unsigned i;
    for (i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
        size_t len = all[i];
        fill(len, (int)i);
        OK(fi_write(ep, out, len, NULL, peer, theirs[0].addr, theirs[0].key, (void*)&all[i]));
        done(FI_RMA | FI_WRITE, (void*)&all[i]);
        {
            struct iovec iov            = { in, len };
            struct fi_rma_iov remote    = { theirs[0].addr, len, theirs[0].key };
            struct fi_msg_rma msg = { &iov, NULL, 1, peer, &remote, 1, &iov, 0 };
            OK(fi_readmsg(ep, &msg, 0));
            done(FI_RMA | FI_READ, &iov);
        }
        CHECK(memcmp(in, out, len) == 0);
        meet();
        memset(in, 0, len);
        OK(fi_read(ep, in, len, NULL, peer, theirs[0].addr, theirs[0].key, in));
        done(FI_RMA | FI_READ, in);
        CHECK(memcmp(in, out, len) == 0);
        meet();
    }
}

/* What the peer has done so far, as counters of this side tell. */
static void served(void)
{
    uint64_t here[2] = { reads_done, writes_done }, there[2];
    exchange(here, there, sizeof(here));
    /* Nobody but the endpoint makes progress for counters of regions: every access was to one of them. */
    OK(fi_cntr_wait(region_reads, there[0], 60000));
    OK(fi_cntr_wait(region_writes, there[1], 60000));
    CHECK(fi_cntr_read(region_reads) == there[0] && fi_cntr_read(region_writes) == there[1]);
    OK(fi_cntr_wait(served_reads, there[0], 60000));
    OK(fi_cntr_wait(served_writes, there[1], 60000));
    CHECK(fi_cntr_read(served_reads) == there[0] && fi_cntr_read(served_writes) == there[1]);
    meet();
}

/* The second process makes no calls meanwhile: it waits for bytes that are not libfabric's. Atomic operations need
 * progress of the target. */
static void asleep(int with_atomics)
{
    static const size_t all[] = { 8, 9000, LEN };
    uint64_t one = 1, before = 0;
    unsigned i;
    char token = 0;
    fill(LEN, 21);
    meet();
    for (i = 0; rank == 0 && i < sizeof(all) / sizeof(all[0]); i++) {
        memset(in, 0, LEN);
        OK(fi_write(ep, out, all[i], NULL, peer, theirs[0].addr, theirs[0].key, out));
        done(FI_RMA | FI_WRITE, out);
        OK(fi_read(ep, in, all[i], NULL, peer, theirs[0].addr, theirs[0].key, in));
        done(FI_RMA | FI_READ, in);
        CHECK(memcmp(in, out, all[i]) == 0);
    }
    for (i = 0; rank == 0 && with_atomics && i < 10; i++) {
        OK(fi_atomic(ep, &one, 1, NULL, peer, theirs[1].addr, theirs[1].key, FI_UINT64, FI_SUM, &one));
        done(FI_ATOMIC | FI_WRITE, &one);
        OK(fi_fetch_atomic(ep, &one, 1, NULL, &before, NULL, peer, theirs[1].addr, theirs[1].key, FI_UINT64, FI_SUM, &one));
        done(FI_ATOMIC | FI_READ, &one);
        CHECK(before == 2 * i + 1);
    }
    exchange(&token, &token, 1);
    CHECK(rank == 0 || !with_atomics || words[0] == 20);
    words[0] = 0;
    CHECK(rank == 0 || window[LEN - 1] == (unsigned char)(out[LEN - 1] - 100));
    meet();
}

/* Waits for the ends of a write and of an operation behind it, in any order. */
static void both_done(int is_read)
{
    wait_for(tx);
    wait_for(tx);
    writes_done++;
    reads_done += is_read;
    CHECK(fi_cntr_read(reads) == reads_done && fi_cntr_read(writes) == writes_done);
}

/* An atomic operation, a read and a message with FI_FENCE find the long write done that was started before them. */
static void fences(void)
{
    uint64_t last = 0;
    struct iovec end            = { &last, 8 }, word = { out, 1 };
    struct fi_ioc result        = { &last, 1 };
    struct fi_rma_ioc remote    = { theirs[0].addr + LEN - 8, 1, theirs[0].key };
    struct fi_rma_iov far       = { theirs[0].addr + LEN - 8, 8, theirs[0].key };
    struct fi_msg_atomic atomic = { NULL, NULL, 0, peer, &remote, 1, FI_UINT64, FI_ATOMIC_READ, &last, 0 };
    struct fi_msg_rma read      = { &end, NULL, 1, peer, &far, 1, &last, 0 };
    struct fi_msg message       = { &word, NULL, 1, peer, &last, 0 };
    static char token;
    size_t at;

    fill(LEN, 40);
    OK(fi_write(ep, out, LEN, NULL, peer, theirs[0].addr, theirs[0].key, out));
    OK(fi_fetch_atomicmsg(ep, &atomic, &result, NULL, 1, FI_FENCE));
    both_done(1);
    CHECK(memcmp(&last, out + LEN - 8, 8) == 0);
    meet();
    fill(LEN, 41);
    OK(fi_write(ep, out, LEN, NULL, peer, theirs[0].addr, theirs[0].key, out));
    OK(fi_readmsg(ep, &read, FI_FENCE));
    both_done(1);
    CHECK(memcmp(&last, out + LEN - 8, 8) == 0);
    meet();
    fill(LEN, 42);
    OK(fi_recv(ep, &token, 1, NULL, FI_ADDR_UNSPEC, NULL));
    OK(fi_write(ep, out, LEN, NULL, peer, theirs[0].addr, theirs[0].key, out));
    OK(fi_sendmsg(ep, &message, FI_FENCE));
    wait_for(rx);
    for (at = 0; at < LEN; at++) {
        CHECK(window[at] == (unsigned char)(out[at] + (1 - 2 * rank) * 100));
    }
    both_done(0);
    meet();
}

static void pieces(void)
{
    struct iovec locals[3]       = { { out, 100 }, { out + 500, 1 }, { out + 900, 299 } };
    struct iovec ins[2]          = { { in, 350 }, { in + 350, 50 } };
    struct fi_rma_iov remotes[2] = { { theirs[0].addr + 1000, 150, theirs[0].key }, { theirs[0].addr + 5000, 250, theirs[0].key } };
    struct fi_msg_rma msg        = { locals, NULL, 3, peer, remotes, 2, locals, 0 };
    unsigned char expected[400];

    fill(2000, 9);
    memcpy(expected, out, 100);
    expected[100] = out[500];
    memcpy(expected + 101, out + 900, 299);
    OK(fi_writev(ep, locals, NULL, 3, peer, theirs[0].addr, theirs[0].key, locals));
    done(FI_RMA | FI_WRITE, locals);
    OK(fi_writemsg(ep, &msg, FI_DELIVERY_COMPLETE | FI_COMPLETION | FI_MORE));
    done(FI_RMA | FI_WRITE, locals);
    OK(fi_readv(ep, ins, NULL, 2, peer, theirs[0].addr, theirs[0].key, ins));
    done(FI_RMA | FI_READ, ins);
    CHECK(memcmp(in, expected, 400) == 0);
    memset(in, 0, 400);
    msg.msg_iov   = ins;
    msg.iov_count = 2;
    OK(fi_readmsg(ep, &msg, FI_FENCE | FI_COMPLETION));
    done(FI_RMA | FI_READ, locals);
    CHECK(memcmp(in, expected, 400) == 0);
    meet();
    CHECK(window[1000] != 0 && memcmp(window + 1000, window, 150) == 0);
    meet();
    remotes[1].len = 249;
    CHECK(fi_readmsg(ep, &msg, FI_COMPLETION) == -FI_EINVAL);
}

static void with_data(void)
{
    struct iovec iov         = { out, 64 };
    struct fi_rma_iov remote = { theirs[0].addr + 128, 64, theirs[0].key };
    struct fi_msg_rma msg    = { &iov, NULL, 1, peer, &remote, 1, &iov, 0x1111222233334444 };
    struct fi_cq_tagged_entry entry;
    uint64_t data[3] = { 0 };
    int i;

    fill(LEN, 3);
    OK(fi_writedata(ep, out, 200000, NULL, 77, peer, theirs[0].addr + 4096, theirs[0].key, &iov));
    done(FI_RMA | FI_WRITE, &iov);
    entry = wait_for(rx);
    CHECK(entry.flags == (FI_RMA | FI_REMOTE_WRITE | FI_REMOTE_CQ_DATA) && entry.data == 77 && entry.op_context == NULL);
    OK(fi_inject_writedata(ep, out, 64, 88, peer, theirs[0].addr, theirs[0].key));
    OK(fi_writemsg(ep, &msg, FI_REMOTE_CQ_DATA | FI_COMPLETION));
    for (i = 0; i < 2; i++) {
        entry = wait_for(rx);
        data[entry.data == 88] = entry.data;
    }
    CHECK(data[1] == 88 && data[0] == 0x1111222233334444);
    writes_done++;
    done(FI_RMA | FI_WRITE, &iov);
    CHECK(memcmp(window, window + 128, 64) == 0 && window[0] == (unsigned char)(3 + (1 - rank) * 100));
    meet();
    CHECK(fi_inject_write(ep, out, info->tx_attr->inject_size + 1, peer, theirs[0].addr, theirs[0].key) == -FI_EMSGSIZE);
    CHECK(fi_readmsg(ep, &msg, FI_REMOTE_CQ_DATA) == -FI_EBADFLAGS);
    OK(fi_inject_write(ep, "abcdefgh", 8, peer, theirs[0].addr + 64, theirs[0].key));
    msg.msg_iov = &(struct iovec){ in, 8 };
    remote      = (struct fi_rma_iov){ theirs[0].addr + 64, 8, theirs[0].key };
    OK(fi_readmsg(ep, &msg, FI_FENCE | FI_COMPLETION));
    writes_done++;
    done(FI_RMA | FI_READ, &iov);
    CHECK(memcmp(in, "abcdefgh", 8) == 0);
    meet();
}

static void atomics(void)
{
    uint64_t one = 1, big[16], old[16] = { 0 }, expected, wanted = 5, i;
    struct fi_ioc locals[2] = { { big, 3 }, { big + 3, 5 } }, olds[2] = { { old, 6 }, { old + 6, 2 } };
    double half = 0.5, was;
    int32_t low = -7, before = 1;
    uint8_t bit = 0x10;
    uint64_t at = theirs[1].addr, key = theirs[1].key;

    for (i = 0; i < 16; i++) {
        big[i] = i + 1;
    }
    for (i = 0; i < 10; i++) {
        OK(fi_atomic(ep, &one, 1, NULL, peer, at, key, FI_UINT64, FI_SUM, &one));
        done(FI_ATOMIC | FI_WRITE, &one);
    }
    OK(fi_inject_atomic(ep, &one, 1, peer, at, key, FI_UINT64, FI_SUM));
    OK(fi_fetch_atomic(ep, NULL, 1, NULL, old, NULL, peer, at, key, FI_UINT64, FI_ATOMIC_READ, old));
    writes_done++;
    done(FI_ATOMIC | FI_READ, old);
    CHECK(old[0] == 11);
    OK(fi_fetch_atomic(ep, &one, 1, NULL, old, NULL, peer, at, key, FI_UINT64, FI_BXOR, old));
    done(FI_ATOMIC | FI_READ, old);
    CHECK(old[0] == 11);
    expected = 10;
    OK(fi_compare_atomic(ep, &wanted, 1, NULL, &expected, NULL, old, NULL, peer, at, key, FI_UINT64, FI_CSWAP, old));
    done(FI_ATOMIC | FI_READ, old);
    CHECK(old[0] == 10);
    OK(fi_compare_atomic(ep, &one, 1, NULL, &expected, NULL, old, NULL, peer, at, key, FI_UINT64, FI_CSWAP, old));
    done(FI_ATOMIC | FI_READ, old);
    CHECK(old[0] == 5);
    /* Several elements, in several pieces. */
    OK(fi_atomic(ep, big, 16, NULL, peer, at + 64, key, FI_UINT64, FI_SUM, big));
    done(FI_ATOMIC | FI_WRITE, big);
    OK(fi_atomicv(ep, locals, NULL, 2, peer, at + 64, key, FI_UINT64, FI_SUM, big));
    done(FI_ATOMIC | FI_WRITE, big);
    OK(fi_fetch_atomicv(ep, locals, NULL, 2, olds, NULL, 2, peer, at + 64, key, FI_UINT64, FI_ATOMIC_WRITE, big));
    done(FI_ATOMIC | FI_READ, big);
    for (i = 0; i < 8; i++) {
        CHECK(old[i] == 2 * (i + 1));
    }
    {
        struct fi_rma_ioc remotes[2] = { { at + 64, 2, key }, { at + 64 + 16, 6, key } };
        struct fi_msg_atomic msg     = { locals, NULL, 2, peer, remotes, 2, FI_UINT64, FI_CSWAP_NE, big, 0 };
        OK(fi_compare_atomicmsg(ep, &msg, locals, NULL, 2, olds, NULL, 2, FI_INJECT | FI_COMPLETION));
        done(FI_ATOMIC | FI_READ, big);
        msg.op = FI_PROD;
        OK(fi_fetch_atomicmsg(ep, &msg, olds, NULL, 2, FI_COMPLETION));
        done(FI_ATOMIC | FI_READ, big);
        CHECK(old[7] == 8);
        OK(fi_atomicmsg(ep, &msg, FI_COMPLETION | FI_DELIVERY_COMPLETE));
        done(FI_ATOMIC | FI_WRITE, big);
    }
    /* Other types. */
    OK(fi_atomic(ep, &half, 1, NULL, peer, at + 256, key, FI_DOUBLE, FI_SUM, &half));
    done(FI_ATOMIC | FI_WRITE, &half);
    OK(fi_fetch_atomic(ep, &half, 1, NULL, &was, NULL, peer, at + 256, key, FI_DOUBLE, FI_SUM, &was));
    done(FI_ATOMIC | FI_READ, &was);
    CHECK(was == 0.5);
    OK(fi_fetch_atomic(ep, &low, 1, NULL, &before, NULL, peer, at + 264, key, FI_INT32, FI_MIN, &low));
    done(FI_ATOMIC | FI_READ, &low);
    CHECK(before == 0);
    OK(fi_atomic(ep, &bit, 1, NULL, peer, at + 268, key, FI_UINT8, FI_BOR, &bit));
    done(FI_ATOMIC | FI_WRITE, &bit);
    meet();
    CHECK(words[0] == 5 && words[8] == 1 && words[15] == 512 && words[16] == 9);
    CHECK(*(double*)(words + 32) == 1.0 && *(int32_t*)(words + 33) == -7 && ((uint8_t*)words)[268] == 0x10);
    meet();
}

/* Each operation on each type, as far as there are such. */
static void all_atomics(void)
{
    struct fi_atomic_attr attr;
    unsigned char value[32] = { 0 }, old[32];
    int type, op, ran = 0;
    size_t count;
    for (type = FI_INT8; type <= FI_UINT128; type++) {
        for (op = FI_MIN; op <= FI_MSWAP; op++) {
            if (fi_query_atomic(domain, type, op, &attr, 0) == 0) {
                OK(fi_atomicvalid(ep, type, op, &count));
                CHECK(attr.count == count && count > 0 && attr.size > 0);
                OK(fi_atomic(ep, value, 1, NULL, peer, theirs[1].addr, theirs[1].key, type, op, value));
                writes_done++;
                ran++;
            }
            if (fi_query_atomic(domain, type, op, &attr, FI_FETCH_ATOMIC) == 0) {
                OK(fi_fetch_atomicvalid(ep, type, op, &count));
                OK(fi_fetch_atomic(ep, value, 1, NULL, old, NULL, peer, theirs[1].addr, theirs[1].key, type, op, value));
                reads_done++;
                ran++;
            }
            if (fi_query_atomic(domain, type, op, &attr, FI_COMPARE_ATOMIC) == 0) {
                OK(fi_compare_atomicvalid(ep, type, op, &count));
                OK(fi_compare_atomic(ep, value, 1, NULL, value, NULL, old, NULL, peer, theirs[1].addr, theirs[1].key, type,
                                     op, value));
                reads_done++;
                ran++;
            }
        }
    }
    CHECK(ran > 300);
    OK(fi_cntr_wait(reads, reads_done, -1));
    OK(fi_cntr_wait(writes, writes_done, -1));
    while (ran > 0) {
        CHECK(wait_for(tx).op_context == value);
        ran--;
    }
    meet();
}

static void wait_error(ssize_t started)
{
    struct fi_cq_err_entry error = { 0 };
    struct fi_cq_tagged_entry entry;
    char name[64];
    ssize_t got;
    if (started != 0) {
        CHECK(started == -FI_EACCES);
        return;
    }
    while ((got = fi_cq_read(tx, &entry, 1)) == -FI_EAGAIN) {
        progress();
    }
    CHECK(got == -FI_EAVAIL && fi_cq_readerr(tx, &error, 0) == 1);
    CHECK(error.err == FI_EACCES && error.op_context == in);
    /* The text has the program's number of the peer. */
    snprintf(name, sizeof(name), "of the peer of address %d ", (int)peer);
    CHECK(strstr(error.err_data, name) != NULL);
}

static void bad(void)
{
    struct region here, refused[3] = { { theirs[0].addr, theirs[0].key ^ 0x5555 }, { theirs[0].addr + LEN - 4, theirs[0].key } };
    uint64_t one = 1, old = 0, before[WORDS];
    struct fid_mr *for_reads;
    size_t count;
    int n;
    memcpy(before, words, sizeof(before));
    CHECK(fi_atomic(ep, out, 1, NULL, peer, theirs[1].addr, theirs[1].key, FI_DOUBLE, FI_BOR, NULL) == -FI_EOPNOTSUPP);
    CHECK(fi_atomic(ep, out, 1, NULL, peer, theirs[1].addr, theirs[1].key, FI_UINT64, FI_CSWAP, NULL) == -FI_EOPNOTSUPP);
    CHECK(fi_atomic(ep, out, 1, NULL, peer, theirs[1].addr, theirs[1].key, 99, FI_SUM, NULL) == -FI_EOPNOTSUPP);
    CHECK(fi_atomic(ep, NULL, 1, NULL, peer, theirs[1].addr, theirs[1].key, FI_UINT64, FI_SUM, NULL) == -FI_EINVAL);
    CHECK(fi_atomic(ep, out, 0, NULL, peer, theirs[1].addr, theirs[1].key, FI_UINT64, FI_SUM, NULL) == -FI_EINVAL);
    CHECK(fi_atomicvalid(ep, FI_DOUBLE, FI_BOR, &count) == -FI_EOPNOTSUPP);
    CHECK(fi_atomicvalid(ep, FI_DOUBLE, FI_SUM, NULL) == -FI_EINVAL);
    CHECK(fi_write(ep, NULL, 8, NULL, peer, theirs[0].addr, theirs[0].key, NULL) == -FI_EINVAL);
    CHECK(fi_writemsg(ep, NULL, 0) == -FI_EINVAL);
    CHECK(fi_write(ep, out, 8, NULL, 12345, theirs[0].addr, theirs[0].key, NULL) == -FI_EINVAL);
    /* What the peer refuses, of each kind of operation: a key of nobody, memory behind the region, writes to a region for reads. */
    OK(fi_mr_reg(domain, words, WORDS * 8, FI_REMOTE_READ, 0, 6, 0, &for_reads, NULL));
    here = (struct region){ mine[1].addr, fi_mr_key(for_reads) };
    exchange(&here, &refused[2], sizeof(here));
    for (n = 0; n < 3; n++) {
        uint64_t at = refused[n].addr, key = refused[n].key;
        wait_error(fi_write(ep, in, 8, NULL, peer, at, key, in));
        wait_error(fi_write(ep, in, 4096, NULL, peer, at, key, in));
        wait_error(fi_writedata(ep, in, 8, NULL, 9, peer, at, key, in));
        wait_error(fi_atomic(ep, &one, 1, NULL, peer, at, key, FI_UINT64, FI_SUM, in));
        wait_error(fi_fetch_atomic(ep, &one, 1, NULL, &old, NULL, peer, at, key, FI_UINT64, FI_SUM, in));
        wait_error(fi_compare_atomic(ep, &one, 1, NULL, &one, NULL, &old, NULL, peer, at, key, FI_UINT64, FI_CSWAP, in));
        if (n < 2) {
            wait_error(fi_read(ep, in, 8, NULL, peer, at, key, in));
        }
    }
    OK(fi_read(ep, in, 8, NULL, peer, refused[2].addr, refused[2].key, in));
    CHECK(wait_for(tx).op_context == in);
    CHECK(old == 0 && memcmp(words, before, sizeof(before)) == 0);
    meet();
    OK(fi_close(&for_reads->fid));
}

int main(int argc, char **argv)
{
    start_pair();
    open_all(argc > 1 ? atoi(argv[1]) : FI_THREAD_SAFE, argc > 2 ? atoi(argv[2]) : FI_PROGRESS_MANUAL,
             argc > 3 ? atoi(argv[3]) : BASIC_BITS, argc > 4 && strcmp(argv[4], "events") == 0 ? FI_RMA_EVENT : 0);
    whole();
    if (argc > 5) {
        asleep(strcmp(argv[5], "served") == 0);
    }
    fences();
    pieces();
    with_data();
    atomics();
    all_atomics();
    if (served_reads != NULL) {
        served();
    }
    bad();
    OK(fi_close(&ep->fid));
    if (region_reads != NULL) {
        CHECK(fi_close(&region_reads->fid) == -FI_EBUSY);
    }
    OK(fi_close(&mr[0]->fid));
    OK(fi_close(&mr[1]->fid));
    if (region_reads != NULL) {
        OK(fi_close(&region_reads->fid));
        OK(fi_close(&region_writes->fid));
    }
    return end_pair();
}

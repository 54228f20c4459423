/* A small MPI on libfabric, after the tutorial's mapping: tagged messages with communicator, rank and tag in the 64 bits
 * that are matched, or with the rank as data and receives from one sender; probes by FI_PEEK, of which FI_CLAIM takes the message;
 * windows by RMA and atomics that a counter or requests follow, locks by messages that come into buffers of FI_MULTI_RECV. */
#include "pair.h"

enum { TAG_ANY = -1, SOURCE_ANY = -1, CELLS = 1024, RINGS = 2, RING_BYTES = 256 };
enum control { LOCK = 1, GRANT, UNLOCK };
enum event { EVENT_SEND, EVENT_RECV, EVENT_PROBE, EVENT_PUT, EVENT_CONTROL };

/* A request, with the context that comes back in its completion. */
struct request {
    struct fi_context2 context;
    enum event event;
    int done, found;
    size_t len;
    int source, tag, data;
};

static struct fi_info *info;
static struct fid_fabric *fabric;
static struct fid_domain *domain;
static struct fid_ep *ep;
static struct fid_av *av;
static struct fid_cq *p2p_cq;
static struct fid_cntr *rma_cntr;
static fi_addr_t ranks[2];
static uint64_t rma_count;
static struct request controls[RINGS];

/* The window, and where the other one's is. */
static struct {
    volatile double cells[CELLS];
    volatile int64_t number;
} window;
static struct fid_mr *window_mr;
static uint64_t bases[2], keys[2];
/* Lock of this process's window: its holder, and who waits. */
static int holder = -1, waiting = -1, granted;

/* Communicator in bits 48 to 63, source in 32 to 47, tag below. */
static uint64_t match_bits(int comm, int source, int tag)
{
    return (uint64_t)comm << 48 | (uint64_t)source << 32 | (uint32_t)tag;
}

static uint64_t ignored_bits(int source, int tag)
{
    return (source == SOURCE_ANY ? 0xffffull << 32 : 0) | (tag == TAG_ANY ? 0xffffffffull : 0);
}

static void progress(void);

#define POST(call) do { \
    ssize_t posted_; \
    while ((posted_ = (call)) == -FI_EAGAIN) { \
        progress(); \
    } \
    OK(posted_); \
} while (0)

static void send_control(int to, unsigned char what)
{
    unsigned char bytes[2] = { what, (unsigned char)rank };
    POST(fi_inject(ep, bytes, sizeof(bytes), ranks[to]));
}

/* Buffers that take one control message behind the other. Each is posted again when it is full. */
static unsigned char rings[RINGS][RING_BYTES];

static void post_ring(int at)
{
    struct iovec iov  = { rings[at], RING_BYTES };
    struct fi_msg msg = { &iov, NULL, 1, FI_ADDR_UNSPEC, &controls[at].context, 0 };
    controls[at].event = EVENT_CONTROL;
    POST(fi_recvmsg(ep, &msg, FI_MULTI_RECV | FI_COMPLETION));
}

static void give_lock(int to)
{
    holder = to;
    if (to == rank) {
        granted = 1;
    } else {
        send_control(to, GRANT);
    }
}

static void on_lock(int from)
{
    if (holder < 0) {
        give_lock(from);
    } else {
        waiting = from;
    }
}

static void on_unlock(void)
{
    int next = waiting;
    holder = waiting = -1;
    if (next >= 0) {
        give_lock(next);
    }
}

static void on_control(const unsigned char *bytes)
{
    switch (bytes[0]) {
    case LOCK: on_lock(bytes[1]); break;
    case UNLOCK: on_unlock(); break;
    default: granted = 1;
    }
}

/* What a completion tells of its request. */
static void dispatch(const struct fi_cq_tagged_entry *entry)
{
    struct request *request = (struct request*)entry->op_context;
    if (request == NULL) {
        return;
    }
    if (request->event == EVENT_CONTROL) {
        if (entry->flags & FI_RECV) {
            on_control(entry->buf);
        }
        if (entry->flags & FI_MULTI_RECV) {
            post_ring((int)(request - controls));
        }
        return;
    }
    request->done   = 1;
    request->found  = 1;
    request->len    = entry->len;
    request->source = (int)(entry->tag >> 32 & 0xffff);
    request->tag    = (int)(uint32_t)entry->tag;
    request->data   = (int)entry->data;
}

static void progress(void)
{
    struct fi_cq_tagged_entry entries[4];
    ssize_t got = fi_cq_read(p2p_cq, entries, 4), i;

    for (i = 0; i < got; i++) {
        dispatch(&entries[i]);
    }
    if (got == -FI_EAVAIL) {
        struct fi_cq_err_entry error = {0};
        CHECK(fi_cq_readerr(p2p_cq, &error, 0) == 1);
        /* A probe that has found nothing. */
        CHECK(error.err == FI_ENOMSG);
        ((struct request*)error.op_context)->done = 1;
    }
}

static void find_provider(void)
{
    struct fi_info *hints = fi_allocinfo();

    hints->mode                       = FI_CONTEXT | FI_CONTEXT2;
    hints->caps                       = FI_TAGGED | FI_MSG | FI_RMA | FI_ATOMIC | FI_MULTI_RECV | FI_DIRECTED_RECV;
    hints->ep_attr->type              = FI_EP_RDM;
    hints->domain_attr->threading     = FI_THREAD_ENDPOINT;
    hints->domain_attr->resource_mgmt = FI_RM_ENABLED;
    hints->domain_attr->mr_mode       = FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
    hints->tx_attr->op_flags          = FI_DELIVERY_COMPLETE | FI_COMPLETION;
    hints->fabric_attr->prov_name     = strdup(provider());
    OK(fi_getinfo(FI_VERSION(1, 9), NULL, NULL, 0, hints, &info));
    fi_freeinfo(hints);
}

static void mpi_init(void)
{
    struct fi_cq_attr cq_attr = { .format = FI_CQ_FORMAT_TAGGED };
    struct fi_av_attr av_attr = { .type = FI_AV_MAP };
    struct fi_cntr_attr cntr_attr = { .events = FI_CNTR_EVENTS_COMP };
    size_t least = 2;
    int i;

    find_provider();
    OK(fi_fabric(info->fabric_attr, &fabric, NULL));
    OK(fi_domain(fabric, info, &domain, NULL));
    OK(fi_endpoint(domain, info, &ep, NULL));
    OK(fi_cq_open(domain, &cq_attr, &p2p_cq, NULL));
    OK(fi_cntr_open(domain, &cntr_attr, &rma_cntr, NULL));
    OK(fi_av_open(domain, &av_attr, &av, NULL));
    OK(fi_ep_bind(ep, &p2p_cq->fid, FI_SEND | FI_RECV | FI_SELECTIVE_COMPLETION));
    OK(fi_ep_bind(ep, &rma_cntr->fid, FI_READ | FI_WRITE));
    OK(fi_ep_bind(ep, &av->fid, 0));
    /* A buffer with less room is full. */
    OK(fi_setopt(&ep->fid, FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV, &least, sizeof(least)));
    OK(fi_enable(ep));
    insert_ranks(ep, av, ranks);
    for (i = 0; i < RINGS; i++) {
        post_ring(i);
    }
}

static void wait_for(struct request *request)
{
    while (!request->done) {
        progress();
    }
}

static void mpi_isend(const void *buf, size_t len, int to, int tag, int comm, struct request *request)
{
    *request = (struct request){ .event = EVENT_SEND };
    if (len <= info->tx_attr->inject_size) {
        POST(fi_tinject(ep, buf, len, ranks[to], match_bits(comm, rank, tag)));
        request->done = 1;
    } else {
        struct iovec iov         = { (void*)buf, len };
        struct fi_msg_tagged msg = { &iov, NULL, 1, ranks[to], match_bits(comm, rank, tag), 0, &request->context, 0 };
        POST(fi_tsendmsg(ep, &msg, FI_COMPLETION | FI_DELIVERY_COMPLETE));
    }
}

static void mpi_irecv(void *buf, size_t len, int source, int tag, int comm, struct request *request)
{
    struct iovec iov         = { buf, len };
    struct fi_msg_tagged msg = { &iov, NULL, 1, FI_ADDR_UNSPEC, 0, 0, &request->context, 0 };

    *request   = (struct request){ .event = EVENT_RECV };
    msg.tag    = match_bits(comm, source == SOURCE_ANY ? 0 : source, tag == TAG_ANY ? 0 : tag);
    msg.ignore = ignored_bits(source, tag);
    POST(fi_trecvmsg(ep, &msg, FI_COMPLETION));
}

/* Waits for a message without receiving it. With FI_CLAIM it is kept for the receive that claims it by the same request. */
static void find_message(int source, int tag, int comm, uint64_t claim, struct request *request)
{
    struct fi_msg_tagged msg = { NULL, NULL, 0, FI_ADDR_UNSPEC, 0, 0, &request->context, 0 };

    msg.tag    = match_bits(comm, source == SOURCE_ANY ? 0 : source, tag == TAG_ANY ? 0 : tag);
    msg.ignore = ignored_bits(source, tag);
    do {
        ssize_t ret;
        *request = (struct request){ .event = EVENT_PROBE };
        ret      = fi_trecvmsg(ep, &msg, FI_PEEK | claim | FI_COMPLETION);
        if (ret == -FI_ENOMSG || ret == -FI_EAGAIN) {
            progress();
            continue;
        }
        OK(ret);
        wait_for(request);
    } while (!request->found);
}

static void mpi_probe(int source, int tag, int comm, struct request *request)
{
    find_message(source, tag, comm, 0, request);
}

static void mpi_mprobe(int source, int tag, int comm, struct request *message)
{
    find_message(source, tag, comm, FI_CLAIM, message);
}

/* Receives the message that a probe has claimed. */
static void mpi_mrecv(void *buf, size_t len, struct request *message)
{
    struct iovec iov         = { buf, len };
    struct fi_msg_tagged msg = { &iov, NULL, 1, FI_ADDR_UNSPEC, 0, 0, &message->context, 0 };

    msg.tag       = match_bits(1, message->source, message->tag);
    message->done = 0;
    POST(fi_trecvmsg(ep, &msg, FI_CLAIM | FI_COMPLETION));
    wait_for(message);
}

/* The other mapping: the tag alone is matched, the sender by its address, and its rank comes as data. By the endpoint's default
 * flags the end is reported. */
static void send_with_rank(const void *buf, size_t len, int to, int tag, struct request *request)
{
    *request = (struct request){ .event = EVENT_SEND };
    POST(fi_tsenddata(ep, buf, len, NULL, (uint64_t)rank, ranks[to], match_bits(2, 0, tag), &request->context));
}

static void receive_from(void *buf, size_t len, int source, int tag, struct request *request)
{
    *request = (struct request){ .event = EVENT_RECV };
    struct iovec iov         = { buf, len };
    struct fi_msg_tagged msg = { &iov, NULL, 1, ranks[source], match_bits(2, 0, tag), 0, &request->context, 0 };
    POST(fi_trecvmsg(ep, &msg, FI_COMPLETION));
}

static void mpi_barrier(void)
{
    struct request in, out;
    unsigned char token, other = 7;
    mpi_irecv(&token, 1, 1 - rank, 0, 99, &in);
    mpi_isend(&other, 1, 1 - rank, 0, 99, &out);
    wait_for(&in);
    wait_for(&out);
}

static void win_create(void)
{
    uint64_t mine[2], theirs[2];
    uint64_t access = FI_REMOTE_READ | FI_REMOTE_WRITE | FI_READ | FI_WRITE;

    OK(fi_mr_reg(domain, (void*)&window, sizeof(window), access, 0, 1, 0, &window_mr, NULL));
    mine[0] = info->domain_attr->mr_mode & FI_MR_VIRT_ADDR ? (uintptr_t)&window : 0;
    mine[1] = fi_mr_key(window_mr);
    exchange(mine, theirs, sizeof(mine));
    bases[rank] = mine[0], keys[rank] = mine[1];
    bases[1 - rank] = theirs[0], keys[1 - rank] = theirs[1];
}

static uint64_t at(const volatile void *place, int target)
{
    return bases[target] + (uint64_t)((const volatile char*)place - (const volatile char*)&window);
}

static void win_put(const void *from, size_t len, const volatile void *place, int target)
{
    if (len <= info->tx_attr->inject_size) {
        POST(fi_inject_write(ep, from, len, ranks[target], at(place, target), keys[target]));
    } else {
        POST(fi_write(ep, from, len, NULL, ranks[target], at(place, target), keys[target], NULL));
    }
    rma_count++;
}

/* A put whose end at the target a request tells. */
static void win_rput(const void *from, size_t len, const volatile void *place, int target, struct request *request)
{
    struct iovec iov        = { (void*)from, len };
    struct fi_rma_iov there = { at(place, target), len, keys[target] };
    struct fi_msg_rma msg   = { &iov, NULL, 1, ranks[target], &there, 1, &request->context, 0 };

    *request = (struct request){ .event = EVENT_PUT };
    POST(fi_writemsg(ep, &msg, FI_COMPLETION | FI_DELIVERY_COMPLETE));
    rma_count++;
}

static void win_get(void *to, size_t len, const volatile void *place, int target)
{
    POST(fi_read(ep, to, len, NULL, ranks[target], at(place, target), keys[target], NULL));
    rma_count++;
}

static void win_accumulate(const double *values, size_t count, const volatile double *place, int target)
{
    POST(fi_atomic(ep, values, count, NULL, ranks[target], at(place, target), keys[target], FI_DOUBLE, FI_SUM, NULL));
    rma_count++;
}

static void win_flush(void)
{
    while (fi_cntr_read(rma_cntr) < rma_count) {
        progress();
    }
    CHECK(fi_cntr_readerr(rma_cntr) == 0);
}

static void win_lock(int target)
{
    granted = 0;
    if (target == rank) {
        on_lock(rank);
    } else {
        send_control(target, LOCK);
    }
    while (!granted) {
        progress();
    }
}

static void win_unlock(int target)
{
    win_flush();
    if (target == rank) {
        on_unlock();
    } else {
        send_control(target, UNLOCK);
    }
}

static void say(const char *what)
{
    mpi_barrier();
    if (rank == 0) {
        printf("%s: as expected\n", what);
    }
}

static void messages(void)
{
    static unsigned char out[300000], in[300000];
    static const size_t all[] = { 1, 100, 20000, 300000 };
    struct request sends[4], recv, seen;
    int i, other = 1 - rank;
    size_t k;

    for (k = 0; k < sizeof(out); k++) {
        out[k] = (unsigned char)(k * 3 + k / 1000 + rank);
    }
    for (i = 0; i < 4; i++) {
        mpi_isend(out, all[i], other, 10 + i, 1, &sends[i]);
    }
    /* The last one first, by its tag; then any, in the order in which they were sent. */
    for (i = 3; i >= 0; i--) {
        int wanted = i == 3 ? 13 : TAG_ANY, tag = i == 3 ? 13 : 12 - i;
        mpi_probe(SOURCE_ANY, wanted, 1, &seen);
        CHECK(seen.tag == tag && seen.source == other && seen.len == all[tag - 10]);
        memset(in, 0, sizeof(in));
        mpi_irecv(in, seen.len, seen.source, seen.tag, 1, &recv);
        wait_for(&recv);
        CHECK(recv.len == all[tag - 10] && in[recv.len - 1] == (unsigned char)(out[recv.len - 1] - rank + other));
    }
    for (i = 0; i < 4; i++) {
        wait_for(&sends[i]);
    }
    say("send, probe and receive");
}

/* A message that is claimed is not found by others; of two senders each is received by its own receive. */
static void claims_and_senders(void)
{
    static unsigned char out[20000], in[20000];
    struct request sends[2], receives[2], claimed, recv;
    int other = 1 - rank, i;

    memset(out, 'a' + rank, sizeof(out));
    mpi_isend(out, sizeof(out), other, 20, 1, &sends[0]);
    mpi_isend(out, 100, other, 20, 1, &sends[1]);
    mpi_mprobe(other, 20, 1, &claimed);
    CHECK(claimed.len == sizeof(out));
    mpi_irecv(in, sizeof(in), other, 20, 1, &recv);
    wait_for(&recv);
    CHECK(recv.len == 100);
    mpi_mrecv(in, sizeof(in), &claimed);
    CHECK(claimed.len == sizeof(out) && in[sizeof(in) - 1] == 'a' + other);
    wait_for(&sends[0]);
    say("claimed and received");
    for (i = 0; i < 2; i++) {
        receive_from(in + i, 1, i, 21, &receives[i]);
    }
    for (i = 0; i < 2; i++) {
        send_with_rank(out, 1, 1 - i, 21, &sends[i]);
    }
    for (i = 0; i < 2; i++) {
        wait_for(&receives[i]);
        CHECK(receives[i].data == i && in[i] == 'a' + i);
        wait_for(&sends[i]);
    }
    say("received from each sender");
}

static void windows(void)
{
    static double mine[CELLS], theirs[CELLS], ones[16];
    struct request puts[2];
    int i, other = 1 - rank, round;
    int64_t one = 1, number = 0;

    for (i = 0; i < CELLS; i++) {
        mine[i] = i + rank * 0.25;
    }
    win_put(mine, sizeof(mine), window.cells, other);
    win_flush();
    mpi_barrier();
    for (i = 0; i < CELLS; i++) {
        CHECK(window.cells[i] == i + other * 0.25);
    }
    say("put");
    win_get(theirs, sizeof(theirs), window.cells, other);
    win_flush();
    CHECK(memcmp(theirs, mine, sizeof(mine)) == 0);
    say("get");
    win_rput(mine + 1, 8, window.cells + 20, other, &puts[0]);
    win_rput(mine + 2, 8, window.cells + 21, other, &puts[1]);
    wait_for(&puts[1]);
    wait_for(&puts[0]);
    mpi_barrier();
    CHECK(window.cells[20] == 1 + other * 0.25 && window.cells[21] == 2 + other * 0.25);
    say("puts with requests");
    for (i = 0; i < 16; i++) {
        ones[i] = 1;
    }
    for (i = 0; i < 2; i++) {
        win_accumulate(ones, 16, window.cells, i);
    }
    win_flush();
    mpi_barrier();
    CHECK(window.cells[0] == other * 0.25 + 2 && window.cells[15] == 15 + other * 0.25 + 2);
    say("accumulate");
    POST(fi_fetch_atomic(ep, &one, 1, NULL, &number, NULL, ranks[0], at(&window.number, 0), keys[0], FI_INT64, FI_SUM, NULL));
    rma_count++;
    win_flush();
    CHECK(number == 0 || number == 1);
    mpi_barrier();
    CHECK(rank == 1 || window.number == 2);
    say("fetch and add");
    /* A read and a write that only the lock makes one. */
    for (round = 0; round < 20; round++) {
        win_lock(0);
        win_get(&number, 8, &window.number, 0);
        win_flush();
        number += 10;
        win_put(&number, 8, &window.number, 0);
        win_unlock(0);
    }
    mpi_barrier();
    CHECK(rank == 1 || window.number == 402);
    say("lock and unlock");
}

int main(void)
{
    start_pair();
    mpi_init();
    win_create();
    mpi_barrier();
    messages();
    claims_and_senders();
    windows();
    mpi_barrier();
    exchange("x", &granted, 1);
    OK(fi_close(&ep->fid));
    OK(fi_close(&window_mr->fid));
    return end_pair();
}

/* Collective operations of three endpoints of one process, each with queues and an address vector of its own.
 * Argument: threading. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_collective.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>

#include "check.h"

#define N 3
#define MOST 100000

static struct fid_fabric *fabric;
static struct fid_domain *domain;
static struct fid_ep *eps[N];
static struct fid_cq *cqs[N];
static struct fid_eq *eqs[N];
static struct fid_av *avs[N];
static struct fid_av_set *sets[N];
static struct fid_mc *mcs[N];
static fi_addr_t members[N][N], groups[N];
static uint32_t in[N][N * MOST], out[N][N * MOST];
static int contexts[N];

static void open_all(struct fi_info *info)
{
    struct fi_cq_attr cq_attr = { .format = FI_CQ_FORMAT_CONTEXT };
    struct fi_eq_attr eq_attr = { .wait_obj = FI_WAIT_UNSPEC };
    struct fi_av_attr av_attr = {0};
    char names[N][512];
    size_t len = 0;
    int i;

    OK(fi_fabric(info->fabric_attr, &fabric, NULL));
    OK(fi_domain(fabric, info, &domain, NULL));
    for (i = 0; i < N; i++) {
        OK(fi_cq_open(domain, &cq_attr, &cqs[i], NULL));
        OK(fi_eq_open(fabric, &eq_attr, &eqs[i], NULL));
        OK(fi_av_open(domain, &av_attr, &avs[i], NULL));
        OK(fi_endpoint(domain, info, &eps[i], NULL));
        OK(fi_ep_bind(eps[i], &avs[i]->fid, 0));
        OK(fi_ep_bind(eps[i], &eqs[i]->fid, 0));
        /* Ends of collective operations are reported whatever the binding says, as libfabric does. */
        OK(fi_ep_bind(eps[i], &cqs[i]->fid, FI_TRANSMIT | FI_RECV | FI_SELECTIVE_COMPLETION));
        OK(fi_enable(eps[i]));
        len = sizeof(names[i]);
        OK(fi_getname(&eps[i]->fid, names[i], &len));
    }
    for (i = 0; i < N; i++) {
        int j;
        /* Other numbers in each vector. */
        for (j = 0; j < N; j++)
            IS(fi_av_insert(avs[i], names[(i + j) % N], 1, &members[i][(i + j) % N], 0, NULL), 1);
    }
}

static void progress(void)
{
    struct fi_cq_entry entry;
    int i;
    for (i = 0; i < N; i++)
        IS(fi_cq_read(cqs[i], &entry, 0), -FI_EAGAIN);
}

static void join_all(void)
{
    int i, left = N, is_joined[N] = {0};

    for (i = 0; i < N; i++) {
        struct fi_av_set_attr attr = { .count = N, .start_addr = members[i][0], .end_addr = members[i][0], .stride = 1 };
        fi_addr_t address;
        int j;
        OK(fi_av_set(avs[i], &attr, &sets[i], NULL));
        for (j = 1; j < N; j++)
            OK(fi_av_set_insert(sets[i], members[i][j]));
        IS(fi_av_set_insert(sets[i], members[i][0]), -FI_EINVAL);
        IS(fi_av_set_insert(sets[i], 77), -FI_ENOMEM);
        OK(fi_av_set_addr(sets[i], &address));
        IS(fi_barrier(eps[i], address, NULL), -FI_EINVAL);
        IS(fi_join_collective(eps[i], address + 1000000, sets[i], 0, &mcs[i], NULL), -FI_EINVAL);
        /* The last one joins later. */
        if (i < N - 1)
            OK(fi_join_collective(eps[i], i ? address : FI_ADDR_NOTAVAIL, sets[i], 0, &mcs[i], &contexts[i]));
    }
    for (i = 0; i < 1000; i++) {
        struct fi_eq_entry entry;
        uint32_t event;
        progress();
        IS(fi_eq_read(eqs[i % N], &event, &entry, sizeof(entry), 0), -FI_EAGAIN);
    }
    OK(fi_join_collective(eps[N - 1], FI_ADDR_NOTAVAIL, sets[N - 1], 0, &mcs[N - 1], &contexts[N - 1]));
    while (left > 0) {
        progress();
        for (i = 0; i < N; i++) {
            struct fi_eq_entry entry = {0};
            uint32_t event;
            /* Room of an event of a connection is enough, or none, as with libfabric. */
            size_t room = i == 0 ? sizeof(struct fi_eq_cm_entry) : i == 1 ? 0 : sizeof(entry);
            ssize_t n = fi_eq_read(eqs[i], &event, room ? &entry : NULL, room, 0);
            if (n == -FI_EAGAIN)
                continue;
            IS(n, room);
            IS(event, FI_JOIN_COMPLETE);
            CHECK(!room || (entry.fid == &mcs[i]->fid && entry.context == &contexts[i]));
            CHECK(!is_joined[i]);
            is_joined[i] = 1;
            left--;
        }
    }
    for (i = 0; i < N; i++)
        groups[i] = fi_mc_addr(mcs[i]);
    IS(fi_close(&sets[0]->fid), -FI_EBUSY);
    IS(fi_close(&eps[0]->fid), -FI_EBUSY);
}

/* Waits for an operation of each member. */
static void end_all(void)
{
    int i, left = N;
    while (left > 0) {
        for (i = 0; i < N; i++) {
            struct fi_cq_tagged_entry entry;
            ssize_t n = fi_cq_read(cqs[i], &entry, 1);
            if (n == -FI_EAGAIN)
                continue;
            IS(n, 1);
            CHECK(entry.op_context == &contexts[i]);
            left--;
        }
    }
}

static void fill(int count)
{
    int i, j;
    for (i = 0; i < N; i++) {
        memset(out[i], 0xee, sizeof(out[i]));
        for (j = 0; j < count; j++)
            in[i][j] = (i + 1) * 1000000 + j;
    }
}

#define EACH(call) do { int i; for (i = 0; i < N; i++) OK(call); end_all(); } while (0)
#define ROOT 1
#define COUNT (sizes[at])

static void operations(void)
{
    static const int sizes[] = { 0, 1, 700, MOST };
    size_t at;
    int i, j, k;

    EACH(fi_barrier(eps[i], groups[i], &contexts[i]));
    EACH(fi_barrier2(eps[i], groups[i], FI_COMPLETION, &contexts[i]));
    for (at = 0; at < sizeof(sizes) / sizeof(sizes[0]); at++) {
        fill(N * COUNT);
        EACH(fi_allgather(eps[i], in[i], COUNT, NULL, out[i], NULL, groups[i], FI_UINT32, 0, &contexts[i]));
        for (i = 0; i < N; i++)
            for (j = 0; j < N; j++)
                CHECK(!memcmp(out[i] + j * COUNT, in[j], COUNT * 4));
        fill(N * COUNT);
        EACH(fi_alltoall(eps[i], in[i], COUNT, NULL, out[i], NULL, groups[i], FI_UINT32, 0, &contexts[i]));
        for (i = 0; i < N; i++)
            for (j = 0; j < N; j++)
                CHECK(!memcmp(out[i] + j * COUNT, in[j] + i * COUNT, COUNT * 4));
        fill(N * COUNT);
        EACH(fi_scatter(eps[i], i == ROOT ? in[i] : NULL, COUNT, NULL, out[i], NULL, groups[i], members[i][ROOT], FI_UINT32, 0,
                        &contexts[i]));
        for (i = 0; i < N; i++)
            CHECK(!memcmp(out[i], in[ROOT] + i * COUNT, COUNT * 4));
        fill(N * COUNT);
        EACH(fi_gather(eps[i], in[i], COUNT, NULL, i == ROOT ? out[i] : NULL, NULL, groups[i], members[i][ROOT], FI_UINT32, 0,
                       &contexts[i]));
        for (j = 0; j < N; j++)
            CHECK(!memcmp(out[ROOT] + j * COUNT, in[j], COUNT * 4));
        fill(N * COUNT);
        EACH(fi_allreduce(eps[i], in[i], COUNT, NULL, out[i], NULL, groups[i], FI_UINT32, FI_SUM, 0, &contexts[i]));
        for (i = 0; i < N; i++)
            for (k = 0; k < COUNT; k++)
                CHECK(out[i][k] == (uint32_t)(6000000 + 3 * k));
        fill(N * COUNT);
        EACH(fi_reduce(eps[i], in[i], COUNT, NULL, i == ROOT ? out[i] : NULL, NULL, groups[i], members[i][ROOT], FI_UINT32,
                       FI_MAX, 0, &contexts[i]));
        for (k = 0; k < COUNT; k++)
            CHECK(out[ROOT][k] == (uint32_t)(3000000 + k));
        fill(N * COUNT);
        EACH(fi_reduce_scatter(eps[i], in[i], COUNT, NULL, out[i], NULL, groups[i], FI_UINT32, FI_SUM, 0, &contexts[i]));
        for (i = 0; i < N; i++)
            for (k = 0; k < COUNT; k++)
                CHECK(out[i][k] == (uint32_t)(6000000 + 3 * (k + i * COUNT)));
        fill(N * COUNT);
        EACH(fi_broadcast(eps[i], in[i], COUNT, NULL, groups[i], members[i][ROOT], FI_UINT32, 0, &contexts[i]));
        for (i = 0; i < N; i++)
            for (k = 0; k < COUNT; k++)
                CHECK(in[i][k] == (uint32_t)(2000000 + k));
    }
    /* The address of the set names the group, too. */
    for (i = 0; i < N; i++) {
        fi_addr_t address;
        OK(fi_av_set_addr(sets[i], &address));
        OK(fi_barrier(eps[i], address, &contexts[i]));
    }
    end_all();
    IS(fi_allreduce(eps[0], in[0], 1, NULL, out[0], NULL, groups[0], FI_FLOAT, FI_BAND, 0, NULL), -FI_EOPNOTSUPP);
    IS(fi_allreduce(eps[0], in[0], 1, NULL, out[0], NULL, groups[0], FI_UINT32, FI_CSWAP, 0, NULL), -FI_EOPNOTSUPP);
    IS(fi_allgather(eps[0], NULL, 1, NULL, out[0], NULL, groups[0], FI_UINT32, 0, NULL), -FI_EINVAL);
    IS(fi_broadcast(eps[0], in[0], 1, NULL, groups[0], 1234, FI_UINT32, 0, NULL), -FI_EINVAL);
    IS(fi_barrier(eps[0], groups[0] + 1000000, NULL), -FI_EINVAL);
    IS(fi_barrier2(eps[0], groups[0], FI_FENCE, NULL), -FI_EBADFLAGS);
}

static void queries(void)
{
    struct fi_collective_attr attr = { .op = FI_SUM, .datatype = FI_DOUBLE };
    int op;

    for (op = FI_BARRIER; op <= FI_GATHER; op++) {
        attr.max_members = 0;
        OK(fi_query_collective(domain, op, &attr, 0));
        CHECK(attr.max_members >= 1 << 16);
        CHECK(op == FI_BARRIER || attr.datatype_attr.size == 8);
    }
    IS(fi_query_collective(domain, FI_GATHER + 1, &attr, 0), -FI_EOPNOTSUPP);
    attr.op = FI_BXOR;
    IS(fi_query_collective(domain, FI_REDUCE, &attr, 0), -FI_EOPNOTSUPP);
    attr.mode = 1;
    IS(fi_query_collective(domain, FI_GATHER, &attr, 0), -FI_EINVAL);
}

/* Unions, intersections and differences: what is left of two sets of the first vector. */
static void sets_of_sets(void)
{
    struct fi_av_set_attr all = { .flags = FI_UNIVERSE }, none = { .start_addr = FI_ADDR_NOTAVAIL, .end_addr = FI_ADDR_NOTAVAIL };
    struct fid_av_set *a, *b;
    fi_addr_t removed;
    char name[512];
    size_t len = sizeof(name);

    OK(fi_getname(&eps[1]->fid, name, &len));
    IS(fi_av_insert(avs[0], name, 1, &removed, 0, NULL), 1);
    OK(fi_av_remove(avs[0], &removed, 1, 0));
    OK(fi_av_set(avs[0], &all, &a, NULL));
    IS(fi_av_set_remove(a, removed), -FI_EINVAL);
    OK(fi_av_set(avs[0], &none, &b, NULL));
    IS(fi_av_set_insert(a, members[0][1]), -FI_EINVAL);
    OK(fi_av_set_insert(b, members[0][1]));
    IS(fi_av_set_union(a, sets[1]), -FI_EINVAL);
    OK(fi_av_set_diff(a, b));
    IS(fi_av_set_remove(a, members[0][1]), -FI_EINVAL);
    OK(fi_av_set_union(a, b));
    OK(fi_av_set_intersect(a, b));
    IS(fi_av_set_remove(a, members[0][0]), -FI_EINVAL);
    OK(fi_av_set_remove(a, members[0][1]));
    IS(fi_av_set_remove(a, members[0][1]), -FI_EINVAL);
    OK(fi_close(&a->fid));
    IS(fi_close(&avs[0]->fid), -FI_EBUSY);
    OK(fi_close(&b->fid));
}

int main(int argc, char **argv)
{
    struct fi_info *hints = fi_allocinfo(), *info;
    int i;

    hints->caps = FI_RMA | FI_ATOMIC | FI_COLLECTIVE;
    hints->mode = FI_CONTEXT;
    hints->ep_attr->type = FI_EP_RDM;
    hints->domain_attr->mr_mode = FI_MR_PROV_KEY | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED;
    hints->domain_attr->threading = argc > 1 ? atoi(argv[1]) : FI_THREAD_SAFE;
    hints->fabric_attr->prov_name = strdup("efa4");
    OK(fi_getinfo(FI_VERSION(1, 17), NULL, NULL, 0, hints, &info));
    CHECK(info->caps & FI_COLLECTIVE);
    open_all(info);
    queries();
    join_all();
    operations();
    sets_of_sets();
    /* An operation that runs ends without a completion. */
    OK(fi_barrier(eps[0], groups[0], &contexts[0]));
    for (i = 0; i < N; i++)
        OK(fi_close(&mcs[i]->fid));
    progress();
    IS(fi_barrier(eps[0], groups[0], NULL), -FI_EINVAL);
    for (i = 0; i < N; i++) {
        OK(fi_close(&sets[i]->fid));
        OK(fi_close(&eps[i]->fid));
        OK(fi_close(&cqs[i]->fid));
        OK(fi_close(&eqs[i]->fid));
        OK(fi_close(&avs[i]->fid));
    }
    OK(fi_close(&domain->fid));
    OK(fi_close(&fabric->fid));
    fi_freeinfo(info);
    fi_freeinfo(hints);
    return 0;
}

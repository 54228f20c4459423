/* Lists of up to as many pieces as `fi_info` says, at each side of writes, reads and atomic operations, and one more.
 * The first argument is the `mr_mode`. */
#include <rdma/fi_atomic.h>
#include <rdma/fi_rma.h>

#include "ends.h"

enum { TOTAL = 63, GAP = 3, HERE = 8, THERE = 4, KEY = 77, ROOM = 8 * (TOTAL + GAP * (HERE + 1)) };

/* TOTAL elements in pieces of 1, 3, 5 and so on, and the rest, with other memory between them. */
struct list {
    struct iovec iov[HERE + 1];
    struct fi_ioc ioc[HERE + 1];
    unsigned char memory[ROOM];
    int n;
};

static struct list operand, than, result, window;
static struct fid_mr *mr;
static fi_addr_t peer;
static int size;

static void cut(struct list *list, int n)
{
    unsigned char *at = list->memory;
    list->n = n;
    for (int i = 0; i < n; i++) {
        size_t count = i < n - 1 ? 2 * i + 1 : TOTAL - (n - 1) * (n - 1);
        list->iov[i] = (struct iovec){ at, count * size };
        list->ioc[i] = (struct fi_ioc){ at, count };
        at += (count + GAP) * size;
    }
}

static void fill(struct list *list, const unsigned char *flat)
{
    memset(list->memory, 0xee, ROOM);
    for (int i = 0; i < list->n; flat += list->iov[i++].iov_len)
        memcpy(list->iov[i].iov_base, flat, list->iov[i].iov_len);
}

/* Whether the list has these bytes, and the memory between its pieces is as `fill` has left it. */
static int holds(const struct list *list, const unsigned char *flat)
{
    struct list expected = *list;
    for (int i = 0; i < list->n; i++)
        expected.iov[i].iov_base = expected.memory + ((unsigned char *)list->iov[i].iov_base - list->memory);
    fill(&expected, flat);
    return memcmp(expected.memory, list->memory, ROOM) == 0;
}

/* The pieces of the window, as the peer names them: of bytes or of elements. */
static void name(struct fi_rma_iov *bytes, struct fi_rma_ioc *elements)
{
    int is_virtual = (info->domain_attr->mr_mode & FI_MR_VIRT_ADDR) != 0 || info->domain_attr->mr_mode == FI_MR_BASIC;
    for (int i = 0; i < window.n; i++) {
        unsigned char *at = window.iov[i].iov_base;
        uint64_t addr = is_virtual ? (uintptr_t)at : (uint64_t)(at - window.memory);
        bytes[i] = (struct fi_rma_iov){ addr, window.iov[i].iov_len, fi_mr_key(mr) };
        elements[i] = (struct fi_rma_ioc){ addr, window.ioc[i].count, fi_mr_key(mr) };
    }
}

static void done(void *context)
{
    struct fi_cq_tagged_entry entry;
    IS(next_of(&a, &entry, NULL), 1);
    CHECK(entry.op_context == context);
}

static void writes_and_reads(struct fi_rma_iov *remote, const unsigned char *old, const unsigned char *new)
{
    struct fi_msg_rma msg = { operand.iov, NULL, operand.n, peer, remote, window.n, &msg, 99 };
    struct fi_cq_tagged_entry entry;

    fill(&operand, new);
    for (int i = 0; i < 3; i++) {
        uint64_t flags[] = { FI_COMPLETION | FI_DELIVERY_COMPLETE, FI_COMPLETION | FI_REMOTE_CQ_DATA,
                             FI_COMPLETION | FI_DELIVERY_COMPLETE | FI_INJECT };
        fill(&window, old);
        OK(fi_writemsg(a.ep, &msg, flags[i]));
        done(&msg);
        if (flags[i] & FI_REMOTE_CQ_DATA) {
            IS(next_of(&b, &entry, NULL), 1);
            CHECK(entry.data == 99);
        }
        CHECK(holds(&window, new));
    }
    fill(&result, old);
    msg.msg_iov = result.iov;
    msg.iov_count = result.n;
    OK(fi_readmsg(a.ep, &msg, FI_COMPLETION));
    done(&msg);
    CHECK(holds(&result, new));
    if (window.n == 1) {
        fill(&window, old);
        OK(fi_writev(a.ep, operand.iov, NULL, operand.n, peer, remote->addr, remote->key, remote));
        done(remote);
        fill(&result, old);
        OK(fi_readv(a.ep, result.iov, NULL, result.n, peer, remote->addr, remote->key, remote));
        done(remote);
        CHECK(holds(&window, new) && holds(&result, new));
    }
}

static void atomics(struct fi_rma_ioc *remote, const unsigned char *old, const unsigned char *new)
{
    enum fi_datatype type = size == 1 ? FI_UINT8 : FI_UINT64;
    struct fi_msg_atomic msg = { operand.ioc, NULL, operand.n, peer, remote, window.n, type, FI_ATOMIC_WRITE, &msg, 0 };
    uint64_t flags[] = { FI_COMPLETION | FI_DELIVERY_COMPLETE, FI_COMPLETION | FI_DELIVERY_COMPLETE | FI_INJECT };

    fill(&operand, new);
    for (int i = 0; i < 2; i++) {
        fill(&window, old);
        msg.op = FI_ATOMIC_WRITE;
        OK(fi_atomicmsg(a.ep, &msg, flags[i]));
        done(&msg);
        CHECK(holds(&window, new));
        fill(&window, old);
        fill(&result, new);
        OK(fi_fetch_atomicmsg(a.ep, &msg, result.ioc, NULL, result.n, flags[i]));
        done(&msg);
        CHECK(holds(&window, new) && holds(&result, old));
        fill(&window, old);
        fill(&result, new);
        fill(&than, old);
        msg.op = FI_CSWAP;
        OK(fi_compare_atomicmsg(a.ep, &msg, than.ioc, NULL, than.n, result.ioc, NULL, result.n, flags[i]));
        done(&msg);
        CHECK(holds(&window, new) && holds(&result, old));
    }
    if (window.n == 1) {
        uint64_t at = remote->addr, key = remote->key;
        fill(&window, old);
        OK(fi_atomicv(a.ep, operand.ioc, NULL, operand.n, peer, at, key, type, FI_ATOMIC_WRITE, remote));
        done(remote);
        CHECK(holds(&window, new));
        fill(&window, old);
        OK(fi_fetch_atomicv(a.ep, operand.ioc, NULL, operand.n, result.ioc, NULL, result.n, peer, at, key, type,
                            FI_ATOMIC_WRITE, remote));
        done(remote);
        CHECK(holds(&window, new) && holds(&result, old));
        fill(&window, old);
        fill(&result, new);
        OK(fi_compare_atomicv(a.ep, operand.ioc, NULL, operand.n, than.ioc, NULL, than.n, result.ioc, NULL, result.n,
                              peer, at, key, type, FI_CSWAP, remote));
        done(remote);
        CHECK(holds(&window, new) && holds(&result, old));
    }
}

/* One piece more than the limits, at each place in turn. */
static void too_many(struct fi_rma_iov *bytes, struct fi_rma_ioc *elements)
{
    for (int place = 0; place < 4; place++) {
        int n[4] = { 1, 1, 1, 1 };
        n[place] = place == 3 ? THERE + 1 : HERE + 1;
        cut(&operand, n[0]);
        cut(&result, n[1]);
        cut(&than, n[2]);
        cut(&window, n[3]);
        name(bytes, elements);
        struct fi_msg_rma rma = { operand.iov, NULL, n[0], peer, bytes, n[3], NULL, 0 };
        struct fi_msg_atomic atomic = { operand.ioc, NULL, n[0], peer, elements, n[3], FI_UINT8, FI_CSWAP, NULL, 0 };
        if (place == 0 || place == 3) {
            IS(fi_writemsg(a.ep, &rma, FI_COMPLETION), -FI_EINVAL);
            IS(fi_readmsg(a.ep, &rma, FI_COMPLETION), -FI_EINVAL);
        }
        IS(fi_compare_atomicmsg(a.ep, &atomic, than.ioc, NULL, n[2], result.ioc, NULL, n[1], FI_COMPLETION), -FI_EINVAL);
    }
}

int main(int argc, char **argv)
{
    unsigned char old[8 * TOTAL], new[8 * TOTAL];
    struct fi_rma_iov bytes[THERE + 1];
    struct fi_rma_ioc elements[THERE + 1];

    mr_mode = argc > 1 ? atoi(argv[1]) : 0;
    open_ends(FI_MSG | FI_RMA | FI_ATOMIC, 0, argv);
    CHECK(info->tx_attr->iov_limit == HERE && info->tx_attr->rma_iov_limit == THERE);
    OK(fi_mr_reg(domain, window.memory, ROOM, FI_REMOTE_READ | FI_REMOTE_WRITE, 0, KEY, 0, &mr, NULL));
    IS(fi_av_insert(a.av, b.name, 1, &peer, 0, NULL), 1);
    for (size = 1; size <= 8; size *= 8) {
        for (int here = 1; here <= HERE; here++) {
            for (int there = 1; there <= THERE; there++) {
                for (int i = 0; i < 8 * TOTAL; i++) {
                    old[i] = rand() % 251;
                    new[i] = rand() % 251;
                }
                cut(&operand, here);
                cut(&than, HERE + 1 - here);
                cut(&result, here * 3 % HERE + 1);
                cut(&window, there);
                name(bytes, elements);
                writes_and_reads(bytes, old, new);
                atomics(elements, old, new);
            }
        }
    }
    size = 1;
    too_many(bytes, elements);
    OK(fi_close(&mr->fid));
    close_ends();
    return 0;
}

/* A verbs program for the tests of softefa (tests/tests/softefa/edges.rs): what programs do at the edge of the contract, where a
 * NIC answers with a status and no program crashes or hangs. One scene per argument. */
/* For RTLD_DEFAULT. */
#define _GNU_SOURCE
#include "verbs_common.h"

#include <dlfcn.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/time.h>

static const uint8_t constant[4096] = {1};

/* Memory that may not be written is registered for reading only. */
static void scene_readonly(void) {
    CHECK(!ibv_reg_mr(pd, (void *)constant, sizeof(constant), IBV_ACCESS_LOCAL_WRITE) && errno == EFAULT);
    struct ibv_mr *read = ibv_reg_mr(pd, (void *)constant, sizeof(constant), 0);
    CHECK(read && ibv_dereg_mr(read) == 0);
    long page = sysconf(_SC_PAGESIZE);
    uint8_t *room = mmap(NULL, 3 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(room != MAP_FAILED);
    CHECK(mprotect(room + page, page, PROT_READ) == 0);
    CHECK(!ibv_reg_mr(pd, room, 3 * page, IBV_ACCESS_LOCAL_WRITE) && errno == EFAULT);
    CHECK(!ibv_reg_mr(pd, room, 3 * page, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE) && errno == EFAULT);
    CHECK(munmap(room + page, page) == 0);
    CHECK(!ibv_reg_mr(pd, room, 3 * page, 0) && errno == EFAULT);
    struct ibv_mr *first = ibv_reg_mr(pd, room, page, IBV_ACCESS_LOCAL_WRITE);
    CHECK(first && ibv_dereg_mr(first) == 0 && munmap(room, 3 * page) == 0);
}

static uint8_t *fresh(size_t len) {
    uint8_t *room = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(room != MAP_FAILED);
    memset(room, 1, len);
    return room;
}

static struct ibv_wc rdma(struct side from, struct side to, int write, const struct ibv_mr *local,
                          const struct ibv_mr *remote, int len) {
    struct ibv_qp_ex *qp = ibv_qp_to_qp_ex(from.qp);
    ibv_wr_start(qp);
    qp->wr_id = 1;
    qp->wr_flags = IBV_SEND_SIGNALED;
    if (write)
        ibv_wr_rdma_write(qp, remote->rkey, (uintptr_t)remote->addr);
    else
        ibv_wr_rdma_read(qp, remote->rkey, (uintptr_t)remote->addr);
    ibv_wr_set_sge(qp, local->lkey, (uintptr_t)local->addr, len);
    ibv_wr_set_ud_addr(qp, ah, to.qp->qp_num, QKEY);
    CHECK(ibv_wr_complete(qp) == 0);
    return polled(from);
}

/* Registered memory that is gone is an error of the request, on either side, and not of the program. */
static void scene_unmapped(void) {
    enum { LONG = 8000, BIG = 1 << 20 };
    int all = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE;
    send_ops |= IBV_QP_EX_WITH_RDMA_READ | IBV_QP_EX_WITH_RDMA_WRITE;
    struct side a = open_side(IBV_QPT_DRIVER, 7), b = open_side(IBV_QPT_DRIVER, 7);
    struct ibv_mr *stays = ibv_reg_mr(pd, fresh(BIG), BIG, all);
    for (int len = 8; len <= LONG; len += LONG - 8) {
        uint8_t *out = fresh(LONG), *in = fresh(LONG);
        struct ibv_mr *from = ibv_reg_mr(pd, out, LONG, all), *to = ibv_reg_mr(pd, in, LONG, all);
        CHECK(stays && from && to);
        struct ibv_sge sge = {(uintptr_t)in, LONG, to->lkey};
        receive(b, 1, &sge, 1);
        CHECK(munmap(in, LONG) == 0);
        post(a, b, stays, stays->addr, len);
        CHECK(polled(a).status == IBV_WC_SUCCESS);
        struct ibv_wc wc = polled(b);
        CHECK(wc.status == IBV_WC_LOC_PROT_ERR && wc.vendor_err == 5);
        CHECK(munmap(out, LONG) == 0);
        receive_one(b, 2, 0, LONG);
        post(a, b, from, from->addr, len);
        wc = polled(a);
        CHECK(wc.status == IBV_WC_LOC_PROT_ERR && wc.vendor_err == 5);
        /* It has not used the receive. */
        nothing(b);
        post(a, b, stays, stays->addr, len);
        CHECK(polled(a).status == IBV_WC_SUCCESS && polled(b).status == IBV_WC_SUCCESS);
        for (int write = 0; write < 2; write++) {
            CHECK(rdma(a, b, write, stays, to, len).status == IBV_WC_REM_ACCESS_ERR);
            CHECK(rdma(a, b, write, from, stays, len).status == IBV_WC_LOC_PROT_ERR);
            CHECK(rdma(a, b, write, stays, stays, len).status == IBV_WC_SUCCESS);
        }
        CHECK(ibv_dereg_mr(from) == 0 && ibv_dereg_mr(to) == 0);
    }
    /* By the C library's own call. */
    void *block = malloc(BIG);
    struct ibv_mr *freed = ibv_reg_mr(pd, memset(block, 1, BIG), BIG, all);
    CHECK(freed);
    free(block);
    receive_one(b, 2, 0, LONG);
    post(a, b, freed, freed->addr, LONG);
    CHECK(polled(a).status == IBV_WC_LOC_PROT_ERR);
    nothing(b);
    CHECK(ibv_dereg_mr(freed) == 0);
    /* Pages given back are still there. */
    CHECK(madvise(stays->addr, BIG, MADV_DONTNEED) == 0);
    post(a, b, stays, stays->addr, LONG);
    CHECK(polled(a).status == IBV_WC_SUCCESS && polled(b).status == IBV_WC_SUCCESS && bytes[0] == 0);
    close_side(a), close_side(b);
    CHECK(ibv_dereg_mr(stays) == 0);
}

/* Rights taken away after registration. Other memory, and the receive that a failed send would have used, go on. */
static void scene_protected(void) {
    enum { LONG = 8000 };
    struct side a = open_side(IBV_QPT_DRIVER, 7), b = open_side(IBV_QPT_DRIVER, 7);
    struct ibv_mr *stays = ibv_reg_mr(pd, fresh(LONG), LONG, IBV_ACCESS_LOCAL_WRITE);
    struct ibv_mr *goes = ibv_reg_mr(pd, fresh(LONG), LONG, IBV_ACCESS_LOCAL_WRITE);
    CHECK(stays && goes);
    receive_one(b, 2, 0, LONG);
    CHECK(mprotect(goes->addr, LONG, PROT_NONE) == 0);
    for (int len = 8; len <= LONG; len += LONG - 8) {
        post(a, b, goes, goes->addr, len);
        struct ibv_wc wc = polled(a);
        CHECK(wc.status == IBV_WC_LOC_PROT_ERR && wc.vendor_err == 5);
        nothing(b);
    }
    post(a, b, stays, stays->addr, LONG);
    CHECK(polled(a).status == IBV_WC_SUCCESS && polled(b).status == IBV_WC_SUCCESS && bytes[0] == 1);
    CHECK(mprotect(goes->addr, LONG, PROT_READ) == 0);
    struct ibv_sge sge = {(uintptr_t)goes->addr, LONG, goes->lkey};
    for (int len = 8; len <= LONG; len += LONG - 8) {
        receive(b, 1, &sge, 1);
        post(a, b, stays, stays->addr, len);
        CHECK(polled(a).status == IBV_WC_SUCCESS);
        CHECK(polled(b).status == IBV_WC_LOC_PROT_ERR);
    }
    close_side(a), close_side(b);
    CHECK(ibv_dereg_mr(stays) == 0 && ibv_dereg_mr(goes) == 0);
}

static struct side polled_side;

/* What a library's exit handler does. */
static void close_all(void) {
    ibv_destroy_qp(polled_side.qp);
    ibv_destroy_cq(polled_side.cq);
    ibv_destroy_ah(ah);
    ibv_dereg_mr(mr);
    ibv_dealloc_pd(pd);
    ibv_close_device(ctx);
}

static void leave(int signal) {
    (void)signal;
    exit(0);
}

/* exit() from a signal handler that interrupts a poll, in several processes at different times. */
static void scene_exits(void) {
    enum { CHILDREN = 16 };
    for (int i = 0; i < CHILDREN; i++) {
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            open_device();
            polled_side = open_side(IBV_QPT_DRIVER, 7);
            CHECK(atexit(close_all) == 0 && signal(SIGALRM, leave) != SIG_ERR);
            struct itimerval timer = {.it_value = {.tv_usec = 1000 + 37 * i}};
            CHECK(setitimer(ITIMER_REAL, &timer, NULL) == 0);
            for (;;)
                nothing(polled_side);
        }
    }
    for (int i = 0; i < CHILDREN; i++) {
        int status = -1;
        CHECK(wait(&status) > 0 && status == 0);
    }
}

/* What ibv_reg_mr_ex takes, for headers that do not have it yet. */
struct later_mr_attr {
    size_t length;
    int access;
    uint64_t comp_mask;
    uint64_t iova;
    void *addr;
};

/* Calls of rdma-core 62 to 65, as a program finds them that was built with it. */
static void scene_later(void) {
    int (*speed_of)(struct ibv_context *, uint32_t, uint64_t *) = dlsym(RTLD_DEFAULT, "ibv_query_port_speed");
    struct ibv_mr *(*reg)(struct ibv_pd *, struct later_mr_attr *) = dlsym(RTLD_DEFAULT, "ibv_reg_mr_ex");
    void *(*alloc_dmah)(struct ibv_context *, void *) = dlsym(RTLD_DEFAULT, "ibv_alloc_dmah");
    CHECK(speed_of && reg && alloc_dmah);
    uint64_t speed = 0;
    CHECK(speed_of(ctx, 1, &speed) == 0 && speed == 1000);
    CHECK(speed_of(ctx, 2, &speed) != 0);
    struct later_mr_attr attr = {4096, IBV_ACCESS_LOCAL_WRITE, 2, 0, fresh(4096)};
    struct ibv_mr *ours = reg(pd, &attr);
    CHECK(ours && ours->addr == attr.addr && ours->length == 4096 && ibv_dereg_mr(ours) == 0);
    attr.comp_mask = 4;
    CHECK(!reg(pd, &attr) && errno == EOPNOTSUPP);
    uint64_t init[4] = {0};
    CHECK(!alloc_dmah(ctx, init) && errno == EOPNOTSUPP);
}

int main(int argc, char **argv) {
    const char *scene = argc > 1 ? argv[1] : "";
    open_device();
    if (!strcmp(scene, "readonly"))
        scene_readonly();
    else if (!strcmp(scene, "unmapped"))
        scene_unmapped();
    else if (!strcmp(scene, "later"))
        scene_later();
    else if (!strcmp(scene, "protected"))
        scene_protected();
    else if (!strcmp(scene, "exits"))
        scene_exits();
    else
        CHECK(!"a scene");
    close_device();
    return 0;
}

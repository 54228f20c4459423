/* Common to the verbs programs of the tests: a device, queue pairs on it, sends, receives and polls. */
#pragma GCC diagnostic ignored "-Wunused-function"
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <infiniband/efadv.h>
#include <infiniband/verbs.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(what)                                                                                         \
    do {                                                                                                    \
        if (!(what)) {                                                                                      \
            fprintf(stderr, "%s:%d: %s (errno %d)\n", __func__, __LINE__, #what, errno);                     \
            exit(1);                                                                                        \
        }                                                                                                   \
    } while (0)

enum { LEN = 1 << 16, QKEY = 0x77 };

static struct ibv_context *ctx;
static struct ibv_pd *pd;
static struct ibv_mr *mr;
static struct ibv_ah *ah;
static uint8_t *bytes;
/* Operations of reliable queue pairs. */
static uint64_t send_ops = IBV_QP_EX_WITH_SEND;

struct side {
    struct ibv_comp_channel *channel;
    struct ibv_cq *cq;
    struct ibv_qp *qp;
};

static void open_device(void) {
    int n = 0;
    struct ibv_device **list = ibv_get_device_list(&n);
    CHECK(list && n == 1);
    ctx = ibv_open_device(list[0]);
    CHECK(ctx);
    ibv_free_device_list(list);
    pd = ibv_alloc_pd(ctx);
    CHECK(pd);
    bytes = calloc(1, LEN);
    mr = ibv_reg_mr(pd, bytes, LEN, IBV_ACCESS_LOCAL_WRITE);
    CHECK(mr);
    struct ibv_ah_attr attr = {.is_global = 1, .port_num = 1};
    CHECK(ibv_query_gid(ctx, 1, 0, &attr.grh.dgid) == 0);
    ah = ibv_create_ah(pd, &attr);
    CHECK(ah);
}

static struct side open_side_of(int type, int retries, struct ibv_qp_cap cap) {
    struct side s;
    s.channel = ibv_create_comp_channel(ctx);
    CHECK(s.channel);
    s.cq = ibv_create_cq(ctx, 64, bytes, s.channel, 0);
    CHECK(s.cq);
    if (type == IBV_QPT_UD) {
        struct ibv_qp_init_attr init = {
            .send_cq = s.cq, .recv_cq = s.cq, .cap = cap, .qp_type = type, .sq_sig_all = 1};
        s.qp = ibv_create_qp(pd, &init);
    } else {
        struct ibv_qp_init_attr_ex init = {
            .send_cq = s.cq, .recv_cq = s.cq, .cap = cap, .qp_type = type, .sq_sig_all = 1,
            .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS, .pd = pd,
            .send_ops_flags = send_ops};
        struct efadv_qp_init_attr efa = {.driver_qp_type = EFADV_QP_DRIVER_TYPE_SRD};
        s.qp = efadv_create_qp_ex(ctx, &init, &efa, sizeof(efa));
    }
    CHECK(s.qp);
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = QKEY};
    CHECK(ibv_modify_qp(s.qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY) == 0);
    attr.qp_state = IBV_QPS_RTR;
    CHECK(ibv_modify_qp(s.qp, &attr, IBV_QP_STATE) == 0);
    attr.qp_state = IBV_QPS_RTS;
    attr.rnr_retry = retries;
    int mask = IBV_QP_STATE | IBV_QP_SQ_PSN | (type == IBV_QPT_UD ? 0 : IBV_QP_RNR_RETRY);
    CHECK(ibv_modify_qp(s.qp, &attr, mask) == 0);
    return s;
}

static struct side open_side(int type, int retries) {
    struct ibv_qp_cap cap = {16, 16, 2, 3, 8};
    return open_side_of(type, retries, cap);
}

static void close_side(struct side s) {
    CHECK(ibv_destroy_qp(s.qp) == 0 && ibv_destroy_cq(s.cq) == 0);
    CHECK(ibv_destroy_comp_channel(s.channel) == 0);
}

static void close_device(void) {
    CHECK(ibv_destroy_ah(ah) == 0 && ibv_dereg_mr(mr) == 0 && ibv_dealloc_pd(pd) == 0);
    CHECK(ibv_close_device(ctx) == 0);
}

static void post(struct side from, struct side to, const struct ibv_mr *of, const void *at, int len) {
    struct ibv_sge sge = {(uintptr_t)at, len, of->lkey};
    struct ibv_send_wr wr = {.wr_id = 1, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND,
                             .send_flags = IBV_SEND_SIGNALED}, *bad;
    wr.wr.ud.ah = ah;
    wr.wr.ud.remote_qpn = to.qp->qp_num;
    wr.wr.ud.remote_qkey = QKEY;
    CHECK(ibv_post_send(from.qp, &wr, &bad) == 0);
}

static void send_to(struct side from, struct side to, int at, int len) {
    post(from, to, mr, bytes + at, len);
}

static void receive(struct side s, int id, const struct ibv_sge *pieces, int n) {
    struct ibv_sge list[3];
    memcpy(list, pieces, n * sizeof(*pieces));
    struct ibv_recv_wr wr = {.wr_id = id, .sg_list = list, .num_sge = n}, *bad;
    CHECK(ibv_post_recv(s.qp, &wr, &bad) == 0);
}

static void receive_one(struct side s, int id, int at, int len) {
    struct ibv_sge sge = {(uintptr_t)bytes + at, len, mr->lkey};
    receive(s, id, &sge, 1);
}

/* Polls until there is something, for at most about five seconds. */
static struct ibv_wc polled(struct side s) {
    struct ibv_wc wc;
    for (int i = 0; i < 5000; i++) {
        int n = ibv_poll_cq(s.cq, 1, &wc);
        CHECK(n >= 0);
        if (n == 1)
            return wc;
        usleep(1000);
    }
    CHECK(!"a completion");
    return wc;
}

static int nothing(struct side s) {
    struct ibv_wc wc;
    return ibv_poll_cq(s.cq, 1, &wc) == 0;
}

/* Whether the channel becomes readable within so many milliseconds. */
static int readable(struct side s, int ms) {
    struct pollfd fd = {.fd = s.channel->fd, .events = POLLIN};
    return poll(&fd, 1, ms) == 1;
}

static void take_event(struct side s) {
    struct ibv_cq *cq = NULL;
    void *context = NULL;
    CHECK(ibv_get_cq_event(s.channel, &cq, &context) == 0);
    CHECK(cq == s.cq && context == bytes);
    ibv_ack_cq_events(cq, 1);
}

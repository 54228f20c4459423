/* A verbs program for the tests of softefa (tests/tests/softefa/verbs_programs.rs): one scene per argument, each in one process
 * with two queue pairs of one device. Prints what went wrong and where; says nothing if all is well. */
/* For RTLD_DEFAULT. */
#define _GNU_SOURCE
#include "verbs_common.h"

#include <dlfcn.h>

static void *ready_later(void *side) {
    usleep(50 * 1000);
    receive_one(*(struct side *)side, 9, 0, 100);
    return NULL;
}

/* A channel is silent unless armed, fires once, and wakes a sender whose receiver was not ready. */
static void scene_events(void) {
    struct side a = open_side(IBV_QPT_DRIVER, 7), b = open_side(IBV_QPT_DRIVER, 7);
    receive_one(b, 1, 1000, 100);
    send_to(a, b, 0, 10);
    CHECK(!readable(b, 20));
    CHECK(polled(b).wr_id == 1 && polled(a).status == IBV_WC_SUCCESS);

    CHECK(ibv_req_notify_cq(b.cq, 0) == 0);
    CHECK(!readable(b, 20));
    receive_one(b, 2, 1000, 100);
    receive_one(b, 3, 1000, 100);
    send_to(a, b, 0, 10);
    CHECK(readable(b, 60000));
    take_event(b);
    send_to(a, b, 0, 10);
    CHECK(!readable(b, 20));
    CHECK(polled(b).wr_id == 2 && polled(b).wr_id == 3);
    CHECK(polled(a).status == 0 && polled(a).status == 0);

    /* What came before the arming counts too: nobody sleeps on it. */
    receive_one(b, 4, 1000, 100);
    send_to(a, b, 0, 10);
    CHECK(ibv_req_notify_cq(b.cq, 0) == 0);
    CHECK(readable(b, 60000));
    take_event(b);
    CHECK(polled(b).wr_id == 4 && polled(a).status == 0);

    /* An event that nobody has read stays, also if the queue is armed again. */
    receive_one(b, 5, 1000, 100);
    CHECK(ibv_req_notify_cq(b.cq, 0) == 0);
    send_to(a, b, 0, 10);
    CHECK(readable(b, 60000));
    CHECK(polled(b).wr_id == 5 && polled(a).status == 0 && nothing(b));
    CHECK(ibv_req_notify_cq(b.cq, 0) == 0);
    CHECK(readable(b, 20));
    take_event(b);
    CHECK(!readable(b, 20));

    CHECK(fcntl(b.channel->fd, F_SETFL, O_NONBLOCK) == 0);
    struct ibv_cq *cq;
    void *context;
    CHECK(ibv_get_cq_event(b.channel, &cq, &context) == -1 && errno == EAGAIN);
    CHECK(ibv_req_notify_cq(b.cq, 1) == EOPNOTSUPP);

    /* The sender sleeps; nobody polls its queue; the receiver comes later. */
    pthread_t thread;
    CHECK(ibv_req_notify_cq(a.cq, 0) == 0);
    send_to(a, b, 0, 10);
    CHECK(pthread_create(&thread, NULL, ready_later, &b) == 0);
    CHECK(readable(a, 60000));
    take_event(a);
    CHECK(polled(a).status == IBV_WC_SUCCESS && polled(b).wr_id == 9);
    pthread_join(thread, NULL);
    close_side(a), close_side(b);
}

/* Under SOFTEFA_DELAY: what was posted arrives although the poster never polls. */
static void scene_held(void) {
    struct side a = open_side(IBV_QPT_DRIVER, 7), b = open_side(IBV_QPT_DRIVER, 7);
    receive_one(b, 1, 1000, 100);
    memcpy(bytes, "held", 4);
    send_to(a, b, 0, 4);
    CHECK(nothing(b));
    CHECK(polled(b).byte_len == 4 && memcmp(bytes + 1000, "held", 4) == 0);
    /* One more is under way when everything is closed. */
    receive_one(b, 2, 1000, 100);
    send_to(a, b, 0, 4);
    close_side(a), close_side(b);
}

/* A receive in three pieces; the retries at a receiver that is not ready are counted. */
static void scene_reliable(void) {
    struct side a = open_side(IBV_QPT_DRIVER, 0), b = open_side(IBV_QPT_DRIVER, 7);
    uintptr_t base = (uintptr_t)bytes;
    struct ibv_sge list[3] = {{base + 1000, 3, mr->lkey}, {base + 2000, 4, mr->lkey}, {base + 3000, 50, mr->lkey}};
    receive(b, 1, list, 3);
    memcpy(bytes, "abcdefghij", 10);
    send_to(a, b, 0, 10);
    struct ibv_wc wc = polled(b);
    CHECK(wc.status == 0 && wc.byte_len == 10 && wc.opcode == IBV_WC_RECV && wc.src_qp == a.qp->qp_num);
    CHECK(!memcmp(bytes + 1000, "abc", 3) && !memcmp(bytes + 2000, "defg", 4) && !memcmp(bytes + 3000, "hij", 3));
    CHECK(polled(a).status == IBV_WC_SUCCESS);
    send_to(a, b, 0, 10);
    wc = polled(a);
    CHECK(wc.status == IBV_WC_RNR_RETRY_EXC_ERR && wc.vendor_err == 10);
    /* No queue pair of that number. */
    struct side gone = open_side(IBV_QPT_DRIVER, 7);
    struct side copy = gone;
    struct ibv_qp dead = {.qp_num = gone.qp->qp_num};
    close_side(gone);
    copy.qp = &dead;
    send_to(a, copy, 0, 10);
    wc = polled(a);
    CHECK(wc.status == IBV_WC_REM_INV_RD_REQ_ERR && wc.vendor_err == 9);
    close_side(a), close_side(b);
}

/* Datagrams: 40 bytes of network header in front; what finds no receive, or one too short, is lost without a word. */
static void scene_datagrams(void) {
    struct side a = open_side(IBV_QPT_UD, 0), b = open_side(IBV_QPT_UD, 0);
    memcpy(bytes, "datagram", 8);
    send_to(a, b, 0, 8);
    CHECK(polled(a).status == IBV_WC_SUCCESS);
    receive_one(b, 1, 1000, 47);
    send_to(a, b, 0, 8);
    CHECK(polled(a).status == IBV_WC_SUCCESS && nothing(b));
    send_to(a, b, 0, 7);
    struct ibv_wc wc = polled(b);
    CHECK(wc.wr_id == 1 && wc.byte_len == 47 && !memcmp(bytes + 1040, "datagra", 7));
    union ibv_gid gid;
    struct ibv_grh *grh = (struct ibv_grh *)(bytes + 1000);
    CHECK(ibv_query_gid(ctx, 1, 0, &gid) == 0);
    CHECK(grh->paylen == htons(7) && !memcmp(&grh->sgid, &gid, 16) && !memcmp(&grh->dgid, &gid, 16));
    uintptr_t base = (uintptr_t)bytes;
    struct ibv_sge list[2] = {{base + 2000, 42, mr->lkey}, {base + 3000, 100, mr->lkey}};
    receive(b, 2, list, 2);
    send_to(a, b, 0, 8);
    wc = polled(b);
    CHECK(wc.wr_id == 2 && wc.byte_len == 48);
    CHECK(!memcmp(bytes + 2040, "da", 2) && !memcmp(bytes + 3000, "tagram", 6));
    struct ibv_sge shy = {base, 39, mr->lkey};
    struct ibv_recv_wr wr = {.sg_list = &shy, .num_sge = 1}, *bad = NULL;
    CHECK(ibv_post_recv(b.qp, &wr, &bad) == EINVAL && bad == &wr);
    CHECK(polled(a).status == 0 && polled(a).status == 0);
    close_side(a), close_side(b);
}

enum { POSTERS = 4, EACH = 2000, WINDOW = 16 };

static struct side busy, target;
static int credits = WINDOW / 2, seen[POSTERS * EACH];
static pthread_mutex_t credit_lock = PTHREAD_MUTEX_INITIALIZER;

static int take_credit(void) {
    pthread_mutex_lock(&credit_lock);
    int got = credits > 0;
    credits -= got;
    pthread_mutex_unlock(&credit_lock);
    return got;
}

/* Sends its own numbers from its own eight bytes; a number stays there until the send's completion gave the credit back. */
static void *poster(void *number) {
    int me = (int)(intptr_t)number;
    for (int i = 0; i < EACH; i++) {
        while (!take_credit())
            sched_yield();
        uint32_t value = me * EACH + i;
        struct ibv_sge sge = {(uintptr_t)&value, sizeof(value), 0};
        struct ibv_send_wr wr = {.wr_id = value, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND,
                                 .send_flags = IBV_SEND_SIGNALED | IBV_SEND_INLINE}, *bad;
        wr.wr.ud.ah = ah;
        wr.wr.ud.remote_qpn = target.qp->qp_num;
        wr.wr.ud.remote_qkey = QKEY;
        CHECK(ibv_post_send(busy.qp, &wr, &bad) == 0);
    }
    return NULL;
}

/* Several threads post on one queue pair while another polls: every message arrives once, every send completes once. */
static void scene_threads(void) {
    pthread_t threads[POSTERS];
    busy = open_side(IBV_QPT_DRIVER, 7), target = open_side(IBV_QPT_DRIVER, 7);
    for (int i = 0; i < WINDOW; i++)
        receive_one(target, i, 4 * i, 4);
    for (intptr_t i = 0; i < POSTERS; i++)
        CHECK(pthread_create(&threads[i], NULL, poster, (void *)i) == 0);
    for (int sent = 0, received = 0; sent < POSTERS * EACH || received < POSTERS * EACH;) {
        struct ibv_wc wc;
        if (ibv_poll_cq(busy.cq, 1, &wc) == 1) {
            CHECK(wc.status == IBV_WC_SUCCESS);
            pthread_mutex_lock(&credit_lock);
            credits++;
            pthread_mutex_unlock(&credit_lock);
            sent++;
        }
        if (ibv_poll_cq(target.cq, 1, &wc) == 1) {
            uint32_t value;
            CHECK(wc.status == IBV_WC_SUCCESS && wc.byte_len == 4);
            memcpy(&value, bytes + 4 * wc.wr_id, 4);
            CHECK(value < POSTERS * EACH && !seen[value]++);
            receive_one(target, wc.wr_id, 4 * wc.wr_id, 4);
            received++;
        }
    }
    for (int i = 0; i < POSTERS; i++)
        CHECK(pthread_join(threads[i], NULL) == 0);
    close_side(busy), close_side(target);
}

static void round_trip(struct side a, struct side b) {
    receive_one(b, 1, 1000, 100);
    send_to(a, b, 0, 10);
    CHECK(polled(b).status == IBV_WC_SUCCESS && polled(a).status == IBV_WC_SUCCESS);
}

/* Children: one ends at once, one opens a device of its own. The parent's goes on in all this. */
static void scene_fork(void) {
    struct side a = open_side(IBV_QPT_DRIVER, 7), b = open_side(IBV_QPT_DRIVER, 7);
    round_trip(a, b);
    for (int own = 0; own < 2; own++) {
        receive_one(b, 2, 1000, 100);
        send_to(a, b, 0, 10);
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            if (own) {
                open_device();
                struct side c = open_side(IBV_QPT_DRIVER, 7), d = open_side(IBV_QPT_DRIVER, 7);
                round_trip(c, d);
                close_side(c), close_side(d);
                close_device();
            }
            exit(0);
        }
        CHECK(polled(b).wr_id == 2 && polled(a).status == IBV_WC_SUCCESS);
        round_trip(a, b);
        int status = -1;
        CHECK(waitpid(child, &status, 0) == child && status == 0);
        round_trip(a, b);
    }
    close_side(a), close_side(b);
}

enum { REGISTRARS = 4, REGISTRATIONS = 500, TIMES = 400 };

static void *registrar(void *unused) {
    static __thread uint8_t room[64];
    static __thread struct ibv_mr *all[REGISTRATIONS];
    for (int n = 0; n < TIMES; n++) {
        for (int i = 0; i < REGISTRATIONS; i++) {
            all[i] = ibv_reg_mr(pd, room, sizeof(room), IBV_ACCESS_LOCAL_WRITE);
            CHECK(all[i] && all[i]->lkey);
        }
        for (int i = 0; i < REGISTRATIONS; i++)
            CHECK(ibv_dereg_mr(all[i]) == 0);
    }
    return unused;
}

/* Threads register memory and give it back while messages go to and fro. */
static void scene_memory(void) {
    pthread_t threads[REGISTRARS];
    struct side a = open_side(IBV_QPT_DRIVER, 7), b = open_side(IBV_QPT_DRIVER, 7);
    for (int i = 0; i < REGISTRARS; i++)
        CHECK(pthread_create(&threads[i], NULL, registrar, NULL) == 0);
    for (int i = 0; i < 1000; i++)
        round_trip(a, b);
    for (int i = 0; i < REGISTRARS; i++)
        CHECK(pthread_join(threads[i], NULL) == 0);
    close_side(a), close_side(b);
}

static int acknowledged;

static void *acknowledge_later(void *cq) {
    usleep(200 * 1000);
    CHECK(((struct ibv_cq *)cq)->cq_context == bytes);
    __atomic_store_n(&acknowledged, 1, __ATOMIC_SEQ_CST);
    ibv_ack_cq_events(cq, 1);
    return NULL;
}

/* A queue whose event is not acknowledged yet is somebody's: who destroys it waits. */
static void scene_acknowledged(void) {
    struct side a = open_side(IBV_QPT_DRIVER, 7), b = open_side(IBV_QPT_DRIVER, 7);
    struct ibv_cq *cq;
    void *context;
    CHECK(ibv_req_notify_cq(b.cq, 0) == 0);
    round_trip(a, b);
    CHECK(ibv_get_cq_event(b.channel, &cq, &context) == 0 && cq == b.cq);
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, acknowledge_later, cq) == 0);
    CHECK(ibv_destroy_cq(b.cq) == EBUSY);
    CHECK(!__atomic_load_n(&acknowledged, __ATOMIC_SEQ_CST));
    CHECK(ibv_destroy_qp(b.qp) == 0 && ibv_destroy_cq(b.cq) == 0);
    CHECK(__atomic_load_n(&acknowledged, __ATOMIC_SEQ_CST));
    CHECK(pthread_join(thread, NULL) == 0 && ibv_destroy_comp_channel(b.channel) == 0);
    close_side(a);
}

static void begin_send(struct ibv_qp_ex *qp, int id, struct side to, int addressed) {
    qp->wr_id = id;
    qp->wr_flags = IBV_SEND_SIGNALED;
    ibv_wr_send(qp);
    ibv_wr_set_inline_data(qp, bytes, 4);
    if (addressed)
        ibv_wr_set_ud_addr(qp, ah, to.qp->qp_num, QKEY);
}

/* What is wrong with one request of a session keeps the others back too. */
static void scene_sessions(void) {
    struct side a = open_side(IBV_QPT_DRIVER, 7), b = open_side(IBV_QPT_DRIVER, 7);
    struct ibv_qp_ex *qp = ibv_qp_to_qp_ex(a.qp);
    receive_one(b, 1, 1000, 100), receive_one(b, 2, 1000, 100);
    ibv_wr_start(qp);
    begin_send(qp, 5, b, 1), begin_send(qp, 6, b, 0);
    CHECK(ibv_wr_complete(qp) == EINVAL);
    CHECK(nothing(a) && nothing(b));
    ibv_wr_start(qp);
    begin_send(qp, 7, b, 1);
    qp->wr_id = 8;
    ibv_wr_rdma_write(qp, mr->rkey, (uintptr_t)bytes);
    struct ibv_sge two[2] = {{(uintptr_t)bytes, 1, mr->lkey}, {(uintptr_t)bytes, 1, mr->lkey}};
    ibv_wr_set_sge_list(qp, 2, two);
    ibv_wr_set_ud_addr(qp, ah, b.qp->qp_num, QKEY);
    CHECK(ibv_wr_complete(qp) == EINVAL);
    CHECK(nothing(a) && nothing(b));
    ibv_wr_start(qp);
    begin_send(qp, 9, b, 1), begin_send(qp, 10, b, 1);
    CHECK(ibv_wr_complete(qp) == 0);
    CHECK(polled(a).wr_id == 9 && polled(a).wr_id == 10 && polled(b).wr_id == 1 && polled(b).wr_id == 2);
    close_side(a), close_side(b);
}

/* The C part of a queue as libefa of rdma-core 65 has it. */
struct later_cq {
    uint64_t comp_mask;
    int (*read_sgid)(struct efadv_cq *, union ibv_gid *);
    _Bool (*is_unsolicited)(struct efadv_cq *);
};

/* A word that came with a write has used a receive up, also one whose number is 0. */
static void scene_words(void) {
    struct side a = open_side(IBV_QPT_DRIVER, 7), b = open_side(IBV_QPT_DRIVER, 7);
    struct ibv_mr *open = ibv_reg_mr(pd, bytes, LEN, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
    struct ibv_qp_ex *qp = ibv_qp_to_qp_ex(a.qp);
    CHECK(open);
    receive_one(b, 0, 1000, 100);
    ibv_wr_start(qp);
    qp->wr_id = 1;
    qp->wr_flags = IBV_SEND_SIGNALED;
    ibv_wr_rdma_write_imm(qp, open->rkey, (uintptr_t)bytes + 2000, 77);
    ibv_wr_set_sge(qp, open->lkey, (uintptr_t)bytes, 8);
    ibv_wr_set_ud_addr(qp, ah, b.qp->qp_num, QKEY);
    CHECK(ibv_wr_complete(qp) == 0);
    CHECK(polled(a).status == IBV_WC_SUCCESS);
    struct ibv_cq_ex *cq = (struct ibv_cq_ex *)b.cq;
    struct efadv_cq *efa = efadv_cq_from_ibv_cq_ex(cq);
    struct ibv_poll_cq_attr none = {0};
    CHECK(ibv_start_poll(cq, &none) == 0);
    CHECK(cq->wr_id == 0 && ibv_wc_read_opcode(cq) == IBV_WC_RECV_RDMA_WITH_IMM);
    CHECK(!((struct later_cq *)efa)->is_unsolicited(efa));
    ibv_end_poll(cq);
    CHECK(ibv_dereg_mr(open) == 0);
    close_side(a), close_side(b);
}

/* A queue pair in the error state gives its receives back, takes nothing, and may be told again to be there. */
static void scene_failed(void) {
    struct side a = open_side(IBV_QPT_DRIVER, 7);
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_ERR};
    receive_one(a, 1, 1000, 100);
    CHECK(ibv_modify_qp(a.qp, &attr, IBV_QP_STATE) == 0);
    CHECK(ibv_modify_qp(a.qp, &attr, IBV_QP_STATE) == 0 && a.qp->state == IBV_QPS_ERR);
    struct ibv_wc wc = polled(a);
    CHECK(wc.wr_id == 1 && wc.status == IBV_WC_WR_FLUSH_ERR && wc.vendor_err == 1);
    struct ibv_sge sge = {(uintptr_t)bytes, 4, mr->lkey};
    struct ibv_recv_wr wr = {.sg_list = &sge, .num_sge = 1}, *bad = NULL;
    CHECK(ibv_post_recv(a.qp, &wr, &bad) == EINVAL && bad == &wr && nothing(a));
    attr.qp_state = IBV_QPS_RTS;
    CHECK(ibv_modify_qp(a.qp, &attr, IBV_QP_STATE) == EINVAL);
    close_side(a);
}

/* A queue pair tells what it was given. */
static void scene_queried(void) {
    struct side a = open_side(IBV_QPT_DRIVER, 3);
    struct ibv_qp_attr attr;
    struct ibv_qp_init_attr init;
    int mask = IBV_QP_STATE | IBV_QP_PORT | IBV_QP_QKEY | IBV_QP_SQ_PSN | IBV_QP_CAP | IBV_QP_RNR_RETRY;
    CHECK(ibv_query_qp(a.qp, &attr, mask, &init) == 0);
    CHECK(attr.qp_state == IBV_QPS_RTS && attr.port_num == 1 && attr.cap.max_send_wr == 16);
    CHECK(attr.qkey == QKEY && attr.rnr_retry == 3);
    CHECK(init.send_cq == a.cq && init.recv_cq == a.cq && init.qp_type == IBV_QPT_DRIVER);
    attr.qp_state = IBV_QPS_RTS, attr.qkey = 0x99;
    CHECK(ibv_modify_qp(a.qp, &attr, IBV_QP_STATE | IBV_QP_QKEY) == 0);
    CHECK(ibv_query_qp(a.qp, &attr, mask, &init) == 0 && attr.qkey == 0x99 && attr.rnr_retry == 3);
    close_side(a);
}

/* The error number of a send of the first bytes, in so many pieces. */
static int refused(struct side s, int pieces, unsigned flags, int len) {
    struct ibv_sge list[2] = {{(uintptr_t)bytes, len, mr->lkey}, {(uintptr_t)bytes, len, mr->lkey}};
    struct ibv_send_wr wr = {.wr_id = 1, .sg_list = list, .num_sge = pieces, .opcode = IBV_WR_SEND,
                             .send_flags = IBV_SEND_SIGNALED | flags}, *bad;
    wr.wr.ud.ah = ah;
    wr.wr.ud.remote_qpn = s.qp->qp_num;
    wr.wr.ud.remote_qkey = QKEY;
    return ibv_post_send(s.qp, &wr, &bad);
}

/* A queue pair takes as much as it was made for, not as much as the device can do. */
static void scene_capacities(void) {
    for (int type = 0; type < 2; type++) {
        struct ibv_qp_cap few = {16, 16, 1, 1, 0}, more = {16, 16, 2, 2, 8};
        struct side a = open_side_of(type ? IBV_QPT_DRIVER : IBV_QPT_UD, 7, few);
        struct side b = open_side_of(type ? IBV_QPT_DRIVER : IBV_QPT_UD, 7, more);
        struct ibv_sge list[3] = {
            {(uintptr_t)bytes, 50, mr->lkey}, {(uintptr_t)bytes, 50, mr->lkey}, {(uintptr_t)bytes, 50, mr->lkey}};
        struct ibv_recv_wr wr = {.sg_list = list, .num_sge = 2}, *bad = NULL;
        CHECK(ibv_post_recv(a.qp, &wr, &bad) == EINVAL && bad == &wr);
        CHECK(ibv_post_recv(b.qp, &wr, &bad) == 0);
        wr.num_sge = 3;
        CHECK(ibv_post_recv(b.qp, &wr, &bad) == EINVAL);
        wr.num_sge = 1;
        CHECK(ibv_post_recv(a.qp, &wr, &bad) == 0);
        CHECK(refused(a, 2, 0, 4) == EINVAL && refused(a, 1, IBV_SEND_INLINE, 1) == EINVAL);
        CHECK(refused(a, 1, 0, 4) == 0);
        CHECK(refused(b, 1, IBV_SEND_INLINE, 9) == EINVAL && refused(b, 2, IBV_SEND_INLINE, 5) == EINVAL);
        CHECK(refused(b, 2, IBV_SEND_INLINE, 4) == 0);
        struct ibv_qp_attr attr;
        struct ibv_qp_init_attr init;
        CHECK(ibv_query_qp(a.qp, &attr, IBV_QP_CAP, &init) == 0);
        CHECK(attr.cap.max_inline_data == 0 && attr.cap.max_send_sge == 1 && attr.cap.max_recv_sge == 1);
        if (type) {
            struct ibv_qp_ex *qp = ibv_qp_to_qp_ex(a.qp);
            ibv_wr_start(qp);
            ibv_wr_send(qp);
            ibv_wr_set_sge_list(qp, 2, list);
            ibv_wr_set_ud_addr(qp, ah, a.qp->qp_num, QKEY);
            CHECK(ibv_wr_complete(qp) == EINVAL);
            ibv_wr_start(qp);
            ibv_wr_send(qp);
            ibv_wr_set_inline_data(qp, bytes, 1);
            ibv_wr_set_ud_addr(qp, ah, a.qp->qp_num, QKEY);
            CHECK(ibv_wr_complete(qp) == EINVAL);
        }
        close_side(a), close_side(b);
    }
}

/* What a device may lack is EOPNOTSUPP, so that a program tries without it; what is wrong is EINVAL. */
static void scene_refusals(void) {
    struct ibv_cq *cq = ibv_create_cq(ctx, 64, NULL, NULL, 0);
    CHECK(cq);
    struct ibv_qp_cap cap = {16, 16, 1, 1, 0};
    struct ibv_qp_init_attr_ex init = {.send_cq = cq, .recv_cq = cq, .cap = cap, .qp_type = IBV_QPT_DRIVER,
                                       .comp_mask = IBV_QP_INIT_ATTR_PD, .pd = pd};
    /* With fields that the header may not have. */
    struct {
        uint64_t comp_mask;
        uint32_t driver_qp_type;
        uint16_t flags;
        uint8_t sl, reserved;
        uint64_t wr_flags;
    } efa = {.driver_qp_type = EFADV_QP_DRIVER_TYPE_SRD};
    struct efadv_qp_init_attr *given = (void *)&efa;
    efa.flags = 1 << 15;
    CHECK(!efadv_create_qp_ex(ctx, &init, given, sizeof(efa)) && errno == EOPNOTSUPP);
    efa.flags = 0, efa.wr_flags = 1 << 20;
    CHECK(!efadv_create_qp_ex(ctx, &init, given, sizeof(efa)) && errno == EOPNOTSUPP);
    efa.wr_flags = 0, efa.comp_mask = 1;
    CHECK(!efadv_create_qp_ex(ctx, &init, given, sizeof(efa)) && errno == EINVAL);
    efa.comp_mask = 0, init.qp_type = IBV_QPT_UD;
    CHECK(!efadv_create_qp_ex(ctx, &init, given, sizeof(efa)) && errno == EINVAL);
    struct ibv_qp_init_attr plain = {.send_cq = cq, .recv_cq = cq, .cap = cap, .qp_type = IBV_QPT_UD};
    CHECK(!efadv_create_driver_qp(pd, &plain, EFADV_QP_DRIVER_TYPE_SRD) && errno == EINVAL);
    plain.qp_type = IBV_QPT_DRIVER;
    CHECK(!efadv_create_driver_qp(pd, &plain, 7) && errno == EOPNOTSUPP);
    struct ibv_cq_init_attr_ex queue = {.cqe = 16};
    struct efadv_cq_init_attr wanted = {.wc_flags = 1 << 20};
    CHECK(!efadv_create_cq(ctx, &queue, &wanted, sizeof(wanted)) && errno == EOPNOTSUPP);
    wanted.wc_flags = 0, wanted.comp_mask = 1;
    CHECK(!efadv_create_cq(ctx, &queue, &wanted, sizeof(wanted)) && errno == EINVAL);
    CHECK(ibv_destroy_cq(cq) == 0);
}

/* Without descriptors a verb says so, and the device goes on once there are some again. */
static void scene_descriptors(void) {
    struct ibv_comp_channel *channel = ibv_create_comp_channel(ctx);
    CHECK(channel);
    struct rlimit was, none;
    CHECK(getrlimit(RLIMIT_NOFILE, &was) == 0);
    int next = dup(0);
    CHECK(next >= 0 && close(next) == 0);
    none = was, none.rlim_cur = next;
    CHECK(setrlimit(RLIMIT_NOFILE, &none) == 0);
    CHECK(!ibv_create_comp_channel(ctx) && errno == EMFILE);
    CHECK(!ibv_create_cq(ctx, 64, bytes, channel, 0) && errno == EMFILE);
    struct ibv_cq *cq = ibv_create_cq(ctx, 64, bytes, NULL, 0);
    if (cq) {
        struct ibv_qp_init_attr init = {
            .send_cq = cq, .recv_cq = cq, .cap = {16, 16, 2, 3, 8}, .qp_type = IBV_QPT_UD, .sq_sig_all = 1};
        CHECK(!ibv_create_qp(pd, &init) && errno == EMFILE);
        CHECK(ibv_destroy_cq(cq) == 0);
    } else
        CHECK(errno == EMFILE);
    CHECK(setrlimit(RLIMIT_NOFILE, &was) == 0 && ibv_destroy_comp_channel(channel) == 0);
    close_side(open_side(IBV_QPT_DRIVER, 7));
}

/* What UCX asks before it opens a device. */
static void scene_files(void) {
    struct stat st;
    CHECK(stat("/dev/infiniband/uverbs0", &st) == 0 && S_ISCHR(st.st_mode));
    CHECK(access("/dev/infiniband/uverbs0", R_OK | W_OK) == 0);
    CHECK(stat("/dev/infiniband/uverbs7", &st) == -1 && errno == ENOENT);
    CHECK(access("/no/such/file", F_OK) == -1 && errno == ENOENT);
    CHECK(stat("/proc/self/exe", &st) == 0 && S_ISREG(st.st_mode));
    /* The other forms, and those of programs built for a glibc before 2.33. */
    const char *ours = "/dev/infiniband/uverbs0";
    CHECK(lstat(ours, &st) == 0 && S_ISCHR(st.st_mode));
    CHECK(fstatat(AT_FDCWD, ours, &st, 0) == 0 && S_ISCHR(st.st_mode));
    CHECK(faccessat(AT_FDCWD, ours, R_OK | W_OK, 0) == 0);
    static const char *const by_version[] = {"__xstat", "__xstat64", "__lxstat", "__lxstat64"};
    for (unsigned i = 0; i < sizeof(by_version) / sizeof(*by_version); i++) {
        int (*form)(int, const char *, struct stat *) = dlsym(RTLD_DEFAULT, by_version[i]);
        memset(&st, 0, sizeof(st));
        CHECK(form && form(1, ours, &st) == 0 && S_ISCHR(st.st_mode));
        CHECK(form(1, "/dev/infiniband/uverbs7", &st) == -1 && errno == ENOENT);
    }
    int (*at)(int, int, const char *, struct stat *, int) = dlsym(RTLD_DEFAULT, "__fxstatat");
    CHECK(at && at(1, AT_FDCWD, ours, &st, 0) == 0 && S_ISCHR(st.st_mode));
}

/* Serves one queue pair and tells its number; then waits to be killed. */
static void scene_victim(void) {
    struct side b = open_side(IBV_QPT_DRIVER, 7);
    union ibv_gid gid;
    CHECK(ibv_query_gid(ctx, 1, 0, &gid) == 0);
    for (int i = 0; i < 16; i++)
        printf("%02x", gid.raw[i]);
    printf(" %u\n", b.qp->qp_num);
    fflush(stdout);
    pause();
}

/* Sends ten bytes to the queue pair of another process. */
static void send_away(struct side a, const char *gid_text, const char *qpn_text) {
    struct side to = a;
    struct ibv_ah_attr attr = {.is_global = 1, .port_num = 1};
    for (int i = 0; i < 16; i++) {
        unsigned byte;
        CHECK(sscanf(gid_text + 2 * i, "%2x", &byte) == 1);
        attr.grh.dgid.raw[i] = byte;
    }
    ibv_destroy_ah(ah);
    ah = ibv_create_ah(pd, &attr);
    CHECK(ah);
    struct ibv_qp there = {.qp_num = strtoul(qpn_text, NULL, 10)};
    to.qp = &there;
    send_to(a, to, 0, 10);
}

/* Gives up what root may do, and with it (or else by request) that others of its user may look at this process. */
static void become_hidden(int hidden) {
    if (geteuid() == 0)
        CHECK(setgid(65534) == 0 && setuid(65534) == 0);
    CHECK(prctl(PR_SET_DUMPABLE, !hidden, 0, 0, 0) == 0);
}

/* Sends to somebody it cannot look at. */
static void scene_stranger(const char *gid_text, const char *qpn_text) {
    struct side a = open_side(IBV_QPT_DRIVER, 7);
    send_away(a, gid_text, qpn_text);
    struct ibv_wc wc = polled(a);
    CHECK(wc.status == IBV_WC_RESP_TIMEOUT_ERR && wc.vendor_err == 15);
    close_side(a);
}

/* Sends to the victim, which is never ready, and sees it die. */
static void scene_mourner(const char *gid_text, const char *qpn_text) {
    struct side a = open_side(IBV_QPT_DRIVER, 7);
    send_away(a, gid_text, qpn_text);
    CHECK(nothing(a));
    printf("sent\n");
    fflush(stdout);
    struct ibv_wc wc = polled(a);
    CHECK(wc.status == IBV_WC_REM_INV_RD_REQ_ERR && wc.vendor_err == 9);
    close_side(a);
}

int main(int argc, char **argv) {
    const char *scene = argc > 1 ? argv[1] : "";
    if (!strcmp(scene, "hidden") || !strcmp(scene, "stranger"))
        become_hidden(!strcmp(scene, "hidden"));
    open_device();
    if (!strcmp(scene, "events"))
        scene_events();
    else if (!strcmp(scene, "held"))
        scene_held();
    else if (!strcmp(scene, "reliable"))
        scene_reliable();
    else if (!strcmp(scene, "datagrams"))
        scene_datagrams();
    else if (!strcmp(scene, "descriptors"))
        scene_descriptors();
    else if (!strcmp(scene, "files"))
        scene_files();
    else if (!strcmp(scene, "threads"))
        scene_threads();
    else if (!strcmp(scene, "memory"))
        scene_memory();
    else if (!strcmp(scene, "acknowledged"))
        scene_acknowledged();
    else if (!strcmp(scene, "sessions"))
        scene_sessions();
    else if (!strcmp(scene, "words"))
        scene_words();
    else if (!strcmp(scene, "failed"))
        scene_failed();
    else if (!strcmp(scene, "queried"))
        scene_queried();
    else if (!strcmp(scene, "capacities"))
        scene_capacities();
    else if (!strcmp(scene, "refusals"))
        scene_refusals();
    else if (!strcmp(scene, "fork"))
        scene_fork();
    else if (!strcmp(scene, "stranger") && argc == 4)
        scene_stranger(argv[2], argv[3]);
    else if (!strcmp(scene, "victim") || !strcmp(scene, "hidden"))
        scene_victim();
    else if (!strcmp(scene, "mourner") && argc == 4)
        scene_mourner(argv[2], argv[3]);
    else
        CHECK(!"a scene");
    close_device();
    return 0;
}

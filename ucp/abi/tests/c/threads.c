/*
 * Threads with a worker each, of mode single, on one context; and threads that share a worker of mode multi.
 *
 *   threads                  checks what arrives
 *   threads rate N SECONDS   tagged messages of 8 bytes a second, of N threads each to its own worker
 */
#include "check.h"
#include <pthread.h>
#include <sched.h>

enum { THREADS = 4, MESSAGES = 2000, PAIR_MESSAGES = 300, LONG_SIZE = 40000, MOST = 16 };

typedef struct {
    ucp_context_h context;
    ucp_worker_h worker;
    int shares_worker;
    int index, count, seconds;
    unsigned long sent;
    pthread_t thread;
} job_t;

static pthread_barrier_t barrier;
static ucp_address_t *addresses[MOST];

static ucp_context_h make_context(void)
{
    ucp_params_t params = {.field_mask        = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_MT_WORKERS_SHARED,
                           .features          = UCP_FEATURE_TAG,
                           .mt_workers_shared = 1};
    ucp_config_t *config;
    ucp_context_h context;

    CHECK(ucp_config_read("TEST", NULL, &config) == UCS_OK);
    CHECK(ucp_init(&params, config, &context) == UCS_OK);
    ucp_config_release(config);
    return context;
}

/* Makes progress; lets another thread run if there is none to make. */
static void advance(ucp_worker_h worker)
{
    if (ucp_worker_progress(worker) == 0) {
        sched_yield();
    }
}

/* All threads make progress until each has come here. */
static void meet(ucp_worker_h worker)
{
    static int arrived, round_of_all;
    int round = __atomic_load_n(&round_of_all, __ATOMIC_ACQUIRE);
    int count = __atomic_add_fetch(&arrived, 1, __ATOMIC_ACQ_REL);

    if (count % THREADS == 0) {
        __atomic_add_fetch(&round_of_all, 1, __ATOMIC_ACQ_REL);
    }
    while (__atomic_load_n(&round_of_all, __ATOMIC_ACQUIRE) == round) {
        advance(worker);
    }
}

static void end(ucp_worker_h worker, ucs_status_ptr_t request)
{
    time_t until = time(NULL) + 60;

    CHECK(!UCS_PTR_IS_ERR(request));
    if (request == NULL) {
        return;
    }
    while (ucp_request_check_status(request) == UCS_INPROGRESS) {
        advance(worker);
        CHECK(time(NULL) < until);
    }
    CHECK(ucp_request_check_status(request) == UCS_OK);
    ucp_request_free(request);
}

/* Every third message is long. */
static size_t size_of(int n)
{
    return n % 3 == 2 ? LONG_SIZE : 8 + n % 50;
}

static ucp_tag_t tag_of(int from, int n)
{
    return (ucp_tag_t)from << 32 | n;
}

/* Message N to an endpoint, and message N from a thread into the worker. */
static void exchange(ucp_worker_h worker, ucp_ep_h ep, int me, int from, int n)
{
    unsigned char out[LONG_SIZE], in[LONG_SIZE], expected[LONG_SIZE];
    ucp_request_param_t param = {.op_attr_mask = UCP_OP_ATTR_FLAG_NO_IMM_CMPL};
    ucp_tag_recv_info_t info;
    size_t size               = size_of(n);
    ucs_status_ptr_t sent, received;
    time_t until = time(NULL) + 60;

    fill(out, size, me * 31 + n);
    fill(expected, size, from * 31 + n);
    memset(in, 0, size);
    received           = ucp_tag_recv_nbx(worker, in, sizeof(in), tag_of(from, n), -1, &param);
    param.op_attr_mask = 0;
    sent               = ucp_tag_send_nbx(ep, out, size, tag_of(me, n), &param);
    CHECK(UCS_PTR_IS_PTR(received));
    while (ucp_tag_recv_request_test(received, &info) == UCS_INPROGRESS) {
        advance(worker);
        CHECK(time(NULL) < until);
    }
    CHECK(ucp_request_check_status(received) == UCS_OK);
    ucp_request_free(received);
    CHECK(info.length == size && info.sender_tag == tag_of(from, n));
    CHECK(memcmp(in, expected, size) == 0);
    end(worker, sent);
}

static ucp_ep_h connect_by(ucp_worker_h worker, ucp_address_t *address)
{
    ucp_ep_params_t params = {.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS, .address = address};
    ucp_ep_h ep;

    CHECK(ucp_ep_create(worker, &params, &ep) == UCS_OK);
    return ep;
}

static void *run(void *arg)
{
    job_t *job             = arg;
    int me                 = job->index;
    int other              = me ^ 1;
    ucp_worker_h worker    = job->worker;
    ucp_worker_attr_t attr = {.field_mask = UCP_WORKER_ATTR_FIELD_THREAD_MODE};
    ucp_ep_h self, pair;
    size_t length;
    int n;

    if (!job->shares_worker) {
        worker = make_worker(job->context, UCS_THREAD_MODE_SINGLE);
    }
    CHECK(ucp_worker_query(worker, &attr) == UCS_OK);
    CHECK(attr.thread_mode == (job->shares_worker ? UCS_THREAD_MODE_MULTI : UCS_THREAD_MODE_SINGLE));
    CHECK(ucp_worker_get_address(worker, &addresses[me], &length) == UCS_OK);
    pthread_barrier_wait(&barrier);
    self = connect_by(worker, addresses[me]);
    pair = connect_by(worker, addresses[other]);
    for (n = 0; n < MESSAGES; n++) {
        exchange(worker, self, me, me, n);
    }
    for (n = MESSAGES; n < MESSAGES + PAIR_MESSAGES; n++) {
        exchange(worker, pair, me, other, n);
    }
    meet(worker);
    end(worker, ucp_ep_close_nb(self, UCP_EP_CLOSE_MODE_FLUSH));
    end(worker, ucp_ep_close_nb(pair, UCP_EP_CLOSE_MODE_FLUSH));
    meet(worker);
    ucp_worker_release_address(worker, addresses[me]);
    if (!job->shares_worker) {
        ucp_worker_destroy(worker);
    }
    return NULL;
}

/* Waits without looking at the time. */
static void quick_end(ucp_worker_h worker, ucs_status_ptr_t request)
{
    CHECK(!UCS_PTR_IS_ERR(request));
    if (request != NULL) {
        while (ucp_request_check_status(request) == UCS_INPROGRESS) {
            ucp_worker_progress(worker);
        }
        ucp_request_free(request);
    }
}

/* Messages of 8 bytes to itself: a receive and a send at a time. */
static void *run_rate(void *arg)
{
    job_t *job                = arg;
    ucp_worker_h worker       = make_worker(job->context, UCS_THREAD_MODE_SINGLE);
    ucp_request_param_t param = {.op_attr_mask = 0};
    ucp_address_t *address;
    struct timespec now;
    double begin, at;
    size_t length;
    long in, out = 7;
    ucp_ep_h ep;
    int i;

    CHECK(ucp_worker_get_address(worker, &address, &length) == UCS_OK);
    ep = connect_by(worker, address);
    ucp_worker_release_address(worker, address);
    pthread_barrier_wait(&barrier);
    clock_gettime(CLOCK_MONOTONIC, &now);
    begin = now.tv_sec + now.tv_nsec * 1e-9;
    do {
        for (i = 0; i < 1000; i++) {
            ucs_status_ptr_t received = ucp_tag_recv_nbx(worker, &in, sizeof(in), 1, -1, &param);
            quick_end(worker, ucp_tag_send_nbx(ep, &out, sizeof(out), 1, &param));
            quick_end(worker, received);
        }
        job->sent += 1000;
        clock_gettime(CLOCK_MONOTONIC, &now);
        at = now.tv_sec + now.tv_nsec * 1e-9;
    } while (at < begin + job->seconds);
    CHECK(in == out);
    end(worker, ucp_ep_close_nb(ep, UCP_EP_CLOSE_MODE_FLUSH));
    ucp_worker_destroy(worker);
    return NULL;
}

/* Runs a function in threads. Returns the messages of all that count them. */
static unsigned long run_threads(void *(*function)(void*), int count, int seconds, ucp_worker_h shared,
                                 ucp_context_h context)
{
    unsigned long sent = 0;
    job_t jobs[MOST];
    int i;

    pthread_barrier_init(&barrier, NULL, count);
    for (i = 0; i < count; i++) {
        jobs[i] = (job_t){.context = context, .worker = shared, .shares_worker = shared != NULL,
                          .index = i, .count = count, .seconds = seconds};
        CHECK(pthread_create(&jobs[i].thread, NULL, function, &jobs[i]) == 0);
    }
    for (i = 0; i < count; i++) {
        CHECK(pthread_join(jobs[i].thread, NULL) == 0);
        sent += jobs[i].sent;
    }
    pthread_barrier_destroy(&barrier);
    return sent;
}

int main(int argc, char **argv)
{
    ucp_context_h context = make_context();

    if (argc == 4 && strcmp(argv[1], "rate") == 0) {
        int count = atoi(argv[2]), seconds = atoi(argv[3]);
        CHECK(count > 0 && count <= MOST && seconds > 0);
        printf("%.2f million messages a second\n",
               run_threads(run_rate, count, seconds, NULL, context) / 1e6 / seconds);
    } else {
        ucp_worker_h shared;

        run_threads(run, THREADS, 0, NULL, context);
        shared = make_worker(context, UCS_THREAD_MODE_MULTI);
        run_threads(run, THREADS, 0, shared, context);
        ucp_worker_destroy(shared);
    }
    ucp_cleanup(context);
    return 0;
}

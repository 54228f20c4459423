/* Endpoints that fail: answers to a peer that has closed by force and connects again, and error handlers that another
 * thread calls. */
#include "check.h"

#include <arpa/inet.h>
#include <malloc.h>
#include <netinet/in.h>
#include <pthread.h>
#include <unistd.h>

#define ID      7
#define ANSWER  8
#define CREATED 300
#define MANY    1500

static unsigned asked, answered;
static ucp_ep_h answer_to;

static ucs_status_t on_question(void *arg, const void *header, size_t header_length, void *data, size_t length,
                                const ucp_am_recv_param_t *param)
{
    CHECK(param->recv_attr & UCP_AM_RECV_ATTR_FIELD_REPLY_EP && param->reply_ep != NULL);
    answer_to = param->reply_ep;
    asked++;
    return UCS_OK;
}

static ucs_status_t on_answer(void *arg, const void *header, size_t header_length, void *data, size_t length,
                              const ucp_am_recv_param_t *param)
{
    answered++;
    return UCS_OK;
}

static void set_handler(ucp_worker_h worker, unsigned id, ucp_am_recv_callback_t cb)
{
    ucp_am_handler_param_t handler = {
        .field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB, .id = id, .cb = cb};
    CHECK(ucp_worker_set_am_recv_handler(worker, &handler) == UCS_OK);
}

/* A question from a to b by an endpoint, and two answers. */
static void ask(pair_t *pair, ucp_ep_h ep)
{
    ucp_request_param_t param = plain();
    uint64_t word             = 5;
    unsigned i, before = asked;
    ucs_status_ptr_t sent;

    param.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
    param.flags        = UCP_AM_SEND_FLAG_REPLY;
    sent               = ucp_am_send_nbx(ep, ID, NULL, 0, &word, sizeof(word), &param);
    UNTIL(pair, asked > before);
    wait_for(pair, sent, UCS_OK);
    param.op_attr_mask = 0;
    for (i = 0; i < 2; i++) {
        before = answered;
        wait_for(pair, ucp_am_send_nbx(answer_to, ANSWER, NULL, 0, &word, sizeof(word), &param), UCS_OK);
        UNTIL(pair, answered > before);
    }
}

static void close_by_force(pair_t *pair, ucp_ep_h ep)
{
    wait_for(pair, ucp_ep_close_nb(ep, UCP_EP_CLOSE_MODE_FORCE), UCS_OK);
}

/* Whether a send to an endpoint fails. */
static int has_failed(pair_t *pair, ucp_ep_h ep)
{
    ucp_request_param_t param = plain();
    uint64_t word             = 5;
    ucs_status_ptr_t sent     = ucp_am_send_nbx(ep, ANSWER, NULL, 0, &word, sizeof(word), &param);

    if (UCS_PTR_IS_PTR(sent)) {
        ucp_request_free(sent);
    }
    return UCS_PTR_IS_ERR(sent);
}

/* The answers go to an endpoint of the library, or, before its first failure, to one that the program has. */
static void answers(int has_own)
{
    ucp_ep_h own, dead, ep;
    pair_t pair;
    int round;

    make_pair(&pair, UCS_THREAD_MODE_SINGLE);
    set_handler(pair.b, ID, on_question);
    set_handler(pair.a, ANSWER, on_answer);
    own = pair.ba;
    if (!has_own) {
        close_ep(&pair, own);
        own = NULL;
    }
    ep = pair.ab;
    for (round = 0; round < 4; round++) {
        ask(&pair, ep);
        CHECK((answer_to == own) == (has_own && round == 0));
        dead = answer_to;
        close_by_force(&pair, ep);
        UNTIL(&pair, has_failed(&pair, dead));
        ep = connect_to(pair.a, pair.b);
    }
    ask(&pair, ep);
    CHECK(answer_to != dead);
    close_by_force(&pair, ep);
    if (has_own) {
        close_by_force(&pair, own);
    }
    ucp_worker_destroy(pair.a);
    ucp_worker_destroy(pair.b);
    ucp_cleanup(pair.context);
}

/* A peer comes and goes many times: the endpoints of the library that have failed do not pile up. */
static void many(void)
{
    size_t before = 0;
    ucp_ep_h dead, ep;
    pair_t pair;
    int round;

    make_pair(&pair, UCS_THREAD_MODE_SINGLE);
    set_handler(pair.b, ID, on_question);
    set_handler(pair.a, ANSWER, on_answer);
    close_ep(&pair, pair.ba);
    ep = pair.ab;
    for (round = 0; round < MANY; round++) {
        if (round == MANY / 3) {
            before = mallinfo2().uordblks;
        }
        ask(&pair, ep);
        dead = answer_to;
        close_by_force(&pair, ep);
        UNTIL(&pair, has_failed(&pair, dead));
        ep = connect_to(pair.a, pair.b);
    }
    /* An endpoint has more bytes than these for each. */
    CHECK(mallinfo2().uordblks < before + MANY * 100);
    close_by_force(&pair, ep);
    ucp_worker_destroy(pair.a);
    ucp_worker_destroy(pair.b);
    ucp_cleanup(pair.context);
}

static unsigned told, ends;

static void on_error(void *arg, ucp_ep_h ep, ucs_status_t status)
{
    CHECK(status != UCS_OK);
    CHECK(__atomic_exchange_n((ucp_ep_h*)arg, ep, __ATOMIC_RELAXED) == NULL);
    __atomic_add_fetch(&told, 1, __ATOMIC_RELEASE);
}

static void *make_progress(void *worker)
{
    while (!__atomic_load_n(&ends, __ATOMIC_ACQUIRE)) {
        ucp_worker_progress(worker);
    }
    return NULL;
}

/* An address at which nobody listens. */
static struct sockaddr_in closed_port(void)
{
    struct sockaddr_in at = {.sin_family = AF_INET};
    socklen_t length      = sizeof(at);
    int fd                = socket(AF_INET, SOCK_STREAM, 0);

    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    CHECK(fd >= 0 && bind(fd, (struct sockaddr*)&at, sizeof(at)) == 0);
    CHECK(getsockname(fd, (struct sockaddr*)&at, &length) == 0);
    close(fd);
    return at;
}

/* A thread creates endpoints that fail, and another one makes progress: each handler is called once. */
static void handlers(void)
{
    static ucp_ep_h eps[CREATED], of_handler[CREATED];
    struct sockaddr_in to  = closed_port();
    time_t limit           = time(NULL) + 60;
    ucp_ep_params_t params = {.field_mask = UCP_EP_PARAM_FIELD_FLAGS | UCP_EP_PARAM_FIELD_SOCK_ADDR |
                                            UCP_EP_PARAM_FIELD_ERR_HANDLER | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE,
                              .flags      = UCP_EP_PARAMS_FLAGS_CLIENT_SERVER,
                              .err_mode   = UCP_ERR_HANDLING_MODE_PEER};
    pthread_t thread;
    pair_t pair;
    int i;

    make_pair(&pair, UCS_THREAD_MODE_MULTI);
    CHECK(pthread_create(&thread, NULL, make_progress, pair.a) == 0);
    params.sockaddr.addr    = (const struct sockaddr*)&to;
    params.sockaddr.addrlen = sizeof(to);
    params.err_handler.cb   = on_error;
    for (i = 0; i < CREATED; i++) {
        params.err_handler.arg = &of_handler[i];
        CHECK(ucp_ep_create(pair.a, &params, &eps[i]) == UCS_OK);
    }
    while (__atomic_load_n(&told, __ATOMIC_ACQUIRE) < CREATED) {
        CHECK(time(NULL) < limit);
        usleep(1000);
    }
    __atomic_store_n(&ends, 1, __ATOMIC_RELEASE);
    CHECK(pthread_join(thread, NULL) == 0);
    for (i = 0; i < CREATED; i++) {
        CHECK(of_handler[i] == eps[i]);
        close_by_force(&pair, eps[i]);
    }
    free_pair(&pair);
}

int main(void)
{
    answers(0);
    answers(1);
    many();
    handlers();
    return 0;
}

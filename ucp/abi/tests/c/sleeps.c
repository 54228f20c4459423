/*
 * Programs that sleep on the descriptor of a worker, or on one of their own, and are woken by nothing else: they hear
 * of arrivals and of the library's timers.
 */
#include "check.h"
#include <arpa/inet.h>
#include <poll.h>
#include <sys/epoll.h>
#include <unistd.h>

/* Longer than any timer of the test, and shorter than those of the library's defaults. */
#define SLEEP_MS 20000

static int errors;

static void on_error(void *arg, ucp_ep_h ep, ucs_status_t status)
{
    CHECK(arg == &errors && status == UCS_ERR_TIMED_OUT);
    errors++;
}

/* A server that accepts nothing. Returns its descriptor. */
static int silent_server(struct sockaddr_in *at)
{
    socklen_t length = sizeof(*at);
    int fd           = socket(AF_INET, SOCK_STREAM, 0);

    memset(at, 0, sizeof(*at));
    at->sin_family      = AF_INET;
    at->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    CHECK(fd >= 0 && bind(fd, (struct sockaddr*)at, sizeof(*at)) == 0 && listen(fd, 4) == 0);
    CHECK(getsockname(fd, (struct sockaddr*)at, &length) == 0);
    return fd;
}

static ucp_ep_h dial(ucp_worker_h worker, const struct sockaddr_in *to)
{
    ucp_ep_params_t params;
    ucp_ep_h ep;

    memset(&params, 0xff, sizeof(params));
    params.field_mask       = UCP_EP_PARAM_FIELD_FLAGS | UCP_EP_PARAM_FIELD_SOCK_ADDR |
                              UCP_EP_PARAM_FIELD_ERR_HANDLER | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE;
    params.flags            = UCP_EP_PARAMS_FLAGS_CLIENT_SERVER;
    params.sockaddr.addr    = (const struct sockaddr*)to;
    params.sockaddr.addrlen = sizeof(*to);
    params.err_mode         = UCP_ERR_HANDLING_MODE_PEER;
    params.err_handler.cb   = on_error;
    params.err_handler.arg  = &errors;
    CHECK(ucp_ep_create(worker, &params, &ep) == UCS_OK);
    return ep;
}

static void arm(pair_t *pair, ucp_worker_h worker)
{
    time_t end = time(NULL) + 60;
    ucs_status_t status;

    do {
        while (ucp_worker_progress(worker) != 0) {
        }
        progress(pair);
        status = ucp_worker_arm(worker);
        CHECK(status == UCS_OK || status == UCS_ERR_BUSY);
        CHECK(time(NULL) < end);
    } while (status == UCS_ERR_BUSY);
}

/* Sleeps on the descriptor, which becomes readable before the time is over. */
static void sleep_on(int fd)
{
    struct pollfd polled = {.fd = fd, .events = POLLIN};

    CHECK(poll(&polled, 1, SLEEP_MS) == 1 && (polled.revents & POLLIN));
}

static void close_by_force(pair_t *pair, ucp_worker_h worker, ucp_ep_h ep)
{
    ucs_status_ptr_t closing = ucp_ep_close_nb(ep, UCP_EP_CLOSE_MODE_FORCE);

    CHECK(!UCS_PTR_IS_ERR(closing));
    if (closing != NULL) {
        while (ucp_request_check_status(closing) == UCS_INPROGRESS) {
            ucp_worker_progress(worker);
            progress(pair);
        }
        ucp_request_free(closing);
    }
}

/* The peer of the connection never answers: its limit of time ends it, and the sleep. */
static void time_limit(pair_t *pair, ucp_worker_h worker, int fd)
{
    struct sockaddr_in at;
    int server     = silent_server(&at);
    ucp_ep_h ep    = dial(worker, &at);
    time_t started = time(NULL);

    errors = 0;
    while (errors == 0) {
        arm(pair, worker);
        if (errors == 0) {
            sleep_on(fd);
            while (ucp_worker_progress(worker) != 0) {
            }
        }
        CHECK(time(NULL) - started < 15);
    }
    CHECK(errors == 1);
    close_by_force(pair, worker, ep);
    close(server);
}

/* A program that polls with a limit of its own: `arm` does not hide that a time is over. */
static void time_over(pair_t *pair, ucp_worker_h worker)
{
    struct sockaddr_in at;
    int server  = silent_server(&at);
    ucp_ep_h ep = dial(worker, &at);

    errors = 0;
    arm(pair, worker);
    CHECK(errors == 0);
    usleep(1300000);
    CHECK(ucp_worker_arm(worker) == UCS_ERR_BUSY);
    arm(pair, worker);
    CHECK(errors == 1);
    close_by_force(pair, worker, ep);
    close(server);
}

static void arrival(pair_t *pair, ucp_worker_h worker, int fd)
{
    ucp_request_param_t param = plain();
    ucp_ep_h ep               = connect_to(pair->b, worker);
    uint64_t word             = 5, back = 0;
    ucs_status_ptr_t recv     = ucp_tag_recv_nbx(worker, &back, 8, 1, ~0ull, &param);
    ucs_status_ptr_t send;

    CHECK(UCS_PTR_IS_PTR(recv));
    arm(pair, worker);
    send = ucp_tag_send_nbx(ep, &word, 8, 1, &param);
    while (ucp_request_check_status(recv) == UCS_INPROGRESS) {
        ucp_worker_progress(pair->b);
        sleep_on(fd);
        arm(pair, worker);
    }
    CHECK(ucp_request_check_status(recv) == UCS_OK && back == 5);
    ucp_request_free(recv);
    while (UCS_PTR_IS_PTR(send) && ucp_request_check_status(send) == UCS_INPROGRESS) {
        progress(pair);
        ucp_worker_progress(worker);
    }
    if (UCS_PTR_IS_PTR(send)) {
        ucp_request_free(send);
    }
    close_by_force(pair, worker, ep);
}

int main(void)
{
    static const ucs_thread_mode_t modes[] = {UCS_THREAD_MODE_SINGLE, UCS_THREAD_MODE_MULTI};
    ucp_worker_params_t params;
    ucp_worker_h worker;
    pair_t pair;
    int i, edge, fd;

    CHECK(setenv("UCX_CM_TIMEOUT", "1s", 1) == 0);
    for (i = 0; i < 2; i++) {
        make_pair(&pair, modes[i]);
        CHECK(ucp_worker_get_efd(pair.a, &fd) == UCS_OK);
        arrival(&pair, pair.a, fd);
        time_limit(&pair, pair.a, fd);
        time_over(&pair, pair.a);
        for (edge = 0; edge < 2; edge++) {
            fd = epoll_create1(0);
            memset(&params, 0xff, sizeof(params));
            params.field_mask  = UCP_WORKER_PARAM_FIELD_THREAD_MODE | UCP_WORKER_PARAM_FIELD_EVENT_FD |
                                 UCP_WORKER_PARAM_FIELD_EVENTS | UCP_WORKER_PARAM_FIELD_USER_DATA;
            params.thread_mode = modes[i];
            params.event_fd    = fd;
            params.user_data   = &errors;
            params.events      = UCP_WAKEUP_RX | (edge ? UCP_WAKEUP_EDGE : 0);
            CHECK(ucp_worker_create(pair.context, &params, &worker) == UCS_OK);
            arrival(&pair, worker, fd);
            time_limit(&pair, worker, fd);
            ucp_worker_destroy(worker);
            close(fd);
        }
        free_pair(&pair);
    }
    return 0;
}

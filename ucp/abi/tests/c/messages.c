/* Active messages by both interfaces, streams, wake-up, and what a listener does. */
#include "check.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <netinet/in.h>
#include <poll.h>
#include <unistd.h>

#define LONG 300000

static unsigned got, released;
static int asks_reply;
static unsigned char *in;
static void *kept;
static pair_t *the_pair;
static ucs_status_ptr_t receiving;
static ucp_ep_h reply;

static void until(pair_t *pair, const unsigned *count, unsigned wanted)
{
    time_t end = time(NULL) + 60;
    while (*count < wanted) {
        progress(pair);
        CHECK(time(NULL) < end);
    }
}

static ucs_status_t on_am(void *arg, const void *header, size_t header_length, void *data, size_t length,
                          const ucp_am_recv_param_t *param)
{
    ucp_request_param_t recv = plain();

    CHECK(arg == &got && header_length == 5 && memcmp(header, "hello", 5) == 0);
    CHECK(!(param->recv_attr & UCP_AM_RECV_ATTR_FIELD_REPLY_EP) == !asks_reply);
    CHECK((param->reply_ep != NULL) == asks_reply);
    reply = param->reply_ep;
    got++;
    if (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) {
        receiving = ucp_am_recv_data_nbx(the_pair->b, data, in, length, &recv);
        /* MPICH counts on a request, as UCX never ends such a receive in its call. */
        CHECK(UCS_PTR_IS_PTR(receiving));
        return UCS_INPROGRESS;
    }
    memcpy(in, data, length);
    kept = data;
    return length > 100 ? UCS_INPROGRESS : UCS_OK;
}

static ucs_status_t on_old_am(void *arg, void *data, size_t length, ucp_ep_h reply_ep, unsigned flags)
{
    CHECK(arg == &got && (reply_ep != NULL) == asks_reply);
    reply = reply_ep;
    memcpy(in, data, length);
    got++;
    return UCS_OK;
}

/* Sends to the sender of a message by the endpoint that the handler has got. */
static void answer(pair_t *pair)
{
    ucp_request_param_t param = plain();
    uint64_t word = 7, back = 0;
    ucs_status_ptr_t recv = ucp_tag_recv_nbx(pair->a, &back, sizeof(back), 91, -1, &param);

    wait_for(pair, ucp_tag_send_nbx(reply, &word, sizeof(word), 91, &param), UCS_OK);
    wait_for(pair, recv, UCS_OK);
    CHECK(back == word);
}

static void active_messages(pair_t *pair)
{
    static const size_t lengths[] = {0, 50, 5000, LONG};
    ucp_am_handler_param_t handler;
    unsigned char *out = malloc(LONG);
    size_t i;

    in                 = malloc(LONG);
    handler.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB |
                         UCP_AM_HANDLER_PARAM_FIELD_ARG;
    handler.id         = 300;
    handler.cb         = on_am;
    handler.arg        = &got;
    CHECK(ucp_worker_set_am_recv_handler(pair->b, &handler) == UCS_OK);
    CHECK(ucp_worker_set_am_handler(pair->b, 3, on_old_am, &got, 0) == UCS_OK);
    got = 0;
    for (i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
        ucp_request_param_t param = plain();
        ucs_status_ptr_t send;

        fill(out, lengths[i], i);
        kept       = NULL;
        receiving  = NULL;
        asks_reply = i % 2;
        if (asks_reply) {
            param.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
            param.flags        = UCP_AM_SEND_FLAG_REPLY;
        }
        send      = ucp_am_send_nbx(pair->ab, 300, "hello", 5, out, lengths[i], &param);
        until(pair, &got, 2 * i + 1);
        wait_for(pair, receiving, UCS_OK);
        wait_for(pair, send, UCS_OK);
        check_filled(in, lengths[i], i);
        if (kept != NULL && lengths[i] > 100) {
            CHECK(memcmp(kept, out, lengths[i]) == 0);
            ucp_am_data_release(pair->b, kept);
            released++;
        }
        if (asks_reply) {
            answer(pair);
        }
        send = ucp_am_send_nb(pair->ab, 3, out, lengths[i], ucp_dt_make_contig(1), NULL,
                              asks_reply ? UCP_AM_SEND_FLAG_REPLY : 0);
        until(pair, &got, 2 * i + 2);
        wait_for(pair, send, UCS_OK);
        if (asks_reply) {
            answer(pair);
        }
        check_filled(in, lengths[i], i);
    }
    CHECK(released == 1);
    free(in);
    free(out);
}

static void streams(pair_t *pair)
{
    ucp_request_param_t param = plain();
    unsigned char *out = malloc(LONG), *back = malloc(LONG);
    ucp_stream_poll_ep_t ready[4];
    ucs_status_ptr_t send, recv;
    size_t length = 0, total = 0;
    time_t end    = time(NULL) + 60;

    fill(out, LONG, 4);
    send               = ucp_stream_send_nbx(pair->ab, out, LONG, &param);
    param.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
    param.flags        = UCP_STREAM_RECV_FLAG_WAITALL;
    recv               = ucp_stream_recv_nbx(pair->ba, back, LONG, &length, &param);
    if (UCS_PTR_IS_PTR(recv)) {
        while (ucp_stream_recv_request_test(recv, &length) == UCS_INPROGRESS) {
            progress(pair);
            CHECK(time(NULL) < end);
        }
    }
    wait_for(pair, recv, UCS_OK);
    wait_for(pair, send, UCS_OK);
    CHECK(length == LONG);
    check_filled(back, LONG, 4);

    send = ucp_stream_send_nb(pair->ab, out, 100, ucp_dt_make_contig(1), NULL, 0);
    while (ucp_stream_worker_poll(pair->b, ready, 4, 0) == 0) {
        progress(pair);
        CHECK(time(NULL) < end);
    }
    CHECK(ready[0].ep == pair->ba);
    while (total < 100) {
        void *data = ucp_stream_recv_data_nb(pair->ba, &length);
        CHECK(!UCS_PTR_IS_ERR(data));
        if (data != NULL) {
            CHECK(memcmp(data, out + total, length) == 0);
            total += length;
            ucp_stream_data_release(pair->ba, data);
        }
        progress(pair);
    }
    wait_for(pair, send, UCS_OK);
    free(out);
    free(back);
}

/* Receives elements of a size from a stream. Returns the length in bytes. */
static size_t received(pair_t *pair, ucs_status_ptr_t recv, const size_t *length)
{
    size_t later = 0;

    if (!UCS_PTR_IS_PTR(recv)) {
        CHECK(recv == NULL);
        return *length;
    }
    UNTIL(pair, ucp_stream_recv_request_test(recv, &later) != UCS_INPROGRESS);
    wait_for(pair, recv, UCS_OK);
    return later;
}

static void send_stream(pair_t *pair, const void *bytes, size_t length)
{
    ucp_request_param_t param = plain();
    wait_for(pair, ucp_stream_send_nbx(pair->ab, bytes, length, &param), UCS_OK);
}

/* A receive from a stream ends with whole elements, whether it is there first or the bytes are. */
static void stream_elements(pair_t *pair)
{
    ucp_request_param_t bytes = plain(), words = plain();
    unsigned char *out = malloc(LONG), *back = malloc(LONG);
    ucp_stream_poll_ep_t ready;
    ucs_status_ptr_t recv, send;
    size_t length = 0, total;
    int i;

    fill(out, LONG, 6);
    words.op_attr_mask = UCP_OP_ATTR_FIELD_DATATYPE;
    words.datatype     = ucp_dt_make_contig(8);
    recv               = ucp_stream_recv_nbx(pair->ba, back, 4, &length, &words);
    CHECK(UCS_PTR_IS_PTR(recv));
    send_stream(pair, out, 5);
    for (i = 0; i < 10000; i++) {
        progress(pair);
    }
    CHECK(ucp_request_check_status(recv) == UCS_INPROGRESS);
    send_stream(pair, out + 5, 3);
    CHECK(received(pair, recv, &length) == 8);
    check_filled(back, 8, 6);

    for (i = 0; i < 2; i++) {
        if (i == 0) {
            recv = ucp_stream_recv_nbx(pair->ba, back, 4, &length, &words);
        }
        send_stream(pair, out, 13);
        if (i == 1) {
            UNTIL(pair, ucp_stream_worker_poll(pair->b, &ready, 1, 0) == 1);
            recv = ucp_stream_recv_nbx(pair->ba, back, 4, &length, &words);
        }
        CHECK(received(pair, recv, &length) == 8);
        recv = ucp_stream_recv_nbx(pair->ba, back + 8, 100, &length, &bytes);
        CHECK(received(pair, recv, &length) == 5);
        check_filled(back, 13, 6);
    }

    /* Nobody asks for the length: only fields that the mask names are used. */
    send_stream(pair, out, 8);
    UNTIL(pair, ucp_stream_worker_poll(pair->b, &ready, 1, 0) == 1);
    CHECK(ucp_stream_recv_nbx(pair->ba, back, 8, NULL, &bytes) == NULL);
    check_filled(back, 8, 6);

    /* A message that is received by rendezvous ends within an element. */
    send_stream(pair, out, 4);
    send = ucp_stream_send_nbx(pair->ab, out + 4, LONG - 8, &bytes);
    for (total = 0; total + 8 <= LONG - 4; total += length) {
        recv   = ucp_stream_recv_nbx(pair->ba, back + total, (LONG - total) / 8, &length, &words);
        length = received(pair, recv, &length);
        CHECK(length > 0 && length % 8 == 0);
    }
    wait_for(pair, send, UCS_OK);
    recv = ucp_stream_recv_nbx(pair->ba, back + total, 1, &length, &words);
    send_stream(pair, out + LONG - 4, 4);
    CHECK(received(pair, recv, &length) == LONG - total);
    check_filled(back, LONG, 6);
    free(back);
    free(out);
}

static void wakeup(pair_t *pair)
{
    struct pollfd wait;
    ucs_status_t status;
    time_t end = time(NULL) + 60;

    CHECK(ucp_worker_get_efd(pair->b, &wait.fd) == UCS_OK);
    wait.events = POLLIN;
    while ((status = ucp_worker_arm(pair->b)) == UCS_ERR_BUSY) {
        progress(pair);
        CHECK(time(NULL) < end);
    }
    CHECK(status == UCS_OK && poll(&wait, 1, 0) == 0);
    CHECK(ucp_worker_signal(pair->b) == UCS_OK);
    CHECK(poll(&wait, 1, 10000) == 1);
    CHECK(ucp_worker_arm(pair->b) == UCS_ERR_BUSY);
}

static ucp_conn_request_h asked;
static unsigned asks, errors;
static ucs_status_t expected_error = UCS_ERR_REJECTED;

static void on_conn(ucp_conn_request_h request, void *arg)
{
    CHECK(arg == &asks);
    asked = request;
    asks++;
}

static void on_error(void *arg, ucp_ep_h ep, ucs_status_t status)
{
    CHECK(arg == &errors && ep != NULL && status == expected_error);
    errors++;
}

static ucp_ep_h dial_with(pair_t *pair, const struct sockaddr_storage *to, ucp_err_handler_cb_t on_failure)
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
    params.err_handler.cb   = on_failure;
    params.err_handler.arg  = &errors;
    CHECK(ucp_ep_create(pair->a, &params, &ep) == UCS_OK);
    return ep;
}

static ucp_ep_h dial(pair_t *pair, const struct sockaddr_storage *to)
{
    return dial_with(pair, to, on_error);
}

static void client_server(pair_t *pair)
{
    struct sockaddr_in any    = {.sin_family = AF_INET};
    ucp_request_param_t param = plain();
    ucp_listener_params_t params;
    ucp_listener_attr_t attr;
    ucp_conn_request_attr_t who;
    ucp_ep_params_t accept;
    ucp_ep_h client, server;
    ucp_listener_h listener;
    uint64_t word = 5, back = 0;
    ucs_status_ptr_t recv, send;

    any.sin_addr.s_addr     = htonl(INADDR_LOOPBACK);
    params.field_mask       = UCP_LISTENER_PARAM_FIELD_SOCK_ADDR | UCP_LISTENER_PARAM_FIELD_CONN_HANDLER;
    params.sockaddr.addr    = (const struct sockaddr*)&any;
    params.sockaddr.addrlen = sizeof(any);
    params.conn_handler.cb  = on_conn;
    params.conn_handler.arg = &asks;
    CHECK(ucp_listener_create(pair->b, &params, &listener) == UCS_OK);
    attr.field_mask = UCP_LISTENER_ATTR_FIELD_SOCKADDR;
    CHECK(ucp_listener_query(listener, &attr) == UCS_OK);

    client = dial(pair, &attr.sockaddr);
    send   = ucp_tag_send_nbx(client, &word, 8, 90, &param); /* waits for the connection */
    until(pair, &asks, 1);
    who.field_mask = UCP_CONN_REQUEST_ATTR_FIELD_CLIENT_ADDR;
    CHECK(ucp_conn_request_query(asked, &who) == UCS_OK);
    CHECK(((struct sockaddr_in*)&who.client_address)->sin_addr.s_addr == htonl(INADDR_LOOPBACK));
    accept.field_mask   = UCP_EP_PARAM_FIELD_CONN_REQUEST;
    accept.conn_request = asked;
    CHECK(ucp_ep_create(pair->b, &accept, &server) == UCS_OK);
    recv = ucp_tag_recv_nbx(pair->b, &back, 8, 90, ~0ull, &param);
    wait_for(pair, recv, UCS_OK);
    wait_for(pair, send, UCS_OK);
    CHECK(back == 5);
    close_ep(pair, client);
    close_ep(pair, server);

    client = dial(pair, &attr.sockaddr);
    until(pair, &asks, 2);
    CHECK(ucp_listener_reject(listener, asked) == UCS_OK);
    until(pair, &errors, 1);
    CHECK(UCS_PTR_IS_ERR(ucp_tag_send_nbx(client, &word, 8, 90, &param)));
    wait_for(pair, ucp_ep_close_nb(client, UCP_EP_CLOSE_MODE_FORCE), UCS_OK);
    ucp_listener_destroy(listener);
}

static int tcp_server(void)
{
    struct sockaddr_in any = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd                 = socket(AF_INET, SOCK_STREAM, 0);

    CHECK(fd >= 0 && bind(fd, (struct sockaddr*)&any, sizeof(any)) == 0 && listen(fd, 4) == 0);
    return fd;
}

/* What becomes of a connection. */
typedef enum { REFUSED, CLOSED, SPEAKS_SOMETHING_ELSE, SILENT } outcome_t;

/* Connects to a socket, which ends with a status; so does a send that has waited for the connection. */
static void fails(pair_t *pair, outcome_t outcome, ucs_status_t status)
{
    struct sockaddr_storage to = {0};
    socklen_t length           = sizeof(to);
    ucp_request_param_t param  = plain();
    uint64_t word              = 5;
    int server                 = tcp_server();
    ucs_status_ptr_t send;
    ucp_ep_h client;

    CHECK(getsockname(server, (struct sockaddr*)&to, &length) == 0);
    expected_error = status;
    errors         = 0;
    if (outcome == REFUSED) {
        close(server); /* Nobody listens there any more. */
    }
    client = dial(pair, &to);
    send   = ucp_tag_send_nbx(client, &word, 8, 90, &param);
    if (outcome == CLOSED) {
        close(accept(server, NULL, NULL));
    } else if (outcome == SPEAKS_SOMETHING_ELSE) {
        int peer = accept(server, NULL, NULL);
        CHECK(write(peer, "220 mail ESMTP\r\n", 16) == 16);
        close(peer);
    }
    until(pair, &errors, 1);
    wait_for(pair, send, status);
    wait_for(pair, ucp_ep_close_nb(client, UCP_EP_CLOSE_MODE_FORCE), UCS_OK);
}

static struct sockaddr_storage refusing;
static ucp_ep_h other;

/* Closes the endpoint that has failed, and makes two: one to another worker, and one that fails, too. */
static void on_error_again(void *arg, ucp_ep_h ep, ucs_status_t status)
{
    ucs_status_ptr_t closing = ucp_ep_close_nb(ep, UCP_EP_CLOSE_MODE_FORCE);

    CHECK(arg == &errors && status == UCS_ERR_NOT_CONNECTED && !UCS_PTR_IS_ERR(closing));
    if (closing != NULL) {
        ucp_request_free(closing);
    }
    errors++;
    if (errors == 1) {
        other = connect_to(the_pair->a, the_pair->b);
        dial_with(the_pair, &refusing, on_error_again);
    }
}

static void endpoints_in_error_handlers(pair_t *pair)
{
    socklen_t length          = sizeof(refusing);
    ucp_request_param_t param = plain();
    uint64_t word             = 6, back = 0;
    int server                = tcp_server();
    ucs_status_ptr_t recv;

    CHECK(getsockname(server, (struct sockaddr*)&refusing, &length) == 0);
    close(server);
    errors = 0;
    dial_with(pair, &refusing, on_error_again);
    until(pair, &errors, 2);
    recv = ucp_tag_recv_nbx(pair->b, &back, 8, 91, ~0ull, &param);
    wait_for(pair, ucp_tag_send_nbx(other, &word, 8, 91, &param), UCS_OK);
    wait_for(pair, recv, UCS_OK);
    CHECK(back == 6);
    close_ep(pair, other);
}

/* Servers that are gone, that leave, that speak something else, that are silent, and that no route leads to. */
static void failing_connects(pair_t *pair)
{
    struct sockaddr_in group = {.sin_family = AF_INET, .sin_port = htons(1)};
    ucp_ep_params_t params;
    ucp_ep_h ep;

    /* The first three as UCX 1.13.1 over TCP, which has no timeout. */
    fails(pair, REFUSED, UCS_ERR_NOT_CONNECTED);
    fails(pair, CLOSED, UCS_ERR_CONNECTION_RESET);
    fails(pair, SPEAKS_SOMETHING_ELSE, UCS_ERR_CONNECTION_RESET);
    fails(pair, SILENT, UCS_ERR_TIMED_OUT);

    memset(&params, 0xff, sizeof(params));
    group.sin_addr.s_addr   = htonl(0xe0000001); /* 224.0.0.1: TCP has no way there. */
    params.field_mask       = UCP_EP_PARAM_FIELD_FLAGS | UCP_EP_PARAM_FIELD_SOCK_ADDR;
    params.flags            = UCP_EP_PARAMS_FLAGS_CLIENT_SERVER;
    params.sockaddr.addr    = (const struct sockaddr*)&group;
    params.sockaddr.addrlen = sizeof(group);
    CHECK(ucp_ep_create(pair->a, &params, &ep) == UCS_ERR_UNREACHABLE);
    group.sin_family = AF_UNIX;
    CHECK(ucp_ep_create(pair->a, &params, &ep) == UCS_ERR_INVALID_ADDR);
}

static ucs_status_t on_none(void *arg, void *data, size_t length, ucp_ep_h reply_ep, unsigned flags)
{
    got++;
    return UCS_OK;
}

/* A worker is destroyed while data for a handler of the old interface arrives: nothing stays of it. */
static void destroyed_while_receiving(void)
{
    unsigned char *out = calloc(1, LONG);
    ucs_status_ptr_t send;
    pair_t pair;
    int i;

    make_pair(&pair, UCS_THREAD_MODE_SINGLE);
    CHECK(ucp_worker_set_am_handler(pair.b, 3, on_none, NULL, 0) == UCS_OK);
    got  = 0;
    send = ucp_am_send_nb(pair.ab, 3, out, 8, ucp_dt_make_contig(1), NULL, 0);
    until(&pair, &got, 1);
    wait_for(&pair, send, UCS_OK);
    send = ucp_am_send_nb(pair.ab, 3, out, LONG, ucp_dt_make_contig(1), NULL, UCP_AM_SEND_FLAG_RNDV);
    CHECK(!UCS_PTR_IS_ERR(send));
    for (i = 0; i < 1000; i++) {
        ucp_worker_progress(pair.b);
    }
    if (UCS_PTR_IS_PTR(send)) {
        ucp_request_free(send);
    }
    ucp_worker_destroy(pair.b);
    ucp_worker_destroy(pair.a);
    ucp_cleanup(pair.context);
    free(out);
}

static unsigned open_files(void)
{
    DIR *folder    = opendir("/proc/self/fd");
    unsigned count = 0;

    CHECK(folder != NULL);
    while (readdir(folder) != NULL) {
        count++;
    }
    closedir(folder);
    return count;
}

/* A worker is destroyed with its listener, and with messages that a probe has taken: nothing of it stays. */
static void destroyed_with_all_it_has(void)
{
    struct sockaddr_in any       = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    ucp_listener_params_t params = {.field_mask   = UCP_LISTENER_PARAM_FIELD_SOCK_ADDR |
                                                    UCP_LISTENER_PARAM_FIELD_CONN_HANDLER,
                                    .sockaddr     = {(const struct sockaddr*)&any, sizeof(any)},
                                    .conn_handler = {on_conn, &asks}};
    ucp_request_param_t param    = plain();
    ucp_tag_message_h taken[3];
    ucp_tag_recv_info_t info;
    ucp_listener_h listeners[2];
    unsigned before = 0;
    uint64_t word, back;
    pair_t pair;
    int round, i;

    for (round = 0; round < 3; round++) {
        /* What stays open from the first use of the library is no leak. */
        before = round == 1 ? open_files() : before;
        make_pair(&pair, UCS_THREAD_MODE_SINGLE);
        for (word = 0; word < 3; word++) {
            wait_for(&pair, ucp_tag_send_nbx(pair.ab, &word, 8, 70 + word, &param), UCS_OK);
            UNTIL(&pair, (taken[word] = ucp_tag_probe_nb(pair.b, 70 + word, ~0ull, 1, &info)) != NULL);
        }
        /* The first is received; the place of another one changes by that. */
        wait_for(&pair, ucp_tag_msg_recv_nbx(pair.b, &back, 8, taken[0], &param), UCS_OK);
        CHECK(back == 0);
        CHECK(UCS_PTR_RAW_STATUS(ucp_tag_msg_recv_nbx(pair.a, &back, 8, taken[2], &param)) == UCS_ERR_INVALID_PARAM);
        wait_for(&pair, ucp_tag_msg_recv_nbx(pair.b, &back, 8, taken[2], &param), UCS_OK);
        CHECK(back == 2);
        for (i = 0; i < 2; i++) {
            CHECK(ucp_listener_create(pair.b, &params, &listeners[i]) == UCS_OK);
        }
        ucp_listener_destroy(listeners[0]);
        ucp_worker_destroy(pair.b);
        ucp_worker_destroy(pair.a);
        if (getenv("UCX_CHECK") == NULL) {
            ucp_listener_destroy(listeners[1]); /* refused; the checks end the program */
        }
        ucp_cleanup(pair.context);
    }
    CHECK(open_files() == before);
}

int main(void)
{
    pair_t pair;
    the_pair = &pair;
    /* For the server that is silent. */
    CHECK(setenv("UCX_CM_TIMEOUT", "3s", 1) == 0);
    make_pair(&pair, UCS_THREAD_MODE_MULTI);
    active_messages(&pair);
    streams(&pair);
    stream_elements(&pair);
    wakeup(&pair);
    client_server(&pair);
    failing_connects(&pair);
    endpoints_in_error_handlers(&pair);
    free_pair(&pair);
    destroyed_while_receiving();
    destroyed_with_all_it_has();
    return 0;
}

/* Fields of parameters and attributes that the other programs do not use, and active messages by their flags. Compiled with the
 * headers of this project. */
#include "check.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/epoll.h>
#include <unistd.h>

#define LONG 100000

static unsigned called;

/* Names, modes and types that a context is made with and tells. */
static void context(void)
{
    ucp_params_t params    = {.field_mask        = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_MT_WORKERS_SHARED |
                                                   UCP_PARAM_FIELD_NAME | UCP_PARAM_FIELD_TAG_SENDER_MASK |
                                                   UCP_PARAM_FIELD_ESTIMATED_NUM_EPS | UCP_PARAM_FIELD_ESTIMATED_NUM_PPN |
                                                   UCP_PARAM_FIELD_NODE_LOCAL_ID,
                              .features          = UCP_FEATURE_TAG,
                              .mt_workers_shared = 1,
                              .name              = "a context"};
    ucp_context_attr_t attr = {.field_mask = UCP_ATTR_FIELD_NAME | UCP_ATTR_FIELD_THREAD_MODE |
                                             UCP_ATTR_FIELD_MEMORY_TYPES | UCP_ATTR_FIELD_DEVICE_COUNTER_SIZE};
    ucp_context_h made;

    attr.device_counter_size = 9;
    CHECK(ucp_init(&params, NULL, &made) == UCS_OK);
    CHECK(ucp_context_query(made, &attr) == UCS_OK);
    CHECK(strcmp(attr.name, "a context") == 0 && attr.thread_mode == UCS_THREAD_MODE_MULTI);
    CHECK(attr.memory_types == 1ull << UCS_MEMORY_TYPE_HOST && attr.device_counter_size == 0);
    ucp_cleanup(made);
    params.mt_workers_shared = 0;
    CHECK(ucp_init(&params, NULL, &made) == UCS_OK);
    CHECK(ucp_context_query(made, &attr) == UCS_OK && attr.thread_mode == UCS_THREAD_MODE_SINGLE);
    ucp_cleanup(made);
}

static ucp_worker_h worker_with(pair_t *pair, uint64_t client_id, size_t alignment)
{
    ucp_worker_params_t params = {.field_mask   = UCP_WORKER_PARAM_FIELD_NAME | UCP_WORKER_PARAM_FIELD_CLIENT_ID |
                                                  UCP_WORKER_PARAM_FIELD_AM_ALIGNMENT | UCP_WORKER_PARAM_FIELD_CPU_MASK,
                                  .name         = "a worker",
                                  .client_id    = client_id,
                                  .am_alignment = alignment};
    ucp_worker_attr_t attr     = {.field_mask = UCP_WORKER_ATTR_FIELD_NAME | UCP_WORKER_ATTR_FIELD_MAX_INFO_STRING};
    ucp_worker_h worker;

    CHECK(ucp_worker_create(pair->context, &params, &worker) == UCS_OK);
    CHECK(ucp_worker_query(worker, &attr) == UCS_OK);
    CHECK(strcmp(attr.name, "a worker") == 0 && attr.max_debug_string > 0);
    params.am_alignment = 24;
    CHECK(ucp_worker_create(pair->context, &params, &(ucp_worker_h){NULL}) == UCS_ERR_INVALID_PARAM);
    return worker;
}

/* An event of a descriptor of the program is told once if it asks for edges. */
static void edges(pair_t *pair)
{
    ucp_worker_params_t params = {.field_mask = UCP_WORKER_PARAM_FIELD_EVENT_FD | UCP_WORKER_PARAM_FIELD_EVENTS};
    struct epoll_event event;
    ucp_worker_h worker;
    int by_edge, fd = epoll_create1(0);

    params.event_fd = fd;
    for (by_edge = 0; by_edge < 2; by_edge++) {
        params.events = UCP_WAKEUP_RX | UCP_WAKEUP_TX | (by_edge ? UCP_WAKEUP_EDGE : 0);
        CHECK(ucp_worker_create(pair->context, &params, &worker) == UCS_OK);
        while (ucp_worker_arm(worker) == UCS_ERR_BUSY) {
            ucp_worker_progress(worker);
        }
        CHECK(ucp_worker_signal(worker) == UCS_OK);
        CHECK(epoll_wait(fd, &event, 1, 10000) == 1);
        CHECK(epoll_wait(fd, &event, 1, 0) == !by_edge);
        ucp_worker_destroy(worker);
    }
    close(fd);
}

static ucp_conn_request_h asked;
static ucp_ep_h accepted;

static void on_conn(ucp_conn_request_h request, void *arg)
{
    CHECK(arg == &called);
    asked = request;
}

static unsigned failures;

static void on_peer_failure(void *arg, ucp_ep_h ep, ucs_status_t status)
{
    CHECK(arg == &failures && ep == accepted && status != UCS_OK);
    failures++;
}

/* An endpoint that the library has made gets a function for failures. */
static void on_accept(ucp_ep_h ep, void *arg)
{
    ucp_ep_params_t params = {.field_mask  = UCP_EP_PARAM_FIELD_ERR_HANDLER,
                              .err_handler = {on_peer_failure, &failures}};

    CHECK(arg == &called);
    CHECK(ucp_ep_modify_nb(ep, &params) == NULL);
    accepted = ep;
}

static in_port_t port_of(const struct sockaddr_storage *from)
{
    return ((const struct sockaddr_in*)from)->sin_port;
}

static ucp_listener_h listen_on(pair_t *pair, uint64_t handler, struct sockaddr_storage *at)
{
    struct sockaddr_in any       = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    ucp_listener_params_t params = {.field_mask     = UCP_LISTENER_PARAM_FIELD_SOCK_ADDR | handler,
                                    .sockaddr       = {(const struct sockaddr*)&any, sizeof(any)},
                                    .accept_handler = {on_accept, &called},
                                    .conn_handler   = {on_conn, &called}};
    ucp_listener_attr_t attr     = {.field_mask = UCP_LISTENER_ATTR_FIELD_SOCKADDR};
    ucp_listener_h listener;

    CHECK(ucp_listener_create(pair->b, &params, &listener) == UCS_OK);
    CHECK(ucp_listener_query(listener, &attr) == UCS_OK);
    /* One function, which is there. */
    params.field_mask |= UCP_LISTENER_PARAM_FIELD_ACCEPT_HANDLER | UCP_LISTENER_PARAM_FIELD_CONN_HANDLER;
    CHECK(ucp_listener_create(pair->b, &params, &(ucp_listener_h){NULL}) == UCS_ERR_INVALID_PARAM);
    params.field_mask        = UCP_LISTENER_PARAM_FIELD_SOCK_ADDR | handler;
    params.accept_handler.cb = NULL;
    params.conn_handler.cb   = NULL;
    CHECK(ucp_listener_create(pair->b, &params, &(ucp_listener_h){NULL}) == UCS_ERR_INVALID_PARAM);
    *at = attr.sockaddr;
    return listener;
}

/* From a worker with a number, from an address of the caller, with a name and user data. */
static ucp_ep_h dial(ucp_worker_h worker, const struct sockaddr_storage *to)
{
    struct sockaddr_in from = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(0x7f000002)};
    ucp_ep_params_t params  = {.field_mask     = UCP_EP_PARAM_FIELD_FLAGS | UCP_EP_PARAM_FIELD_SOCK_ADDR |
                                                 UCP_EP_PARAM_FIELD_LOCAL_SOCK_ADDR | UCP_EP_PARAM_FIELD_NAME |
                                                 UCP_EP_PARAM_FIELD_USER_DATA,
                               .flags          = UCP_EP_PARAMS_FLAGS_CLIENT_SERVER | UCP_EP_PARAMS_FLAGS_SEND_CLIENT_ID |
                                                 UCP_EP_PARAMS_FLAGS_NO_LOOPBACK,
                               .sockaddr       = {(const struct sockaddr*)to, sizeof(struct sockaddr_in)},
                               .local_sockaddr = {(const struct sockaddr*)&from, sizeof(from)},
                               .name           = "an endpoint",
                               .user_data      = &accepted};
    ucp_ep_h ep;

    CHECK(ucp_ep_create(worker, &params, &ep) == UCS_OK);
    return ep;
}

/* A request that is accepted on another worker than the listener's tells who asks; both ends tell their addresses. */
static void connections(pair_t *pair)
{
    ucp_request_param_t param = plain();
    ucp_conn_request_attr_t who = {.field_mask = UCP_CONN_REQUEST_ATTR_FIELD_CLIENT_ADDR |
                                                 UCP_CONN_REQUEST_ATTR_FIELD_CLIENT_ID};
    ucp_ep_params_t accept = {.field_mask = UCP_EP_PARAM_FIELD_CONN_REQUEST};
    ucp_ep_attr_t client   = {.field_mask = UCP_EP_ATTR_FIELD_NAME | UCP_EP_ATTR_FIELD_USER_DATA |
                                            UCP_EP_ATTR_FIELD_LOCAL_SOCKADDR | UCP_EP_ATTR_FIELD_REMOTE_SOCKADDR};
    ucp_ep_attr_t server   = {.field_mask = UCP_EP_ATTR_FIELD_LOCAL_SOCKADDR | UCP_EP_ATTR_FIELD_REMOTE_SOCKADDR};
    ucp_worker_h from = worker_with(pair, 0x1234567812345678ull, 1), other = worker_with(pair, 7, 1);
    struct sockaddr_storage at;
    uint64_t word = 5, back = 0;
    ucp_listener_h listener;
    ucs_status_ptr_t recv, send;
    ucp_ep_h ep, peer;

    listener = listen_on(pair, UCP_LISTENER_PARAM_FIELD_CONN_HANDLER, &at);
    ep       = dial(from, &at);
    UNTIL(pair, (ucp_worker_progress(from), asked != NULL));
    CHECK(ucp_conn_request_query(asked, &who) == UCS_OK && who.client_id == 0x1234567812345678ull);
    CHECK(((struct sockaddr_in*)&who.client_address)->sin_addr.s_addr == htonl(0x7f000002));
    accept.conn_request = asked;
    CHECK(ucp_ep_create(other, &accept, &peer) == UCS_OK);
    recv = ucp_tag_recv_nbx(other, &back, 8, 1, ~0ull, &param);
    send = ucp_tag_send_nbx(ep, &word, 8, 1, &param);
    UNTIL(pair, (ucp_worker_progress(from), ucp_worker_progress(other), back == 5));
    wait_for(pair, recv, UCS_OK);
    wait_for(pair, send, UCS_OK);
    CHECK(ucp_ep_query(ep, &client) == UCS_OK && ucp_ep_query(peer, &server) == UCS_OK);
    CHECK(strcmp(client.name, "an endpoint") == 0 && client.user_data == &accepted);
    CHECK(port_of(&client.remote_sockaddr) == port_of(&at) && port_of(&server.local_sockaddr) == port_of(&at));
    CHECK(port_of(&client.local_sockaddr) == port_of(&server.remote_sockaddr));
    client.field_mask = UCP_EP_ATTR_FIELD_LOCAL_SOCKADDR;
    CHECK(ucp_ep_query(pair->ab, &client) == UCS_ERR_NOT_CONNECTED);
    ucp_listener_destroy(listener);

    listener = listen_on(pair, UCP_LISTENER_PARAM_FIELD_ACCEPT_HANDLER, &at);
    ep       = dial(from, &at);
    UNTIL(pair, (ucp_worker_progress(from), accepted != NULL));
    /* The argument of a function for failures is no user data. */
    server.field_mask = UCP_EP_ATTR_FIELD_USER_DATA;
    CHECK(ucp_ep_query(accepted, &server) == UCS_OK && server.user_data == NULL);
    accept.field_mask = UCP_EP_PARAM_FIELD_USER_DATA;
    accept.user_data  = &failures;
    CHECK(ucp_ep_modify_nb(accepted, &accept) == NULL);
    CHECK(ucp_ep_query(accepted, &server) == UCS_OK && server.user_data == &failures);
    recv = ucp_tag_recv_nbx(pair->b, &back, 8, 2, ~0ull, &param);
    send = ucp_tag_send_nbx(ep, &word, 8, 2, &param);
    UNTIL(pair, (ucp_worker_progress(from), ucp_request_check_status(recv) == UCS_OK));
    wait_for(pair, recv, UCS_OK);
    wait_for(pair, send, UCS_OK);
    send = ucp_ep_close_nb(ep, UCP_EP_CLOSE_MODE_FORCE);
    CHECK(!UCS_PTR_IS_ERR(send));
    UNTIL(pair, (ucp_worker_progress(from), failures > 0));
    CHECK(failures == 1);
    if (send != NULL) {
        ucp_request_free(send);
    }
    wait_for(pair, ucp_ep_close_nb(accepted, UCP_EP_CLOSE_MODE_FORCE), UCS_OK);
    ucp_listener_destroy(listener);
    ucp_worker_destroy(from);
    ucp_worker_destroy(other);
}

/* What a key allows is what the peer can do. */
static void access_rights(pair_t *pair)
{
    static uint64_t words[512];
    ucp_mem_map_params_t map  = {.field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH |
                                               UCP_MEM_MAP_PARAM_FIELD_PROT | UCP_MEM_MAP_PARAM_FIELD_MEMORY_TYPE};
    ucp_mem_attr_t attr       = {.field_mask = UCP_MEM_ATTR_FIELD_MEM_TYPE};
    ucp_mem_advise_params_t advise = {.field_mask = UCP_MEM_ADVISE_PARAM_FIELD_ADDRESS | UCP_MEM_ADVISE_PARAM_FIELD_LENGTH |
                                                    UCP_MEM_ADVISE_PARAM_FIELD_ADVICE,
                                      .address = words, .length = sizeof(words), .advice = UCP_MADV_NORMAL};
    uint64_t other[512] = {0};
    int writable;

    map.address     = words;
    map.length      = sizeof(words);
    map.memory_type = UCS_MEMORY_TYPE_HOST;
    /* No exported memory: the field is as one that the mask does not name. */
    map.field_mask          |= UCP_MEM_MAP_PARAM_FIELD_EXPORTED_MEMH_BUFFER;
    map.exported_memh_buffer = NULL;
    for (writable = 0; writable < 2; writable++) {
        ucp_request_param_t param = plain();
        ucs_status_t put, flushed;
        ucs_status_ptr_t request;
        ucp_rkey_h rkey;
        ucp_mem_h memh;
        void *packed;
        size_t size;

        map.prot = UCP_MEM_MAP_PROT_LOCAL_READ | UCP_MEM_MAP_PROT_LOCAL_WRITE | UCP_MEM_MAP_PROT_REMOTE_READ |
                   (writable ? UCP_MEM_MAP_PROT_REMOTE_WRITE : 0);
        words[0] = 3;
        CHECK(ucp_mem_map(pair->context, &map, &memh) == UCS_OK);
        CHECK(ucp_mem_query(memh, &attr) == UCS_OK && attr.mem_type == UCS_MEMORY_TYPE_HOST);
        CHECK(ucp_mem_advise(pair->context, memh, &advise) == UCS_OK);
        CHECK(ucp_rkey_pack(pair->context, memh, &packed, &size) == UCS_OK);
        CHECK(ucp_ep_rkey_unpack(pair->ab, packed, &rkey) == UCS_OK);
        ucp_rkey_buffer_release(packed);
        wait_for(pair, ucp_get_nbx(pair->ab, other, sizeof(other), (uintptr_t)words, rkey, &param), UCS_OK);
        CHECK(other[0] == 3);
        other[0] = 4;
        request  = ucp_put_nbx(pair->ab, other, sizeof(other), (uintptr_t)words, rkey, &param);
        while (UCS_PTR_IS_PTR(request) && ucp_request_check_status(request) == UCS_INPROGRESS) {
            progress(pair);
        }
        put = UCS_PTR_IS_PTR(request) ? ucp_request_check_status(request) : UCS_PTR_RAW_STATUS(request);
        if (UCS_PTR_IS_PTR(request)) {
            ucp_request_free(request);
        }
        request = ucp_ep_flush_nbx(pair->ab, &param);
        while (UCS_PTR_IS_PTR(request) && ucp_request_check_status(request) == UCS_INPROGRESS) {
            progress(pair);
        }
        flushed = UCS_PTR_IS_PTR(request) ? ucp_request_check_status(request) : UCS_PTR_RAW_STATUS(request);
        if (UCS_PTR_IS_PTR(request)) {
            ucp_request_free(request);
        }
        CHECK(words[0] == (writable ? 4 : 3));
        CHECK(writable ? put == UCS_OK && flushed == UCS_OK : put == UCS_ERR_REJECTED || flushed == UCS_ERR_REJECTED);
        ucp_rkey_destroy(rkey);
        CHECK(ucp_mem_unmap(pair->context, memh) == UCS_OK);
    }
}

/* Atomics of the forms that one_sided.c does not use. */
static void atomics(pair_t *pair)
{
    static const struct { ucp_atomic_post_op_t post; ucp_atomic_op_t op; uint64_t result; } forms[] = {
        {UCP_ATOMIC_POST_OP_AND, UCP_ATOMIC_OP_AND, 0xf0f & 0x3c},
        {UCP_ATOMIC_POST_OP_OR, UCP_ATOMIC_OP_OR, 0xf0f | 0x3c},
        {UCP_ATOMIC_POST_OP_XOR, UCP_ATOMIC_OP_XOR, 0xf0f ^ 0x3c},
        {UCP_ATOMIC_POST_OP_ADD, UCP_ATOMIC_OP_SWAP, 0x3c}};
    static uint64_t word;
    ucp_mem_map_params_t map = {.field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH,
                                .address = &word, .length = 8};
    ucp_rkey_h rkey;
    ucp_mem_h memh;
    void *packed;
    size_t size, i;

    CHECK(ucp_mem_map(pair->context, &map, &memh) == UCS_OK);
    CHECK(ucp_rkey_pack(pair->context, memh, &packed, &size) == UCS_OK);
    CHECK(ucp_ep_rkey_unpack(pair->ab, packed, &rkey) == UCS_OK);
    ucp_rkey_buffer_release(packed);
    for (i = 0; i < 4; i++) {
        ucp_request_param_t flush = plain(), param = plain();
        uint64_t value = 0x3c, old = 0;

        if (forms[i].op != UCP_ATOMIC_OP_SWAP) {
            word = 0xf0f;
            CHECK(ucp_atomic_post(pair->ab, forms[i].post, 0x3c, 8, (uintptr_t)&word, rkey) == UCS_OK);
            wait_for(pair, ucp_ep_flush_nbx(pair->ab, &flush), UCS_OK);
            CHECK(word == forms[i].result);
        }
        word               = 0xf0f;
        param.op_attr_mask = UCP_OP_ATTR_FIELD_DATATYPE | UCP_OP_ATTR_FIELD_REPLY_BUFFER;
        param.datatype     = ucp_dt_make_contig(8);
        param.reply_buffer = &old;
        wait_for(pair, ucp_atomic_op_nbx(pair->ab, forms[i].op, &value, 1, (uintptr_t)&word, rkey, &param), UCS_OK);
        CHECK(old == 0xf0f && word == forms[i].result);
    }
    /* An atomic operation behind a fence finds what was put before. */
    for (i = 1; i <= 1000; i++) {
        uint64_t out = i * 1000, old = 0;
        ucs_status_t put = ucp_put_nbi(pair->ab, &out, 8, (uintptr_t)&word, rkey);

        CHECK(put == UCS_OK || put == UCS_INPROGRESS);
        CHECK(ucp_worker_fence(pair->a) == UCS_OK);
        wait_for(pair, ucp_atomic_fetch_nb(pair->ab, UCP_ATOMIC_FETCH_OP_FADD, 1, &old, 8, (uintptr_t)&word, rkey, NULL), UCS_OK);
        CHECK(old == i * 1000 && word == i * 1000 + 1);
    }
    ucp_rkey_destroy(rkey);
    CHECK(ucp_mem_unmap(pair->context, memh) == UCS_OK);
}

/* How a handler takes the data of a message. */
enum how { LEAVE, KEEP, RECEIVE, RECEIVE_SHORT, KEEP_AND_RECEIVE, HOWS };

static struct {
    ucp_worker_h worker;
    size_t alignment;
    enum how how;
    unsigned count;
    size_t length;
    int is_announced;
    void *kept;
    ucs_status_ptr_t receiving;
} am;
static unsigned char received[LONG];

/* Receives the data at `data` in two pieces. */
static ucs_status_ptr_t receive(void *data, size_t length)
{
    ucp_request_param_t param = plain();
    static ucp_dt_iov_t pieces[2];

    pieces[0]          = (ucp_dt_iov_t){received, length / 3};
    pieces[1]          = (ucp_dt_iov_t){received + length / 3, length - length / 3};
    param.op_attr_mask = UCP_OP_ATTR_FIELD_DATATYPE;
    param.datatype     = ucp_dt_make_iov();
    return ucp_am_recv_data_nbx(am.worker, data, pieces, 2, &param);
}

static ucs_status_t on_am(void *arg, const void *header, size_t header_length, void *data, size_t length,
                          const ucp_am_recv_param_t *param)
{
    CHECK(arg == &am && header_length == 6 && memcmp(header, "header", 6) == 0);
    am.count++;
    am.length       = length;
    am.is_announced = (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0;
    CHECK(am.is_announced == !(param->recv_attr & UCP_AM_RECV_ATTR_FLAG_DATA));
    CHECK(am.is_announced || (uintptr_t)data % am.alignment == 0);
    if (am.is_announced) {
        am.receiving = receive(data, length);
        return UCS_INPROGRESS;
    }
    switch (am.how) {
    case KEEP:
    case KEEP_AND_RECEIVE:
        am.kept = data;
        return UCS_INPROGRESS;
    case RECEIVE_SHORT:
        CHECK(length < 2 || UCS_PTR_RAW_STATUS(receive(data, length - 1)) == UCS_ERR_MESSAGE_TRUNCATED);
        memcpy(received, data, length);
        return UCS_OK;
    case RECEIVE:
        CHECK(receive(data, length) == NULL);
        CHECK(UCS_PTR_RAW_STATUS(receive(data, length)) == UCS_ERR_INVALID_PARAM); /* once only */
        CHECK(memcmp(header, "header", 6) == 0);
        return UCS_INPROGRESS; /* nothing is left to keep */
    default:
        memcpy(received, data, length);
        return UCS_OK;
    }
}

static ucs_status_t on_old_am(void *arg, void *data, size_t length, ucp_ep_h reply_ep, unsigned flags)
{
    CHECK(arg == &am && flags & UCP_CB_PARAM_FLAG_DATA);
    am.count++;
    memcpy(received, data, length);
    am.kept = data;
    return UCS_INPROGRESS;
}

/* Messages of every length, as their sender and their handler want them, at the alignment of their receiver. */
static void active_messages(pair_t *pair, size_t alignment)
{
    static const size_t lengths[] = {1, 9, 1000, 5000, LONG};
    static const unsigned flags[] = {0, UCP_AM_SEND_FLAG_EAGER, UCP_AM_SEND_FLAG_RNDV, UCP_AM_SEND_FLAG_COPY_HEADER};
    ucp_am_handler_param_t handler = {.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_FLAGS |
                                                    UCP_AM_HANDLER_PARAM_FIELD_CB | UCP_AM_HANDLER_PARAM_FIELD_ARG,
                                      .id    = 3,
                                      .flags = UCP_AM_FLAG_WHOLE_MSG | UCP_AM_FLAG_PERSISTENT_DATA,
                                      .cb    = on_am,
                                      .arg   = &am};
    unsigned char *out = malloc(LONG);
    size_t i, k;
    ucp_ep_h ep;

    am.worker    = worker_with(pair, 0, alignment);
    am.alignment = alignment;
    ep           = connect_to(pair->a, am.worker);
    CHECK(ucp_worker_set_am_recv_handler(am.worker, &handler) == UCS_OK);
    CHECK(ucp_worker_set_am_handler(am.worker, 4, on_old_am, &am, UCP_AM_FLAG_WHOLE_MSG) == UCS_OK);
    for (am.how = LEAVE; am.how < HOWS; am.how++) {
        for (i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
            for (k = 0; k < 4; k++) {
                ucp_request_param_t param = plain();
                char header[]             = "header";
                unsigned count            = am.count;
                ucs_status_ptr_t send;

                fill(out, lengths[i], i + k);
                memset(received, 0, lengths[i]);
                param.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS | UCP_OP_ATTR_FLAG_FAST_CMPL | UCP_OP_ATTR_FLAG_MULTI_SEND;
                param.flags        = flags[k];
                am.kept            = NULL;
                am.receiving       = NULL;
                send               = ucp_am_send_nbx(ep, 3, header, 6, out, lengths[i], &param);
                if (flags[k] == UCP_AM_SEND_FLAG_COPY_HEADER) {
                    memset(header, 0, sizeof(header));
                }
                UNTIL(pair, (ucp_worker_progress(am.worker), am.count > count));
                CHECK(am.length == lengths[i]);
                CHECK(flags[k] != UCP_AM_SEND_FLAG_RNDV || am.is_announced);
                CHECK(flags[k] != UCP_AM_SEND_FLAG_EAGER || !am.is_announced);
                UNTIL(pair, (ucp_worker_progress(am.worker),
                             !UCS_PTR_IS_PTR(am.receiving) || ucp_request_is_completed(am.receiving)));
                if (UCS_PTR_IS_PTR(am.receiving)) {
                    ucp_request_free(am.receiving);
                } else {
                    CHECK(am.receiving == NULL);
                }
                if (am.kept != NULL && am.how == KEEP_AND_RECEIVE) {
                    CHECK(receive(am.kept, lengths[i]) == NULL);
                } else if (am.kept != NULL) {
                    memcpy(received, am.kept, lengths[i]);
                    ucp_am_data_release(am.worker, am.kept);
                }
                UNTIL(pair, (ucp_worker_progress(am.worker), !UCS_PTR_IS_PTR(send) || ucp_request_is_completed(send)));
                wait_for(pair, send, UCS_OK);
                check_filled(received, lengths[i], i + k);
            }
        }
    }
    fill(out, 100, 77);
    am.count = 0;
    wait_for(pair, ucp_am_send_nb(ep, 4, out, 100, ucp_dt_make_contig(1), NULL, 0), UCS_OK);
    UNTIL(pair, (ucp_worker_progress(am.worker), am.count == 1));
    check_filled(am.kept, 100, 77);
    ucp_am_data_release(am.worker, am.kept);
    wait_for(pair, ucp_ep_close_nb(ep, UCP_EP_CLOSE_MODE_FORCE), UCS_OK);
    ucp_worker_destroy(am.worker);
    free(out);
}

static ucp_ep_h to_self;
static unsigned left;
static uint64_t in_self;
static ucp_worker_h itself;

/* Posts the next receive, sends the next message to itself, and closes the endpoint behind the last one. */
static void on_own(void *request, ucs_status_t status, const ucp_tag_recv_info_t *info, void *user_data)
{
    ucp_request_param_t recv = plain(), send = plain();

    CHECK(status == UCS_OK && info->length == 8 && in_self == left && user_data == &left);
    called++;
    ucp_request_free(request);
    if (left-- == 0) {
        ucs_status_ptr_t closing = ucp_ep_close_nb(to_self, UCP_EP_CLOSE_MODE_FORCE);
        if (UCS_PTR_IS_PTR(closing)) {
            ucp_request_free(closing);
        }
        return;
    }
    recv.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
    recv.cb.recv      = on_own;
    recv.user_data    = &left;
    CHECK(UCS_PTR_IS_PTR(ucp_tag_recv_nbx(itself, &in_self, 8, 5, ~0ull, &recv)));
    CHECK(ucp_tag_send_nbx(to_self, &(uint64_t){left}, 8, 5, &send) == NULL);
}

/* Messages of a worker to itself that callbacks send: as many as one likes, and the last one closes the endpoint. */
static void messages_to_oneself(pair_t *pair)
{
    ucp_request_param_t recv = plain(), send = plain();
    uint64_t first = 0;

    itself  = pair->a;
    to_self = connect_to(itself, itself);
    wait_for(pair, ucp_tag_send_nbx(to_self, &first, 8, 6, &send), UCS_OK);
    wait_for(pair, ucp_tag_recv_nbx(itself, &first, 8, 6, ~0ull, &recv), UCS_OK);
    recv.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
    recv.cb.recv      = on_own;
    recv.user_data    = &left;
    called            = 0;
    left              = 200000;
    CHECK(UCS_PTR_IS_PTR(ucp_tag_recv_nbx(itself, &in_self, 8, 5, ~0ull, &recv)));
    wait_for(pair, ucp_tag_send_nbx(to_self, &(uint64_t){left}, 8, 5, &send), UCS_OK);
    UNTIL(pair, called == 200001);
}

static void on_progress(void *request, ucs_status_t status, const ucp_tag_recv_info_t *info, void *user_data)
{
    CHECK(status == UCS_OK && info->length == 8 && in_self == 7 && user_data == &left);
    called++;
}

/* In the mode of several threads a send to oneself calls nobody: progress does. */
static void messages_to_oneself_of_threads(pair_t *pair)
{
    ucp_worker_h worker      = make_worker(pair->context, UCS_THREAD_MODE_MULTI);
    ucp_ep_h ep              = connect_to(worker, worker);
    ucp_request_param_t recv = plain(), send = plain();
    uint64_t word            = 7;
    ucs_status_ptr_t posted;

    CHECK(ucp_tag_send_nbx(ep, &word, 8, 6, &send) == NULL);
    posted = ucp_tag_recv_nbx(worker, &in_self, 8, 6, ~0ull, &recv);
    UNTIL(pair, (ucp_worker_progress(worker), !UCS_PTR_IS_PTR(posted) || ucp_request_check_status(posted) == UCS_OK));
    wait_for(pair, posted, UCS_OK);
    recv.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
    recv.cb.recv      = on_progress;
    recv.user_data    = &left;
    called            = 0;
    in_self           = 0;
    posted            = ucp_tag_recv_nbx(worker, &in_self, 8, 5, ~0ull, &recv);
    CHECK(UCS_PTR_IS_PTR(posted));
    CHECK(ucp_tag_send_nbx(ep, &word, 8, 5, &send) == NULL);
    CHECK(called == 0);
    UNTIL(pair, (ucp_worker_progress(worker), called == 1));
    wait_for(pair, posted, UCS_OK);
    wait_for(pair, ucp_ep_close_nb(ep, UCP_EP_CLOSE_MODE_FORCE), UCS_OK);
    ucp_worker_destroy(worker);
}

/* Datatypes are numbers that programs take apart. */
static void datatypes(void)
{
    ucp_datatype_attr_t attr = {.field_mask = UCP_DATATYPE_ATTR_FIELD_PACKED_SIZE | UCP_DATATYPE_ATTR_FIELD_BUFFER |
                                              UCP_DATATYPE_ATTR_FIELD_COUNT,
                                .count = 3};
    CHECK((ucp_dt_make_contig(5) & UCP_DATATYPE_CLASS_MASK) == UCP_DATATYPE_CONTIG);
    CHECK(ucp_dt_make_contig(5) >> UCP_DATATYPE_SHIFT == 5 && ucp_dt_make_iov() == UCP_DATATYPE_IOV);
    CHECK((UCP_DATATYPE_GENERIC & UCP_DATATYPE_CLASS_MASK) == UCP_DATATYPE_GENERIC);
    CHECK(ucp_dt_query(ucp_dt_make_contig(5), &attr) == UCS_OK && attr.packed_size == 15);
}

/* A worker of this host that is gone: the creation of the endpoint says so in the modes that handle errors. */
static void error_modes(pair_t *pair)
{
    static const struct {
        ucp_err_handling_mode_t mode;
        ucs_status_t status;
    } modes[] = {{UCP_ERR_HANDLING_MODE_NONE, UCS_OK},
                 {UCP_ERR_HANDLING_MODE_PEER, UCS_ERR_UNREACHABLE},
                 {UCP_ERR_HANDLING_MODE_FAILOVER, UCS_ERR_UNREACHABLE}};
    ucp_ep_params_t params = {.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE};
    ucp_worker_h gone      = make_worker(pair->context, UCS_THREAD_MODE_SINGLE);
    ucp_address_t *address, *copy;
    size_t length, i;
    ucp_ep_h ep;

    CHECK(ucp_worker_get_address(gone, &address, &length) == UCS_OK);
    copy = malloc(length);
    memcpy(copy, address, length);
    ucp_worker_release_address(gone, address);
    ucp_worker_destroy(gone);
    params.address = copy;
    for (i = 0; i < sizeof(modes) / sizeof(modes[0]); i++) {
        params.err_mode = modes[i].mode;
        CHECK(ucp_ep_create(pair->a, &params, &ep) == modes[i].status);
        if (modes[i].status == UCS_OK) {
            ucs_status_ptr_t closing = ucp_ep_close_nb(ep, UCP_EP_CLOSE_MODE_FORCE);
            if (UCS_PTR_IS_PTR(closing)) {
                UNTIL(pair, ucp_request_check_status(closing) != UCS_INPROGRESS);
                ucp_request_free(closing);
            }
        }
    }
    free(copy);
}

/* Memory of the host has a type; that of devices is refused. */
static void memory_types(pair_t *pair)
{
    ucp_request_param_t param = plain();
    uint64_t word = 5, back = 0;
    ucs_status_ptr_t recv;

    param.op_attr_mask = UCP_OP_ATTR_FIELD_MEMORY_TYPE;
    param.memory_type  = UCS_MEMORY_TYPE_CUDA;
    CHECK(UCS_PTR_STATUS(ucp_tag_send_nbx(pair->ab, &word, 8, 92, &param)) == UCS_ERR_UNSUPPORTED);
    CHECK(UCS_PTR_STATUS(ucp_tag_recv_nbx(pair->b, &back, 8, 92, -1, &param)) == UCS_ERR_UNSUPPORTED);
    param.memory_type = UCS_MEMORY_TYPE_HOST;
    recv              = ucp_tag_recv_nbx(pair->b, &back, 8, 92, -1, &param);
    wait_for(pair, ucp_tag_send_nbx(pair->ab, &word, 8, 92, &param), UCS_OK);
    wait_for(pair, recv, UCS_OK);
    CHECK(back == 5);
}

int main(void)
{
    pair_t pair;

    context();
    datatypes();
    make_pair(&pair, UCS_THREAD_MODE_SINGLE);
    edges(&pair);
    connections(&pair);
    access_rights(&pair);
    atomics(&pair);
    active_messages(&pair, 1);
    active_messages(&pair, 512);
    messages_to_oneself(&pair);
    messages_to_oneself_of_threads(&pair);
    memory_types(&pair);
    if (strcmp(getenv("UCX_TLS"), "posix") == 0) {
        error_modes(&pair);
    }
    free_pair(&pair);
    return 0;
}

/* Operations that a program starts before their endpoint is connected, or lets go of before they have ended. */
#include "check.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#define LONG (1 << 20)
#define AM_ID 5

static pair_t pair;
static const ucp_request_param_t none = {.op_attr_mask = 0};
static unsigned handled;

static ucs_status_t on_am(void *arg, const void *header, size_t header_length, void *data, size_t length,
                          const ucp_am_recv_param_t *param)
{
    CHECK(arg == &handled && header_length == 3 && !memcmp(header, "abc", 3) && length == 8);
    CHECK(*(uint64_t*)data == 51);
    handled++;
    return UCS_OK;
}

static ucp_conn_request_h asked;

static void on_conn(ucp_conn_request_h request, void *arg)
{
    asked = request;
}

static ucp_mem_h map(void *address, size_t length)
{
    ucp_mem_map_params_t params = {.field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH,
                                   .address = address, .length = length};
    ucp_mem_h memh;

    CHECK(ucp_mem_map(pair.context, &params, &memh) == UCS_OK);
    return memh;
}

static ucs_status_t key_of(ucp_ep_h ep, ucp_mem_h memh, ucp_rkey_h *rkey)
{
    ucs_status_t status;
    void *packed;
    size_t size;

    CHECK(ucp_rkey_pack(pair.context, memh, &packed, &size) == UCS_OK);
    status = ucp_ep_rkey_unpack(ep, packed, rkey);
    ucp_rkey_buffer_release(packed);
    return status;
}

/* Active messages, streams, tagged messages, a put and a flush wait for the connection, and arrive in order. */
static void before_the_connection(void)
{
    struct sockaddr_in any         = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    ucp_listener_params_t params   = {.field_mask   = UCP_LISTENER_PARAM_FIELD_SOCK_ADDR |
                                                      UCP_LISTENER_PARAM_FIELD_CONN_HANDLER,
                                      .sockaddr     = {(const struct sockaddr*)&any, sizeof(any)},
                                      .conn_handler = {on_conn, NULL}};
    ucp_listener_attr_t attr       = {.field_mask = UCP_LISTENER_ATTR_FIELD_SOCKADDR};
    ucp_am_handler_param_t handler = {.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB |
                                                    UCP_AM_HANDLER_PARAM_FIELD_ARG,
                                      .id = AM_ID, .cb = on_am, .arg = &handled};
    ucp_ep_params_t to             = {.field_mask = UCP_EP_PARAM_FIELD_FLAGS | UCP_EP_PARAM_FIELD_SOCK_ADDR,
                                      .flags      = UCP_EP_PARAMS_FLAGS_CLIENT_SERVER};
    ucp_ep_params_t accept         = {.field_mask = UCP_EP_PARAM_FIELD_CONN_REQUEST};
    ucp_request_param_t whole      = {.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS, .flags = UCP_STREAM_RECV_FLAG_WAITALL};
    uint64_t message = 51, bytes = 52, tagged = 53, written = 54, of_stream = 0, of_tag = 0, target = 0;
    ucs_status_ptr_t sends[4], flush, put, recv;
    ucp_mem_h memh = map(&target, sizeof(target));
    ucp_rkey_h rkey;
    ucp_listener_h listener;
    ucp_ep_h client, server;
    size_t length;
    int i;

    CHECK(ucp_worker_set_am_recv_handler(pair.b, &handler) == UCS_OK);
    CHECK(ucp_listener_create(pair.b, &params, &listener) == UCS_OK);
    CHECK(ucp_listener_query(listener, &attr) == UCS_OK);
    to.sockaddr.addr    = (const struct sockaddr*)&attr.sockaddr;
    to.sockaddr.addrlen = sizeof(attr.sockaddr);
    CHECK(ucp_ep_create(pair.a, &to, &client) == UCS_OK);
    sends[0] = ucp_am_send_nbx(client, AM_ID, "abc", 3, &message, 8, &none);
    sends[1] = ucp_stream_send_nbx(client, &bytes, 8, &none);
    sends[2] = ucp_tag_send_nbx(client, &tagged, 8, 60, &none);
    sends[3] = ucp_tag_send_sync_nbx(client, &tagged, 8, 61, &none);
    CHECK(key_of(client, memh, &rkey) == UCS_OK);
    put = ucp_put_nbx(client, &written, 8, (uintptr_t)&target, rkey, &none);
    CHECK(UCS_PTR_IS_PTR(put));
    flush = ucp_ep_flush_nbx(client, &none);
    CHECK(UCS_PTR_IS_PTR(flush));
    UNTIL(&pair, asked != NULL);
    for (i = 0; i < 1000; i++) {
        progress(&pair);
    }
    CHECK(handled == 0 && ucp_request_check_status(flush) == UCS_INPROGRESS);
    accept.conn_request = asked;
    CHECK(ucp_ep_create(pair.b, &accept, &server) == UCS_OK);
    recv = ucp_tag_recv_nbx(pair.b, &of_tag, 8, 61, ~0ull, &none);
    for (i = 0; i < 4; i++) {
        wait_for(&pair, sends[i], UCS_OK);
    }
    wait_for(&pair, recv, UCS_OK);
    CHECK(of_tag == 53);
    wait_for(&pair, ucp_tag_recv_nbx(pair.b, &of_tag, 8, 60, ~0ull, &none), UCS_OK);
    wait_for(&pair, put, UCS_OK);
    wait_for(&pair, flush, UCS_OK);
    CHECK(target == 54);
    UNTIL(&pair, handled == 1);
    wait_for(&pair, ucp_stream_recv_nbx(server, &of_stream, 8, &length, &whole), UCS_OK);
    CHECK(of_stream == 52);
    ucp_rkey_destroy(rkey);
    close_ep(&pair, client);
    close_ep(&pair, server);
    ucp_listener_destroy(listener);
    CHECK(ucp_mem_unmap(pair.context, memh) == UCS_OK);
}

/* A get whose request is freed goes on, and a flush completes it. */
static void freed_gets(void)
{
    unsigned char *remote = malloc(LONG), *local = malloc(LONG);
    ucp_mem_h memh = map(remote, LONG);
    ucp_rkey_h rkey;
    int i;

    CHECK(key_of(pair.ab, memh, &rkey) == UCS_OK);
    for (i = 0; i < 10; i++) {
        ucs_status_ptr_t get;

        fill(remote, LONG, i);
        get = ucp_get_nbx(pair.ab, local, LONG, (uintptr_t)remote, rkey, &none);
        CHECK(!UCS_PTR_IS_ERR(get));
        if (get != NULL) {
            ucp_request_free(get);
        }
        wait_for(&pair, ucp_ep_flush_nbx(pair.ab, &none), UCS_OK);
        check_filled(local, LONG, i);
    }
    ucp_rkey_destroy(rkey);
    CHECK(ucp_mem_unmap(pair.context, memh) == UCS_OK);
    free(remote);
    free(local);
}

/* A put behind a fence is seen after those before it, also by a device that changes the order. */
static void fenced_puts(void)
{
    unsigned char *remote = calloc(1, LONG), *first = malloc(LONG), *second = malloc(LONG);
    ucp_mem_h memh = map(remote, LONG);
    ucp_rkey_h rkey;
    int i;

    CHECK(key_of(pair.ab, memh, &rkey) == UCS_OK);
    for (i = 0; i < 50; i++) {
        const size_t length = i % 5 == 0 ? LONG : 1 + 397 * i;
        ucs_status_ptr_t puts[2];

        fill(first, length, i);
        fill(second, length, i + 100);
        puts[0] = ucp_put_nbx(pair.ab, first, length, (uintptr_t)remote, rkey, &none);
        CHECK(ucp_worker_fence(pair.a) == UCS_OK);
        puts[1] = ucp_put_nbx(pair.ab, second, length, (uintptr_t)remote, rkey, &none);
        wait_for(&pair, puts[0], UCS_OK);
        wait_for(&pair, puts[1], UCS_OK);
        wait_for(&pair, ucp_ep_flush_nbx(pair.ab, &none), UCS_OK);
        check_filled(remote, length, i + 100);
    }
    ucp_rkey_destroy(rkey);
    CHECK(ucp_mem_unmap(pair.context, memh) == UCS_OK);
    free(remote);
    free(first);
    free(second);
}

int main(void)
{
    make_pair(&pair, UCS_THREAD_MODE_SINGLE);
    before_the_connection();
    freed_gets();
    fenced_puts();
    free_pair(&pair);
    return 0;
}

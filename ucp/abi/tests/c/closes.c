/* The close of one of two connections between two workers by force: its operations end at both ends, with
 * UCX's statuses, and the other connection goes on. */
#include "check.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#define LONG (4 << 20)
#define OPS  4

typedef struct {
    ucp_ep_h ep;
    unsigned told;
    unsigned ended;
    ucs_status_t status[OPS];
} end_t;

static end_t ends[2][2];
static ucp_conn_request_h asked;
static void *announced[2];
static unsigned announcements;

static void on_error(void *arg, ucp_ep_h ep, ucs_status_t status)
{
    end_t *end = arg;
    CHECK(ep == end->ep && status == UCS_ERR_CONNECTION_RESET);
    end->told++;
}

static void on_sent(void *request, ucs_status_t status, void *user_data)
{
    end_t *end = user_data;
    CHECK(end->ended < OPS);
    end->status[end->ended++] = status;
    ucp_request_free(request);
}

static void on_conn(ucp_conn_request_h request, void *arg)
{
    asked = request;
}

static ucs_status_t on_am(void *arg, const void *header, size_t header_length, void *data, size_t length,
                          const ucp_am_recv_param_t *param)
{
    CHECK(param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV);
    announced[*(const unsigned char*)header] = data;
    announcements++;
    return UCS_INPROGRESS;
}

static void make_end(ucp_worker_h worker, ucp_ep_params_t *params, end_t *end)
{
    params->field_mask |= UCP_EP_PARAM_FIELD_ERR_HANDLER | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE;
    params->err_mode        = UCP_ERR_HANDLING_MODE_PEER;
    params->err_handler.cb  = on_error;
    params->err_handler.arg = end;
    memset(end, 0, sizeof(*end));
    CHECK(ucp_ep_create(worker, params, &end->ep) == UCS_OK);
}

static void make_connections(pair_t *pair)
{
    struct sockaddr_in any = {.sin_family = AF_INET};
    ucp_listener_params_t params;
    ucp_listener_attr_t attr;
    ucp_listener_h listener;
    int i;

    any.sin_addr.s_addr     = htonl(INADDR_LOOPBACK);
    params.field_mask       = UCP_LISTENER_PARAM_FIELD_SOCK_ADDR | UCP_LISTENER_PARAM_FIELD_CONN_HANDLER;
    params.sockaddr.addr    = (const struct sockaddr*)&any;
    params.sockaddr.addrlen = sizeof(any);
    params.conn_handler.cb  = on_conn;
    params.conn_handler.arg = NULL;
    CHECK(ucp_listener_create(pair->b, &params, &listener) == UCS_OK);
    attr.field_mask = UCP_LISTENER_ATTR_FIELD_SOCKADDR;
    CHECK(ucp_listener_query(listener, &attr) == UCS_OK);
    for (i = 0; i < 2; i++) {
        ucp_ep_params_t client = {.field_mask = UCP_EP_PARAM_FIELD_FLAGS | UCP_EP_PARAM_FIELD_SOCK_ADDR,
                                  .flags      = UCP_EP_PARAMS_FLAGS_CLIENT_SERVER};
        ucp_ep_params_t server = {.field_mask = UCP_EP_PARAM_FIELD_CONN_REQUEST};

        client.sockaddr.addr    = (const struct sockaddr*)&attr.sockaddr;
        client.sockaddr.addrlen = sizeof(struct sockaddr_in);
        asked = NULL;
        make_end(pair->a, &client, &ends[i][0]);
        UNTIL(pair, asked != NULL);
        server.conn_request = asked;
        make_end(pair->b, &server, &ends[i][1]);
    }
    ucp_listener_destroy(listener);
}

/* A long message each way. */
static void exchange(pair_t *pair, int connection)
{
    unsigned char *out = malloc(LONG), *back = malloc(LONG);
    ucp_request_param_t param = plain();
    ucs_status_ptr_t send, recv;
    int end;

    for (end = 0; end < 2; end++) {
        fill(out, LONG, end);
        recv = ucp_tag_recv_nbx(end ? pair->a : pair->b, back, LONG, 50 + end, ~0ull, &param);
        send = ucp_tag_send_nbx(ends[connection][end].ep, out, LONG, 50 + end, &param);
        wait_for(pair, send, UCS_OK);
        wait_for(pair, recv, UCS_OK);
        check_filled(back, LONG, end);
    }
    free(out);
    free(back);
}

/* Operations that wait for the receiver, on every end. Each calls back once. */
static void start(pair_t *pair, unsigned char *out)
{
    int connection, end;

    for (connection = 0; connection < 2; connection++) {
        for (end = 0; end < 2; end++) {
            end_t *of                 = &ends[connection][end];
            ucp_request_param_t param = plain();

            param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
            param.cb.send      = on_sent;
            param.user_data    = of;
            CHECK(UCS_PTR_IS_PTR(ucp_tag_send_nbx(of->ep, out, LONG, 10 * connection + end, &param)));
            CHECK(UCS_PTR_IS_PTR(ucp_tag_send_sync_nbx(of->ep, out, 8, 10 * connection + end, &param)));
            if (end == 0) {
                unsigned char header = connection;
                param.op_attr_mask  |= UCP_OP_ATTR_FIELD_FLAGS;
                param.flags          = UCP_AM_SEND_FLAG_RNDV;
                CHECK(UCS_PTR_IS_PTR(ucp_am_send_nbx(of->ep, 7, &header, 1, out, LONG, &param)));
            }
        }
    }
    UNTIL(pair, announcements == 2);
}

/* Receives what the ends of a connection that lives have sent. */
static void receive(pair_t *pair, int connection, unsigned char *out)
{
    ucp_request_param_t param = plain();
    unsigned char *in         = malloc(LONG);
    int end, i;

    for (end = 0; end < 2; end++) {
        for (i = 0; i < 2; i++) {
            ucp_worker_h to = end ? pair->a : pair->b;
            wait_for(pair, ucp_tag_recv_nbx(to, in, LONG, 10 * connection + end, ~0ull, &param), UCS_OK);
            CHECK(memcmp(in, out, i == 0 ? LONG : 8) == 0);
        }
    }
    wait_for(pair, ucp_am_recv_data_nbx(pair->b, announced[connection], in, LONG, &param), UCS_OK);
    CHECK(memcmp(in, out, LONG) == 0);
    UNTIL(pair, ends[connection][0].ended == 3 && ends[connection][1].ended == 2);
    for (i = 0; i < 3; i++) {
        CHECK(ends[connection][0].status[i] == UCS_OK);
        CHECK(i == 2 || ends[connection][1].status[i] == UCS_OK);
    }
    free(in);
}

static void close_of_one(pair_t *pair)
{
    unsigned char *out        = malloc(LONG), *in = malloc(LONG);
    ucp_request_param_t param = plain();
    ucs_status_ptr_t recv;
    time_t limit;
    int i;

    fill(out, LONG, 3);
    make_connections(pair);
    exchange(pair, 0);
    exchange(pair, 1);
    start(pair, out);
    wait_for(pair, ucp_ep_close_nb(ends[0][0].ep, UCP_EP_CLOSE_MODE_FORCE), UCS_OK);
    UNTIL(pair, ends[0][0].ended == 3 && ends[0][1].ended == 2 && ends[0][1].told == 1);
    for (i = 0; i < 3; i++) {
        CHECK(ends[0][0].status[i] == UCS_ERR_CANCELED);
        CHECK(i == 2 || ends[0][1].status[i] == UCS_ERR_CONNECTION_RESET);
    }
    /* The announced data does not come. */
    recv  = ucp_am_recv_data_nbx(pair->b, announced[0], in, LONG, &param);
    limit = time(NULL) + 60;
    while (UCS_PTR_IS_PTR(recv) && ucp_request_check_status(recv) == UCS_INPROGRESS) {
        progress(pair);
        CHECK(time(NULL) < limit);
    }
    CHECK(UCS_PTR_IS_PTR(recv) ? ucp_request_check_status(recv) != UCS_OK : UCS_PTR_IS_ERR(recv));
    if (UCS_PTR_IS_PTR(recv)) {
        ucp_request_free(recv);
    }
    CHECK(UCS_PTR_STATUS(ucp_tag_send_nbx(ends[0][1].ep, out, 8, 1, &param)) == UCS_ERR_CONNECTION_RESET);
    wait_for(pair, ucp_ep_close_nb(ends[0][1].ep, UCP_EP_CLOSE_MODE_FORCE), UCS_OK);
    receive(pair, 1, out);
    exchange(pair, 1);
    CHECK(ends[1][0].told == 0 && ends[1][1].told == 0);
    wait_for(pair, ucp_ep_close_nb(ends[1][0].ep, UCP_EP_CLOSE_MODE_FLUSH), UCS_OK);
    wait_for(pair, ucp_ep_close_nb(ends[1][1].ep, UCP_EP_CLOSE_MODE_FLUSH), UCS_OK);
    free(out);
    free(in);
}

int main(void)
{
    ucp_am_handler_param_t handler;
    pair_t pair;

    make_pair(&pair, UCS_THREAD_MODE_SINGLE);
    handler.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB;
    handler.id         = 7;
    handler.cb         = on_am;
    CHECK(ucp_worker_set_am_recv_handler(pair.b, &handler) == UCS_OK);
    close_of_one(&pair);
    free_pair(&pair);
    return 0;
}

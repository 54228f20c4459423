/* Tagged messages: every form, requests of library and caller, probes, truncation, cancel, datatypes. */
#include "check.h"

#define LONG 300000

static unsigned called;
static ucs_status_t last_status;
static ucp_tag_recv_info_t last_info;

static void on_send(void *request, ucs_status_t status, void *user_data)
{
    CHECK(user_data == &called);
    CHECK(*(unsigned*)request == USER_MARK);
    last_status = status;
    called++;
}

static void on_send_nb(void *request, ucs_status_t status)
{
    CHECK(*(unsigned*)request == USER_MARK);
    last_status = status;
    called++;
}

static void on_recv(void *request, ucs_status_t status, const ucp_tag_recv_info_t *info, void *user_data)
{
    CHECK(user_data == &called);
    CHECK(*(unsigned*)request == USER_MARK);
    last_status = status;
    last_info   = *info;
    called++;
}

static void on_recv_nb(void *request, ucs_status_t status, ucp_tag_recv_info_t *info)
{
    CHECK(*(unsigned*)request == USER_MARK);
    last_status = status;
    last_info   = *info;
    called++;
}

static ucp_request_param_t with(uint32_t mask)
{
    ucp_request_param_t param;
    memset(&param, 0xff, sizeof(param)); /* only named fields are read */
    param.op_attr_mask = mask;
    param.user_data    = &called;
    return param;
}

static void until_called(pair_t *pair, unsigned count)
{
    time_t end = time(NULL) + 60;
    while (called < count) {
        progress(pair);
        CHECK(time(NULL) < end);
    }
}

static void sizes(pair_t *pair)
{
    static const size_t lengths[] = {0, 1, 8, 1000, 9000, 70000, LONG};
    unsigned char *out = malloc(LONG), *in = malloc(LONG);
    ucp_request_param_t param = with(0);
    size_t i;

    for (i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
        ucs_status_ptr_t send, recv;
        fill(out, lengths[i], i);
        memset(in, 0, lengths[i]);
        recv = ucp_tag_recv_nbx(pair->b, in, lengths[i], 7, ~0ull, &param);
        send = ucp_tag_send_nbx(pair->ab, out, lengths[i], 7, &param);
        wait_for(pair, recv, UCS_OK);
        wait_for(pair, send, UCS_OK);
        check_filled(in, lengths[i], i);
        send = ucp_tag_send_sync_nbx(pair->ab, out, lengths[i], 8, &param);
        CHECK(UCS_PTR_IS_PTR(send));
        recv = ucp_tag_recv_nbx(pair->b, in, lengths[i], 8, ~0ull, &param);
        wait_for(pair, recv, UCS_OK);
        wait_for(pair, send, UCS_OK);
    }
    free(out);
    free(in);
}

static void wait_unexpected(pair_t *pair, ucp_tag_t tag)
{
    ucp_tag_recv_info_t info;
    time_t end = time(NULL) + 60;
    while (ucp_tag_probe_nb(pair->b, tag, ~0ull, 0, &info) == NULL) {
        progress(pair);
        CHECK(time(NULL) < end);
    }
    CHECK(info.sender_tag == tag);
}

static void callbacks(pair_t *pair)
{
    ucp_request_param_t param = with(UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA |
                                     UCP_OP_ATTR_FLAG_NO_IMM_CMPL);
    ucp_tag_recv_info_t info;
    uint64_t out = 77, in = 0;
    ucs_status_ptr_t send, recv;

    /* Both get a request and a call, although the message is there. */
    called        = 0;
    param.cb.send = on_send;
    send          = ucp_tag_send_nbx(pair->ab, &out, 8, 1, &param);
    CHECK(UCS_PTR_IS_PTR(send));
    until_called(pair, 1);
    wait_unexpected(pair, 1);
    param.cb.recv = on_recv;
    recv          = ucp_tag_recv_nbx(pair->b, &in, 8, 0, 0, &param);
    CHECK(UCS_PTR_IS_PTR(recv));
    until_called(pair, 2);
    CHECK(in == 77 && last_status == UCS_OK && last_info.sender_tag == 1 && last_info.length == 8);
    CHECK(ucp_tag_recv_request_test(recv, &info) == UCS_OK && info.length == 8 && info.sender_tag == 1);
    ucp_request_free(send);
    ucp_request_free(recv);

    /* Without the flag there is no call, and the result is stored. */
    called                   = 0;
    param                    = with(UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_RECV_INFO);
    param.cb.recv            = on_recv;
    param.recv_info.tag_info = &info;
    send                     = ucp_tag_send_nb(pair->ab, &out, 1, ucp_dt_make_contig(8), 2, on_send_nb);
    CHECK(!UCS_PTR_IS_ERR(send));
    wait_unexpected(pair, 2);
    memset(&info, 0, sizeof(info));
    recv = ucp_tag_recv_nbx(pair->b, &in, 8, 2, ~0ull, &param);
    CHECK(recv == NULL && called == (send != NULL) && info.sender_tag == 2 && info.length == 8);
    if (send != NULL) {
        ucp_request_free(send);
    }

    /* The old receive always returns a request; its callback may come first. */
    called = 0;
    send   = ucp_tag_send_nb(pair->ab, &out, 8, ucp_dt_make_contig(1), 3, on_send_nb);
    wait_unexpected(pair, 3);
    recv = ucp_tag_recv_nb(pair->b, &in, 8, ucp_dt_make_contig(1), 3, ~0ull, on_recv_nb);
    CHECK(UCS_PTR_IS_PTR(recv) && last_info.sender_tag == 3);
    wait_for(pair, recv, UCS_OK);
    if (send != NULL) {
        ucp_request_release(send);
    }
}

static void truncation_and_cancel(pair_t *pair)
{
    ucp_request_param_t param = with(UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA);
    static unsigned char long_out[1 << 20], long_in[1 << 20];
    unsigned char out[100], in[100];
    ucs_status_ptr_t recv, send;

    fill(out, sizeof(out), 1);
    /* posted first */
    called        = 0;
    param.cb.recv = on_recv;
    recv          = ucp_tag_recv_nbx(pair->b, in, 10, 0x10, 0xf0, &param);
    CHECK(UCS_PTR_IS_PTR(recv));
    param.cb.send = on_send;
    CHECK(ucp_tag_send_nbx(pair->ab, out, 100, 0x1234567800000015ull, &param) == NULL);
    until_called(pair, 1);
    CHECK(last_status == UCS_ERR_MESSAGE_TRUNCATED && last_info.length == 100);
    CHECK(last_info.sender_tag == 0x1234567800000015ull);
    CHECK(ucp_request_check_status(recv) == UCS_ERR_MESSAGE_TRUNCATED);
    ucp_request_free(recv);
    /* unexpected */
    called = 0;
    CHECK(ucp_tag_send_nbx(pair->ab, out, 100, 0x25, &param) == NULL);
    wait_unexpected(pair, 0x25);
    recv = ucp_tag_recv_nb(pair->b, in, 10, ucp_dt_make_contig(1), 0x20, 0xf0, on_recv_nb);
    CHECK(UCS_PTR_IS_PTR(recv) && called == 1);
    CHECK(last_status == UCS_ERR_MESSAGE_TRUNCATED && last_info.length == 100 && last_info.sender_tag == 0x25);
    wait_for(pair, recv, UCS_ERR_MESSAGE_TRUNCATED);
    check_filled(in, 10, 1);
    /* cancel */
    called        = 0;
    param.cb.recv = on_recv;
    recv          = ucp_tag_recv_nbx(pair->b, in, 10, 99, ~0ull, &param);
    ucp_request_cancel(pair->b, recv);
    /* MPICH looks at its request right behind the cancel. */
    CHECK(called == 1 && last_status == UCS_ERR_CANCELED);
    wait_for(pair, recv, UCS_ERR_CANCELED);
    /* A send of which something has gone out is not cancelled, and is received as any other one. */
    for (int is_long = 0; is_long < 2; is_long++) {
        const size_t length = is_long ? sizeof long_out : 100;
        ucp_request_param_t plain = {.op_attr_mask = 0};
        fill(long_out, length, 3);
        send = is_long ? ucp_tag_send_nbx(pair->ab, long_out, length, 0x77, &plain)
                       : ucp_tag_send_sync_nbx(pair->ab, long_out, length, 0x77, &plain);
        CHECK(UCS_PTR_IS_PTR(send));
        wait_unexpected(pair, 0x77);
        ucp_request_cancel(pair->a, send);
        CHECK(ucp_request_check_status(send) == UCS_INPROGRESS);
        recv = ucp_tag_recv_nbx(pair->b, long_in, length, 0x77, ~0ull, &plain);
        wait_for(pair, recv, UCS_OK);
        wait_for(pair, send, UCS_OK);
        check_filled(long_in, length, 3);
    }
}

/* A request in memory of the caller: nothing at or above its address is touched. */
static void callers_requests(pair_t *pair)
{
    ucp_context_attr_t attr;
    ucp_tag_recv_info_t info;
    unsigned char *memory, *request, *rest, *out = malloc(LONG), *in = malloc(LONG);
    unsigned before = inits;
    size_t length;

    attr.field_mask = UCP_ATTR_FIELD_REQUEST_SIZE;
    CHECK(ucp_context_query(pair->context, &attr) == UCS_OK && attr.request_size <= 400);
    memory  = malloc(attr.request_size + 64);
    request = memory + attr.request_size;
    rest    = malloc(64);
    memset(request, 0xab, 64);
    memset(rest, 0xab, 64);
    for (length = 8; length <= LONG; length += LONG - 8) {
        ucs_status_t status;
        time_t end = time(NULL) + 60;
        fill(out, length, 3);
        status = ucp_tag_recv_nbr(pair->b, in, length, ucp_dt_make_contig(1), 5, ~0ull, request);
        CHECK(status == UCS_OK);
        CHECK(ucp_request_check_status(request) == UCS_INPROGRESS);
        unsigned char *of_send = malloc(attr.request_size);
        status = ucp_tag_send_nbr(pair->ab, out, length, ucp_dt_make_contig(1), 5, of_send + attr.request_size);
        CHECK(status == UCS_OK || status == UCS_INPROGRESS);
        while ((ucp_request_check_status(request) == UCS_INPROGRESS) ||
               (status == UCS_INPROGRESS &&
                ucp_request_check_status(of_send + attr.request_size) == UCS_INPROGRESS)) {
            progress(pair);
            CHECK(time(NULL) < end);
        }
        CHECK(ucp_tag_recv_request_test(request, &info) == UCS_OK && info.length == length);
        CHECK(ucp_request_test(request, &info) == UCS_OK && info.sender_tag == 5);
        check_filled(in, length, 3);
        free(of_send);
    }
    /* one that ends in the call */
    CHECK(ucp_tag_send_nb(pair->ab, out, 8, ucp_dt_make_contig(1), 6, on_send_nb) == NULL);
    wait_unexpected(pair, 6);
    CHECK(ucp_tag_recv_nbr(pair->b, in, 8, ucp_dt_make_contig(1), 6, ~0ull, request) == UCS_OK);
    CHECK(ucp_tag_recv_request_test(request, &info) == UCS_OK && info.length == 8 && info.sender_tag == 6);
    /* What ends in the call is told by the return value and by the request: Open MPI reads only the request. */
    for (length = 8; length <= 20; length += 12) {
        ucp_request_param_t param = with(UCP_OP_ATTR_FIELD_REQUEST);
        ucs_status_t expected     = length == 8 ? UCS_OK : UCS_ERR_MESSAGE_TRUNCATED;
        param.request             = request;
        CHECK(ucp_tag_send_nb(pair->ab, out, length, ucp_dt_make_contig(1), 7, on_send_nb) == NULL);
        wait_unexpected(pair, 7);
        memset(memory, 0, attr.request_size);
        memset(&info, 0, sizeof(info));
        CHECK(UCS_PTR_RAW_STATUS(ucp_tag_recv_nbx(pair->b, in, 8, 7, ~0ull, &param)) == expected);
        CHECK(ucp_request_test(request, &info) == expected && info.length == length && info.sender_tag == 7);
        CHECK(ucp_request_check_status(request) == expected);
    }
    CHECK(memcmp(request, rest, 64) == 0);
    CHECK(inits == before);
    free(memory);
    free(rest);
    free(out);
    free(in);
}

/* Requests in memory of the program, which is the program's again in the callback of an operation that ends in
 * its call. */
#define REPOSTS 100

static struct {
    pair_t *pair;
    unsigned char *memory;
    size_t size;
    uint64_t in;
} own;

static void *own_request(void)
{
    return own.memory + own.size;
}

static void on_own_send(void *request, ucs_status_t status, void *user_data)
{
    CHECK(request == own_request() && status == UCS_OK && user_data == &called);
    memset(own.memory, 0x5a, own.size);
    called++;
}

static void on_own_recv(void *request, ucs_status_t status, const ucp_tag_recv_info_t *info, void *user_data)
{
    CHECK(info->length == 8 && info->sender_tag == 8);
    on_own_send(request, status, user_data);
}

static void on_freed(void *request, ucs_status_t status, const ucp_tag_recv_info_t *info, void *user_data)
{
    CHECK(request == own_request() && status == UCS_OK && info->length == 8);
    free(own.memory);
    called++;
}

static void repost(void);

static void on_reposted(void *request, ucs_status_t status, const ucp_tag_recv_info_t *info, void *user_data)
{
    called++;
    CHECK(request == own_request() && status == (called > REPOSTS ? UCS_ERR_CANCELED : UCS_OK));
    if (called <= REPOSTS) {
        CHECK(info->length == 8 && own.in == called);
        repost();
    }
}

static ucp_request_param_t with_own_request(void)
{
    ucp_request_param_t param = with(UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA |
                                     UCP_OP_ATTR_FIELD_REQUEST | UCP_OP_ATTR_FLAG_NO_IMM_CMPL);
    param.request = own_request();
    return param;
}

static void repost(void)
{
    ucp_request_param_t param = with_own_request();
    param.cb.recv             = on_reposted;
    CHECK(ucp_tag_recv_nbx(own.pair->b, &own.in, 8, 8, ~0ull, &param) == own_request());
}

static void check_untouched(void)
{
    for (size_t at = 0; at < own.size; at++) {
        CHECK(own.memory[at] == 0x5a);
    }
}

static void own_memory_in_callbacks(ucs_thread_mode_t mode)
{
    ucp_context_attr_t attr = {.field_mask = UCP_ATTR_FIELD_REQUEST_SIZE};
    ucp_request_param_t param, plain_param = with(0);
    uint64_t out = 1;
    pair_t pair;

    make_pair(&pair, mode);
    CHECK(ucp_context_query(pair.context, &attr) == UCS_OK);
    own.pair   = &pair;
    own.size   = attr.request_size;
    own.memory = malloc(own.size + 8);
    called     = 0;
    /* What follows ends in its call. */
    wait_for(&pair, ucp_tag_send_nbx(pair.ab, &out, 8, 8, &plain_param), UCS_OK);
    wait_for(&pair, ucp_tag_recv_nbx(pair.b, &own.in, 8, 8, ~0ull, &plain_param), UCS_OK);

    /* Neither a send nor a receive touches the memory behind its callback. */
    param         = with_own_request();
    param.cb.send = on_own_send;
    CHECK(ucp_tag_send_nbx(pair.ab, &out, 8, 8, &param) == own_request() && called == 1);
    check_untouched();
    wait_unexpected(&pair, 8);
    param.cb.recv = on_own_recv;
    CHECK(ucp_tag_recv_nbx(pair.b, &own.in, 8, 8, ~0ull, &param) == own_request() && called == 2);
    check_untouched();

    /* A callback starts the next operation in the same memory; the last one is cancelled. */
    for (out = 1; out <= REPOSTS; out++) {
        wait_for(&pair, ucp_tag_send_nbx(pair.ab, &out, 8, 8, &plain_param), UCS_OK);
    }
    wait_for(&pair, ucp_tag_send_nbx(pair.ab, &out, 8, 9, &plain_param), UCS_OK);
    wait_unexpected(&pair, 9);
    called = 0;
    repost();
    CHECK(called == REPOSTS && ucp_request_check_status(own_request()) == UCS_INPROGRESS);
    ucp_request_cancel(pair.b, own_request());
    UNTIL(&pair, called == REPOSTS + 1);

    /* The program frees the memory in the callback. */
    unsigned char *kept = own.memory;
    own.memory          = malloc(own.size + 8);
    param               = with_own_request();
    param.cb.recv       = on_freed;
    CHECK(ucp_tag_recv_nbx(pair.b, &own.in, 8, 9, ~0ull, &param) == own_request());
    CHECK(called == REPOSTS + 2);

    /* Nor does the end of the worker touch what is the program's. */
    own.memory = kept;
    memset(own.memory, 0x5a, own.size);
    free_pair(&pair);
    check_untouched();
    free(own.memory);
}

static void probes(pair_t *pair)
{
    ucp_request_param_t param = with(0);
    ucp_tag_recv_info_t info;
    ucp_tag_message_h message;
    unsigned char *out = malloc(LONG), *in = malloc(LONG);
    ucs_status_ptr_t send;

    fill(out, LONG, 9);
    CHECK(ucp_tag_probe_nb(pair->b, 40, ~0ull, 1, &info) == NULL);
    send = ucp_tag_send_nbx(pair->ab, out, LONG, 40, &param);
    wait_unexpected(pair, 40);
    message = ucp_tag_probe_nb(pair->b, 0, 0, 1, &info);
    CHECK(message != NULL && info.length == LONG && info.sender_tag == 40);
    CHECK(ucp_tag_probe_nb(pair->b, 40, ~0ull, 0, &info) == NULL);
    wait_for(pair, ucp_tag_msg_recv_nbx(pair->b, in, LONG, message, &param), UCS_OK);
    wait_for(pair, send, UCS_OK);
    check_filled(in, LONG, 9);
    send = ucp_tag_send_nbx(pair->ab, out, 100, 41, &param);
    wait_unexpected(pair, 41);
    message = ucp_tag_probe_nb(pair->b, 41, ~0ull, 1, &info);
    called  = 0;
    {
        ucs_status_ptr_t recv = ucp_tag_msg_recv_nb(pair->b, in, 100, ucp_dt_make_contig(1), message, on_recv_nb);
        CHECK(UCS_PTR_IS_PTR(recv));
        until_called(pair, 1);
        wait_for(pair, recv, UCS_OK);
    }
    wait_for(pair, send, UCS_OK);
    free(out);
    free(in);
}

static void pieces(pair_t *pair)
{
    ucp_request_param_t param = with(UCP_OP_ATTR_FIELD_DATATYPE);
    unsigned char out[3000], in[3000];
    ucp_dt_iov_t from[40], to[3] = {{in, 1000}, {in + 1000, 0}, {in + 1000, 2000}};
    ucs_status_ptr_t recv, send;
    int i;

    fill(out, sizeof(out), 5);
    for (i = 0; i < 40; i++) {
        from[i].buffer = out + i * 75;
        from[i].length = 75;
    }
    param.datatype = ucp_dt_make_iov();
    recv           = ucp_tag_recv_nbx(pair->b, to, 3, 50, ~0ull, &param);
    send           = ucp_tag_send_nbx(pair->ab, from, 40, 50, &param);
    memset(from, 0, sizeof(from)); /* the list may go at once */
    wait_for(pair, recv, UCS_OK);
    wait_for(pair, send, UCS_OK);
    check_filled(in, sizeof(in), 5);
}

/* A datatype that stores each byte inverted. */
typedef struct {
    unsigned char *buffer;
    size_t count;
} state_t;

static unsigned started, finished;

static void *start_pack(void *context, const void *buffer, size_t count)
{
    state_t *state = malloc(sizeof(*state));
    CHECK(context == &started);
    state->buffer = (unsigned char*)buffer;
    state->count  = count;
    started++;
    return state;
}

static void *start_unpack(void *context, void *buffer, size_t count)
{
    return start_pack(context, buffer, count);
}

static size_t packed_size(void *state)
{
    return ((state_t*)state)->count;
}

static size_t pack(void *arg, size_t offset, void *dest, size_t max)
{
    state_t *state = arg;
    size_t i, n    = state->count - offset < max ? state->count - offset : max;
    for (i = 0; i < n; i++) {
        ((unsigned char*)dest)[i] = ~state->buffer[offset + i];
    }
    return n;
}

static ucs_status_t unpack(void *arg, size_t offset, const void *src, size_t length)
{
    state_t *state = arg;
    size_t i;
    CHECK(offset + length <= state->count);
    for (i = 0; i < length; i++) {
        state->buffer[offset + i] = ~((const unsigned char*)src)[i];
    }
    return UCS_OK;
}

static void finish(void *state)
{
    free(state);
    finished++;
}

/* What has been started is finished also by operations that are refused. */
static void refused_generic(pair_t *pair, const ucp_request_param_t *generic)
{
    ucp_request_param_t param = *generic;
    char bytes[16]            = {0};
    ucs_status_ptr_t pointer;
    ucs_status_t status;

    pointer = ucp_tag_msg_recv_nbx(pair->b, bytes, sizeof(bytes), NULL, &param);
    CHECK(UCS_PTR_RAW_STATUS(pointer) == UCS_ERR_INVALID_PARAM && finished == started);
    status = ucp_tag_recv_nbr(pair->b, bytes, sizeof(bytes), param.datatype, 62, -1, NULL);
    CHECK(status == UCS_ERR_INVALID_PARAM && finished == started);
    param.op_attr_mask |= UCP_OP_ATTR_FIELD_REQUEST;
    param.request       = NULL;
    pointer = ucp_tag_recv_nbx(pair->b, bytes, sizeof(bytes), 62, -1, &param);
    CHECK(UCS_PTR_RAW_STATUS(pointer) == UCS_ERR_INVALID_PARAM && finished == started);
    pointer = ucp_tag_send_sync_nbx(pair->ab, bytes, sizeof(bytes), 62, &param);
    CHECK(UCS_PTR_RAW_STATUS(pointer) == UCS_ERR_INVALID_PARAM && finished == started);
    pointer = ucp_stream_recv_nbx(pair->ba, bytes, sizeof(bytes), &(size_t){0}, &param);
    CHECK(UCS_PTR_RAW_STATUS(pointer) == UCS_ERR_INVALID_PARAM && finished == started);
}

static void generic(pair_t *pair)
{
    ucp_generic_dt_ops_t ops  = {start_pack, start_unpack, packed_size, pack, unpack, finish};
    ucp_request_param_t param = with(UCP_OP_ATTR_FIELD_DATATYPE);
    unsigned char *out = malloc(LONG), *in = malloc(LONG);
    ucs_status_ptr_t recv, send;
    size_t length;

    CHECK(ucp_dt_create_generic(&ops, &started, &param.datatype) == UCS_OK);
    for (length = 10; length <= LONG; length += LONG - 10) {
        fill(out, length, 6);
        recv = ucp_tag_recv_nbx(pair->b, in, length, 60, ~0ull, &param);
        send = ucp_tag_send_nbx(pair->ab, out, length, 60, &param);
        wait_for(pair, recv, UCS_OK);
        wait_for(pair, send, UCS_OK);
        check_filled(in, length, 6);
    }
    recv = ucp_tag_recv_nbx(pair->b, in, 10, 61, ~0ull, &param);
    ucp_request_cancel(pair->b, recv);
    wait_for(pair, recv, UCS_ERR_CANCELED);
    CHECK(started == 5 && finished == started);
    refused_generic(pair, &param);
    ucp_dt_destroy(param.datatype);
    free(out);
    free(in);
}

/* 3: `request_init` is called once for each block of memory, not for each operation. */
static void requests_serve_again(pair_t *pair)
{
    ucp_request_param_t param = plain();
    uint64_t out = 1, in = 0;
    unsigned before = inits, gone = cleanups;
    int i;

    CHECK(before > 0);
    for (i = 0; i < 3000; i++) {
        ucs_status_ptr_t recv = ucp_tag_recv_nbx(pair->b, &in, 8, 7, ~0ull, &param);

        CHECK(UCS_PTR_IS_PTR(recv));
        wait_for(pair, ucp_tag_send_nbx(pair->ab, &out, 8, 7, &param), UCS_OK);
        wait_for(pair, recv, UCS_OK);
    }
    /* With the checks, freed requests are kept for a while. */
    CHECK((inits == before || getenv("UCX_CHECK") != NULL) && cleanups == gone);
}

int main(void)
{
    ucs_thread_mode_t mode;
    for (mode = UCS_THREAD_MODE_SINGLE; mode <= UCS_THREAD_MODE_MULTI; mode++) {
        pair_t pair;
        started = finished = 0;
        make_pair(&pair, mode);
        sizes(&pair);
        callbacks(&pair);
        truncation_and_cancel(&pair);
        callers_requests(&pair);
        probes(&pair);
        pieces(&pair);
        generic(&pair);
        requests_serve_again(&pair);
        free_pair(&pair);
        own_memory_in_callbacks(mode);
    }
    return 0;
}

/* Operations allocate no memory, once there has been one of each. The program's allocator counts. */
#define _GNU_SOURCE
#include "check.h"

void *__libc_malloc(size_t size);
void *__libc_calloc(size_t count, size_t size);
void *__libc_realloc(void *at, size_t size);
void *__libc_memalign(size_t alignment, size_t size);

static unsigned long allocations, called;

void *malloc(size_t size)
{
    allocations++;
    return __libc_malloc(size);
}

void *calloc(size_t count, size_t size)
{
    allocations++;
    return __libc_calloc(count, size);
}

void *realloc(void *at, size_t size)
{
    allocations++;
    return __libc_realloc(at, size);
}

int posix_memalign(void **at, size_t alignment, size_t size)
{
    allocations++;
    *at = __libc_memalign(alignment, size);
    return 0;
}

void *aligned_alloc(size_t alignment, size_t size)
{
    allocations++;
    return __libc_memalign(alignment, size);
}

static void on_recv(void *request, ucs_status_t status, const ucp_tag_recv_info_t *info, void *user_data)
{
    CHECK(status == UCS_OK && user_data == &called);
    called++;
    ucp_request_free(request);
}

static ucs_status_t on_am(void *arg, const void *header, size_t header_length, void *data, size_t length,
                          const ucp_am_recv_param_t *param)
{
    called++;
    return UCS_OK;
}

static void until_called(pair_t *pair, unsigned long count)
{
    time_t end = time(NULL) + 60;
    while (called < count) {
        progress(pair);
        CHECK(time(NULL) < end);
    }
}

static void on_data(void *request, ucs_status_t status, size_t length, void *user_data)
{
    CHECK(status == UCS_OK);
    called++;
    ucp_request_free(request);
}

/* Active messages of every form: short ones and announced ones, aligned, kept, and by the old interface. */
typedef struct {
    ucp_worker_h worker;
    unsigned char *in;
    void *kept;
} receiver_t;

static ucs_status_t on_any(void *arg, const void *header, size_t header_length, void *data, size_t length,
                           const ucp_am_recv_param_t *param)
{
    receiver_t *to         = arg;
    ucp_request_param_t of = {.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK, .cb.recv_am = on_data};
    ucs_status_ptr_t recv;

    CHECK(header_length == 6 && !memcmp(header, "header", 6));
    if (!(param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV)) {
        CHECK((uintptr_t)data % 64 == 0);
        called++;
        to->kept = data;
        return UCS_INPROGRESS;
    }
    recv = ucp_am_recv_data_nbx(to->worker, data, to->in, length, &of);
    CHECK(!UCS_PTR_IS_ERR(recv));
    if (recv == NULL) {
        called++;
    }
    return UCS_OK;
}

static ucs_status_t on_old(void *arg, void *data, size_t length, ucp_ep_h reply_ep, unsigned flags)
{
    called++;
    return UCS_OK;
}

static void active_messages(pair_t *pair, ucp_ep_h ep, receiver_t *to, unsigned char *out, size_t length)
{
    static const uint32_t forms[] = {0, UCP_AM_SEND_FLAG_RNDV};
    ucp_request_param_t param     = {.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS};
    ucs_status_ptr_t send;
    unsigned long before;
    size_t i;

    for (i = 0; i < 2; i++) {
        before      = called;
        param.flags = forms[i];
        send        = ucp_am_send_nbx(ep, 5, "header", 6, out, length, &param);
        while (called == before) {
            progress(pair);
            ucp_worker_progress(to->worker);
        }
        if (to->kept) {
            ucp_am_data_release(to->worker, to->kept);
            to->kept = NULL;
        }
        while (UCS_PTR_IS_PTR(send) && !ucp_request_is_completed(send)) {
            progress(pair);
            ucp_worker_progress(to->worker);
        }
        wait_for(pair, send, UCS_OK);
        before = called;
        send   = ucp_am_send_nb(ep, 6, out, length, ucp_dt_make_contig(1), NULL, forms[i]);
        while (called == before || (UCS_PTR_IS_PTR(send) && !ucp_request_is_completed(send))) {
            progress(pair);
            ucp_worker_progress(to->worker);
        }
        wait_for(pair, send, UCS_OK);
    }
}

/* One operation of each kind. */
static void each(pair_t *pair, ucp_ep_h itself, unsigned char *out, unsigned char *in, size_t length, ucp_rkey_h rkey)
{
    ucp_request_param_t param = {.op_attr_mask = 0};
    ucp_request_param_t with_call = {.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA,
                                     .cb.recv = on_recv, .user_data = &called};
    ucs_status_ptr_t recv, send;
    unsigned long before = called;
    uint64_t word        = 0;

    recv = ucp_tag_recv_nbx(pair->b, in, length, 1, ~0ull, &param);
    send = ucp_tag_send_nbx(pair->ab, out, length, 1, &param);
    wait_for(pair, recv, UCS_OK);
    wait_for(pair, send, UCS_OK);
    CHECK(UCS_PTR_IS_PTR(ucp_tag_recv_nbx(pair->b, in, length, 1, ~0ull, &with_call)));
    wait_for(pair, ucp_tag_send_sync_nbx(pair->ab, out, length, 1, &param), UCS_OK);
    until_called(pair, before + 1);
    CHECK(UCS_PTR_IS_PTR(ucp_tag_recv_nbx(pair->a, in, length, 2, ~0ull, &with_call)));
    wait_for(pair, ucp_tag_send_nbx(itself, out, length, 2, &param), UCS_OK);
    until_called(pair, before + 2);
    if (length <= 4096) {
        wait_for(pair, ucp_am_send_nbx(pair->ab, 3, "header", 6, out, length, &param), UCS_OK);
        until_called(pair, before + 3);
    }
    wait_for(pair, ucp_put_nbx(pair->ab, out, length, (uintptr_t)in, rkey, &param), UCS_OK);
    wait_for(pair, ucp_get_nbx(pair->ab, out, length, (uintptr_t)in, rkey, &param), UCS_OK);
    wait_for(pair, ucp_atomic_fetch_nb(pair->ab, UCP_ATOMIC_FETCH_OP_FADD, 1, &word, 8, (uintptr_t)in, rkey, NULL), UCS_OK);
    wait_for(pair, ucp_ep_flush_nbx(pair->ab, &param), UCS_OK);
}

int main(void)
{
    static const size_t lengths[] = {8, 1000, 4096, 50000};
    ucp_am_handler_param_t handler = {.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB, .id = 3, .cb = on_am};
    ucp_mem_map_params_t map = {.field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH, .length = 1 << 16};
    unsigned char *out = calloc(1, 1 << 16), *in = calloc(1, 1 << 16);
    ucp_worker_params_t aligned = {.field_mask = UCP_WORKER_PARAM_FIELD_AM_ALIGNMENT, .am_alignment = 64};
    receiver_t to               = {.in = calloc(1, 1 << 16)};
    unsigned long before;
    ucp_ep_h itself, ep;
    ucp_rkey_h rkey;
    ucp_mem_h memh;
    void *packed;
    size_t size, i;
    pair_t pair;
    int round;

    before = allocations;
    make_pair(&pair, UCS_THREAD_MODE_SINGLE);
    CHECK(allocations - before > 100); /* those of the library count */
    itself      = connect_to(pair.a, pair.a);
    map.address = in;
    CHECK(ucp_worker_set_am_recv_handler(pair.b, &handler) == UCS_OK);
    CHECK(ucp_mem_map(pair.context, &map, &memh) == UCS_OK);
    CHECK(ucp_rkey_pack(pair.context, memh, &packed, &size) == UCS_OK);
    CHECK(ucp_ep_rkey_unpack(pair.ab, packed, &rkey) == UCS_OK);
    ucp_rkey_buffer_release(packed);
    CHECK(ucp_worker_create(pair.context, &aligned, &to.worker) == UCS_OK);
    ep                  = connect_to(pair.a, to.worker);
    handler.field_mask |= UCP_AM_HANDLER_PARAM_FIELD_ARG;
    handler.id          = 5;
    handler.cb          = on_any;
    handler.arg         = &to;
    CHECK(ucp_worker_set_am_recv_handler(to.worker, &handler) == UCS_OK);
    CHECK(ucp_worker_set_am_handler(to.worker, 6, on_old, NULL, 0) == UCS_OK);
    for (i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
        for (round = 0; round < 2000; round++) {
            each(&pair, itself, out, in, lengths[i], rkey);
            /* Data of several packets that comes before its receive is held in a list of its own. */
            if (lengths[i] <= 4096) {
                active_messages(&pair, ep, &to, out, lengths[i]);
            }
        }
        before = allocations;
        for (round = 0; round < 2000; round++) {
            each(&pair, itself, out, in, lengths[i], rkey);
            if (lengths[i] <= 4096) {
                active_messages(&pair, ep, &to, out, lengths[i]);
            }
        }
        if (allocations != before) {
            fprintf(stderr, "%lu allocations in 2000 rounds of %zu bytes\n", allocations - before, lengths[i]);
            return 1;
        }
    }
    ucp_rkey_destroy(rkey);
    CHECK(ucp_mem_unmap(pair.context, memh) == UCS_OK);
    close_ep(&pair, itself);
    close_ep(&pair, ep);
    ucp_worker_destroy(to.worker);
    free_pair(&pair);
    return 0;
}

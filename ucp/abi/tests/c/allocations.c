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
    unsigned long before;
    ucp_ep_h itself;
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
    for (i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
        for (round = 0; round < 2000; round++) {
            each(&pair, itself, out, in, lengths[i], rkey);
        }
        before = allocations;
        for (round = 0; round < 2000; round++) {
            each(&pair, itself, out, in, lengths[i], rkey);
        }
        if (allocations != before) {
            fprintf(stderr, "%lu allocations in 2000 rounds of %zu bytes\n", allocations - before, lengths[i]);
            return 1;
        }
    }
    ucp_rkey_destroy(rkey);
    CHECK(ucp_mem_unmap(pair.context, memh) == UCS_OK);
    close_ep(&pair, itself);
    free_pair(&pair);
    return 0;
}

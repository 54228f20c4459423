/* Null, unknown bits of masks, and mutated addresses and keys: every call answers a status. The seed is fixed. */
#include "check.h"

#include <sys/mman.h>

#define ROUNDS 3000

static unsigned seed = 20261;

static unsigned number(void)
{
    seed = seed * 1103515245u + 12345u;
    return seed >> 8;
}

/* A packed address or key with some bytes changed, in memory that is as long as any claims to be. */
static void mutate(unsigned char *to, const void *from, size_t length)
{
    unsigned changes = 1 + number() % 4;
    memset(to, (int)number(), 70000);
    memcpy(to, from, length);
    while (changes-- > 0) {
        to[number() % length] = (unsigned char)number();
    }
}

static void mutated(pair_t *pair)
{
    ucp_ep_params_t params = {.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS};
    ucp_worker_address_attr_t attr = {.field_mask = UCP_WORKER_ADDRESS_ATTR_FIELD_UID};
    ucp_mem_map_params_t map = {.field_mask = UCP_MEM_MAP_PARAM_FIELD_LENGTH | UCP_MEM_MAP_PARAM_FIELD_FLAGS,
                                .length = 10000, .flags = UCP_MEM_MAP_ALLOCATE};
    unsigned char *copy = malloc(70000);
    ucp_address_t *address;
    size_t length, size;
    ucp_mem_h memh;
    void *packed;
    int i;

    CHECK(ucp_worker_get_address(pair->b, &address, &length) == UCS_OK);
    CHECK(ucp_mem_map(pair->context, &map, &memh) == UCS_OK);
    CHECK(ucp_rkey_pack(pair->context, memh, &packed, &size) == UCS_OK);
    params.address = (ucp_address_t*)copy;
    for (i = 0; i < ROUNDS; i++) {
        ucp_rkey_h rkey;
        ucp_ep_h ep;

        mutate(copy, address, length);
        (void)ucp_worker_address_query((ucp_address_t*)copy, &attr);
        if (i % 20 == 0 && ucp_ep_create(pair->a, &params, &ep) == UCS_OK) {
            ucs_status_ptr_t closing = ucp_ep_close_nb(ep, UCP_EP_CLOSE_MODE_FORCE);
            CHECK(!UCS_PTR_IS_PTR(closing));
        }
        mutate(copy, packed, size);
        if (ucp_ep_rkey_unpack(pair->ab, copy, &rkey) == UCS_OK) {
            ucp_rkey_destroy(rkey);
        }
    }
    ucp_rkey_buffer_release(packed);
    CHECK(ucp_mem_unmap(pair->context, memh) == UCS_OK);
    ucp_worker_release_address(pair->b, address);
    free(copy);
}

/* Bits that no release defines are ignored or refused, and nothing else is read. */
static void unknown_bits(pair_t *pair)
{
    const uint64_t unknown = 1ull << 60 | 1ull << 40;
    ucp_params_t params    = {.field_mask = unknown | UCP_PARAM_FIELD_FEATURES, .features = ~0ull};
    ucp_worker_params_t of_worker = {.field_mask = unknown};
    ucp_ep_params_t of_ep         = {.field_mask = unknown};
    ucp_mem_map_params_t map      = {.field_mask = unknown};
    ucp_worker_attr_t attr        = {.field_mask = unknown};
    ucp_context_attr_t of_context = {.field_mask = unknown};
    ucp_ep_attr_t ep_attr         = {.field_mask = unknown};
    ucp_request_param_t param     = {.op_attr_mask = 1u << 31 | 1u << 25, .flags = ~0u};
    uint64_t word = 1, back = 0;
    ucp_context_h context;
    ucp_worker_h worker;
    ucp_mem_h memh;
    ucp_ep_h ep;
    ucs_status_ptr_t recv;

    if (ucp_init(&params, NULL, &context) == UCS_OK) {
        if (ucp_worker_create(context, &of_worker, &worker) == UCS_OK) {
            ucp_worker_destroy(worker);
        }
        ucp_cleanup(context);
    }
    CHECK(ucp_ep_create(pair->a, &of_ep, &ep) != UCS_OK);
    CHECK(ucp_mem_map(pair->context, &map, &memh) != UCS_OK);
    (void)ucp_worker_query(pair->a, &attr);
    (void)ucp_context_query(pair->context, &of_context);
    (void)ucp_ep_query(pair->ab, &ep_attr);
    recv = ucp_tag_recv_nbx(pair->b, &back, 8, 3, ~0ull, &param);
    CHECK(!UCS_PTR_IS_ERR(recv));
    CHECK(!UCS_PTR_IS_ERR(ucp_tag_send_nbx(pair->ab, &word, 8, 3, &param)));
    wait_for(pair, recv, UCS_OK);
    CHECK(back == 1);
    param.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS; /* all flags at once contradict each other */
    CHECK(UCS_PTR_IS_ERR(ucp_am_send_nbx(pair->ab, 1, NULL, 0, &word, 8, &param)));
    CHECK(UCS_PTR_IS_ERR(ucp_am_send_nbx(pair->ab, 70000, NULL, 0, &word, 8, &param)));
    param.op_attr_mask = UCP_OP_ATTR_FIELD_DATATYPE;
    for (param.datatype = 1; param.datatype < 7; param.datatype++) {
        if (param.datatype != UCP_DATATYPE_IOV) {
            CHECK(UCS_PTR_IS_ERR(ucp_tag_send_nbx(pair->ab, &word, 1, 3, &param)));
        }
    }
    param.datatype = ucp_dt_make_contig(1ull << 60);
    CHECK(UCS_PTR_IS_ERR(ucp_tag_send_nbx(pair->ab, &word, ~0ull, 3, &param)));
}

#define REFUSED(call) CHECK((call) == UCS_ERR_INVALID_PARAM)
#define REFUSED_PTR(call) CHECK(UCS_PTR_RAW_STATUS(call) == UCS_ERR_INVALID_PARAM)

/* Null for the handles of functions of the old interface, and of those that are seldom used. */
static void more_nulls(pair_t *pair)
{
    const ucp_datatype_t byte = ucp_dt_make_contig(1);
    ucp_worker_h w            = pair->a;
    ucp_ep_h e                = pair->ab;
    uint64_t word             = 0;
    uint32_t half             = 0;
    ucp_stream_poll_ep_t found;
    ucp_context_h context;
    size_t size;
    void *packed;
    int order;

    REFUSED(ucp_init_version(1, 23, NULL, NULL, &context));
    CHECK(strlen(ucp_get_version_string()) > 0);
    REFUSED(ucp_request_test(NULL, NULL));
    CHECK(ucp_request_is_completed(NULL) == 0);
    ucp_request_release(NULL);
    REFUSED_PTR(ucp_tag_send_nb(NULL, &word, 8, byte, 1, NULL));
    REFUSED_PTR(ucp_tag_send_nb(e, NULL, 8, byte, 1, NULL));
    REFUSED_PTR(ucp_tag_send_sync_nb(NULL, &word, 8, byte, 1, NULL));
    REFUSED_PTR(ucp_tag_recv_nb(NULL, &word, 8, byte, 1, 1, NULL));
    REFUSED_PTR(ucp_tag_recv_nb(w, NULL, 8, byte, 1, 1, NULL));
    REFUSED_PTR(ucp_tag_msg_recv_nb(NULL, &word, 8, byte, NULL, NULL));
    REFUSED_PTR(ucp_tag_msg_recv_nb(w, &word, 8, byte, NULL, NULL));
    REFUSED(ucp_worker_set_am_handler(NULL, 1, NULL, NULL, 0));
    REFUSED_PTR(ucp_am_send_nb(NULL, 1, &word, 8, byte, NULL, 0));
    REFUSED_PTR(ucp_am_send_nb(e, 1, NULL, 8, byte, NULL, 0));
    REFUSED_PTR(ucp_stream_send_nb(NULL, &word, 8, byte, NULL, 0));
    REFUSED_PTR(ucp_stream_recv_nb(NULL, &word, 8, byte, NULL, &size, 0));
    CHECK(ucp_stream_worker_poll(NULL, &found, 1, 0) == UCS_ERR_INVALID_PARAM);
    CHECK(ucp_stream_worker_poll(w, NULL, 1, 0) <= 0);
    REFUSED(ucp_memh_pack(NULL, NULL, &packed, &size));
    ucp_memh_buffer_release(NULL, NULL);
    REFUSED(ucp_rkey_compare(NULL, NULL, NULL, NULL, &order));
    REFUSED(ucp_rkey_compare(w, NULL, NULL, NULL, NULL));
    REFUSED_PTR(ucp_put_nb(NULL, &word, 8, 0, NULL, NULL));
    REFUSED(ucp_put(NULL, &word, 8, 0, NULL));
    REFUSED(ucp_put(e, &word, 8, 0, NULL));
    REFUSED_PTR(ucp_get_nb(NULL, &word, 8, 0, NULL, NULL));
    REFUSED(ucp_get(NULL, &word, 8, 0, NULL));
    REFUSED(ucp_get(e, &word, 8, 0, NULL));
    REFUSED_PTR(ucp_atomic_fetch_nb(NULL, UCP_ATOMIC_FETCH_OP_FADD, 1, &word, 8, 0, NULL, NULL));
    REFUSED_PTR(ucp_atomic_fetch_nb(e, UCP_ATOMIC_FETCH_OP_FADD, 1, NULL, 8, 0, NULL, NULL));
    REFUSED(ucp_atomic_add32(NULL, 1, 0, NULL));
    REFUSED(ucp_atomic_add64(NULL, 1, 0, NULL));
    REFUSED(ucp_atomic_fadd32(NULL, 1, 0, NULL, &half));
    REFUSED(ucp_atomic_fadd64(NULL, 1, 0, NULL, &word));
    REFUSED(ucp_atomic_swap32(NULL, 1, 0, NULL, &half));
    REFUSED(ucp_atomic_swap64(NULL, 1, 0, NULL, &word));
    REFUSED(ucp_atomic_cswap32(NULL, 1, 2, 0, NULL, &half));
    REFUSED(ucp_atomic_cswap64(NULL, 1, 2, 0, NULL, &word));
    REFUSED_PTR(ucp_ep_flush_nb(NULL, 0, NULL));
    REFUSED_PTR(ucp_worker_flush_nb(NULL, 0, NULL));
    REFUSED(ucp_dt_query(byte, NULL));
}

/* Null for each argument that is a handle or a structure. */
static void nulls(pair_t *pair)
{
    ucp_request_param_t param = {.op_attr_mask = 0};
    ucp_worker_h w = pair->a;
    ucp_ep_h e     = pair->ab;
    char *at       = (char*)&param;
    ucp_context_h context;
    ucp_mem_h memh;
    ucp_rkey_h rkey;
    ucp_ep_h ep;
    ucp_listener_h listener;
    ucp_datatype_t datatype;
    ucp_config_t *config;
    void *pointer;
    size_t size;
    int fd;

    REFUSED(ucp_init(NULL, NULL, &context));
    REFUSED(ucp_config_read(NULL, NULL, NULL));
    REFUSED(ucp_config_modify(NULL, "TLS", "self"));
    CHECK(ucp_config_read(NULL, NULL, &config) == UCS_OK);
    REFUSED(ucp_config_modify(config, NULL, "self"));
    REFUSED(ucp_config_modify(config, "TLS", NULL));
    ucp_config_release(config);
    ucp_config_release(NULL);
    ucp_config_print(NULL, stderr, "title", 0);
    ucp_cleanup(NULL);
    REFUSED(ucp_context_query(NULL, NULL));
    REFUSED(ucp_context_query(pair->context, NULL));
    REFUSED(ucp_lib_query(NULL));
    ucp_get_version(NULL, NULL, NULL);
    ucp_context_print_info(pair->context, NULL);
    ucp_context_print_info(NULL, stderr);
    REFUSED(ucp_worker_create(pair->context, NULL, &w));
    REFUSED(ucp_worker_create(NULL, NULL, &w));
    REFUSED(ucp_worker_create(pair->context, NULL, NULL));
    w = pair->a;
    ucp_worker_destroy(NULL);
    REFUSED(ucp_worker_query(w, NULL));
    REFUSED(ucp_worker_get_address(w, NULL, NULL));
    REFUSED(ucp_worker_address_query(NULL, NULL));
    ucp_worker_print_info(NULL, NULL);
    REFUSED(ucp_worker_get_efd(NULL, &fd));
    REFUSED(ucp_worker_get_efd(w, NULL));
    REFUSED(ucp_worker_arm(NULL));
    REFUSED(ucp_worker_wait(NULL));
    REFUSED(ucp_worker_signal(NULL));
    REFUSED(ucp_worker_fence(NULL));
    REFUSED(ucp_worker_flush(NULL));
    REFUSED(ucp_ep_flush(NULL));
    ucp_worker_wait_mem(w, NULL);
    REFUSED(ucp_ep_create(w, NULL, &ep));
    REFUSED(ucp_ep_create(w, NULL, NULL));
    REFUSED(ucp_ep_create(NULL, NULL, &ep));
    REFUSED_PTR(ucp_ep_close_nb(NULL, 0));
    REFUSED_PTR(ucp_ep_close_nbx(NULL, &param));
    REFUSED_PTR(ucp_ep_modify_nb(NULL, NULL));
    REFUSED_PTR(ucp_ep_modify_nb(e, NULL));
    REFUSED_PTR(ucp_disconnect_nb(NULL));
    ucp_ep_destroy(NULL);
    ucp_ep_print_info(NULL, NULL);
    REFUSED(ucp_ep_query(e, NULL));
    REFUSED(ucp_ep_evaluate_perf(e, NULL, NULL));
    REFUSED_PTR(ucp_ep_flush_nbx(NULL, &param));
    REFUSED_PTR(ucp_worker_flush_nbx(NULL, &param));
    REFUSED(ucp_listener_create(w, NULL, &listener));
    REFUSED(ucp_listener_query(NULL, NULL));
    REFUSED(ucp_listener_reject(NULL, NULL));
    REFUSED(ucp_conn_request_query(NULL, NULL));
    ucp_listener_destroy(NULL);
    REFUSED(ucp_mem_map(pair->context, NULL, &memh));
    REFUSED(ucp_mem_unmap(pair->context, NULL));
    REFUSED(ucp_mem_query(NULL, NULL));
    REFUSED(ucp_mem_advise(pair->context, NULL, NULL));
    ucp_mem_print_info(NULL, pair->context, NULL);
    REFUSED(ucp_rkey_pack(pair->context, NULL, &pointer, &size));
    REFUSED(ucp_ep_rkey_unpack(e, NULL, &rkey));
    REFUSED(ucp_rkey_ptr(NULL, 0, &pointer));
    ucp_rkey_destroy(NULL);
    ucp_rkey_buffer_release(NULL);
    REFUSED(ucp_worker_set_am_recv_handler(w, NULL));
    REFUSED_PTR(ucp_am_send_nbx(NULL, 0, NULL, 0, at, 1, &param));
    REFUSED_PTR(ucp_am_send_nbx(e, 0, NULL, 1, at, 1, &param));
    REFUSED_PTR(ucp_am_recv_data_nbx(w, NULL, at, 1, &param));
    ucp_am_data_release(w, NULL);
    REFUSED_PTR(ucp_stream_send_nbx(NULL, at, 1, &param));
    REFUSED_PTR(ucp_stream_recv_nbx(NULL, at, 1, &size, &param));
    REFUSED_PTR(ucp_stream_recv_data_nb(NULL, &size));
    ucp_stream_data_release(NULL, NULL);
    REFUSED_PTR(ucp_tag_send_sync_nbx(NULL, at, 1, 1, &param));
    REFUSED_PTR(ucp_tag_recv_nbx(w, NULL, 1, 1, 1, &param));
    REFUSED_PTR(ucp_tag_msg_recv_nbx(w, at, 1, NULL, &param));
    CHECK(ucp_tag_probe_nb(NULL, 1, 1, 0, NULL) == NULL);
    REFUSED_PTR(ucp_put_nbx(e, at, 1, 0, NULL, &param));
    REFUSED_PTR(ucp_get_nbx(e, at, 1, 0, NULL, &param));
    REFUSED(ucp_put_nbi(NULL, at, 1, 0, NULL));
    REFUSED(ucp_get_nbi(NULL, at, 1, 0, NULL));
    REFUSED(ucp_atomic_post(NULL, UCP_ATOMIC_POST_OP_ADD, 1, 8, 0, NULL));
    REFUSED(ucp_atomic_post(e, (ucp_atomic_post_op_t)99, 1, 8, 0, NULL));
    REFUSED_PTR(ucp_atomic_op_nbx(e, UCP_ATOMIC_OP_ADD, NULL, 1, 0, NULL, &param));
    REFUSED(ucp_request_check_status(NULL));
    REFUSED(ucp_tag_recv_request_test(NULL, NULL));
    REFUSED(ucp_stream_recv_request_test(NULL, NULL));
    REFUSED(ucp_request_query(NULL, NULL));
    ucp_request_cancel(w, NULL);
    ucp_request_cancel(NULL, NULL);
    ucp_request_free(NULL);
    CHECK(ucp_request_alloc(NULL) == NULL);
    REFUSED(ucp_dt_create_generic(NULL, NULL, &datatype));
    ucp_dt_destroy(0);
    more_nulls(pair);
}

/* Packed addresses and keys at the end of a page: nothing behind them is read. */
static void at_the_end_of_a_page(pair_t *pair)
{
    ucp_ep_params_t params         = {.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS};
    ucp_worker_address_attr_t attr = {.field_mask = UCP_WORKER_ADDRESS_ATTR_FIELD_UID};
    ucp_mem_map_params_t map       = {.field_mask = UCP_MEM_MAP_PARAM_FIELD_LENGTH | UCP_MEM_MAP_PARAM_FIELD_FLAGS,
                                      .length = 10000, .flags = UCP_MEM_MAP_ALLOCATE};
    const size_t page = 4096;
    char *pages       = mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ucp_address_t *address;
    size_t length, size;
    ucp_rkey_h rkey;
    ucp_mem_h memh;
    void *packed;
    ucp_ep_h ep;

    CHECK(pages != MAP_FAILED);
    CHECK(mprotect(pages + page, page, PROT_NONE) == 0);
    CHECK(ucp_worker_get_address(pair->b, &address, &length) == UCS_OK);
    memcpy(pages + page - length, address, length);
    params.address = (ucp_address_t*)(pages + page - length);
    CHECK(ucp_worker_address_query((ucp_address_t*)params.address, &attr) == UCS_OK);
    CHECK(ucp_ep_create(pair->a, &params, &ep) == UCS_OK);
    CHECK(!UCS_PTR_IS_ERR(ucp_ep_close_nb(ep, UCP_EP_CLOSE_MODE_FORCE)));
    ucp_worker_release_address(pair->b, address);
    CHECK(ucp_mem_map(pair->context, &map, &memh) == UCS_OK);
    CHECK(ucp_rkey_pack(pair->context, memh, &packed, &size) == UCS_OK);
    memcpy(pages + page - size, packed, size);
    CHECK(ucp_ep_rkey_unpack(pair->ab, pages + page - size, &rkey) == UCS_OK);
    ucp_rkey_destroy(rkey);
    ucp_rkey_buffer_release(packed);
    CHECK(ucp_mem_unmap(pair->context, memh) == UCS_OK);
    munmap(pages, 2 * page);
}

int main(void)
{
    pair_t pair;
    make_pair(&pair, UCS_THREAD_MODE_SINGLE);
    nulls(&pair);
    at_the_end_of_a_page(&pair);
    unknown_bits(&pair);
    mutated(&pair);
    /* A changed address may say that the peer is a new one, which ends what went to the old one. */
    ucp_worker_destroy(pair.a);
    ucp_worker_destroy(pair.b);
    ucp_cleanup(pair.context);
    return 0;
}

/*
 * Addresses of no handle, mapped or not: every function that carries no data refuses them, in place of each of its
 * handles. No memory at them is read.
 */
#define _GNU_SOURCE
#include "check.h"

#include <sys/mman.h>
#include <unistd.h>

static union {
    char bytes[4096];
    long long aligned;
} zeros;

/* What is passed as a handle. */
static void *bad;

#define NOT_A(type) ((type)bad)
#define IS_REFUSED(call) CHECK((call) == UCS_ERR_INVALID_PARAM)
#define PTR_IS_REFUSED(call) CHECK(UCS_PTR_RAW_STATUS(call) == UCS_ERR_INVALID_PARAM)

static pair_t pair;
static const ucp_request_param_t none = {.op_attr_mask = 0};

static void contexts(void)
{
    ucp_worker_params_t worker_params   = {.field_mask = 0};
    ucp_mem_map_params_t map_params     = {.field_mask = 0};
    ucp_context_attr_t attr             = {.field_mask = 0};
    ucp_mem_advise_params_t advise      = {.field_mask = 0};
    const ucp_context_h context         = NOT_A(ucp_context_h);
    ucp_config_t *config                = NOT_A(ucp_config_t*);
    ucp_params_t params;
    ucp_context_h made;
    ucp_worker_h worker;
    ucp_mem_h memh;
    void *buffer;
    size_t length;

    params.field_mask = UCP_PARAM_FIELD_FEATURES;
    params.features   = UCP_FEATURE_TAG;
    IS_REFUSED(ucp_init(&params, config, &made));
    IS_REFUSED(ucp_config_modify(config, "TLS", "posix"));
    ucp_config_print(config, stderr, "", UCS_CONFIG_PRINT_CONFIG);
    ucp_config_release(config);
    ucp_cleanup(context);
    ucp_context_print_info(context, stderr);
    ucp_mem_print_info("1k", context, stderr);
    IS_REFUSED(ucp_context_query(context, &attr));
    IS_REFUSED(ucp_worker_create(context, &worker_params, &worker));
    IS_REFUSED(ucp_mem_map(context, &map_params, &memh));
    IS_REFUSED(ucp_mem_unmap(context, NOT_A(ucp_mem_h)));
    IS_REFUSED(ucp_mem_unmap(pair.context, NOT_A(ucp_mem_h)));
    IS_REFUSED(ucp_mem_advise(context, NOT_A(ucp_mem_h), &advise));
    IS_REFUSED(ucp_mem_advise(pair.context, NOT_A(ucp_mem_h), &advise));
    IS_REFUSED(ucp_rkey_pack(context, NOT_A(ucp_mem_h), &buffer, &length));
    IS_REFUSED(ucp_rkey_pack(pair.context, NOT_A(ucp_mem_h), &buffer, &length));
}

static void memory(void)
{
    ucp_mem_attr_t attr           = {.field_mask = 0};
    ucp_memh_pack_params_t params = {.field_mask = 0};
    void *buffer;
    size_t length;
    int order;

    IS_REFUSED(ucp_mem_query(NOT_A(ucp_mem_h), &attr));
    IS_REFUSED(ucp_memh_pack(NOT_A(ucp_mem_h), &params, &buffer, &length));
    IS_REFUSED(ucp_rkey_ptr(NOT_A(ucp_rkey_h), 0, &buffer));
    IS_REFUSED(ucp_rkey_compare(NOT_A(ucp_worker_h), NOT_A(ucp_rkey_h), NOT_A(ucp_rkey_h), NULL, &order));
    IS_REFUSED(ucp_rkey_compare(pair.a, NOT_A(ucp_rkey_h), NOT_A(ucp_rkey_h), NULL, &order));
    ucp_rkey_destroy(NOT_A(ucp_rkey_h));
    ucp_rkey_buffer_release(NOT_A(void*));
    ucp_memh_buffer_release(NOT_A(void*), NULL);
    ucp_worker_release_address(pair.a, NOT_A(ucp_address_t*));
    ucp_request_cancel(pair.a, NOT_A(void*));
}

static void workers(void)
{
    ucp_worker_attr_t attr              = {.field_mask = 0};
    ucp_ep_params_t ep_params           = {.field_mask = 0};
    ucp_listener_params_t listen_params = {.field_mask = 0};
    ucp_am_handler_param_t handler      = {.field_mask = 0};
    const ucp_worker_h worker           = NOT_A(ucp_worker_h);
    ucp_stream_poll_ep_t found;
    ucp_address_t *address;
    ucp_listener_h listener;
    ucp_ep_h ep;
    size_t length;
    int fd;

    ucp_worker_destroy(worker);
    IS_REFUSED(ucp_worker_query(worker, &attr));
    ucp_worker_print_info(worker, stderr);
    IS_REFUSED(ucp_worker_get_address(worker, &address, &length));
    ucp_worker_release_address(worker, NULL);
    IS_REFUSED(ucp_worker_get_efd(worker, &fd));
    IS_REFUSED(ucp_worker_arm(worker));
    IS_REFUSED(ucp_worker_wait(worker));
    ucp_worker_wait_mem(worker, zeros.bytes);
    IS_REFUSED(ucp_worker_signal(worker));
    IS_REFUSED(ucp_worker_fence(worker));
    IS_REFUSED(ucp_worker_flush(worker));
    PTR_IS_REFUSED(ucp_worker_flush_nb(worker, 0, NULL));
    PTR_IS_REFUSED(ucp_worker_flush_nbx(worker, &none));
    IS_REFUSED(ucp_ep_create(worker, &ep_params, &ep));
    IS_REFUSED(ucp_listener_create(worker, &listen_params, &listener));
    IS_REFUSED(ucp_worker_set_am_handler(worker, 1, NULL, NULL, 0));
    IS_REFUSED(ucp_worker_set_am_recv_handler(worker, &handler));
    CHECK(ucp_stream_worker_poll(worker, &found, 1, 0) == UCS_ERR_INVALID_PARAM);
    ucp_am_data_release(worker, zeros.bytes);
    ucp_request_cancel(worker, zeros.bytes + 1024);
    CHECK(ucp_request_alloc(worker) == NULL);
}

static void endpoints(void)
{
    ucp_ep_params_t params                     = {.field_mask = 0};
    ucp_ep_attr_t attr                         = {.field_mask = 0};
    ucp_ep_evaluate_perf_param_t perf_param    = {.field_mask = 0};
    ucp_ep_evaluate_perf_attr_t perf_attr      = {.field_mask = 0};
    const ucp_ep_h ep                          = NOT_A(ucp_ep_h);
    const unsigned char packed[8]              = {0};
    ucp_rkey_h rkey;

    PTR_IS_REFUSED(ucp_ep_close_nbx(ep, &none));
    PTR_IS_REFUSED(ucp_ep_close_nb(ep, UCP_EP_CLOSE_MODE_FLUSH));
    PTR_IS_REFUSED(ucp_disconnect_nb(ep));
    ucp_ep_destroy(ep);
    PTR_IS_REFUSED(ucp_ep_modify_nb(ep, &params));
    IS_REFUSED(ucp_ep_query(ep, &attr));
    IS_REFUSED(ucp_ep_evaluate_perf(ep, &perf_param, &perf_attr));
    ucp_ep_print_info(ep, stderr);
    IS_REFUSED(ucp_ep_flush(ep));
    PTR_IS_REFUSED(ucp_ep_flush_nb(ep, 0, NULL));
    PTR_IS_REFUSED(ucp_ep_flush_nbx(ep, &none));
    IS_REFUSED(ucp_ep_rkey_unpack(ep, packed, &rkey));
    ucp_stream_data_release(ep, zeros.bytes);
}

static void others(void)
{
    ucp_listener_attr_t attr             = {.field_mask = 0};
    ucp_conn_request_attr_t request_attr = {.field_mask = 0};
    ucp_datatype_attr_t datatype_attr    = {.field_mask = UCP_DATATYPE_ATTR_FIELD_PACKED_SIZE};
    const ucp_datatype_t generic         = ((uintptr_t)bad & ~7ul) | UCP_DATATYPE_GENERIC;
    ucp_ep_params_t params;
    ucp_ep_h ep;

    ucp_listener_destroy(NOT_A(ucp_listener_h));
    IS_REFUSED(ucp_listener_query(NOT_A(ucp_listener_h), &attr));
    IS_REFUSED(ucp_listener_reject(NOT_A(ucp_listener_h), NOT_A(ucp_conn_request_h)));
    IS_REFUSED(ucp_conn_request_query(NOT_A(ucp_conn_request_h), &request_attr));
    params.field_mask   = UCP_EP_PARAM_FIELD_CONN_REQUEST;
    params.conn_request = NOT_A(ucp_conn_request_h);
    IS_REFUSED(ucp_ep_create(pair.a, &params, &ep));
    ucp_dt_destroy(generic);
    IS_REFUSED(ucp_dt_query(generic, &datatype_attr));
}

static void each(void *address)
{
    bad = address;
    contexts();
    memory();
    workers();
    endpoints();
    others();
}

/* A handle of another kind, for functions that have none of its kind. */
static void other_kinds(void)
{
    bad = pair.ab;
    contexts();
    memory();
    bad = pair.context;
    workers();
    endpoints();
    others();
}

/* A handle that has been freed. */
static void freed(void)
{
    ucp_mem_map_params_t map = {.field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH,
                                .address = zeros.bytes, .length = 100};
    ucp_mem_h memh;

    CHECK(ucp_mem_map(pair.context, &map, &memh) == UCS_OK);
    CHECK(ucp_mem_unmap(pair.context, memh) == UCS_OK);
    IS_REFUSED(ucp_mem_unmap(pair.context, memh));
    each(memh);
}

/* Packed bytes are freed by the function of their kind, once, and from their first byte. */
static void packed_bytes(void)
{
    ucp_mem_map_params_t map      = {.field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH,
                                     .address = zeros.bytes, .length = 100};
    ucp_memh_pack_params_t params = {.field_mask = 0};
    ucp_worker_attr_t attr        = {.field_mask = UCP_WORKER_ATTR_FIELD_ADDRESS};
    ucp_address_t *address;
    void *key, *other_key, *own;
    ucp_mem_h memh;
    size_t length;

    CHECK(ucp_mem_map(pair.context, &map, &memh) == UCS_OK);
    CHECK(ucp_rkey_pack(pair.context, memh, &key, &length) == UCS_OK);
    CHECK(ucp_memh_pack(memh, &params, &other_key, &length) == UCS_OK);
    CHECK(ucp_worker_get_address(pair.a, &address, &length) == UCS_OK);
    CHECK(ucp_worker_query(pair.a, &attr) == UCS_OK);
    CHECK(((uintptr_t)key | (uintptr_t)other_key | (uintptr_t)address | (uintptr_t)attr.address) % 16 == 0);
    ucp_rkey_buffer_release(address);
    ucp_memh_buffer_release(address, NULL);
    ucp_worker_release_address(pair.a, key);
    ucp_worker_release_address(pair.a, (ucp_address_t*)((char*)address + 1));
    ucp_rkey_buffer_release((char*)key + 16);
    own = malloc(64);
    ucp_rkey_buffer_release(own);
    free(own);
    ucp_worker_release_address(pair.a, address);
    ucp_worker_release_address(pair.a, address);
    ucp_worker_release_address(pair.b, attr.address); /* of any worker */
    /* One function of UCX frees keys of both kinds. */
    ucp_memh_buffer_release(key, NULL);
    ucp_rkey_buffer_release(key);
    ucp_rkey_buffer_release(other_key);
    ucp_memh_buffer_release(other_key, NULL);
    CHECK(ucp_mem_unmap(pair.context, memh) == UCS_OK);
}

static ucs_status_ptr_t receive(void *request)
{
    ucp_request_param_t param = {.op_attr_mask = 0};

    if (request != NULL) {
        param.op_attr_mask = UCP_OP_ATTR_FIELD_REQUEST;
        param.request      = request;
    }
    return ucp_tag_recv_nbx(pair.a, zeros.bytes, 8, 9, -1, &param);
}

/* A worker cancels its own requests, also those in memory of the program, and no other. */
static void cancels(void)
{
    ucp_context_attr_t attr = {.field_mask = UCP_ATTR_FIELD_REQUEST_SIZE};
    void *own, *memory, *requests[3];
    int i;

    CHECK(ucp_context_query(pair.context, &attr) == UCS_OK);
    memory      = aligned_alloc(64, (attr.request_size + 64) / 64 * 64);
    own         = (char*)memory + attr.request_size;
    requests[0] = receive(NULL);
    requests[1] = receive(own);
    requests[2] = ucp_request_alloc(pair.a);
    CHECK(requests[1] == own && receive(requests[2]) == requests[2]);
    for (i = 0; i < 3; i++) {
        CHECK((uintptr_t)requests[i] % 16 == 0);
        ucp_request_cancel(pair.b, requests[i]);
        ucp_request_cancel(pair.a, (char*)requests[i] + 8);
        CHECK(ucp_request_check_status(requests[i]) == UCS_INPROGRESS);
        ucp_request_cancel(pair.a, requests[i]);
        CHECK(ucp_request_check_status(requests[i]) == UCS_ERR_CANCELED);
        ucp_request_cancel(pair.a, requests[i]); /* it has ended */
    }
    ucp_request_free(requests[0]);
    ucp_request_free(requests[2]);
    memset(memory, 0xff, attr.request_size);
    ucp_request_cancel(pair.a, own); /* memory of the program again */
    free(memory);
}

int main(void)
{
    const long page = sysconf(_SC_PAGESIZE);
    char *pages     = mmap(NULL, 3 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    unsigned seed   = 41;
    int i;

    CHECK(pages != MAP_FAILED);
    CHECK(mprotect(pages + page, page, PROT_NONE) == 0);
    CHECK(munmap(pages + 2 * page, page) == 0);
    make_pair(&pair, UCS_THREAD_MODE_SINGLE);
    each(zeros.bytes);
    each(zeros.bytes + 1);          /* misaligned */
    each(pages + page - 4);         /* the last bytes of a page, and the next one may not be read */
    each(pages + page - 1);
    each(pages + page);             /* no access */
    each(pages + 2 * page);         /* not mapped */
    each((void*)1);
    each((void*)-8);
    each((void*)0xdeadbeefdeadbeeful); /* no address of this machine */
    each((char*)pair.a + 8);        /* inside of a handle */
    other_kinds();
    freed();
    packed_bytes();
    cancels();
    for (i = 0; i < 200; i++) {
        uint64_t address;

        seed    = seed * 1103515245u + 12345u;
        address = (uint64_t)seed << 32 | seed * 2654435761u;
        each((void*)(address >> (seed >> 8) % 40));
    }
    free_pair(&pair);
    munmap(pages, 2 * page);
    return 0;
}

/*
 * Bits of masks that no release defines change nothing, and fields whose bit is not set are not there: each structure
 * ends at a page without access, behind the last field that its mask names.
 */
#include "check.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stddef.h>
#include <sys/mman.h>
#include <unistd.h>

#define UNKNOWN (~0ull << 32)
#define UNKNOWN_OF_OPERATIONS 0xfff00000u

static char *guard_page;
static pair_t pair;

static void *at_the_end(const void *from, size_t length)
{
    return memcpy(guard_page - length, from, length);
}

/* The begin of a structure, up to the end of a field. */
#define CUT(_of, _field) \
    ((__typeof__(&(_of)))at_the_end(&(_of), offsetof(__typeof__(_of), _field) + sizeof((_of)._field)))

/* Only the mask, with unknown bits alone. */
#define NONE(_type) ((_type*)only_a_mask())

static void *only_a_mask(void)
{
    uint64_t mask = UNKNOWN;

    return at_the_end(&mask, sizeof(mask));
}

static void contexts(void)
{
    ucp_params_t params     = {.field_mask = UNKNOWN | UCP_PARAM_FIELD_FEATURES, .features = UCP_FEATURE_TAG};
    ucp_lib_attr_t lib      = {.field_mask = UNKNOWN | UCP_LIB_ATTR_FIELD_MAX_THREAD_LEVEL};
    ucp_context_attr_t attr = {.field_mask = UNKNOWN | UCP_ATTR_FIELD_REQUEST_SIZE};
    ucp_lib_attr_t *of_lib;
    ucp_context_attr_t *of_context;
    ucp_context_h context;

    CHECK(ucp_init(CUT(params, features), NULL, &context) == UCS_OK);
    of_context = CUT(attr, request_size);
    CHECK(ucp_context_query(context, of_context) == UCS_OK && of_context->request_size == 128);
    CHECK(ucp_context_query(context, NONE(ucp_context_attr_t)) == UCS_OK);
    ucp_cleanup(context);
    CHECK(ucp_init(NONE(ucp_params_t), NULL, &context) == UCS_ERR_INVALID_PARAM);
    of_lib = CUT(lib, max_thread_level);
    CHECK(ucp_lib_query(of_lib) == UCS_OK && of_lib->max_thread_level == UCS_THREAD_MODE_MULTI);
    CHECK(ucp_lib_query(NONE(ucp_lib_attr_t)) == UCS_OK);
}

static void workers(void)
{
    ucp_worker_params_t params       = {.field_mask  = UNKNOWN | UCP_WORKER_PARAM_FIELD_THREAD_MODE,
                                        .thread_mode = UCS_THREAD_MODE_SERIALIZED};
    ucp_worker_attr_t attr           = {.field_mask = UNKNOWN | UCP_WORKER_ATTR_FIELD_THREAD_MODE};
    ucp_worker_address_attr_t uid    = {.field_mask = UNKNOWN | UCP_WORKER_ADDRESS_ATTR_FIELD_UID};
    ucp_am_handler_param_t handler   = {.field_mask = UNKNOWN | UCP_AM_HANDLER_PARAM_FIELD_ID, .id = 7};
    ucp_worker_attr_t *of_worker;
    ucp_worker_address_attr_t *of_address;
    ucp_address_t *address;
    ucp_worker_h worker;
    size_t length;

    CHECK(ucp_worker_create(pair.context, NONE(ucp_worker_params_t), &worker) == UCS_OK);
    ucp_worker_destroy(worker);
    CHECK(ucp_worker_create(pair.context, CUT(params, thread_mode), &worker) == UCS_OK);
    of_worker = CUT(attr, thread_mode);
    CHECK(ucp_worker_query(worker, of_worker) == UCS_OK && of_worker->thread_mode == UCS_THREAD_MODE_SERIALIZED);
    CHECK(ucp_worker_query(worker, NONE(ucp_worker_attr_t)) == UCS_OK);
    CHECK(ucp_worker_get_address(worker, &address, &length) == UCS_OK);
    of_address = CUT(uid, worker_uid);
    CHECK(ucp_worker_address_query(address, of_address) == UCS_OK && of_address->worker_uid != 0);
    CHECK(ucp_worker_address_query(address, NONE(ucp_worker_address_attr_t)) == UCS_OK);
    ucp_worker_release_address(worker, address);
    CHECK(ucp_worker_set_am_recv_handler(worker, CUT(handler, id)) == UCS_OK);
    CHECK(ucp_worker_set_am_recv_handler(worker, NONE(ucp_am_handler_param_t)) == UCS_ERR_INVALID_PARAM);
    ucp_worker_destroy(worker);
}

static void endpoints(void)
{
    ucp_ep_params_t params                  = {.field_mask = UNKNOWN | UCP_EP_PARAM_FIELD_REMOTE_ADDRESS};
    ucp_ep_params_t data                    = {.field_mask = UNKNOWN | UCP_EP_PARAM_FIELD_USER_DATA, .user_data = &data};
    ucp_ep_attr_t name                      = {.field_mask = UNKNOWN | UCP_EP_ATTR_FIELD_NAME};
    ucp_ep_attr_t attr                      = {.field_mask = UNKNOWN | UCP_EP_ATTR_FIELD_USER_DATA};
    ucp_ep_evaluate_perf_param_t perf       = {.field_mask = UNKNOWN | UCP_EP_PERF_PARAM_FIELD_MESSAGE_SIZE};
    ucp_ep_evaluate_perf_attr_t result      = {.field_mask = UNKNOWN | UCP_EP_PERF_ATTR_FIELD_ESTIMATED_TIME};
    ucp_ep_evaluate_perf_attr_t no_result   = {.field_mask = UNKNOWN};
    ucp_ep_attr_t *of_ep;
    ucp_address_t *address;
    size_t length;
    ucp_ep_h ep;

    CHECK(ucp_worker_get_address(pair.b, &address, &length) == UCS_OK);
    params.address = address;
    CHECK(ucp_ep_create(pair.a, CUT(params, address), &ep) == UCS_OK);
    ucp_worker_release_address(pair.b, address);
    CHECK(ucp_ep_create(pair.a, NONE(ucp_ep_params_t), &ep) == UCS_ERR_INVALID_PARAM);
    CHECK(ucp_ep_modify_nb(ep, NONE(ucp_ep_params_t)) == NULL);
    CHECK(ucp_ep_modify_nb(ep, CUT(data, user_data)) == NULL);
    of_ep = CUT(attr, user_data);
    CHECK(ucp_ep_query(ep, of_ep) == UCS_OK && of_ep->user_data == &data);
    CHECK(ucp_ep_query(ep, CUT(name, name)) == UCS_OK);
    CHECK(ucp_ep_query(ep, NONE(ucp_ep_attr_t)) == UCS_OK);
    CHECK(ucp_ep_evaluate_perf(ep, CUT(perf, message_size), &result) == UCS_OK && result.estimated_time >= 0);
    CHECK(ucp_ep_evaluate_perf(ep, CUT(perf, message_size), &no_result) == UCS_OK);
    CHECK(ucp_ep_evaluate_perf(ep, &perf, CUT(result, estimated_time)) == UCS_OK);
    CHECK(ucp_ep_evaluate_perf(ep, &perf, NONE(ucp_ep_evaluate_perf_attr_t)) == UCS_OK);
    CHECK(ucp_ep_evaluate_perf(ep, NONE(ucp_ep_evaluate_perf_param_t), &result) == UCS_ERR_INVALID_PARAM);
    close_ep(&pair, ep);
}

static ucp_conn_request_h asked;

static void on_conn(ucp_conn_request_h request, void *arg)
{
    asked = request;
}

static void connections(void)
{
    struct sockaddr_in any        = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    ucp_listener_params_t params  = {.field_mask   = UNKNOWN | UCP_LISTENER_PARAM_FIELD_SOCK_ADDR |
                                                     UCP_LISTENER_PARAM_FIELD_CONN_HANDLER,
                                     .sockaddr     = {(const struct sockaddr*)&any, sizeof(any)},
                                     .conn_handler = {on_conn, NULL}};
    ucp_listener_params_t half    = params;
    ucp_listener_attr_t attr      = {.field_mask = UNKNOWN | UCP_LISTENER_ATTR_FIELD_SOCKADDR};
    ucp_conn_request_attr_t who   = {.field_mask = UNKNOWN | UCP_CONN_REQUEST_ATTR_FIELD_CLIENT_ADDR};
    ucp_ep_params_t to            = {.field_mask = UNKNOWN | UCP_EP_PARAM_FIELD_FLAGS | UCP_EP_PARAM_FIELD_SOCK_ADDR,
                                     .flags      = UCP_EP_PARAMS_FLAGS_CLIENT_SERVER};
    ucp_listener_attr_t *of_listener;
    struct sockaddr_storage where;
    ucp_listener_h listener;
    ucp_ep_h ep;

    half.field_mask = UNKNOWN | UCP_LISTENER_PARAM_FIELD_SOCK_ADDR;
    CHECK(ucp_listener_create(pair.b, NONE(ucp_listener_params_t), &listener) == UCS_ERR_INVALID_PARAM);
    CHECK(ucp_listener_create(pair.b, CUT(half, sockaddr), &listener) == UCS_ERR_INVALID_PARAM);
    CHECK(ucp_listener_create(pair.b, CUT(params, conn_handler), &listener) == UCS_OK);
    CHECK(ucp_listener_query(listener, NONE(ucp_listener_attr_t)) == UCS_OK);
    of_listener = CUT(attr, sockaddr);
    CHECK(ucp_listener_query(listener, of_listener) == UCS_OK);
    where               = of_listener->sockaddr;
    to.sockaddr.addr    = (const struct sockaddr*)&where;
    to.sockaddr.addrlen = sizeof(where);
    CHECK(ucp_ep_create(pair.a, CUT(to, sockaddr), &ep) == UCS_OK);
    UNTIL(&pair, asked != NULL);
    CHECK(ucp_conn_request_query(asked, NONE(ucp_conn_request_attr_t)) == UCS_OK);
    CHECK(ucp_conn_request_query(asked, CUT(who, client_address)) == UCS_OK);
    CHECK(ucp_listener_reject(listener, asked) == UCS_OK);
    ucp_listener_destroy(listener);
    CHECK(!UCS_PTR_IS_ERR(ucp_ep_close_nb(ep, UCP_EP_CLOSE_MODE_FORCE)));
}

static void memory(void)
{
    ucp_mem_map_params_t map       = {.field_mask = UNKNOWN | UCP_MEM_MAP_PARAM_FIELD_LENGTH |
                                                    UCP_MEM_MAP_PARAM_FIELD_FLAGS,
                                      .length = 10000, .flags = UCP_MEM_MAP_ALLOCATE};
    ucp_mem_attr_t attr            = {.field_mask = UNKNOWN | UCP_MEM_ATTR_FIELD_ADDRESS};
    ucp_mem_advise_params_t advise = {.field_mask = UNKNOWN | UCP_MEM_ADVISE_PARAM_FIELD_ADDRESS |
                                                    UCP_MEM_ADVISE_PARAM_FIELD_LENGTH |
                                                    UCP_MEM_ADVISE_PARAM_FIELD_ADVICE,
                                      .length = 100, .advice = UCP_MADV_WILLNEED};
    ucp_mem_attr_t *of_memory;
    ucp_mem_h memh;
    void *packed;
    size_t size;

    CHECK(ucp_mem_map(pair.context, NONE(ucp_mem_map_params_t), &memh) == UCS_ERR_INVALID_PARAM);
    CHECK(ucp_mem_map(pair.context, CUT(map, flags), &memh) == UCS_OK);
    CHECK(ucp_mem_query(memh, NONE(ucp_mem_attr_t)) == UCS_OK);
    of_memory = CUT(attr, address);
    CHECK(ucp_mem_query(memh, of_memory) == UCS_OK && of_memory->address != NULL);
    advise.address = of_memory->address;
    CHECK(ucp_mem_advise(pair.context, memh, CUT(advise, advice)) == UCS_OK);
    CHECK(ucp_mem_advise(pair.context, memh, NONE(ucp_mem_advise_params_t)) == UCS_ERR_INVALID_PARAM);
    CHECK(ucp_memh_pack(memh, NONE(ucp_memh_pack_params_t), &packed, &size) == UCS_OK);
    ucp_memh_buffer_release(packed, NONE(ucp_memh_buffer_release_params_t));
    CHECK(ucp_mem_unmap(pair.context, memh) == UCS_OK);
}

/* Keys have an order, and equal ones the same place. */
static void keys(void)
{
    static char bytes[2][100];
    ucp_mem_map_params_t map = {.field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH,
                                .length = sizeof(bytes[0])};
    ucp_rkey_h rkeys[3];
    ucp_mem_h memh[2];
    int order[3][3], i, j;

    for (i = 0; i < 3; i++) {
        void *packed;
        size_t size;

        if (i < 2) {
            map.address = bytes[i];
            CHECK(ucp_mem_map(pair.context, &map, &memh[i]) == UCS_OK);
        }
        CHECK(ucp_rkey_pack(pair.context, memh[i / 2 == 0 ? i : 1], &packed, &size) == UCS_OK);
        CHECK(ucp_ep_rkey_unpack(pair.ab, packed, &rkeys[i]) == UCS_OK);
        ucp_rkey_buffer_release(packed);
    }
    for (i = 0; i < 3; i++) {
        for (j = 0; j < 3; j++) {
            CHECK(ucp_rkey_compare(pair.a, rkeys[i], rkeys[j], NONE(ucp_rkey_compare_params_t), &order[i][j]) ==
                  UCS_OK);
        }
    }
    for (i = 0; i < 3; i++) {
        CHECK(order[i][i] == 0);
        for (j = 0; j < 3; j++) {
            CHECK((order[i][j] < 0) == (order[j][i] > 0) && (order[i][j] == 0) == (order[j][i] == 0));
        }
    }
    CHECK(order[0][1] != 0 && order[1][2] == 0 && (order[0][1] < 0) == (order[0][2] < 0));
    for (i = 0; i < 3; i++) {
        ucp_rkey_destroy(rkeys[i]);
    }
    CHECK(ucp_mem_unmap(pair.context, memh[0]) == UCS_OK);
    CHECK(ucp_mem_unmap(pair.context, memh[1]) == UCS_OK);
}

static size_t packed_size(void *state)
{
    return 77;
}

static void *start_pack(void *context, const void *buffer, size_t count)
{
    return context;
}

static void finish(void *state)
{
}

static void datatypes(void)
{
    ucp_generic_dt_ops_t ops = {.start_pack = start_pack, .packed_size = packed_size, .pack = no_pack,
                                .unpack = no_unpack, .finish = finish};
    ucp_datatype_attr_t attr = {.field_mask = UNKNOWN | UCP_DATATYPE_ATTR_FIELD_PACKED_SIZE};
    ucp_datatype_attr_t *of_datatype;
    ucp_datatype_t datatype;

    of_datatype = CUT(attr, packed_size);
    CHECK(ucp_dt_query(ucp_dt_make_contig(8), of_datatype) == UCS_OK && of_datatype->packed_size == 8);
    CHECK(ucp_dt_query(ucp_dt_make_contig(8), NONE(ucp_datatype_attr_t)) == UCS_OK);
    CHECK(ucp_dt_create_generic(CUT(ops, finish), &ops, &datatype) == UCS_OK);
    of_datatype = CUT(attr, packed_size);
    CHECK(ucp_dt_query(datatype, of_datatype) == UCS_OK && of_datatype->packed_size == 77);
    ucp_dt_destroy(datatype);
}

static void requests(void)
{
    ucp_request_attr_t attr   = {.field_mask = UNKNOWN | UCP_REQUEST_ATTR_FIELD_STATUS};
    ucp_request_param_t param = {.op_attr_mask = UNKNOWN_OF_OPERATIONS};
    uint64_t sent = 5, received = 0;
    ucp_request_attr_t *of_request;
    ucs_status_ptr_t request;

    request = ucp_tag_recv_nbx(pair.b, &received, 8, 3, ~0ull, CUT(param, flags));
    CHECK(UCS_PTR_IS_PTR(request));
    CHECK(ucp_request_query(request, NONE(ucp_request_attr_t)) == UCS_OK ||
          ucp_request_query(request, NONE(ucp_request_attr_t)) == UCS_INPROGRESS);
    of_request = CUT(attr, status);
    (void)ucp_request_query(request, of_request);
    CHECK(of_request->status == UCS_INPROGRESS);
    wait_for(&pair, ucp_tag_send_nbx(pair.ab, &sent, 8, 3, CUT(param, flags)), UCS_OK);
    wait_for(&pair, request, UCS_OK);
    CHECK(received == 5);
    wait_for(&pair, ucp_ep_flush_nbx(pair.ab, CUT(param, flags)), UCS_OK);
    wait_for(&pair, ucp_worker_flush_nbx(pair.a, CUT(param, flags)), UCS_OK);
    param.op_attr_mask |= UCP_OP_ATTR_FIELD_FLAGS;
    param.flags         = 0;
    request = ucp_tag_recv_nbx(pair.b, &received, 8, 3, ~0ull, CUT(param, flags));
    wait_for(&pair, ucp_am_send_nbx(pair.ab, 9, NULL, 0, &sent, 8, CUT(param, flags)), UCS_OK);
    ucp_request_cancel(pair.b, request);
    wait_for(&pair, request, UCS_ERR_CANCELED);
}

int main(void)
{
    const long page = sysconf(_SC_PAGESIZE);
    char *pages     = mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    CHECK(pages != MAP_FAILED && mprotect(pages + page, page, PROT_NONE) == 0);
    guard_page = pages + page;
    make_pair(&pair, UCS_THREAD_MODE_SINGLE);
    contexts();
    workers();
    endpoints();
    connections();
    memory();
    keys();
    datatypes();
    requests();
    free_pair(&pair);
    munmap(pages, 2 * page);
    return 0;
}

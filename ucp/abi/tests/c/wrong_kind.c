/* Memory that is no handle: every function that carries no data says so, in place of each of its handles. */
#include "check.h"

static union {
    char bytes[4096];
    long long aligned;
} zeros;

#define NOT_A(type) ((type)(void*)zeros.bytes)
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
    const ucp_datatype_t generic         = (uintptr_t)zeros.bytes | UCP_DATATYPE_GENERIC;
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

int main(void)
{
    make_pair(&pair, UCS_THREAD_MODE_SINGLE);
    contexts();
    memory();
    workers();
    endpoints();
    others();
    free_pair(&pair);
    return 0;
}

/* Breaks one rule, which the argument names: UCX_CHECK=y ends the program with a line that tells it. Without an
 * argument, prints the names of the rules. */
#include "check.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <uct/api/uct.h>

static pair_t pair;
static char memory[64];
static const ucp_request_param_t none = {.op_attr_mask = 0};

static ucp_mem_h map(void)
{
    ucp_mem_map_params_t params;
    ucp_mem_h memh;

    params.field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH;
    params.address    = memory;
    params.length     = sizeof(memory);
    CHECK(ucp_mem_map(pair.context, &params, &memh) == UCS_OK);
    return memh;
}

static ucs_status_ptr_t receive(void)
{
    return ucp_tag_recv_nbx(pair.a, memory, sizeof(memory), 1, -1, &none);
}

/* Handles of another kind. */

static void worker_as_endpoint(void)
{
    ucp_tag_send_nbx((ucp_ep_h)pair.a, memory, 1, 1, &none);
}

static void context_as_worker(void)
{
    ucp_worker_progress((ucp_worker_h)pair.context);
}

static void request_as_endpoint(void)
{
    ucp_ep_flush_nbx(receive(), &none);
}

static void own_memory_as_worker(void)
{
    ucp_tag_recv_nbx((ucp_worker_h)memory, memory, 1, 1, -1, &none);
}

static void own_memory_as_rkey(void)
{
    ucp_put_nbx(pair.ab, memory, 1, 0, (ucp_rkey_h)memory, &none);
}

static void own_memory_as_datatype(void)
{
    ucp_request_param_t param;

    param.op_attr_mask = UCP_OP_ATTR_FIELD_DATATYPE;
    param.datatype     = (uintptr_t)memory | UCP_DATATYPE_GENERIC;
    ucp_tag_send_nbx(pair.ab, memory, 1, 1, &param);
}

/* Handles that have been freed. */

static void freed_worker(void)
{
    ucp_worker_h worker = make_worker(pair.context, UCS_THREAD_MODE_SINGLE);

    ucp_worker_destroy(worker);
    ucp_worker_progress(worker);
}

static void closed_endpoint(void)
{
    ucp_ep_h ep = connect_to(pair.a, pair.b), other;

    close_ep(&pair, ep);
    other = connect_to(pair.a, pair.b);
    CHECK(other != ep);
    ucp_tag_send_nbx(ep, memory, 1, 1, &none);
}

static void endpoint_of_a_freed_worker(void)
{
    ucp_worker_h worker = make_worker(pair.context, UCS_THREAD_MODE_SINGLE);
    ucp_ep_h ep         = connect_to(worker, pair.b);

    ucp_worker_destroy(worker);
    ucp_ep_flush_nbx(ep, &none);
}

static void memory_freed_twice(void)
{
    ucp_mem_h memh = map();

    CHECK(ucp_mem_unmap(pair.context, memh) == UCS_OK);
    ucp_mem_unmap(pair.context, memh);
}

static void freed_rkey(void)
{
    ucp_mem_h memh = map();
    void *packed;
    size_t length;
    ucp_rkey_h rkey;

    CHECK(ucp_rkey_pack(pair.context, memh, &packed, &length) == UCS_OK);
    CHECK(ucp_ep_rkey_unpack(pair.ba, packed, &rkey) == UCS_OK);
    ucp_rkey_destroy(rkey);
    ucp_get_nbx(pair.ba, memory, 1, (uintptr_t)memory, rkey, &none);
}

static void freed_context(void)
{
    ucp_params_t params;
    ucp_context_h context;

    params.field_mask = UCP_PARAM_FIELD_FEATURES;
    params.features   = UCP_FEATURE_TAG;
    CHECK(ucp_init(&params, NULL, &context) == UCS_OK);
    ucp_cleanup(context);
    ucp_context_print_info(context, stderr);
}

static void message_received_twice(void)
{
    ucp_tag_message_h message;
    ucp_tag_recv_info_t info;

    CHECK(!UCS_PTR_IS_ERR(ucp_tag_send_nbx(pair.ab, memory, 1, 1, &none)));
    while ((message = ucp_tag_probe_nb(pair.b, 1, -1, 1, &info)) == NULL) {
        progress(&pair);
    }
    wait_for(&pair, ucp_tag_msg_recv_nbx(pair.b, memory, sizeof(memory), message, &none), UCS_OK);
    ucp_tag_msg_recv_nbx(pair.b, memory, sizeof(memory), message, &none);
}

static void message_left_in_the_queue(void)
{
    ucp_tag_message_h message;
    ucp_tag_recv_info_t info;

    CHECK(!UCS_PTR_IS_ERR(ucp_tag_send_nbx(pair.ab, memory, 1, 1, &none)));
    while ((message = ucp_tag_probe_nb(pair.b, 1, -1, 0, &info)) == NULL) {
        progress(&pair);
    }
    ucp_tag_msg_recv_nbx(pair.b, memory, sizeof(memory), message, &none);
}

static ucp_request_param_t with_memory(ucp_mem_h memh)
{
    ucp_request_param_t param = {.op_attr_mask = UCP_OP_ATTR_FIELD_MEMH};

    param.memh = memh;
    return param;
}

static void own_memory_as_memory_of_an_operation(void)
{
    ucp_request_param_t param = with_memory((ucp_mem_h)memory);

    ucp_tag_send_nbx(pair.ab, memory, 1, 1, &param);
}

static void freed_memory_of_an_operation(void)
{
    ucp_mem_h memh            = map();
    ucp_request_param_t param = with_memory(memh);

    CHECK(ucp_mem_unmap(pair.context, memh) == UCS_OK);
    ucp_tag_recv_nbx(pair.a, memory, sizeof(memory), 1, -1, &param);
}

static void freed_config(void)
{
    ucp_config_t *config;

    CHECK(ucp_config_read(NULL, NULL, &config) == UCS_OK);
    ucp_config_release(config);
    ucp_config_print(config, stderr, "freed", UCS_CONFIG_PRINT_CONFIG);
}

static void no_callback(void *state)
{
}

static void *no_start(void *context, const void *buffer, size_t count)
{
    return context;
}

static void freed_datatype(void)
{
    ucp_generic_dt_ops_t ops  = {.start_pack  = no_start,
                                 .packed_size = no_bytes,
                                 .pack        = no_pack,
                                 .unpack      = no_unpack,
                                 .finish      = no_callback};
    ucp_request_param_t param = {.op_attr_mask = UCP_OP_ATTR_FIELD_DATATYPE};

    CHECK(ucp_dt_create_generic(&ops, NULL, &param.datatype) == UCS_OK);
    ucp_dt_destroy(param.datatype);
    ucp_tag_send_nbx(pair.ab, memory, 1, 1, &param);
}

static ucp_conn_request_h asked;

static void on_conn(ucp_conn_request_h request, void *arg)
{
    asked = request;
}

static ucp_listener_h listen_for(struct sockaddr_storage *at)
{
    struct sockaddr_in any       = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    ucp_listener_attr_t attr     = {.field_mask = UCP_LISTENER_ATTR_FIELD_SOCKADDR};
    ucp_listener_params_t params = {.field_mask = UCP_LISTENER_PARAM_FIELD_SOCK_ADDR |
                                                  UCP_LISTENER_PARAM_FIELD_CONN_HANDLER};
    ucp_listener_h listener;

    params.sockaddr.addr    = (const struct sockaddr*)&any;
    params.sockaddr.addrlen = sizeof(any);
    params.conn_handler.cb  = on_conn;
    CHECK(ucp_listener_create(pair.b, &params, &listener) == UCS_OK);
    CHECK(ucp_listener_query(listener, &attr) == UCS_OK);
    *at = attr.sockaddr;
    return listener;
}

static void freed_listener(void)
{
    struct sockaddr_storage at;
    ucp_listener_h listener  = listen_for(&at);
    ucp_listener_attr_t attr = {.field_mask = UCP_LISTENER_ATTR_FIELD_SOCKADDR};

    ucp_listener_destroy(listener);
    ucp_listener_query(listener, &attr);
}

/* Waits for a client. */
static ucp_listener_h ask(void)
{
    struct sockaddr_storage at;
    ucp_listener_h listener = listen_for(&at);
    ucp_ep_params_t params  = {.field_mask = UCP_EP_PARAM_FIELD_FLAGS | UCP_EP_PARAM_FIELD_SOCK_ADDR,
                               .flags      = UCP_EP_PARAMS_FLAGS_CLIENT_SERVER};
    ucp_ep_h ep;

    params.sockaddr.addr    = (const struct sockaddr*)&at;
    params.sockaddr.addrlen = sizeof(at);
    CHECK(ucp_ep_create(pair.a, &params, &ep) == UCS_OK);
    UNTIL(&pair, asked != NULL);
    return listener;
}

static void connection_request_rejected_twice(void)
{
    ucp_listener_h listener = ask();

    CHECK(ucp_listener_reject(listener, asked) == UCS_OK);
    ucp_listener_reject(listener, asked);
}

static void connection_request_accepted_twice(void)
{
    ucp_ep_params_t params = {.field_mask = UCP_EP_PARAM_FIELD_CONN_REQUEST};
    ucp_ep_h ep;

    ask();
    params.conn_request = asked;
    CHECK(ucp_ep_create(pair.b, &params, &ep) == UCS_OK);
    ucp_ep_create(pair.b, &params, &ep);
}

/* Handles of the lower interface. */

static uct_component_h component;
static uct_md_h md;
static uct_worker_h uct_worker;
static uct_iface_h uct_iface;
static uct_ep_h uct_ep;
static uct_allocated_memory_t allocated;
static uct_rkey_bundle_t bundle;

/* Opens the transport to itself, with an endpoint, memory and its key. */
static void open_uct(void)
{
    uct_component_attr_t component_attr = {.field_mask = UCT_COMPONENT_ATTR_FIELD_NAME};
    uct_iface_params_t params           = {.field_mask = UCT_IFACE_PARAM_FIELD_OPEN_MODE | UCT_IFACE_PARAM_FIELD_DEVICE,
                                           .open_mode  = UCT_IFACE_OPEN_MODE_DEVICE};
    uct_ep_params_t ep_params           = {.field_mask = UCT_EP_PARAM_FIELD_IFACE | UCT_EP_PARAM_FIELD_DEV_ADDR |
                                                         UCT_EP_PARAM_FIELD_IFACE_ADDR};
    uct_component_h *components;
    uct_md_config_t *md_config;
    uct_iface_config_t *config;
    char device[256], address[256], key[256];
    unsigned count, i;

    CHECK(uct_query_components(&components, &count) == UCS_OK);
    for (i = 0; i < count; i++) {
        CHECK(uct_component_query(components[i], &component_attr) == UCS_OK);
        component = !strcmp(component_attr.name, "self") ? components[i] : component;
    }
    CHECK(component != NULL);
    CHECK(uct_md_config_read(component, NULL, NULL, &md_config) == UCS_OK);
    CHECK(uct_md_open(component, "self", md_config, &md) == UCS_OK);
    CHECK(uct_worker_create(NULL, UCS_THREAD_MODE_SINGLE, &uct_worker) == UCS_OK);
    params.mode.device.tl_name  = "self";
    params.mode.device.dev_name = "memory";
    CHECK(uct_md_iface_config_read(md, "self", NULL, NULL, &config) == UCS_OK);
    CHECK(uct_iface_open(md, uct_worker, &params, config, &uct_iface) == UCS_OK);
    CHECK(uct_iface_get_device_address(uct_iface, (uct_device_addr_t*)device) == UCS_OK);
    CHECK(uct_iface_get_address(uct_iface, (uct_iface_addr_t*)address) == UCS_OK);
    ep_params.iface      = uct_iface;
    ep_params.dev_addr   = (const uct_device_addr_t*)device;
    ep_params.iface_addr = (const uct_iface_addr_t*)address;
    CHECK(uct_ep_create(&ep_params, &uct_ep) == UCS_OK);
    CHECK(uct_iface_mem_alloc(uct_iface, sizeof(memory), UCT_MD_MEM_ACCESS_ALL, "rules", &allocated) == UCS_OK);
    CHECK(uct_md_mkey_pack(md, allocated.memh, key) == UCS_OK);
    CHECK(uct_rkey_unpack(component, key, &bundle) == UCS_OK);
    CHECK(uct_ep_put_short(uct_ep, memory, 8, (uintptr_t)allocated.address, bundle.rkey) == UCS_OK);
}

static void uct_configuration_released_twice(void)
{
    uct_md_config_t *config;

    open_uct();
    CHECK(uct_md_config_read(component, NULL, NULL, &config) == UCS_OK);
    uct_config_release(config);
    uct_config_release(config);
}

static void components_released_twice(void)
{
    uct_component_h *components;
    unsigned count;

    CHECK(uct_query_components(&components, &count) == UCS_OK);
    uct_release_component_list(components);
    uct_release_component_list(components);
}

static void freed_uct_rkey(void)
{
    open_uct();
    CHECK(uct_rkey_release(component, &bundle) == UCS_OK);
    uct_ep_put_short(uct_ep, memory, 8, (uintptr_t)allocated.address, bundle.rkey);
}

static void own_memory_as_uct_rkey(void)
{
    open_uct();
    uct_ep_get_short(uct_ep, memory, 8, (uintptr_t)allocated.address, (uct_rkey_t)memory);
}

static void freed_uct_memory(void)
{
    uct_iov_t iov[2];

    open_uct();
    iov[0] = (uct_iov_t){.buffer = memory, .length = 8, .memh = UCT_MEM_HANDLE_NULL, .count = 1};
    iov[1] = (uct_iov_t){.buffer = allocated.address, .length = 8, .memh = allocated.memh, .count = 1};
    uct_iface_mem_free(&allocated);
    uct_ep_am_zcopy(uct_ep, 1, NULL, 0, iov, 2, 0, NULL);
}

static void destroyed_uct_endpoint(void)
{
    open_uct();
    uct_ep_destroy(uct_ep);
    uct_ep_put_short(uct_ep, memory, 8, (uintptr_t)allocated.address, bundle.rkey);
}

static void uct_endpoint_destroyed_twice(void)
{
    open_uct();
    uct_ep_destroy(uct_ep);
    uct_ep_destroy(uct_ep);
}

static void closed_uct_interface(void)
{
    open_uct();
    uct_ep_destroy(uct_ep);
    uct_iface_close(uct_iface);
    uct_iface_flush(uct_iface, 0, NULL);
}

static void uct_endpoint_of_a_closed_interface(void)
{
    open_uct();
    uct_iface_close(uct_iface);
    uct_ep_flush(uct_ep, 0, NULL);
}

static void destroyed_uct_worker(void)
{
    open_uct();
    uct_ep_destroy(uct_ep);
    uct_iface_close(uct_iface);
    uct_worker_destroy(uct_worker);
    uct_worker_progress(uct_worker);
}

static void closed_uct_md(void)
{
    uct_md_attr_t attr;

    open_uct();
    uct_md_close(md);
    uct_md_query(md, &attr);
}

/* Requests. */

static void request_freed_twice(void)
{
    void *request = receive();

    ucp_request_free(request);
    ucp_request_free(request);
}

static void status_of_a_freed_request(void)
{
    void *request = receive();

    ucp_request_release(request);
    ucp_request_check_status(request);
}

static void cancel_of_a_freed_request(void)
{
    void *request = receive();

    ucp_request_free(request);
    ucp_request_cancel(pair.a, request);
}

/* Requests that are in use. Without the checks one of them has the memory of the last that was freed. */
static void other_receives(void)
{
    int i;

    for (i = 0; i < 1000; i++) {
        receive();
    }
}

static void freed_request_behind_other_receives(void)
{
    void *request = receive();

    wait_for(&pair, ucp_tag_send_nbx(pair.ba, memory, 1, 1, &none), UCS_OK);
    wait_for(&pair, request, UCS_OK);
    other_receives();
    ucp_request_check_status(request);
}

static void request_freed_while_it_ran_behind_other_receives(void)
{
    void *request = receive();
    int i;

    ucp_request_free(request);
    wait_for(&pair, ucp_tag_send_nbx(pair.ba, memory, 1, 1, &none), UCS_OK);
    for (i = 0; i < 1000; i++) {
        progress(&pair);
    }
    other_receives();
    ucp_request_free(request);
}

static void use_of_a_freed_allocated_request_behind_another(void)
{
    ucp_request_param_t param;

    param.op_attr_mask = UCP_OP_ATTR_FIELD_REQUEST;
    param.request      = ucp_request_alloc(pair.a);
    ucp_request_free(param.request);
    ucp_request_alloc(pair.a);
    ucp_tag_recv_nbx(pair.a, memory, sizeof(memory), 1, -1, &param);
}

static void own_memory_as_request(void)
{
    ucp_request_check_status(memory);
}

static void free_of_a_request_of_the_program(void)
{
    char *block = (char*)malloc(1024);
    ucp_tag_recv_nbr(pair.a, memory, sizeof(memory), ucp_dt_make_contig(1), 1, -1, block + 512);
    ucp_request_free(block + 512);
}

static void request_of_a_freed_worker(void)
{
    ucp_worker_h worker = make_worker(pair.context, UCS_THREAD_MODE_SINGLE);
    void *request       = ucp_tag_recv_nbx(worker, memory, sizeof(memory), 1, -1, &none);

    ucp_worker_destroy(worker);
    ucp_request_check_status(request);
}

static void use_of_a_freed_allocated_request(void)
{
    ucp_request_param_t param;

    param.op_attr_mask = UCP_OP_ATTR_FIELD_REQUEST;
    param.request      = ucp_request_alloc(pair.a);
    ucp_request_free(param.request);
    ucp_tag_recv_nbx(pair.a, memory, sizeof(memory), 1, -1, &param);
}

/* Data that is not kept. */

static void release_of_data_that_is_not_kept(void)
{
    ucp_am_data_release(pair.a, memory);
}

static void receive_of_data_that_is_not_kept(void)
{
    ucp_am_recv_data_nbx(pair.a, memory, memory + 32, 8, &none);
}

static void release_of_stream_data_that_is_not_kept(void)
{
    ucp_stream_data_release(pair.ab, memory);
}

/* Packed bytes. */

static void key_released_twice(void)
{
    ucp_mem_h memh = map();
    size_t length;
    void *packed;

    CHECK(ucp_rkey_pack(pair.context, memh, &packed, &length) == UCS_OK);
    ucp_rkey_buffer_release(packed);
    ucp_rkey_buffer_release(packed);
}

static void own_memory_as_packed_address(void)
{
    ucp_worker_release_address(pair.a, (ucp_address_t*)memory);
}

#define RULE(name) {#name, name}

static const struct {
    const char *name;
    void (*breaks)(void);
} rules[] = {
    RULE(worker_as_endpoint),
    RULE(context_as_worker),
    RULE(request_as_endpoint),
    RULE(own_memory_as_worker),
    RULE(own_memory_as_rkey),
    RULE(own_memory_as_datatype),
    RULE(freed_worker),
    RULE(closed_endpoint),
    RULE(endpoint_of_a_freed_worker),
    RULE(memory_freed_twice),
    RULE(freed_rkey),
    RULE(freed_context),
    RULE(own_memory_as_memory_of_an_operation),
    RULE(freed_memory_of_an_operation),
    RULE(freed_config),
    RULE(freed_datatype),
    RULE(freed_listener),
    RULE(connection_request_rejected_twice),
    RULE(connection_request_accepted_twice),
    RULE(uct_configuration_released_twice),
    RULE(components_released_twice),
    RULE(freed_uct_rkey),
    RULE(own_memory_as_uct_rkey),
    RULE(freed_uct_memory),
    RULE(closed_uct_md),
    RULE(destroyed_uct_endpoint),
    RULE(uct_endpoint_destroyed_twice),
    RULE(closed_uct_interface),
    RULE(uct_endpoint_of_a_closed_interface),
    RULE(destroyed_uct_worker),
    RULE(message_received_twice),
    RULE(message_left_in_the_queue),
    RULE(request_freed_twice),
    RULE(status_of_a_freed_request),
    RULE(cancel_of_a_freed_request),
    RULE(freed_request_behind_other_receives),
    RULE(request_freed_while_it_ran_behind_other_receives),
    RULE(use_of_a_freed_allocated_request_behind_another),
    RULE(own_memory_as_request),
    RULE(free_of_a_request_of_the_program),
    RULE(request_of_a_freed_worker),
    RULE(use_of_a_freed_allocated_request),
    RULE(release_of_data_that_is_not_kept),
    RULE(receive_of_data_that_is_not_kept),
    RULE(release_of_stream_data_that_is_not_kept),
    RULE(key_released_twice),
    RULE(own_memory_as_packed_address),
};

int main(int argc, char **argv)
{
    unsigned i;

    for (i = 0; i < sizeof(rules) / sizeof(rules[0]); i++) {
        if (argc == 1) {
            fprintf(stderr, "%s\n", rules[i].name);
        } else if (strcmp(argv[1], rules[i].name) == 0) {
            make_pair(&pair, UCS_THREAD_MODE_SINGLE);
            rules[i].breaks();
            fprintf(stderr, "the rule was not checked\n");
            return 3;
        }
    }
    return argc == 1 ? 0 : 2;
}

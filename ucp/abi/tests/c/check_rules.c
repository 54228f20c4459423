/* Breaks one rule, which the argument names: UCX_CHECK=y ends the program with a line that tells it. Without an
 * argument, prints the names of the rules. */
#include "check.h"

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

static void release_of_stream_data_that_is_not_kept(void)
{
    ucp_stream_data_release(pair.ab, memory);
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
    RULE(message_received_twice),
    RULE(message_left_in_the_queue),
    RULE(request_freed_twice),
    RULE(status_of_a_freed_request),
    RULE(own_memory_as_request),
    RULE(free_of_a_request_of_the_program),
    RULE(request_of_a_freed_worker),
    RULE(use_of_a_freed_allocated_request),
    RULE(release_of_data_that_is_not_kept),
    RULE(release_of_stream_data_that_is_not_kept),
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

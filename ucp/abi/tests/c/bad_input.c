/* Null, garbage and unknown bits answer a status. */
#include "check.h"

/* A request of the program that is null is refused, and nothing is posted or sent. */
static void null_requests(pair_t *pair)
{
    const ucp_datatype_t byte = ucp_dt_make_contig(1);
    ucp_request_param_t param = plain();
    ucp_tag_recv_info_t info;
    char in[8];

    CHECK(ucp_tag_recv_nbr(pair->b, in, sizeof(in), byte, 70, -1, NULL) == UCS_ERR_INVALID_PARAM);
    CHECK(ucp_tag_send_nbr(pair->ab, "a", 1, byte, 71, NULL) == UCS_ERR_INVALID_PARAM);
    param.op_attr_mask = UCP_OP_ATTR_FIELD_REQUEST;
    param.request      = NULL;
    CHECK(UCS_PTR_RAW_STATUS(ucp_tag_recv_nbx(pair->b, in, sizeof(in), 70, -1, &param)) == UCS_ERR_INVALID_PARAM);
    CHECK(UCS_PTR_RAW_STATUS(ucp_stream_recv_nbx(pair->ba, in, sizeof(in), &(size_t){0}, &param)) ==
          UCS_ERR_INVALID_PARAM);
    CHECK(UCS_PTR_RAW_STATUS(ucp_tag_send_sync_nbx(pair->ab, "a", 1, 71, &param)) == UCS_ERR_INVALID_PARAM);
    param = plain();
    wait_for(pair, ucp_tag_send_nbx(pair->ab, "a", 1, 70, &param), UCS_OK);
    UNTIL(pair, ucp_tag_probe_nb(pair->b, 70, -1, 0, &info) != NULL);
    CHECK(ucp_tag_probe_nb(pair->b, 71, -1, 0, &info) == NULL);
    wait_for(pair, ucp_tag_recv_nbx(pair->b, in, sizeof(in), 70, -1, &param), UCS_OK);
}

static unsigned finished;

static void *start(void *context, const void *buffer, size_t count)
{
    ++*(unsigned*)context;
    return context;
}

static void *start_unpack(void *context, void *buffer, size_t count)
{
    ++*(unsigned*)context;
    return context;
}

static void finish(void *state)
{
    finished++;
}

/* Puts take no datatype of callbacks, and data that is not there is not received. What has been started is finished. */
static void generic(pair_t *pair)
{
    ucp_generic_dt_ops_t ops  = {start, start_unpack, no_bytes, no_pack, no_unpack, finish};
    ucp_mem_map_params_t map  = {.field_mask = UCP_MEM_MAP_PARAM_FIELD_LENGTH | UCP_MEM_MAP_PARAM_FIELD_FLAGS,
                                 .length = 4096, .flags = UCP_MEM_MAP_ALLOCATE};
    ucp_request_param_t param = plain();
    unsigned started          = 0;
    ucp_rkey_h rkey;
    ucp_mem_h memh;
    size_t length;
    void *packed;

    CHECK(ucp_mem_map(pair->context, &map, &memh) == UCS_OK);
    CHECK(ucp_rkey_pack(pair->context, memh, &packed, &length) == UCS_OK);
    CHECK(ucp_ep_rkey_unpack(pair->ab, packed, &rkey) == UCS_OK);
    ucp_rkey_buffer_release(packed);
    param.op_attr_mask = UCP_OP_ATTR_FIELD_DATATYPE;
    CHECK(ucp_dt_create_generic(&ops, &started, &param.datatype) == UCS_OK);
    CHECK(UCS_PTR_RAW_STATUS(ucp_put_nbx(pair->ab, "a", 1, 0, rkey, &param)) == UCS_ERR_UNSUPPORTED);
    CHECK(started == 1 && finished == started);
    CHECK(UCS_PTR_RAW_STATUS(ucp_am_recv_data_nbx(pair->b, pair, pair, 1, &param)) == UCS_ERR_INVALID_PARAM);
    CHECK(finished == started);
    ucp_dt_destroy(param.datatype);
    ucp_rkey_destroy(rkey);
    CHECK(ucp_mem_unmap(pair->context, memh) == UCS_OK);
}

int main(void)
{
    ucp_request_param_t param = {.op_attr_mask = 0};
    ucp_ep_params_t ep_params;
    ucp_params_t params = {.field_mask = 0};
    ucp_context_h context;
    ucp_ep_h ep;
    ucp_rkey_h rkey;
    unsigned char garbage[4096];
    pair_t pair;
    unsigned i, j;

    CHECK(ucp_init(&params, NULL, &context) == UCS_ERR_INVALID_PARAM);
    CHECK(ucp_init(NULL, NULL, &context) == UCS_ERR_INVALID_PARAM);
    make_pair(&pair, UCS_THREAD_MODE_SINGLE);
    CHECK(UCS_PTR_RAW_STATUS(ucp_tag_send_nbx(NULL, "a", 1, 1, &param)) == UCS_ERR_INVALID_PARAM);
    CHECK(UCS_PTR_RAW_STATUS(ucp_tag_send_nbx(pair.ab, "a", 1, 1, NULL)) == UCS_ERR_INVALID_PARAM);
    CHECK(UCS_PTR_RAW_STATUS(ucp_tag_send_nbx(pair.ab, NULL, 1, 1, &param)) == UCS_ERR_INVALID_PARAM);
    CHECK(UCS_PTR_RAW_STATUS(ucp_tag_recv_nbx(NULL, NULL, 0, 1, 1, &param)) == UCS_ERR_INVALID_PARAM);
    wait_for(&pair, ucp_tag_send_nbx(pair.ab, NULL, 0, 1, &param), UCS_OK);
    param.op_attr_mask = UCP_OP_ATTR_FIELD_MEMORY_TYPE;
    param.memory_type  = UCS_MEMORY_TYPE_CUDA;
    CHECK(UCS_PTR_RAW_STATUS(ucp_tag_send_nbx(pair.ab, "a", 1, 1, &param)) == UCS_ERR_UNSUPPORTED);
    param.memory_type  = UCS_MEMORY_TYPE_HOST;
    wait_for(&pair, ucp_tag_send_nbx(pair.ab, "a", 1, 1, &param), UCS_OK);
    param.op_attr_mask = 0;
    CHECK(ucp_worker_progress(NULL) == 0);
    CHECK(ucp_request_check_status(NULL) == UCS_ERR_INVALID_PARAM);
    CHECK(ucp_worker_query((ucp_worker_h)pair.context, &(ucp_worker_attr_t){0}) == UCS_ERR_INVALID_PARAM);
    CHECK(ucp_context_query((ucp_context_h)pair.a, &(ucp_context_attr_t){0}) == UCS_ERR_INVALID_PARAM);
    null_requests(&pair);
    generic(&pair);
    ep_params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS;
    ep_params.address    = (ucp_address_t*)garbage;
    srand(7);
    for (i = 0; i < 2000; i++) {
        for (j = 0; j < sizeof(garbage); j++) {
            garbage[j] = (unsigned char)rand();
        }
        CHECK(ucp_ep_create(pair.a, &ep_params, &ep) != UCS_OK);
        CHECK(ucp_ep_rkey_unpack(pair.ab, garbage, &rkey) != UCS_OK);
    }
    ep_params.address = NULL;
    CHECK(ucp_ep_create(pair.a, &ep_params, &ep) == UCS_ERR_INVALID_PARAM);
    ep_params.field_mask = 0;
    CHECK(ucp_ep_create(pair.a, &ep_params, &ep) == UCS_ERR_INVALID_PARAM);
    for (i = 0; i < 256; i++) {
        CHECK(strlen(ucs_status_string((ucs_status_t)i)) > 0);
    }
    free_pair(&pair);
    return 0;
}

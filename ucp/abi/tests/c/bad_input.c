/* Null, garbage and unknown bits answer a status. */
#include "check.h"

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

/* The other end of the test with libfabric: a worker of the C interface, which reaches a libfabric endpoint by its raw
 * address, and tells its own by `ucx4efa_efa_raw_address`. */
#include "libfabric_lengths.h"
#include <string.h>
#include <ucp/api/ucp.h>
#include <ucx4efa.h>

static ucp_context_h context;
static ucp_worker_h worker;

static void make_worker(void)
{
    ucp_params_t params               = {.field_mask = UCP_PARAM_FIELD_FEATURES, .features = UCP_FEATURE_TAG};
    ucp_worker_params_t worker_params = {.field_mask = 0};

    CHECK(ucp_init(&params, NULL, &context) == UCS_OK);
    CHECK(ucp_worker_create(context, &worker_params, &worker) == UCS_OK);
}

static void complete(void *request)
{
    CHECK(!UCS_PTR_IS_ERR(request));
    if (request != NULL) {
        while (ucp_request_check_status(request) == UCS_INPROGRESS) {
            ucp_worker_progress(worker);
        }
        CHECK(ucp_request_check_status(request) == UCS_OK);
        ucp_request_free(request);
    }
}

static void exchange(ucp_ep_h ep)
{
    ucp_request_param_t send = {.op_attr_mask = 0}, recv = {.op_attr_mask = UCP_OP_ATTR_FIELD_RECV_INFO};
    unsigned char *buffer    = (unsigned char*)malloc(LONGEST);
    ucp_tag_recv_info_t info;
    void *request;
    size_t i;

    for (i = 0; i < LENGTHS; i++) {
        fill_pattern(buffer, lengths[i], TO_LIBFABRIC + i);
        complete(ucp_tag_send_nbx(ep, buffer, lengths[i], TO_LIBFABRIC + i, &send));
        memset(buffer, 0, lengths[i]);
        recv.recv_info.tag_info = &info;
        request                 = ucp_tag_recv_nbx(worker, buffer, LONGEST, TO_UCP + i, -1, &recv);
        CHECK(!UCS_PTR_IS_ERR(request));
        while (request != NULL && ucp_tag_recv_request_test(request, &info) == UCS_INPROGRESS) {
            ucp_worker_progress(worker);
        }
        complete(request);
        CHECK(info.length == lengths[i] && info.sender_tag == TO_UCP + i);
        check_pattern(buffer, lengths[i], TO_UCP + i);
    }
    free(buffer);
}

int main(void)
{
    ucp_ep_params_t ep_params;
    unsigned char raw[RAW_LENGTH], bad[RAW_LENGTH] = {0xfe, 0x80};
    ucp_address_t *address;
    size_t length;
    ucp_ep_h ep;

    alarm(100);
    make_worker();
    CHECK(ucp_worker_get_address(worker, &address, &length) == UCS_OK);
    CHECK(ucx4efa_efa_raw_address(address, raw) == UCS_OK);
    CHECK(ucx4efa_efa_raw_address(NULL, raw) == UCS_ERR_INVALID_PARAM);
    CHECK(ucx4efa_efa_raw_address(address, NULL) == UCS_ERR_INVALID_PARAM);
    ucp_worker_release_address(worker, address);
    print_raw(raw);
    /* An address of an address is itself. */
    CHECK(ucx4efa_efa_raw_address((ucp_address_t*)raw, bad) == UCS_OK);
    CHECK(memcmp(raw, bad, RAW_LENGTH) == 0);
    read_raw(raw);
    ep_params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS;
    ep_params.address    = (ucp_address_t*)raw;
    CHECK(ucp_ep_create(worker, &ep_params, &ep) == UCS_OK);
    exchange(ep);
    complete(ucp_ep_close_nb(ep, UCP_EP_CLOSE_MODE_FLUSH));
    ucp_worker_destroy(worker);
    ucp_cleanup(context);
    printf("done\n");
    return 0;
}

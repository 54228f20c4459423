/* An address with UCP_WORKER_ADDRESS_FLAG_NET_ONLY has no shared memory: what connects by it uses the network. */
#include "check.h"

static int uses(ucp_ep_h ep, const char *transport)
{
    ucp_transport_entry_t entries[16];
    ucp_ep_attr_t attr = {.field_mask = UCP_EP_ATTR_FIELD_TRANSPORTS};
    unsigned i;

    attr.transports.entries     = entries;
    attr.transports.num_entries = 16;
    attr.transports.entry_size  = sizeof(entries[0]);
    CHECK(ucp_ep_query(ep, &attr) == UCS_OK);
    for (i = 0; i < attr.transports.num_entries; i++) {
        if (!strcmp(entries[i].transport_name, transport)) {
            return 1;
        }
    }
    return 0;
}

/* The lanes of an endpoint have different devices, of the network as many as `devices`. */
static void devices_of_lanes(ucp_ep_h ep, unsigned devices)
{
    ucp_transport_entry_t entries[16];
    ucp_ep_attr_t attr  = {.field_mask = UCP_EP_ATTR_FIELD_TRANSPORTS};
    unsigned of_network = 0;
    unsigned i, k;

    attr.transports.entries     = entries;
    attr.transports.num_entries = 16;
    attr.transports.entry_size  = sizeof(entries[0]);
    CHECK(ucp_ep_query(ep, &attr) == UCS_OK);
    for (i = 0; i < attr.transports.num_entries; i++) {
        CHECK(strlen(entries[i].device_name) > 0);
        of_network += !strcmp(entries[i].transport_name, "efa");
        for (k = 0; k < i; k++) {
            CHECK(strcmp(entries[i].transport_name, entries[k].transport_name) ||
                  strcmp(entries[i].device_name, entries[k].device_name));
        }
    }
    CHECK(of_network == devices);
}

static ucp_ep_h connect_by(ucp_worker_h from, pair_t *pair, uint32_t flags, size_t *length)
{
    ucp_worker_attr_t attr = {.field_mask = UCP_WORKER_ATTR_FIELD_ADDRESS | UCP_WORKER_ATTR_FIELD_ADDRESS_FLAGS,
                              .address_flags = flags};
    ucp_ep_params_t params = {.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS};
    ucp_ep_h ep;

    CHECK(ucp_worker_query(pair->b, &attr) == UCS_OK);
    *length        = attr.address_length;
    params.address = attr.address;
    CHECK(ucp_ep_create(from, &params, &ep) == UCS_OK);
    ucp_worker_release_address(pair->b, attr.address);
    return ep;
}

/* Two workers reach one by its two addresses at the same time. */
static void from_a_third_worker(pair_t *pair)
{
    ucp_request_param_t none = {.op_attr_mask = 0};
    ucp_worker_h third       = make_worker(pair->context, UCS_THREAD_MODE_SINGLE);
    uint64_t out[2]          = {7, 8}, in[2] = {0, 0};
    ucs_status_ptr_t recvs[2], sends[2], closing;
    time_t end = time(NULL) + 60;
    size_t length;
    ucp_ep_h ep = connect_by(third, pair, UCP_WORKER_ADDRESS_FLAG_NET_ONLY, &length);
    int i;

    CHECK(!uses(ep, "posix") && uses(ep, "efa") && uses(pair->ab, "posix"));
    for (i = 0; i < 2; i++) {
        recvs[i] = ucp_tag_recv_nbx(pair->b, &in[i], 8, i, ~0ull, &none);
        sends[i] = ucp_tag_send_nbx(i == 0 ? pair->ab : ep, &out[i], 8, i, &none);
        CHECK(UCS_PTR_IS_PTR(recvs[i]) && !UCS_PTR_IS_ERR(sends[i]));
    }
    while (in[0] != 7 || in[1] != 8) {
        ucp_worker_progress(third);
        progress(pair);
        CHECK(time(NULL) < end);
    }
    for (i = 0; i < 2; i++) {
        wait_for(pair, recvs[i], UCS_OK);
    }
    wait_for(pair, sends[0], UCS_OK);
    closing = ucp_ep_close_nb(ep, UCP_EP_CLOSE_MODE_FLUSH);
    while (UCS_PTR_IS_PTR(closing) && ucp_request_check_status(closing) == UCS_INPROGRESS) {
        ucp_worker_progress(third);
        progress(pair);
        CHECK(time(NULL) < end);
    }
    for (i = 0; i < 2; i++) {
        ucs_status_ptr_t request = i == 0 ? closing : sends[1];
        CHECK(!UCS_PTR_IS_PTR(request) || ucp_request_check_status(request) == UCS_OK);
        if (UCS_PTR_IS_PTR(request)) {
            ucp_request_free(request);
        }
    }
    ucp_worker_destroy(third);
}

int main(void)
{
    ucp_request_param_t none = {.op_attr_mask = 0};
    uint64_t out             = 5, in = 0;
    size_t of_network, of_all;
    ucs_status_ptr_t recv, send;
    pair_t pair;
    ucp_ep_h ep;

    make_pair(&pair, UCS_THREAD_MODE_SINGLE);
    CHECK(uses(pair.ab, "posix"));
    devices_of_lanes(pair.ab, getenv("SOFTEFA_DEVICES") != NULL ? 3 : 1);
    close_ep(&pair, pair.ab);
    ep = connect_by(pair.a, &pair, UCP_WORKER_ADDRESS_FLAG_NET_ONLY, &of_network);
    CHECK(!uses(ep, "posix") && uses(ep, "efa"));
    recv = ucp_tag_recv_nbx(pair.b, &in, 8, 1, ~0ull, &none);
    send = ucp_tag_send_nbx(ep, &out, 8, 1, &none);
    wait_for(&pair, recv, UCS_OK);
    wait_for(&pair, send, UCS_OK);
    CHECK(in == 5);
    close_ep(&pair, ep);
    pair.ab = connect_by(pair.a, &pair, 0, &of_all);
    CHECK(of_network < of_all);
    from_a_third_worker(&pair);
    free_pair(&pair);
    return 0;
}

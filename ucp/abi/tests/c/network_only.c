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

static ucp_ep_h connect_by(pair_t *pair, uint32_t flags, size_t *length)
{
    ucp_worker_attr_t attr = {.field_mask = UCP_WORKER_ATTR_FIELD_ADDRESS | UCP_WORKER_ATTR_FIELD_ADDRESS_FLAGS,
                              .address_flags = flags};
    ucp_ep_params_t params = {.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS};
    ucp_ep_h ep;

    CHECK(ucp_worker_query(pair->b, &attr) == UCS_OK);
    *length        = attr.address_length;
    params.address = attr.address;
    CHECK(ucp_ep_create(pair->a, &params, &ep) == UCS_OK);
    ucp_worker_release_address(pair->b, attr.address);
    return ep;
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
    close_ep(&pair, pair.ab);
    ep = connect_by(&pair, UCP_WORKER_ADDRESS_FLAG_NET_ONLY, &of_network);
    CHECK(!uses(ep, "posix") && uses(ep, "efa"));
    recv = ucp_tag_recv_nbx(pair.b, &in, 8, 1, ~0ull, &none);
    send = ucp_tag_send_nbx(ep, &out, 8, 1, &none);
    wait_for(&pair, recv, UCS_OK);
    wait_for(&pair, send, UCS_OK);
    CHECK(in == 5);
    close_ep(&pair, ep);
    pair.ab = connect_by(&pair, 0, &of_all);
    CHECK(of_network < of_all);
    free_pair(&pair);
    return 0;
}

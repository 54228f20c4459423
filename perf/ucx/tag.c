/* The operation `tag` of count, by the C interface: tagged messages of 8 bytes from a worker to itself, 16 at a time. What it counts more
 * than `count tag` is what the interface adds to a receive, a send, and a test of a request (perf/README.md). */
#include <ucp/api/ucp.h>
#include <stdio.h>
#include <stdlib.h>

enum { WINDOW = 16 };

int main(int argc, char **argv)
{
    long times                = argc > 1 ? atol(argv[1]) : 0, done;
    ucp_params_t params       = {.field_mask = UCP_PARAM_FIELD_FEATURES, .features = UCP_FEATURE_TAG};
    ucp_worker_params_t of    = {.field_mask = 0};
    ucp_ep_params_t to        = {.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS};
    ucp_request_param_t param = {.op_attr_mask = 0};
    char out[8] = {1, 2, 3, 4, 5, 6, 7, 8}, in[8];
    ucs_status_ptr_t running[WINDOW], started;
    ucp_address_t *address;
    ucp_context_h context;
    ucp_worker_h worker;
    size_t length;
    ucp_ep_h ep;
    int i, count;

    if (ucp_init(&params, NULL, &context) != UCS_OK || ucp_worker_create(context, &of, &worker) != UCS_OK ||
        ucp_worker_get_address(worker, &address, &length) != UCS_OK) {
        return 1;
    }
    to.address = address;
    if (ucp_ep_create(worker, &to, &ep) != UCS_OK) {
        return 1;
    }
    ucp_worker_release_address(worker, address);
    for (done = -WINDOW; done < times; done += WINDOW) {
        for (i = count = 0; i < WINDOW; i++) {
            started = ucp_tag_recv_nbx(worker, in, 8, 1, ~0ull, &param);
            if (UCS_PTR_IS_PTR(started)) {
                running[count++] = started;
            }
        }
        for (i = 0; i < WINDOW; i++) {
            started = ucp_tag_send_nbx(ep, out, 8, 1, &param);
            if (started != NULL) {
                fprintf(stderr, "a send does not end in its call\n");
                return 1;
            }
        }
        while (count > 0) {
            if (ucp_request_check_status(running[count - 1]) == UCS_INPROGRESS) {
                ucp_worker_progress(worker);
            } else {
                ucp_request_free(running[--count]);
            }
        }
    }
    ucp_worker_destroy(worker);
    ucp_cleanup(context);
    return 0;
}

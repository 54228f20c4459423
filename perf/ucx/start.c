/* Times of ucp_init and ucp_worker_create, of a process that has just begun. Each line is a name, a figure and its unit. */
#include <ucp/api/ucp.h>
#include <stdio.h>
#include <time.h>

static double now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return 1e6 * t.tv_sec + 1e-3 * t.tv_nsec;
}

int main(void)
{
    ucp_params_t params    = {.field_mask = UCP_PARAM_FIELD_FEATURES, .features = UCP_FEATURE_TAG | UCP_FEATURE_RMA};
    ucp_worker_params_t of = {.field_mask = 0};
    double began           = now(), init;
    ucp_context_h context;
    ucp_worker_h worker;

    if (ucp_init(&params, NULL, &context) != UCS_OK) {
        return 1;
    }
    init  = now() - began;
    began = now();
    if (ucp_worker_create(context, &of, &worker) != UCS_OK) {
        return 1;
    }
    printf("ucp_init %.4g us\nworker_create %.4g us\n", init, now() - began);
    ucp_worker_destroy(worker);
    ucp_cleanup(context);
    return 0;
}

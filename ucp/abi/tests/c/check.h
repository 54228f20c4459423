/* What the C tests share: checks that say where they failed, two workers of one process, and waiting. */
#include "check_macro.h"
#include <ucp/api/ucp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define USER_SIZE 24
#define USER_MARK 0x5a5a1234u

static unsigned inits, cleanups;

static void on_init(void *request)
{
    *(unsigned*)request = USER_MARK;
    inits++;
}

static void on_cleanup(void *request)
{
    CHECK(*(unsigned*)request == USER_MARK);
    cleanups++;
}

typedef struct {
    ucp_context_h context;
    ucp_worker_h a, b;
    ucp_ep_h ab, ba;
} pair_t;

static ucp_worker_h make_worker(ucp_context_h context, ucs_thread_mode_t mode)
{
    ucp_worker_params_t params;
    ucp_worker_h worker;

    memset(&params, 0xff, sizeof(params)); /* as Open MPI does: flags it has not set */
    params.field_mask  = UCP_WORKER_PARAM_FIELD_THREAD_MODE | UCP_WORKER_PARAM_FIELD_FLAGS;
    params.thread_mode = mode;
    CHECK(ucp_worker_create(context, &params, &worker) == UCS_OK);
    return worker;
}

/* The address is copied to an odd place and followed by garbage. */
static ucp_ep_h connect_to(ucp_worker_h from, ucp_worker_h to)
{
    ucp_address_t *address;
    size_t length;
    char *copy;
    ucp_ep_params_t params;
    ucp_ep_h ep;

    CHECK(ucp_worker_get_address(to, &address, &length) == UCS_OK);
    copy = malloc(length + 65);
    memset(copy, 0xee, length + 65);
    memcpy(copy + 1, address, length);
    ucp_worker_release_address(to, address);
    params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS;
    params.address    = (ucp_address_t*)(copy + 1);
    CHECK(ucp_ep_create(from, &params, &ep) == UCS_OK);
    free(copy);
    return ep;
}

static void make_pair(pair_t *pair, ucs_thread_mode_t mode)
{
    ucp_params_t params;
    ucp_config_t *config;

    memset(&params, 0xff, sizeof(params));
    params.field_mask      = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_REQUEST_SIZE |
                             UCP_PARAM_FIELD_REQUEST_INIT | UCP_PARAM_FIELD_REQUEST_CLEANUP;
    params.features        = UCP_FEATURE_TAG | UCP_FEATURE_RMA | UCP_FEATURE_AMO32 | UCP_FEATURE_AMO64 |
                             UCP_FEATURE_AM | UCP_FEATURE_STREAM | UCP_FEATURE_WAKEUP;
    params.request_size    = USER_SIZE;
    params.request_init    = on_init;
    params.request_cleanup = on_cleanup;
    CHECK(ucp_config_read("TEST", NULL, &config) == UCS_OK);
    CHECK(ucp_init(&params, config, &pair->context) == UCS_OK);
    ucp_config_release(config);
    pair->a  = make_worker(pair->context, mode);
    pair->b  = make_worker(pair->context, mode);
    pair->ab = connect_to(pair->a, pair->b);
    pair->ba = connect_to(pair->b, pair->a);
}

static void progress(pair_t *pair)
{
    ucp_worker_progress(pair->a);
    ucp_worker_progress(pair->b);
}

/* Parameters of which none is set; the rest is garbage, which nobody may read. */
static ucp_request_param_t plain(void)
{
    ucp_request_param_t param;
    memset(&param, 0xff, sizeof(param));
    param.op_attr_mask = 0;
    return param;
}

/* Makes progress until a condition holds, for a minute at most. */
#define UNTIL(_pair, _condition) \
    do { \
        time_t _end = time(NULL) + 60; \
        while (!(_condition)) { \
            progress(_pair); \
            CHECK(time(NULL) < _end); \
        } \
    } while (0)

/* Waits for a request, checks its status, and frees it. */
static void wait_for(pair_t *pair, ucs_status_ptr_t request, ucs_status_t expected)
{
    time_t end = time(NULL) + 60;

    if (!UCS_PTR_IS_PTR(request)) {
        CHECK(UCS_PTR_RAW_STATUS(request) == expected);
        return;
    }
    while (ucp_request_check_status(request) == UCS_INPROGRESS) {
        progress(pair);
        CHECK(time(NULL) < end);
    }
    CHECK(ucp_request_check_status(request) == expected);
    CHECK(*(unsigned*)request == USER_MARK);
    ucp_request_free(request);
}

static void close_ep(pair_t *pair, ucp_ep_h ep)
{
    wait_for(pair, ucp_ep_close_nb(ep, UCP_EP_CLOSE_MODE_FLUSH), UCS_OK);
}

static void free_pair(pair_t *pair)
{
    close_ep(pair, pair->ab);
    close_ep(pair, pair->ba);
    ucp_worker_destroy(pair->a);
    ucp_worker_destroy(pair->b);
    ucp_cleanup(pair->context);
    CHECK(inits == cleanups);
}

static void fill(unsigned char *at, size_t length, unsigned seed)
{
    size_t i;
    for (i = 0; i < length; i++) {
        at[i] = (unsigned char)(i * 31 + seed);
    }
}

/* Callbacks of a datatype whose data has no bytes. */
static size_t no_bytes(void *state)
{
    return 0;
}

static size_t no_pack(void *state, size_t offset, void *dest, size_t max)
{
    return 0;
}

static ucs_status_t no_unpack(void *state, size_t offset, const void *src, size_t length)
{
    return UCS_OK;
}

static void check_filled(const unsigned char *at, size_t length, unsigned seed)
{
    size_t i;
    for (i = 0; i < length; i++) {
        CHECK(at[i] == (unsigned char)(i * 31 + seed));
    }
}

/* Small operations by the C interface, from a worker to itself, for instruction counts: the loops of count (perf/src/bin/count.rs).
 *
 *   count tag|tag-multi|unexpected|put|get|fadd|am|am-multi|am-header TIMES [BYTES]
 *
 * perf/c-interface runs it. Of `tag`, a receive, a send, and the test and free of a request are a message. A message of
 * `unexpected` has arrived before its receive, which follows a probe. The names with `multi` are of thread mode multi.
 * BYTES are those of a tagged message, 8 if they are not given, and at most 8000. */
#include <ucp/api/ucp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WINDOW = 16, SIZE = 8, MOST = 8000, AM = 1 };

static ucp_context_h context;
static ucp_worker_h worker;
static ucp_ep_h ep;
static char out[MOST] = {1, 2, 3, 4, 5, 6, 7, 8}, in[MOST];
static size_t size = SIZE;
static const ucp_request_param_t none = {.op_attr_mask = 0};

static void fail(const char *what)
{
    fprintf(stderr, "count: %s\n", what);
    exit(1);
}

/* Waits for what did not end in its call. */
static void finish(ucs_status_ptr_t started)
{
    if (UCS_PTR_IS_ERR(started)) {
        fail(ucs_status_string(UCS_PTR_STATUS(started)));
    }
    if (started == NULL) {
        return;
    }
    while (ucp_request_check_status(started) == UCS_INPROGRESS) {
        ucp_worker_progress(worker);
    }
    ucp_request_free(started);
}

static void tag(long times, int is_warm)
{
    ucs_status_ptr_t running[WINDOW], started;
    int i, count;
    long done;

    for (done = 0; done < times; done += WINDOW) {
        for (i = count = 0; i < WINDOW; i++) {
            started = ucp_tag_recv_nbx(worker, in, size, 1, ~0ull, &none);
            if (UCS_PTR_IS_PTR(started)) {
                running[count++] = started;
            }
        }
        for (i = 0; i < WINDOW; i++) {
            started = ucp_tag_send_nbx(ep, out, size, 1, &none);
            if (started != NULL) {
                if (is_warm) {
                    fail("a send does not end in its call");
                }
                finish(started);
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
}

static void unexpected(long times)
{
    ucp_tag_recv_info_t info;
    long done;
    int i;

    for (done = 0; done < times; done += WINDOW) {
        for (i = 0; i < WINDOW; i++) {
            finish(ucp_tag_send_nbx(ep, out, size, 1, &none));
        }
        for (i = 0; i < WINDOW; i++) {
            while (ucp_tag_probe_nb(worker, 1, ~0ull, 0, &info) == NULL) {
                ucp_worker_progress(worker);
            }
            finish(ucp_tag_recv_nbx(worker, in, size, 1, ~0ull, &none));
        }
    }
}

static long come;

static ucs_status_t on_am(void *arg, const void *header, size_t header_length, void *data, size_t length,
                          const ucp_am_recv_param_t *param)
{
    come++;
    return UCS_OK;
}

static void am(long times, const void *header, size_t header_length)
{
    long sent;

    for (sent = come + 1; times > 0; sent++, times--) {
        finish(ucp_am_send_nbx(ep, AM, header, header_length, out, SIZE, &none));
        while (come < sent) {
            ucp_worker_progress(worker);
        }
    }
}

static void one_sided(const char *what, long times)
{
    ucp_mem_map_params_t map = {.field_mask = UCP_MEM_MAP_PARAM_FIELD_LENGTH | UCP_MEM_MAP_PARAM_FIELD_FLAGS,
                                .length = 4096, .flags = UCP_MEM_MAP_ALLOCATE};
    ucp_mem_attr_t attr = {.field_mask = UCP_MEM_ATTR_FIELD_ADDRESS};
    ucp_request_param_t fetches = {.op_attr_mask = UCP_OP_ATTR_FIELD_DATATYPE | UCP_OP_ATTR_FIELD_REPLY_BUFFER,
                                   .datatype = ucp_dt_make_contig(8), .reply_buffer = in};
    uint64_t one = 1, at;
    ucp_rkey_h rkey;
    ucp_mem_h mem;
    void *packed;
    size_t length;
    int is_put, is_get;

    if (ucp_mem_map(context, &map, &mem) != UCS_OK || ucp_mem_query(mem, &attr) != UCS_OK ||
        ucp_rkey_pack(context, mem, &packed, &length) != UCS_OK || ucp_ep_rkey_unpack(ep, packed, &rkey) != UCS_OK) {
        fail("no memory");
    }
    at = (uintptr_t)attr.address;
    is_put = !strcmp(what, "put");
    is_get = !strcmp(what, "get");
    for (; times > 0; times--) {
        if (is_put) {
            finish(ucp_put_nbx(ep, out, SIZE, at, rkey, &none));
        } else if (is_get) {
            finish(ucp_get_nbx(ep, in, SIZE, at, rkey, &none));
        } else {
            finish(ucp_atomic_op_nbx(ep, UCP_ATOMIC_OP_ADD, &one, 1, at, rkey, &fetches));
        }
    }
    ucp_rkey_destroy(rkey);
    ucp_rkey_buffer_release(packed);
    ucp_mem_unmap(context, mem);
}

/* What is counted: perf/c-interface sets the counts to zero before. */
static __attribute__((noinline)) void counted(const char *what, long times)
{
    if (!strcmp(what, "tag") || !strcmp(what, "tag-multi")) {
        tag(times, 1);
    } else if (!strcmp(what, "unexpected") || !strcmp(what, "unexpected-multi")) {
        unexpected(times);
    } else if (!strcmp(what, "am") || !strcmp(what, "am-multi")) {
        am(times, NULL, 0);
    } else if (!strcmp(what, "am-header")) {
        am(times, out, SIZE);
    } else if (!strcmp(what, "put") || !strcmp(what, "get") || !strcmp(what, "fadd")) {
        one_sided(what, times);
    } else {
        fail("count tag|tag-multi|unexpected|put|get|fadd|am|am-multi|am-header TIMES [BYTES]");
    }
}

int main(int argc, char **argv)
{
    ucp_params_t params     = {.field_mask = UCP_PARAM_FIELD_FEATURES,
                               .features = UCP_FEATURE_TAG | UCP_FEATURE_RMA | UCP_FEATURE_AMO64 | UCP_FEATURE_AM};
    ucp_worker_params_t of  = {.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE};
    ucp_ep_params_t to      = {.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS};
    ucp_am_handler_param_t handler = {.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB,
                                      .id = AM, .cb = on_am};
    const char *what = argc > 1 ? argv[1] : "";
    long times       = argc > 2 ? atol(argv[2]) : 0;
    ucp_address_t *address;
    size_t length;

    if (argc > 3 && (size = atol(argv[3])) > MOST) {
        fail("at most 8000 bytes");
    }
    of.thread_mode = strstr(what, "-multi") == NULL ? UCS_THREAD_MODE_SINGLE : UCS_THREAD_MODE_MULTI;
    if (ucp_init(&params, NULL, &context) != UCS_OK || ucp_worker_create(context, &of, &worker) != UCS_OK ||
        ucp_worker_get_address(worker, &address, &length) != UCS_OK) {
        fail("no worker");
    }
    to.address = address;
    if (ucp_ep_create(worker, &to, &ep) != UCS_OK || ucp_worker_set_am_recv_handler(worker, &handler) != UCS_OK) {
        fail("no endpoint");
    }
    ucp_worker_release_address(worker, address);
    /* Both sides have exchanged handshakes before anything is counted. */
    tag(WINDOW, 0);
    counted(what, times);
    ucp_worker_destroy(worker);
    ucp_cleanup(context);
    return 0;
}

/* Several copies of the library in one process, each loaded by its path and for itself alone.
 *
 *   copies FIRST SECOND ROUNDS together|apart      two files of libucp.so.0; `apart`: of engines that cannot talk
 *
 * Copies talk to themselves and to each other. One is closed and unloaded while the other works, then loaded again, in either order. */
#define _GNU_SOURCE
#include "check_macro.h"
#include <dlfcn.h>
#include <string.h>
#include <time.h>
#include <ucp/api/ucp.h>

#define FUNCTIONS(X) \
    X(ucp_config_read) X(ucp_config_release) X(ucp_init_version) X(ucp_cleanup) X(ucp_worker_create) X(ucp_worker_destroy) \
    X(ucp_worker_get_address) X(ucp_worker_release_address) X(ucp_worker_progress) X(ucp_ep_create) X(ucp_ep_close_nb) \
    X(ucp_tag_send_nbx) X(ucp_tag_recv_nbx) X(ucp_request_check_status) X(ucp_request_free) X(ucp_mem_map) \
    X(ucp_mem_unmap) X(ucp_mem_query) X(ucp_rkey_pack) X(ucp_rkey_buffer_release) X(ucp_ep_rkey_unpack) \
    X(ucp_rkey_destroy) X(ucp_put_nbx) X(ucp_ep_flush_nbx)

/* A copy, and a worker of it with an endpoint to itself and to the worker of the other copy. */
typedef struct {
    void *library;
#define POINTER(name) __typeof__(name) *name##_;
    FUNCTIONS(POINTER)
#undef POINTER
    ucp_context_h context;
    ucp_worker_h worker;
    ucp_ep_h to_itself, to_other;
} copy_t;

static copy_t copies[2];
static const ucp_request_param_t none = {.op_attr_mask = 0};

static void load(copy_t *copy, const char *path)
{
    copy->library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (copy->library == NULL) {
        fprintf(stderr, "%s\n", dlerror());
        exit(1);
    }
#define FIND(name) \
    copy->name##_ = (__typeof__(name)*)dlsym(copy->library, #name); \
    CHECK(copy->name##_ != NULL);
    FUNCTIONS(FIND)
#undef FIND
}

static void open_worker(copy_t *copy)
{
    ucp_params_t params        = {.field_mask = UCP_PARAM_FIELD_FEATURES, .features = UCP_FEATURE_TAG | UCP_FEATURE_RMA};
    ucp_worker_params_t worker = {.field_mask  = UCP_WORKER_PARAM_FIELD_THREAD_MODE,
                                  .thread_mode = UCS_THREAD_MODE_SINGLE};
    ucp_config_t *config;

    CHECK(copy->ucp_config_read_("TEST", NULL, &config) == UCS_OK);
    CHECK(copy->ucp_init_version_(UCP_API_MAJOR, UCP_API_MINOR, &params, config, &copy->context) == UCS_OK);
    copy->ucp_config_release_(config);
    CHECK(copy->ucp_worker_create_(copy->context, &worker, &copy->worker) == UCS_OK);
}

static ucp_ep_h connect_to(copy_t *from, copy_t *to)
{
    ucp_ep_params_t params = {.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS};
    ucp_address_t *address;
    size_t length;
    ucp_ep_h ep;

    CHECK(to->ucp_worker_get_address_(to->worker, &address, &length) == UCS_OK);
    params.address = address;
    CHECK(from->ucp_ep_create_(from->worker, &params, &ep) == UCS_OK);
    to->ucp_worker_release_address_(to->worker, address);
    return ep;
}

static void progress(void)
{
    int i;
    for (i = 0; i < 2; i++) {
        if (copies[i].worker != NULL) {
            copies[i].ucp_worker_progress_(copies[i].worker);
        }
    }
}

/* Waits for a request of a copy. */
static void wait_for(copy_t *copy, ucs_status_ptr_t request)
{
    time_t end = time(NULL) + 60;

    if (!UCS_PTR_IS_PTR(request)) {
        CHECK(UCS_PTR_RAW_STATUS(request) == UCS_OK);
        return;
    }
    while (copy->ucp_request_check_status_(request) == UCS_INPROGRESS) {
        progress();
        CHECK(time(NULL) < end);
    }
    CHECK(copy->ucp_request_check_status_(request) == UCS_OK);
    copy->ucp_request_free_(request);
}

/* Messages of several lengths, with different bytes each. */
static void exchange(copy_t *from, ucp_ep_h ep, copy_t *to)
{
    static const size_t lengths[] = {0, 8, 3000, 70000, 1 << 20};
    static unsigned char out[1 << 20], in[1 << 20];
    static unsigned char seed;
    ucs_status_ptr_t receive, send;
    size_t i, length;

    for (i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
        length = lengths[i];
        memset(out, ++seed, length);
        memset(in, 0, length);
        receive = to->ucp_tag_recv_nbx_(to->worker, in, length, 7 + i, ~0ull, &none);
        send    = from->ucp_tag_send_nbx_(ep, out, length, 7 + i, &none);
        wait_for(to, receive);
        wait_for(from, send);
        CHECK(memcmp(in, out, length) == 0);
    }
}

/* Bytes put into memory of the other copy. */
static void put(copy_t *from, ucp_ep_h ep, copy_t *to)
{
    ucp_mem_map_params_t map = {.field_mask = UCP_MEM_MAP_PARAM_FIELD_LENGTH | UCP_MEM_MAP_PARAM_FIELD_FLAGS,
                                .length = 65536, .flags = UCP_MEM_MAP_ALLOCATE};
    ucp_mem_attr_t attr      = {.field_mask = UCP_MEM_ATTR_FIELD_ADDRESS};
    static unsigned char out[65536];
    ucs_status_ptr_t started;
    ucp_rkey_h rkey;
    ucp_mem_h mem;
    size_t length;
    void *packed;

    CHECK(to->ucp_mem_map_(to->context, &map, &mem) == UCS_OK && to->ucp_mem_query_(mem, &attr) == UCS_OK);
    CHECK(to->ucp_rkey_pack_(to->context, mem, &packed, &length) == UCS_OK);
    CHECK(from->ucp_ep_rkey_unpack_(ep, packed, &rkey) == UCS_OK);
    to->ucp_rkey_buffer_release_(packed);
    memset(out, 0x5a, sizeof(out));
    memset(attr.address, 0, sizeof(out));
    started = from->ucp_put_nbx_(ep, out, sizeof(out), (uint64_t)attr.address, rkey, &none);
    wait_for(from, started);
    wait_for(from, from->ucp_ep_flush_nbx_(ep, &none));
    CHECK(memcmp(attr.address, out, sizeof(out)) == 0);
    from->ucp_rkey_destroy_(rkey);
    CHECK(to->ucp_mem_unmap_(to->context, mem) == UCS_OK);
}

/* Closes a worker and its copy, which stays loaded: its threads and thread locals would not survive that. */
static void close_worker(copy_t *copy, char **paths)
{
    /* Not UCX's. */
    int is_ours = dlsym(copy->library, "ucx4efa_efa_raw_address") != NULL;
    void *stays;
    ucp_ep_h eps[] = {copy->to_other, copy->to_itself};
    int i;

    for (i = 0; i < 2; i++) {
        if (eps[i] != NULL) {
            wait_for(copy, copy->ucp_ep_close_nb_(eps[i], UCP_EP_CLOSE_MODE_FLUSH));
        }
    }
    copy->to_other = copy->to_itself = NULL;
    copy->ucp_worker_destroy_(copy->worker);
    copy->worker = NULL;
    copy->ucp_cleanup_(copy->context);
    CHECK(dlclose(copy->library) == 0);
    if (is_ours) {
        stays = dlopen(paths[copy - copies], RTLD_NOW | RTLD_NOLOAD);
        CHECK(stays != NULL && dlclose(stays) == 0);
    }
}

int main(int argc, char **argv)
{
    int round, i, is_one_engine;

    CHECK(argc == 5);
    is_one_engine = strcmp(argv[4], "apart") != 0;
    for (round = 0; round < atoi(argv[3]); round++) {
        copy_t *first = &copies[round & 1], *second = &copies[!(round & 1)];
        for (i = 0; i < 2; i++) {
            load(&copies[i], argv[1 + i]);
        }
        CHECK(copies[0].ucp_init_version_ != copies[1].ucp_init_version_);
        for (i = 0; i < 2; i++) {
            open_worker(&copies[i]);
            copies[i].to_itself = connect_to(&copies[i], &copies[i]);
        }
        for (i = 0; i < 2; i++) {
            copy_t *copy = &copies[i];
            exchange(copy, copy->to_itself, copy);
            put(copy, copy->to_itself, copy);
            if (is_one_engine) {
                copy->to_other = connect_to(copy, &copies[!i]);
                exchange(copy, copy->to_other, &copies[!i]);
                put(copy, copy->to_other, &copies[!i]);
            }
        }
        close_worker(first, argv + 1);
        exchange(second, second->to_itself, second);
        put(second, second->to_itself, second);
        /* A copy that has been closed opens again beside one that has never been. */
        load(first, argv[1 + (round & 1)]);
        open_worker(first);
        first->to_itself = connect_to(first, first);
        exchange(first, first->to_itself, first);
        close_worker(second, argv + 1);
        exchange(first, first->to_itself, first);
        close_worker(first, argv + 1);
    }
    return 0;
}

/* Memory that one process exports and another one imports: both see the same bytes, and the other one sends from
 * it and gives a key for it away. The argument "refused" instead checks what cannot be exported or imported. */
#include "check.h"
#include <sys/wait.h>
#include <unistd.h>

#define LENGTH 100000
#define TAG    7

static ucp_context_h make_context(void)
{
    ucp_params_t params;
    ucp_context_h context;

    params.field_mask = UCP_PARAM_FIELD_FEATURES;
    params.features   = UCP_FEATURE_TAG | UCP_FEATURE_RMA | UCP_FEATURE_EXPORTED_MEMH;
    CHECK(ucp_init(&params, NULL, &context) == UCS_OK);
    return context;
}

static void put_all(int fd, const void *from, size_t length)
{
    CHECK(write(fd, &length, sizeof(length)) == sizeof(length));
    CHECK(write(fd, from, length) == (ssize_t)length);
}

static void *take_all(int fd, size_t *length)
{
    size_t done = 0;
    char *to;

    CHECK(read(fd, length, sizeof(*length)) == sizeof(*length));
    to = (char*)malloc(*length);
    while (done < *length) {
        ssize_t got = read(fd, to + done, *length - done);
        CHECK(got > 0);
        done += got;
    }
    return to;
}

static ucp_mem_h allocate(ucp_context_h context, unsigned char **at)
{
    ucp_mem_map_params_t params;
    ucp_mem_attr_t attr;
    ucp_mem_h memh;

    params.field_mask = UCP_MEM_MAP_PARAM_FIELD_LENGTH | UCP_MEM_MAP_PARAM_FIELD_FLAGS;
    params.length     = LENGTH;
    params.flags      = UCP_MEM_MAP_ALLOCATE;
    CHECK(ucp_mem_map(context, &params, &memh) == UCS_OK);
    attr.field_mask = UCP_MEM_ATTR_FIELD_ADDRESS;
    CHECK(ucp_mem_query(memh, &attr) == UCS_OK);
    *at = (unsigned char*)attr.address;
    return memh;
}

static ucs_status_t export_to(ucp_mem_h memh, void **packed, size_t *length)
{
    ucp_memh_pack_params_t params;

    params.field_mask = UCP_MEMH_PACK_PARAM_FIELD_FLAGS;
    params.flags      = UCP_MEMH_PACK_FLAG_EXPORT;
    return ucp_memh_pack(memh, &params, packed, length);
}

static ucs_status_t import_from(ucp_context_h context, void *packed, ucp_mem_h *memh)
{
    ucp_mem_map_params_t params;

    params.field_mask           = UCP_MEM_MAP_PARAM_FIELD_EXPORTED_MEMH_BUFFER;
    params.exported_memh_buffer = packed;
    return ucp_mem_map(context, &params, memh);
}

static void complete(ucp_worker_h worker, void *request)
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

/* Exports memory, receives a message into other memory, and gets its own bytes by the key of the importer. */
static void owner(int from, int to)
{
    ucp_context_h context     = make_context();
    ucp_worker_h worker       = make_worker(context, UCS_THREAD_MODE_SINGLE);
    ucp_request_param_t param = {.op_attr_mask = 0};
    unsigned char *at, *copy = (unsigned char*)malloc(LENGTH);
    ucp_mem_h memh           = allocate(context, &at);
    ucp_ep_params_t ep_params;
    ucp_address_t *address;
    ucp_rkey_h rkey;
    ucp_ep_h ep;
    uint64_t remote;
    void *packed;
    size_t length;

    fill(at, LENGTH, 1);
    CHECK(export_to(memh, &packed, &length) == UCS_OK);
    put_all(to, packed, length);
    ucp_memh_buffer_release(packed, NULL);
    CHECK(ucp_worker_get_address(worker, &address, &length) == UCS_OK);
    put_all(to, address, length);
    ucp_worker_release_address(worker, address);

    complete(worker, ucp_tag_recv_nbx(worker, copy, LENGTH, TAG, -1, &param));
    check_filled(copy, LENGTH, 2);
    check_filled(at, LENGTH, 2);

    /* The importer's address, key and place of the memory. */
    ep_params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS;
    ep_params.address    = (ucp_address_t*)take_all(from, &length);
    CHECK(ucp_ep_create(worker, &ep_params, &ep) == UCS_OK);
    free((void*)ep_params.address);
    packed = take_all(from, &length);
    CHECK(ucp_ep_rkey_unpack(ep, packed, &rkey) == UCS_OK);
    free(packed);
    CHECK(read(from, &remote, sizeof(remote)) == sizeof(remote));
    memset(copy, 0, LENGTH);
    complete(worker, ucp_get_nbx(ep, copy, LENGTH, remote, rkey, &param));
    check_filled(copy, LENGTH, 2);
    ucp_rkey_destroy(rkey);
    complete(worker, ucp_ep_close_nb(ep, UCP_EP_CLOSE_MODE_FLUSH));
    CHECK(ucp_mem_unmap(context, memh) == UCS_OK);
    put_all(to, "unmapped", 8);
    ucp_worker_destroy(worker);
    ucp_cleanup(context);
    free(copy);
}

static void importer(int from, int to)
{
    ucp_context_h context     = make_context();
    ucp_worker_h worker       = make_worker(context, UCS_THREAD_MODE_SINGLE);
    ucp_request_param_t param = {.op_attr_mask = UCP_OP_ATTR_FIELD_MEMH};
    ucp_mem_attr_t attr;
    ucp_ep_params_t ep_params;
    ucp_address_t *address;
    ucp_mem_h memh;
    ucp_ep_h ep;
    uint64_t place;
    void *packed;
    size_t length;
    fd_set readable;
    struct timeval no_time;

    packed = take_all(from, &length);
    CHECK(import_from(context, packed, &memh) == UCS_OK);
    free(packed);
    attr.field_mask = UCP_MEM_ATTR_FIELD_ADDRESS | UCP_MEM_ATTR_FIELD_LENGTH;
    CHECK(ucp_mem_query(memh, &attr) == UCS_OK);
    CHECK(attr.length == LENGTH);
    check_filled((unsigned char*)attr.address, LENGTH, 1);
    fill((unsigned char*)attr.address, LENGTH, 2);

    ep_params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS;
    ep_params.address    = (ucp_address_t*)take_all(from, &length);
    CHECK(ucp_ep_create(worker, &ep_params, &ep) == UCS_OK);
    free((void*)ep_params.address);
    param.memh = memh;
    complete(worker, ucp_tag_send_nbx(ep, attr.address, LENGTH, TAG, &param));

    CHECK(ucp_worker_get_address(worker, &address, &length) == UCS_OK);
    put_all(to, address, length);
    ucp_worker_release_address(worker, address);
    CHECK(ucp_rkey_pack(context, memh, &packed, &length) == UCS_OK);
    put_all(to, packed, length);
    ucp_rkey_buffer_release(packed);
    place = (uintptr_t)attr.address;
    CHECK(write(to, &place, sizeof(place)) == sizeof(place));
    do {
        ucp_worker_progress(worker);
        FD_ZERO(&readable);
        FD_SET(from, &readable);
        memset(&no_time, 0, sizeof(no_time));
    } while (select(from + 1, &readable, NULL, NULL, &no_time) == 0);
    free(take_all(from, &length));
    /* The mapping stays; the owner has taken the bytes with it. */
    fill((unsigned char*)attr.address, LENGTH, 3);
    check_filled((unsigned char*)attr.address, LENGTH, 3);
    CHECK(ucp_mem_unmap(context, memh) == UCS_OK);
    complete(worker, ucp_ep_close_nb(ep, UCP_EP_CLOSE_MODE_FORCE));
    ucp_worker_destroy(worker);
    ucp_cleanup(context);
}

static void refused(void)
{
    ucp_context_h context = make_context();
    unsigned char garbage[64], own[64], *at;
    ucp_mem_map_params_t params;
    ucp_mem_h memh, imported;
    void *packed;
    size_t length;
    unsigned i, j;

    params.field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH;
    params.address    = own;
    params.length     = sizeof(own);
    CHECK(ucp_mem_map(context, &params, &memh) == UCS_OK);
    CHECK(export_to(memh, &packed, &length) == UCS_ERR_UNSUPPORTED);
    CHECK(ucp_mem_unmap(context, memh) == UCS_OK);
    CHECK(import_from(context, NULL, &imported) == UCS_ERR_INVALID_PARAM);
    for (i = 0; i < 1000; i++) {
        for (j = 0; j < sizeof(garbage); j++) {
            garbage[j] = (unsigned char)rand();
        }
        CHECK(import_from(context, garbage, &imported) == UCS_ERR_INVALID_PARAM);
    }
    memh = allocate(context, &at);
    if (export_to(memh, &packed, &length) == UCS_OK) {
        CHECK(export_to(memh, NULL, &length) == UCS_ERR_INVALID_PARAM);
        CHECK(ucp_mem_unmap(context, memh) == UCS_OK);
        /* It is gone. */
        CHECK(import_from(context, packed, &imported) != UCS_OK);
        ucp_memh_buffer_release(packed, NULL);
    } else {
        CHECK(ucp_mem_unmap(context, memh) == UCS_OK);
    }
    ucp_cleanup(context);
}

int main(int argc, char **argv)
{
    int forth[2], back[2], status;
    pid_t child;

    if (argc > 1) {
        refused();
        return 0;
    }
    CHECK(pipe(forth) == 0 && pipe(back) == 0);
    child = fork();
    if (child == 0) {
        importer(forth[0], back[1]);
        exit(0);
    }
    owner(back[0], forth[1]);
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    return 0;
}

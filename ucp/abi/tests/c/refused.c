/*
 * Calls that this library does not carry out: each answers UCS_ERR_UNSUPPORTED. `page.rs` reads this file: docs/abi.md
 * says of the functions here that they are refused, or in part. With an argument, marks of lines of the log are printed.
 */
#include "check.h"

#include <ucm/api/ucm.h>
#include <ucp/api/device/ucp_host.h>
#include <sys/epoll.h>
#include <unistd.h>

static int marks, calls;

/* Each refused call is followed by a line on standard error, so that the lines of the log between two can be told. */
static void after(const char *call)
{
    calls++;
    if (marks) {
        fprintf(stderr, "refused: %s\n", call);
    }
}

#define REFUSED(call) \
    do { \
        CHECK((call) == UCS_ERR_UNSUPPORTED); \
        after(#call); \
    } while (0)
#define REFUSED_PTR(call) \
    do { \
        CHECK(UCS_PTR_RAW_STATUS(call) == UCS_ERR_UNSUPPORTED); \
        after(#call); \
    } while (0)

static unsigned char bytes[64], target[4096];

/* Every operation with parameters of which none is carried out; puts and gets say why. */
static void operations(pair_t *pair, ucp_rkey_h rkey, const ucp_request_param_t *param, ucs_status_t of_rma)
{
    REFUSED_PTR(ucp_tag_send_nbx(pair->ab, bytes, 8, 1, param));
    REFUSED_PTR(ucp_tag_send_sync_nbx(pair->ab, bytes, 8, 1, param));
    REFUSED_PTR(ucp_tag_recv_nbx(pair->b, bytes, 8, 1, 1, param));
    REFUSED_PTR(ucp_am_send_nbx(pair->ab, 1, NULL, 0, bytes, 8, param));
    REFUSED_PTR(ucp_stream_send_nbx(pair->ab, bytes, 8, param));
    CHECK(UCS_PTR_RAW_STATUS(ucp_put_nbx(pair->ab, bytes, 8, (uintptr_t)target, rkey, param)) == of_rma);
    after("ucp_put_nbx");
    CHECK(UCS_PTR_RAW_STATUS(ucp_get_nbx(pair->ab, bytes, 8, (uintptr_t)target, rkey, param)) == of_rma);
    after("ucp_get_nbx");
}

/* Of a list of local and one of remote memory, with repetitions of each piece. */
static void lists(pair_t *pair, ucp_rkey_h rkey)
{
    void *buffers[1]             = {bytes};
    size_t lengths[1]            = {8};
    uint64_t addresses[1]        = {(uintptr_t)target};
    ucp_rkey_h rkeys[1]          = {rkey};
    ucp_dt_local_sgl_t local     = {.field_mask = UCP_DT_LOCAL_SGL_FIELD_BUFFERS | UCP_DT_LOCAL_SGL_FIELD_LENGTHS |
                                                  UCP_DT_LOCAL_SGL_FIELD_COUNTS | UCP_DT_LOCAL_SGL_FIELD_STRIDES,
                                    .buffers = buffers, .lengths = lengths, .counts = lengths, .strides = lengths};
    ucp_dt_remote_sgl_t remote   = {.field_mask = UCP_DT_REMOTE_SGL_FIELD_REMOTE_ADDRS |
                                                  UCP_DT_REMOTE_SGL_FIELD_LENGTHS | UCP_DT_REMOTE_SGL_FIELD_RKEYS,
                                    .remote_addrs = addresses, .lengths = lengths, .rkeys = rkeys};
    ucp_request_param_t param    = {.op_attr_mask = UCP_OP_ATTR_FIELD_DATATYPE | UCP_OP_ATTR_FIELD_REMOTE_DATATYPE |
                                                    UCP_OP_ATTR_FIELD_REMOTE | UCP_OP_ATTR_FIELD_REMOTE_COUNT,
                                    .datatype = ucp_dt_make_sgl(), .remote_datatype = ucp_dt_make_sgl(),
                                    .remote = &remote, .remote_count = 1};

    REFUSED_PTR(ucp_put_nbx(pair->ab, &local, 1, UCP_REMOTE_ADDR_INVALID, UCP_RKEY_INVALID, &param));
    REFUSED_PTR(ucp_get_nbx(pair->ab, &local, 1, UCP_REMOTE_ADDR_INVALID, UCP_RKEY_INVALID, &param));
}

static void parameters(pair_t *pair, ucp_rkey_h rkey)
{
    static const uint32_t remote[] = {UCP_OP_ATTR_FIELD_REMOTE, UCP_OP_ATTR_FIELD_REMOTE_DATATYPE,
                                      UCP_OP_ATTR_FIELD_REMOTE_COUNT};
    static const ucs_memory_type_t devices[] = {UCS_MEMORY_TYPE_CUDA, UCS_MEMORY_TYPE_CUDA_MANAGED,
                                                UCS_MEMORY_TYPE_ROCM, UCS_MEMORY_TYPE_ROCM_MANAGED};
    static const ucp_datatype_t classes[] = {UCP_DATATYPE_STRIDED, UCP_DATATYPE_SGL};
    ucp_request_param_t param             = {.op_attr_mask = 0};
    uint64_t word                         = 0;
    size_t length;
    size_t i;

    for (i = 0; i < sizeof(remote) / sizeof(remote[0]); i++) {
        param.op_attr_mask = remote[i];
        operations(pair, rkey, &param, UCS_ERR_INVALID_PARAM);
        REFUSED_PTR(ucp_atomic_op_nbx(pair->ab, UCP_ATOMIC_OP_ADD, &word, 1, (uintptr_t)target, rkey, &param));
        REFUSED_PTR(ucp_stream_recv_nbx(pair->ba, bytes, 8, &length, &param));
        REFUSED_PTR(ucp_ep_flush_nbx(pair->ab, &param));
        REFUSED_PTR(ucp_worker_flush_nbx(pair->a, &param));
    }
    for (i = 0; i < sizeof(devices) / sizeof(devices[0]); i++) {
        param.op_attr_mask = UCP_OP_ATTR_FIELD_MEMORY_TYPE;
        param.memory_type  = devices[i];
        operations(pair, rkey, &param, UCS_ERR_UNSUPPORTED);
    }
    for (i = 0; i < sizeof(classes) / sizeof(classes[0]); i++) {
        param.op_attr_mask = UCP_OP_ATTR_FIELD_DATATYPE;
        param.datatype     = classes[i];
        /* A put or get of lists lacks the remote one. */
        operations(pair, rkey, &param,
                   (classes[i] == UCP_DATATYPE_SGL) ? UCS_ERR_INVALID_PARAM : UCS_ERR_UNSUPPORTED);
        REFUSED_PTR(ucp_tag_send_nb(pair->ab, bytes, 1, classes[i], 1, NULL));
        REFUSED_PTR(ucp_tag_send_sync_nb(pair->ab, bytes, 1, classes[i], 1, NULL));
        REFUSED_PTR(ucp_tag_recv_nb(pair->b, bytes, 1, classes[i], 1, 1, NULL));
        REFUSED_PTR(ucp_am_send_nb(pair->ab, 1, bytes, 1, classes[i], NULL, 0));
        REFUSED_PTR(ucp_stream_send_nb(pair->ab, bytes, 1, classes[i], NULL, 0));
    }
}

static void memory(pair_t *pair)
{
    ucp_mem_map_params_t map      = {.field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH |
                                                   UCP_MEM_MAP_PARAM_FIELD_MEMORY_TYPE,
                                     .address = target, .length = sizeof(target), .memory_type = UCS_MEMORY_TYPE_CUDA};
    ucp_memh_pack_params_t export = {.field_mask = UCP_MEMH_PACK_PARAM_FIELD_FLAGS, .flags = UCP_MEMH_PACK_FLAG_EXPORT};
    ucp_rkey_h rkey;
    ucp_mem_h memh;
    void *packed;
    size_t size;

    REFUSED(ucp_mem_map(pair->context, &map, &memh));
    /* Hints: they change nothing. */
    map.field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH | UCP_MEM_MAP_PARAM_FIELD_FLAGS;
    map.flags      = UCP_MEM_MAP_LOCK | UCP_MEM_MAP_SYMMETRIC_RKEY;
    CHECK(ucp_mem_map(pair->context, &map, &memh) == UCS_OK);
    REFUSED(ucp_memh_pack(memh, &export, &packed, &size));
    CHECK(ucp_rkey_pack(pair->context, memh, &packed, &size) == UCS_OK);
    CHECK(ucp_ep_rkey_unpack(pair->ab, packed, &rkey) == UCS_OK);
    ucp_rkey_buffer_release(packed);
    parameters(pair, rkey);
    lists(pair, rkey);
    ucp_rkey_destroy(rkey);
    CHECK(ucp_mem_unmap(pair->context, memh) == UCS_OK);
}

/* Communication that a GPU starts. */
static void device(pair_t *pair)
{
    ucp_device_mem_list_elem_t element = {.field_mask = 0};
    ucp_device_mem_list_params_t list  = {.field_mask = UCP_DEVICE_MEM_LIST_PARAMS_FIELD_ELEMENTS |
                                                        UCP_DEVICE_MEM_LIST_PARAMS_FIELD_NUM_ELEMENTS,
                                          .num_elements = 1, .elements = &element};
    ucp_device_counter_params_t params = {.field_mask = 0};
    ucp_device_local_mem_list_h local;
    ucp_device_remote_mem_list_h remote;
    uint64_t counter;

    REFUSED(ucp_device_local_mem_list_create(&list, &local));
    REFUSED(ucp_device_remote_mem_list_create(&list, &remote));
    REFUSED(ucp_device_counter_init(pair->a, &params, &counter));
    /* These have no status. */
    CHECK(ucp_device_get_mem_list_length(&list) == 0);
    CHECK(ucp_device_counter_read(pair->a, &params, &counter) == 0);
    ucp_device_mem_list_release(&list);
}

/* A worker that reports to the program's descriptor has none of its own. */
static void wakeup(pair_t *pair)
{
    ucp_worker_params_t params = {.field_mask = UCP_WORKER_PARAM_FIELD_EVENTS | UCP_WORKER_PARAM_FIELD_EVENT_FD,
                                  .events = UCP_WAKEUP_RX | UCP_WAKEUP_EDGE};
    ucp_worker_h worker;
    int set = epoll_create1(0), fd;

    params.event_fd = set;
    CHECK(ucp_worker_create(pair->context, &params, &worker) == UCS_OK);
    REFUSED(ucp_worker_get_efd(worker, &fd));
    ucp_worker_destroy(worker);
    close(set);
}

static void on_event(ucm_event_type_t type, ucm_event_t *event, void *arg)
{
}

/* Nothing is patched: nobody is told of calls. The calls themselves are the C library's. */
static void ucm(void)
{
    ucm_global_config_t options = {.log_level = UCS_LOG_LEVEL_WARN};
    void *at, *moved;

    REFUSED(ucm_set_event_handler(UCM_EVENT_VM_UNMAPPED, 0, on_event, NULL));
    ucm_unset_event_handler(UCM_EVENT_VM_UNMAPPED, on_event, NULL);
    ucm_set_global_opts(&options);
    at = ucm_mmap(NULL, 8192, 3, 0x22, -1, 0);
    CHECK(at != (void*)-1);
    memset(at, 1, 8192);
    ucm_vm_mmap(at, 8192);
    CHECK(ucm_madvise(at, 8192, 4) == 0 && *(unsigned char*)at == 0);
    moved = ucm_mremap(at, 8192, 16384, 1);
    CHECK(moved != (void*)-1);
    ucm_vm_munmap(moved, 16384);
    CHECK(ucm_munmap(moved, 16384) == 0);
    CHECK(ucm_munmap((void*)1, 16384) == -1);
    CHECK(ucm_sbrk(0) == ucm_orig_sbrk(0));
    CHECK(ucm_dlopen("no such library", 2) == NULL);
}

int main(int argc, char **argv)
{
    pair_t pair;

    marks = argc > 1;
    make_pair(&pair, UCS_THREAD_MODE_SINGLE);
    memory(&pair);
    device(&pair);
    wakeup(&pair);
    ucm();
    free_pair(&pair);
    CHECK(calls > 90);
    return 0;
}

/* Part of the C interface of this project (docs/abi.md). Source compatible with programs written for UCX 1.13 to 1.23. */
#ifndef UCP_API_DEVICE_UCP_HOST_H_
#define UCP_API_DEVICE_UCP_HOST_H_

#include <ucp/api/ucp_def.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Communication that code on a GPU starts. This library has none: every function here refuses. */

enum ucp_device_mem_list_elem_field {
    UCP_DEVICE_MEM_LIST_ELEM_FIELD_MEMH = 1ul << 0,
    UCP_DEVICE_MEM_LIST_ELEM_FIELD_RKEY = 1ul << 1,
    UCP_DEVICE_MEM_LIST_ELEM_FIELD_LOCAL_ADDR = 1ul << 2,
    UCP_DEVICE_MEM_LIST_ELEM_FIELD_REMOTE_ADDR = 1ul << 3,
    UCP_DEVICE_MEM_LIST_ELEM_FIELD_LENGTH = 1ul << 4,
    UCP_DEVICE_MEM_LIST_ELEM_FIELD_EP = 1ul << 5
};

typedef struct ucp_device_mem_list_elem {
    uint64_t   field_mask;
    ucp_mem_h  memh;
    void       *local_addr;
    size_t     length;
    uint64_t   remote_addr;
    ucp_rkey_h rkey;
    ucp_ep_h   ep;
} ucp_device_mem_list_elem_t;

enum ucp_device_mem_list_params_field {
    UCP_DEVICE_MEM_LIST_PARAMS_FIELD_ELEMENTS = 1ul << 0,
    UCP_DEVICE_MEM_LIST_PARAMS_FIELD_ELEMENT_SIZE = 1ul << 1,
    UCP_DEVICE_MEM_LIST_PARAMS_FIELD_NUM_ELEMENTS = 1ul << 2,
    UCP_DEVICE_MEM_LIST_PARAMS_FIELD_WORKER = 1ul << 3
};

typedef struct ucp_device_mem_list_params {
    uint64_t                         field_mask;
    size_t                           element_size;
    size_t                           num_elements;
    ucp_worker_h                     worker;
    const ucp_device_mem_list_elem_t *elements;
} ucp_device_mem_list_params_t;

enum ucp_device_counter_params_field {
    UCP_DEVICE_COUNTER_PARAMS_FIELD_MEM_TYPE = 1ul << 0,
    UCP_DEVICE_COUNTER_PARAMS_FIELD_MEMH = 1ul << 1
};

typedef struct ucp_device_counter_params {
    uint64_t          field_mask;
    ucs_memory_type_t mem_type;
    ucp_mem_h         memh;
} ucp_device_counter_params_t;

ucs_status_t ucp_device_local_mem_list_create(const ucp_device_mem_list_params_t *params,
                                              ucp_device_local_mem_list_h *list);
ucs_status_t ucp_device_remote_mem_list_create(const ucp_device_mem_list_params_t *params,
                                               ucp_device_remote_mem_list_h *list);
uint32_t ucp_device_get_mem_list_length(const void *list);
void ucp_device_mem_list_release(void *list);
ucs_status_t ucp_device_counter_init(ucp_worker_h worker, const ucp_device_counter_params_t *params,
                                     void *counter);
uint64_t ucp_device_counter_read(ucp_worker_h worker, const ucp_device_counter_params_t *params, void *counter);

#ifdef __cplusplus
}
#endif

#endif

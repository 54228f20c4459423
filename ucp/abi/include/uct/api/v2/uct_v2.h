/* Part of the C interface of this project (docs/abi.md). Source compatible with programs for UCX 1.23. */
#ifndef UCT_V2_H_
#define UCT_V2_H_

#include <uct/api/uct.h>

#ifdef __cplusplus
extern "C" {
#endif

#define UCT_MD_GLOBAL_ID_MAX 256

typedef enum {
    UCT_MD_MEM_REG_FIELD_FLAGS = 1ul << 0,
    UCT_MD_MEM_REG_FIELD_DMABUF_FD = 1ul << 1,
    UCT_MD_MEM_REG_FIELD_DMABUF_OFFSET = 1ul << 2,
    UCT_MD_MEM_REG_FIELD_MEM_TYPE = 1ul << 3
} uct_md_mem_reg_field_mask_t;

typedef enum {
    UCT_MD_MEM_DEREG_FIELD_MEMH = 1ul << 0,
    UCT_MD_MEM_DEREG_FIELD_FLAGS = 1ul << 1,
    UCT_MD_MEM_DEREG_FIELD_COMPLETION = 1ul << 2
} uct_md_mem_dereg_field_mask_t;

typedef enum { UCT_MD_MEM_DEREG_FLAG_INVALIDATE = 1ul << 0 } uct_md_mem_dereg_flags_t;

typedef enum { UCT_MD_MKEY_PACK_FIELD_FLAGS = 1ul << 0 } uct_md_mkey_pack_field_mask_t;

typedef enum {
    UCT_MD_MKEY_PACK_FLAG_INVALIDATE_RMA = 1ul << 0,
    UCT_MD_MKEY_PACK_FLAG_INVALIDATE_AMO = 1ul << 1,
    UCT_MD_MKEY_PACK_FLAG_EXPORT = 1ul << 2
} uct_md_mkey_pack_flags_t;

typedef enum {
    UCT_IFACE_IS_REACHABLE_FIELD_DEVICE_ADDR = 1ul << 0,
    UCT_IFACE_IS_REACHABLE_FIELD_IFACE_ADDR = 1ul << 1,
    UCT_IFACE_IS_REACHABLE_FIELD_INFO_STRING = 1ul << 2,
    UCT_IFACE_IS_REACHABLE_FIELD_INFO_STRING_LENGTH = 1ul << 3,
    UCT_IFACE_IS_REACHABLE_FIELD_SCOPE = 1ul << 4,
    UCT_IFACE_IS_REACHABLE_FIELD_DEVICE_ADDR_LENGTH = 1ul << 5,
    UCT_IFACE_IS_REACHABLE_FIELD_IFACE_ADDR_LENGTH = 1ul << 6
} uct_iface_is_reachable_field_mask_t;

typedef enum {
    UCT_IFACE_REACHABILITY_SCOPE_DEVICE,
    UCT_IFACE_REACHABILITY_SCOPE_NETWORK
} uct_iface_reachability_scope_t;

typedef enum {
    UCT_EP_IS_CONNECTED_FIELD_DEVICE_ADDR = 1ul << 0,
    UCT_EP_IS_CONNECTED_FIELD_IFACE_ADDR = 1ul << 1,
    UCT_EP_IS_CONNECTED_FIELD_EP_ADDR = 1ul << 2
} uct_ep_is_connected_field_mask_t;

typedef enum uct_md_attr_field {
    UCT_MD_ATTR_FIELD_MAX_ALLOC = 1ul << 0,
    UCT_MD_ATTR_FIELD_MAX_REG = 1ul << 1,
    UCT_MD_ATTR_FIELD_FLAGS = 1ul << 2,
    UCT_MD_ATTR_FIELD_REG_MEM_TYPES = 1ul << 3,
    UCT_MD_ATTR_FIELD_REG_NONBLOCK_MEM_TYPES = 1ul << 4,
    UCT_MD_ATTR_FIELD_CACHE_MEM_TYPES = 1ul << 5,
    UCT_MD_ATTR_FIELD_DETECT_MEM_TYPES = 1ul << 6,
    UCT_MD_ATTR_FIELD_ALLOC_MEM_TYPES = 1ul << 7,
    UCT_MD_ATTR_FIELD_ACCESS_MEM_TYPES = 1ul << 8,
    UCT_MD_ATTR_FIELD_DMABUF_MEM_TYPES = 1ul << 9,
    UCT_MD_ATTR_FIELD_REG_COST = 1ul << 10,
    UCT_MD_ATTR_FIELD_COMPONENT_NAME = 1ul << 11,
    UCT_MD_ATTR_FIELD_RKEY_PACKED_SIZE = 1ul << 12,
    UCT_MD_ATTR_FIELD_LOCAL_CPUS = 1ul << 13,
    UCT_MD_ATTR_FIELD_EXPORTED_MKEY_PACKED_SIZE = 1ul << 14,
    UCT_MD_ATTR_FIELD_GLOBAL_ID = 1ul << 15,
    UCT_MD_ATTR_FIELD_REG_ALIGNMENT = 1ul << 16,
    UCT_MD_ATTR_FIELD_GVA_MEM_TYPES = 1ul << 17,
    UCT_MD_ATTR_FIELD_REQUIRED_MEM_FLAGS = 1ul << 18
} uct_md_attr_field_t;

typedef struct uct_md_mem_reg_params {
    uint64_t          field_mask;
    uint64_t          flags;
    int               dmabuf_fd;
    size_t            dmabuf_offset;
    ucs_memory_type_t mem_type;
} uct_md_mem_reg_params_t;

typedef struct uct_md_mem_dereg_params {
    uint64_t         field_mask;
    unsigned         flags;
    uct_mem_h        memh;
    uct_completion_t *comp;
} uct_md_mem_dereg_params_t;

typedef struct uct_md_mkey_pack_params {
    uint64_t field_mask;
    unsigned flags;
} uct_md_mkey_pack_params_t;

typedef struct uct_iface_is_reachable_params {
    uint64_t                       field_mask;
    const uct_device_addr_t        *device_addr;
    const uct_iface_addr_t         *iface_addr;
    char                           *info_string;
    size_t                         info_string_length;
    uct_iface_reachability_scope_t scope;
    size_t                         device_addr_length;
    size_t                         iface_addr_length;
} uct_iface_is_reachable_params_t;

typedef struct uct_ep_is_connected_params {
    uint64_t                field_mask;
    const uct_device_addr_t *device_addr;
    const uct_iface_addr_t  *iface_addr;
    const uct_ep_addr_t     *ep_addr;
} uct_ep_is_connected_params_t;

typedef enum {
    UCT_EP_CONNECT_TO_EP_PARAM_FIELD_DEVICE_ADDR_LENGTH = 1ul << 0,
    UCT_EP_CONNECT_TO_EP_PARAM_FIELD_EP_ADDR_LENGTH = 1ul << 1
} uct_ep_connect_to_ep_param_field_t;

typedef struct uct_ep_connect_to_ep_params {
    uint64_t field_mask;
    size_t   device_addr_length;
    size_t   ep_addr_length;
} uct_ep_connect_to_ep_params_t;

enum uct_ep_attr_field {
    UCT_EP_ATTR_FIELD_LOCAL_SOCKADDR = 1ul << 0,
    UCT_EP_ATTR_FIELD_REMOTE_SOCKADDR = 1ul << 1
};

typedef struct uct_ep_attr {
    uint64_t                field_mask;
    struct sockaddr_storage local_address;
    struct sockaddr_storage remote_address;
} uct_ep_attr_t;

typedef enum { UCT_MD_MEM_ATTACH_FIELD_FLAGS = 1ul << 0 } uct_md_mem_attach_field_mask_t;

typedef enum { UCT_MD_MEM_ATTACH_FLAG_HIDE_ERRORS = 1ul << 0 } uct_md_mem_attach_flags_t;

typedef struct uct_md_mem_attach_params {
    uint64_t field_mask;
    uint64_t flags;
} uct_md_mem_attach_params_t;

typedef enum uct_ep_operation {
    UCT_EP_OP_AM_SHORT,
    UCT_EP_OP_AM_BCOPY,
    UCT_EP_OP_AM_ZCOPY,
    UCT_EP_OP_PUT_SHORT,
    UCT_EP_OP_PUT_BCOPY,
    UCT_EP_OP_PUT_ZCOPY,
    UCT_EP_OP_GET_SHORT,
    UCT_EP_OP_GET_BCOPY,
    UCT_EP_OP_GET_ZCOPY,
    UCT_EP_OP_EAGER_SHORT,
    UCT_EP_OP_EAGER_BCOPY,
    UCT_EP_OP_EAGER_ZCOPY,
    UCT_EP_OP_RNDV_ZCOPY,
    UCT_EP_OP_ATOMIC_POST,
    UCT_EP_OP_ATOMIC_FETCH,
    UCT_EP_OP_LAST
} uct_ep_operation_t;

enum uct_perf_attr_field {
    UCT_PERF_ATTR_FIELD_OPERATION = 1ul << 0,
    UCT_PERF_ATTR_FIELD_LOCAL_MEMORY_TYPE = 1ul << 1,
    UCT_PERF_ATTR_FIELD_REMOTE_MEMORY_TYPE = 1ul << 2,
    UCT_PERF_ATTR_FIELD_LOCAL_SYS_DEVICE = 1ul << 3,
    UCT_PERF_ATTR_FIELD_REMOTE_SYS_DEVICE = 1ul << 4,
    UCT_PERF_ATTR_FIELD_SEND_PRE_OVERHEAD = 1ul << 5,
    UCT_PERF_ATTR_FIELD_SEND_POST_OVERHEAD = 1ul << 6,
    UCT_PERF_ATTR_FIELD_RECV_OVERHEAD = 1ul << 7,
    UCT_PERF_ATTR_FIELD_BANDWIDTH = 1ul << 8,
    UCT_PERF_ATTR_FIELD_LATENCY = 1ul << 9,
    UCT_PERF_ATTR_FIELD_MAX_INFLIGHT_EPS = 1ul << 10,
    UCT_PERF_ATTR_FIELD_FLAGS = 1ul << 11
};

typedef enum { UCT_PERF_ATTR_FLAGS_TX_RX_SHARED = 1ul << 0 } uct_perf_attr_flags_t;

typedef struct {
    uint64_t            field_mask;
    uct_ep_operation_t  operation;
    ucs_memory_type_t   local_memory_type;
    ucs_memory_type_t   remote_memory_type;
    ucs_sys_device_t    local_sys_device;
    ucs_sys_device_t    remote_sys_device;
    double              send_pre_overhead;
    double              send_post_overhead;
    double              recv_overhead;
    uct_ppn_bandwidth_t bandwidth;
    ucs_linear_func_t   latency;
    size_t              max_inflight_eps;
    uint64_t            flags;
} uct_perf_attr_t;

typedef struct uct_rkey_compare_params {
    uint64_t field_mask;
} uct_rkey_compare_params_t;

typedef struct uct_rkey_unpack_params {
    uint64_t         field_mask;
    ucs_sys_device_t sys_device;
} uct_rkey_unpack_params_t;

typedef struct {
    uint64_t          field_mask;
    uint64_t          max_alloc;
    size_t            max_reg;
    uint64_t          flags;
    uint64_t          reg_mem_types;
    uint64_t          reg_nonblock_mem_types;
    uint64_t          cache_mem_types;
    uint64_t          gva_mem_types;
    uint64_t          detect_mem_types;
    uint64_t          alloc_mem_types;
    uint64_t          access_mem_types;
    uint64_t          dmabuf_mem_types;
    ucs_linear_func_t reg_cost;
    char              component_name[UCT_COMPONENT_NAME_MAX];
    size_t            rkey_packed_size;
    ucs_cpu_set_t     local_cpus;
    size_t            exported_mkey_packed_size;
    char              global_id[UCT_MD_GLOBAL_ID_MAX];
    size_t            reg_alignment;
    uint8_t           required_mem_flags;
} uct_md_attr_v2_t;

ucs_status_t uct_md_query_v2(uct_md_h md, uct_md_attr_v2_t *md_attr);
ucs_status_t uct_md_mem_reg_v2(uct_md_h md, void *address, size_t length,
    const uct_md_mem_reg_params_t *params, uct_mem_h *memh_p);
ucs_status_t uct_md_mem_dereg_v2(uct_md_h md, const uct_md_mem_dereg_params_t *params);
ucs_status_t uct_md_mkey_pack_v2(uct_md_h md, uct_mem_h memh, void *address, size_t length,
    const uct_md_mkey_pack_params_t *params, void *mkey_buffer);
ucs_status_t uct_rkey_unpack_v2(uct_component_h component, const void *rkey_buffer,
    const uct_rkey_unpack_params_t *params, uct_rkey_bundle_t *rkey_ob);
ucs_status_t uct_rkey_compare(uct_component_h component, uct_rkey_t rkey1, uct_rkey_t rkey2,
    const uct_rkey_compare_params_t *params, int *result);
int uct_iface_is_reachable_v2(uct_iface_h iface, const uct_iface_is_reachable_params_t *params);
ucs_status_t uct_iface_estimate_perf(uct_iface_h iface, uct_perf_attr_t *perf_attr);
ucs_status_t uct_ep_query(uct_ep_h ep, uct_ep_attr_t *ep_attr);
ucs_status_t uct_md_mem_attach(uct_md_h md, const void *mkey_buffer, uct_md_mem_attach_params_t *params,
    uct_mem_h *memh_p);
ucs_status_t uct_ep_connect_to_ep_v2(uct_ep_h ep, const uct_device_addr_t *device_addr,
    const uct_ep_addr_t *ep_addr, const uct_ep_connect_to_ep_params_t *params);
int uct_ep_is_connected(uct_ep_h ep, const uct_ep_is_connected_params_t *params);

#ifdef __cplusplus
}
#endif

#endif

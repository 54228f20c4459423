/* Part of the C interface of this project (docs/abi.md). Source compatible with programs for UCX 1.23. */
#ifndef UCT_V2_H_
#define UCT_V2_H_

#include <uct/api/uct.h>

#ifdef __cplusplus
extern "C" {
#endif

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
    UCT_EP_ATTR_FIELD_REMOTE_SOCKADDR = 1ul << 1,
    UCT_EP_ATTR_FIELD_TX_TOKEN = 1ul << 2
};

typedef struct uct_ep_attr {
    uint64_t                field_mask;
    struct sockaddr_storage local_address;
    struct sockaddr_storage remote_address;
    void                    *tx_token;
} uct_ep_attr_t;

typedef enum {
    UCT_MD_MEM_ATTACH_FIELD_FLAGS = 1ul << 0,
    UCT_MD_MEM_ATTACH_FIELD_MKEY_SIZE = 1ul << 1
} uct_md_mem_attach_field_mask_t;

typedef enum { UCT_MD_MEM_ATTACH_FLAG_HIDE_ERRORS = 1ul << 0 } uct_md_mem_attach_flags_t;

typedef struct uct_md_mem_attach_params {
    uint64_t field_mask;
    uint64_t flags;
    size_t   mkey_size;
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
    UCT_EP_OP_FLUSH,
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
    UCT_PERF_ATTR_FIELD_PATH_BANDWIDTH = 1ul << 9,
    UCT_PERF_ATTR_FIELD_LATENCY = 1ul << 10,
    UCT_PERF_ATTR_FIELD_MAX_INFLIGHT_EPS = 1ul << 11,
    UCT_PERF_ATTR_FIELD_FLAGS = 1ul << 12
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
    uct_ppn_bandwidth_t path_bandwidth;
    ucs_linear_func_t   latency;
    size_t              max_inflight_eps;
    uint64_t            flags;
} uct_perf_attr_t;

typedef struct uct_rkey_compare_params {
    uint64_t field_mask;
} uct_rkey_compare_params_t;

typedef enum {
    UCT_RKEY_UNPACK_FIELD_SYS_DEVICE = 1ul << 0
} uct_rkey_unpack_field_mask_t;

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

typedef enum {
    UCT_MD_MEM_ATTR_V2_FIELD_MEM_TYPE = 1ul << 0,
    UCT_MD_MEM_ATTR_V2_FIELD_SYS_DEV = 1ul << 1,
    UCT_MD_MEM_ATTR_V2_FIELD_BASE_ADDRESS = 1ul << 2,
    UCT_MD_MEM_ATTR_V2_FIELD_ALLOC_LENGTH = 1ul << 3,
    UCT_MD_MEM_ATTR_V2_FIELD_DMABUF_FD = 1ul << 4,
    UCT_MD_MEM_ATTR_V2_FIELD_DMABUF_OFFSET = 1ul << 5,
    UCT_MD_MEM_ATTR_V2_FIELD_MEM_FLAGS = 1ul << 6
} uct_md_mem_attr_v2_field_t;

typedef struct uct_md_mem_attr_v2 {
    uint64_t          field_mask;
    ucs_memory_type_t mem_type;
    ucs_sys_device_t  sys_dev;
    void              *base_address;
    size_t            alloc_length;
    int               dmabuf_fd;
    size_t            dmabuf_offset;
    uint8_t           mem_flags;
} uct_md_mem_attr_v2_t;

typedef enum {
    UCT_MD_FLAG_V2_FIRST = UCT_MD_FLAG_LAST,
    UCT_MD_FLAG_INVALIDATE_RMA = UCT_MD_FLAG_V2_FIRST,
    UCT_MD_FLAG_INVALIDATE_AMO = 1ul << 12,
    UCT_MD_FLAG_MEMTYPE_COPY = 1ul << 13
} uct_md_flags_v2_t;

enum uct_iface_attr_field {
    UCT_IFACE_ATTR_FIELD_MAX_PUT_SGL_ZCOPY_COUNT = 1ul << 0,
    UCT_IFACE_ATTR_FIELD_MAX_GET_SGL_ZCOPY_COUNT = 1ul << 1,
    UCT_IFACE_ATTR_FIELD_CAP_FLAGS = 1ul << 2,
    UCT_IFACE_ATTR_FIELD_TX_TOKEN_LENGTH = 1ul << 3,
    UCT_IFACE_ATTR_FIELD_RX_TOKEN_LENGTH = 1ul << 4,
    UCT_IFACE_ATTR_FIELD_TX_TOKEN = 1ul << 5,
    UCT_IFACE_ATTR_FIELD_RX_TOKEN = 1ul << 6
};

/* What an interface can do beyond uct_iface_attr_t::cap.flags. */
#define UCT_IFACE_FLAG_V2_PUT_SGL_ZCOPY UCS_BIT(0)
#define UCT_IFACE_FLAG_V2_GET_SGL_ZCOPY UCS_BIT(1)
#define UCT_IFACE_FLAG_V2_QUERY_TOKEN UCS_BIT(2)

typedef struct {
    uint64_t field_mask;
    size_t   max_put_sgl_zcopy_count;
    size_t   max_get_sgl_zcopy_count;
    struct {
        uint64_t flags;
    } cap;
    size_t     tx_token_length;
    size_t     rx_token_length;
    const void *tx_token;
    void       *rx_token;
} uct_iface_attr_v2_t;

typedef void (*uct_md_mem_invalidate_cb_t)(void *arg);

typedef struct {
    uint64_t field_mask;
} uct_ep_invalidate_params_t;

/* An operation that has not ended on an endpoint, for uct_ep_outstanding_purge(). */
typedef enum uct_ep_op_info_field {
    UCT_EP_OP_INFO_FIELD_OPERATION = 1ul << 0,
    UCT_EP_OP_INFO_FIELD_COMP = 1ul << 1,
    UCT_EP_OP_INFO_FIELD_AM = 1ul << 2,
    UCT_EP_OP_INFO_FIELD_RMA = 1ul << 3,
    UCT_EP_OP_INFO_FIELD_FLUSH = 1ul << 4,
    UCT_EP_OP_INFO_FIELD_ATOMIC = 1ul << 5
} uct_ep_op_info_field_t;

typedef enum {
    UCT_EP_OP_INFO_AM_FIELD_AM_ID = 1ul << 0,
    UCT_EP_OP_INFO_AM_FIELD_FLAGS = 1ul << 1,
    UCT_EP_OP_INFO_AM_FIELD_HEADER_VALUE = 1ul << 2,
    UCT_EP_OP_INFO_AM_FIELD_HEADER_ZCOPY = 1ul << 3,
    UCT_EP_OP_INFO_AM_FIELD_PAYLOAD_DATA = 1ul << 4,
    UCT_EP_OP_INFO_AM_FIELD_PAYLOAD_ZCOPY = 1ul << 5
} uct_ep_op_info_am_field_t;

typedef enum {
    UCT_EP_OP_INFO_RMA_FIELD_REMOTE_ADDR = 1ul << 0,
    UCT_EP_OP_INFO_RMA_FIELD_RKEY = 1ul << 1,
    UCT_EP_OP_INFO_RMA_FIELD_PAYLOAD_DATA = 1ul << 2,
    UCT_EP_OP_INFO_RMA_FIELD_PAYLOAD_ZCOPY = 1ul << 3,
    UCT_EP_OP_INFO_RMA_FIELD_PAYLOAD_UNPACK = 1ul << 4
} uct_ep_op_info_rma_field_t;

typedef enum {
    UCT_EP_OP_INFO_FLUSH_FIELD_FLAGS = 1ul << 0
} uct_ep_op_info_flush_field_t;

typedef enum {
    UCT_EP_OP_INFO_ATOMIC_FIELD_OP = 1ul << 0,
    UCT_EP_OP_INFO_ATOMIC_FIELD_REMOTE_ADDR = 1ul << 1,
    UCT_EP_OP_INFO_ATOMIC_FIELD_RKEY = 1ul << 2,
    UCT_EP_OP_INFO_ATOMIC_FIELD_VALUE = 1ul << 3,
    UCT_EP_OP_INFO_ATOMIC_FIELD_COMPARE = 1ul << 4,
    UCT_EP_OP_INFO_ATOMIC_FIELD_RESULT = 1ul << 5,
    UCT_EP_OP_INFO_ATOMIC_FIELD_SIZE = 1ul << 6
} uct_ep_op_info_atomic_field_t;

typedef struct uct_ep_op_info {
    uint64_t           field_mask;
    uct_ep_operation_t operation;
    uct_completion_t   *comp;
    union {
        struct {
            uint16_t field_mask;
            uint8_t  am_id;
            unsigned flags;
            union {
                uint64_t value;
                struct {
                    const void *buffer;
                    size_t     length;
                } zcopy;
            } header;
            union {
                struct {
                    void   *buffer;
                    size_t length;
                } data;
                struct {
                    const uct_iov_t *iov;
                    size_t          iovcnt;
                } zcopy;
            } payload;
        } am;
        struct {
            uint16_t   field_mask;
            uint64_t   remote_addr;
            uct_rkey_t rkey;
            union {
                struct {
                    void   *buffer;
                    size_t length;
                } data;
                struct {
                    const uct_iov_t *iov;
                    size_t          iovcnt;
                } zcopy;
                struct {
                    uct_unpack_callback_t unpack_cb;
                    void                  *arg;
                    size_t                length;
                } unpack;
            } payload;
        } rma;
        struct {
            uint16_t field_mask;
            unsigned flags;
        } flush;
        struct {
            uint16_t        field_mask;
            uct_atomic_op_t op;
            uint64_t        remote_addr;
            uct_rkey_t      rkey;
            uint64_t        value;
            uint64_t        compare;
            void            *result;
            size_t          size;
        } atomic;
    };
} uct_ep_op_info_t;

typedef void (*uct_ep_outstanding_purge_callback_t)(const uct_ep_op_info_t *op_info, void *arg);

typedef enum {
    UCT_EP_OUTSTANDING_FIELD_RX_TOKEN = 1ul << 0,
    UCT_EP_OUTSTANDING_FIELD_CB = 1ul << 1,
    UCT_EP_OUTSTANDING_FIELD_ARG = 1ul << 2
} uct_ep_outstanding_purge_field_t;

typedef struct {
    uint64_t                            field_mask;
    const void                          *rx_token;
    uct_ep_outstanding_purge_callback_t cb;
    void                                *arg;
} uct_ep_outstanding_purge_params_t;

extern const char *uct_ep_operation_names[];

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
ucs_status_t uct_md_mem_query_v2(uct_md_h md, const void *address, size_t length,
    uct_md_mem_attr_v2_t *mem_attr);
ucs_status_t uct_iface_query_v2(uct_iface_h iface, uct_iface_attr_v2_t *iface_attr);

/* Refused: no transport has these. */
ucs_status_t uct_ep_invalidate(uct_ep_h ep, const uct_ep_invalidate_params_t *params);
ucs_status_t uct_ep_outstanding_purge(uct_ep_h ep, const uct_ep_outstanding_purge_params_t *params);
ucs_status_t uct_ep_put_sgl_zcopy(uct_ep_h ep, void * const *buffers, const size_t *lengths,
    uct_mem_h const *memhs, const uint64_t *remote_addrs, uct_rkey_t const *rkeys, const size_t *counts,
    const size_t *strides, size_t count, uct_completion_t *comp);
ucs_status_t uct_ep_get_sgl_zcopy(uct_ep_h ep, void * const *buffers, const size_t *lengths,
    uct_mem_h const *memhs, const uint64_t *remote_addrs, uct_rkey_t const *rkeys, const size_t *counts,
    const size_t *strides, size_t count, uct_completion_t *comp);
ucs_status_t uct_ep_get_device_ep(uct_ep_h ep, uct_device_ep_h *device_ep_p);
ucs_status_t uct_md_mem_elem_pack(uct_md_h md, uct_mem_h memh, uct_rkey_t rkey,
    uct_device_mem_elem_t *mem_elem, void **release_handle_p);
void uct_md_mem_elem_release(uct_md_h md, void *release_handle);

#ifdef __cplusplus
}
#endif

#endif

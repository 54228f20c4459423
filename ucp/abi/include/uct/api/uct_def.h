/* Part of the C interface of this project (docs/abi.md). Source compatible with programs for UCX 1.13. */
#ifndef UCT_API_UCT_DEF_H_
#define UCT_API_UCT_DEF_H_

#include <ucs/async/async_fwd.h>
#include <ucs/config/types.h>
#include <ucs/datastruct/callbackq.h>
#include <ucs/datastruct/list.h>
#include <ucs/memory/memory_type.h>
#include <ucs/sys/compiler_def.h>
#include <ucs/sys/sock.h>
#include <ucs/type/cpu_set.h>
#include <ucs/type/status.h>
#include <ucs/type/thread_mode.h>
#include <uct/api/version.h>

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#ifdef __cplusplus
extern "C" {
#endif

#define UCT_COMPONENT_NAME_MAX   16
#define UCT_TL_NAME_MAX          10
#define UCT_MD_NAME_MAX          16
#define UCT_DEVICE_NAME_MAX      32
#define UCT_PENDING_REQ_PRIV_LEN 40
#define UCT_TAG_PRIV_LEN         32
#define UCT_AM_ID_BITS           5
#define UCT_AM_ID_MAX            (1ul << UCT_AM_ID_BITS)
#define UCT_MEM_HANDLE_NULL      NULL
#define UCT_INVALID_RKEY         ((uintptr_t)(-1))
#define UCT_INLINE_API           static UCS_F_ALWAYS_INLINE

/* Handles. */
typedef struct uct_component *uct_component_h;
typedef struct uct_md *uct_md_h;
typedef struct uct_worker *uct_worker_h;
typedef struct uct_iface *uct_iface_h;
typedef struct uct_ep *uct_ep_h;
typedef struct uct_cm *uct_cm_h;
typedef struct uct_listener *uct_listener_h;
typedef void *uct_mem_h;
typedef uintptr_t uct_rkey_t;
typedef void *uct_conn_request_h;
typedef uint64_t uct_tag_t;
typedef int uct_worker_cb_id_t;
#define UCS_SYS_DEVICE_ID_MAX     UINT8_MAX
#define UCS_SYS_DEVICE_ID_UNKNOWN UINT8_MAX
#define UCS_SYS_BDF_NAME_MAX      16

typedef uint8_t ucs_sys_device_t;
typedef struct ucs_stats_node ucs_stats_node_t;
typedef struct uct_md_config uct_md_config_t;
typedef struct uct_iface_config uct_iface_config_t;
typedef struct uct_cm_config uct_cm_config_t;
typedef struct uct_device_addr uct_device_addr_t;
typedef struct uct_iface_addr uct_iface_addr_t;
typedef struct uct_ep_addr uct_ep_addr_t;
typedef struct uct_tag_context uct_tag_context_t;

enum uct_component_attr_field {
    UCT_COMPONENT_ATTR_FIELD_NAME = 1ul << 0,
    UCT_COMPONENT_ATTR_FIELD_MD_RESOURCE_COUNT = 1ul << 1,
    UCT_COMPONENT_ATTR_FIELD_MD_RESOURCES = 1ul << 2,
    UCT_COMPONENT_ATTR_FIELD_FLAGS = 1ul << 3
};

typedef struct uct_md_resource_desc {
    char md_name[UCT_MD_NAME_MAX];
} uct_md_resource_desc_t;

typedef struct uct_component_attr {
    uint64_t               field_mask;
    char                   name[UCT_COMPONENT_NAME_MAX];
    unsigned               md_resource_count;
    uct_md_resource_desc_t *md_resources;
    uint64_t               flags;
} uct_component_attr_t;

typedef enum {
    UCT_DEVICE_TYPE_NET,
    UCT_DEVICE_TYPE_SHM,
    UCT_DEVICE_TYPE_ACC,
    UCT_DEVICE_TYPE_SELF,
    UCT_DEVICE_TYPE_LAST
} uct_device_type_t;

typedef struct uct_tl_resource_desc {
    char              tl_name[UCT_TL_NAME_MAX];
    char              dev_name[UCT_DEVICE_NAME_MAX];
    uct_device_type_t dev_type;
    ucs_sys_device_t  sys_device;
} uct_tl_resource_desc_t;

#define UCT_TL_RESOURCE_DESC_FMT            "%s/%s"
#define UCT_TL_RESOURCE_DESC_ARG(_resource) (_resource)->tl_name, (_resource)->dev_name

typedef enum uct_atomic_op {
    UCT_ATOMIC_OP_ADD,
    UCT_ATOMIC_OP_AND,
    UCT_ATOMIC_OP_OR,
    UCT_ATOMIC_OP_XOR,
    UCT_ATOMIC_OP_SWAP,
    UCT_ATOMIC_OP_CSWAP,
    UCT_ATOMIC_OP_LAST
} uct_atomic_op_t;

/* What an interface can do: uct_iface_attr_t::cap.flags. */
#define UCT_IFACE_FLAG_AM_SHORT UCS_BIT(0)
#define UCT_IFACE_FLAG_AM_BCOPY UCS_BIT(1)
#define UCT_IFACE_FLAG_AM_ZCOPY UCS_BIT(2)
#define UCT_IFACE_FLAG_PENDING UCS_BIT(3)
#define UCT_IFACE_FLAG_PUT_SHORT UCS_BIT(4)
#define UCT_IFACE_FLAG_PUT_BCOPY UCS_BIT(5)
#define UCT_IFACE_FLAG_PUT_ZCOPY UCS_BIT(6)
#define UCT_IFACE_FLAG_GET_SHORT UCS_BIT(8)
#define UCT_IFACE_FLAG_GET_BCOPY UCS_BIT(9)
#define UCT_IFACE_FLAG_GET_ZCOPY UCS_BIT(10)
#define UCT_IFACE_FLAG_ATOMIC_CPU UCS_BIT(30)
#define UCT_IFACE_FLAG_ATOMIC_DEVICE UCS_BIT(31)
#define UCT_IFACE_FLAG_ERRHANDLE_SHORT_BUF UCS_BIT(32)
#define UCT_IFACE_FLAG_ERRHANDLE_BCOPY_BUF UCS_BIT(33)
#define UCT_IFACE_FLAG_ERRHANDLE_ZCOPY_BUF UCS_BIT(34)
#define UCT_IFACE_FLAG_ERRHANDLE_AM_ID UCS_BIT(35)
#define UCT_IFACE_FLAG_ERRHANDLE_REMOTE_MEM UCS_BIT(36)
#define UCT_IFACE_FLAG_ERRHANDLE_BCOPY_LEN UCS_BIT(37)
#define UCT_IFACE_FLAG_ERRHANDLE_PEER_FAILURE UCS_BIT(38)
#define UCT_IFACE_FLAG_EP_CHECK UCS_BIT(39)
#define UCT_IFACE_FLAG_CONNECT_TO_IFACE UCS_BIT(40)
#define UCT_IFACE_FLAG_CONNECT_TO_EP UCS_BIT(41)
#define UCT_IFACE_FLAG_CONNECT_TO_SOCKADDR UCS_BIT(42)
#define UCT_IFACE_FLAG_AM_DUP UCS_BIT(43)
#define UCT_IFACE_FLAG_CB_SYNC UCS_BIT(44)
#define UCT_IFACE_FLAG_CB_ASYNC UCS_BIT(45)
#define UCT_IFACE_FLAG_EP_KEEPALIVE UCS_BIT(46)
#define UCT_IFACE_FLAG_TAG_EAGER_SHORT UCS_BIT(50)
#define UCT_IFACE_FLAG_TAG_EAGER_BCOPY UCS_BIT(51)
#define UCT_IFACE_FLAG_TAG_EAGER_ZCOPY UCS_BIT(52)
#define UCT_IFACE_FLAG_TAG_RNDV_ZCOPY UCS_BIT(53)

/* Events that an interface can report: uct_iface_attr_t::cap.event_flags. */
#define UCT_IFACE_FLAG_EVENT_SEND_COMP UCS_BIT(0)
#define UCT_IFACE_FLAG_EVENT_RECV UCS_BIT(1)
#define UCT_IFACE_FLAG_EVENT_RECV_SIG UCS_BIT(2)
#define UCT_IFACE_FLAG_EVENT_FD UCS_BIT(3)
#define UCT_IFACE_FLAG_EVENT_ASYNC_CB UCS_BIT(4)

typedef enum {
    UCT_ALLOC_METHOD_THP,
    UCT_ALLOC_METHOD_MD,
    UCT_ALLOC_METHOD_HEAP,
    UCT_ALLOC_METHOD_MMAP,
    UCT_ALLOC_METHOD_HUGE,
    UCT_ALLOC_METHOD_LAST,
    UCT_ALLOC_METHOD_DEFAULT = UCT_ALLOC_METHOD_LAST
} uct_alloc_method_t;

enum uct_iface_event_types {
    UCT_EVENT_SEND_COMP = 1ul << 0,
    UCT_EVENT_RECV = 1ul << 1,
    UCT_EVENT_RECV_SIG = 1ul << 2
};

enum uct_flush_flags {
    UCT_FLUSH_FLAG_LOCAL = 0,
    UCT_FLUSH_FLAG_CANCEL = 1ul << 0
};

enum uct_progress_types {
    UCT_PROGRESS_SEND = 1ul << 0,
    UCT_PROGRESS_RECV = 1ul << 1,
    UCT_PROGRESS_THREAD_SAFE = 1ul << 7
};

enum uct_msg_flags {
    UCT_SEND_FLAG_SIGNALED = 1ul << 0,
    UCT_SEND_FLAG_PEER_CHECK = 1ul << 1
};

enum uct_cb_flags {
    UCT_CB_FLAG_RESERVED = 1ul << 1,
    UCT_CB_FLAG_ASYNC = 1ul << 2
};

enum uct_cb_param_flags {
    UCT_CB_PARAM_FLAG_DESC = 1ul << 0,
    UCT_CB_PARAM_FLAG_FIRST = 1ul << 1,
    UCT_CB_PARAM_FLAG_MORE = 1ul << 2
};

enum uct_iface_open_mode {
    UCT_IFACE_OPEN_MODE_DEVICE = 1ul << 0,
    UCT_IFACE_OPEN_MODE_SOCKADDR_SERVER = 1ul << 1,
    UCT_IFACE_OPEN_MODE_SOCKADDR_CLIENT = 1ul << 2
};

enum uct_iface_params_field {
    UCT_IFACE_PARAM_FIELD_CPU_MASK = 1ul << 0,
    UCT_IFACE_PARAM_FIELD_OPEN_MODE = 1ul << 1,
    UCT_IFACE_PARAM_FIELD_DEVICE = 1ul << 2,
    UCT_IFACE_PARAM_FIELD_SOCKADDR = 1ul << 3,
    UCT_IFACE_PARAM_FIELD_STATS_ROOT = 1ul << 4,
    UCT_IFACE_PARAM_FIELD_RX_HEADROOM = 1ul << 5,
    UCT_IFACE_PARAM_FIELD_ERR_HANDLER_ARG = 1ul << 6,
    UCT_IFACE_PARAM_FIELD_ERR_HANDLER = 1ul << 7,
    UCT_IFACE_PARAM_FIELD_ERR_HANDLER_FLAGS = 1ul << 8,
    UCT_IFACE_PARAM_FIELD_HW_TM_EAGER_ARG = 1ul << 9,
    UCT_IFACE_PARAM_FIELD_HW_TM_EAGER_CB = 1ul << 10,
    UCT_IFACE_PARAM_FIELD_HW_TM_RNDV_ARG = 1ul << 11,
    UCT_IFACE_PARAM_FIELD_HW_TM_RNDV_CB = 1ul << 12,
    UCT_IFACE_PARAM_FIELD_ASYNC_EVENT_ARG = 1ul << 13,
    UCT_IFACE_PARAM_FIELD_ASYNC_EVENT_CB = 1ul << 14,
    UCT_IFACE_PARAM_FIELD_KEEPALIVE_INTERVAL = 1ul << 15,
    UCT_IFACE_PARAM_FIELD_AM_ALIGNMENT = 1ul << 16,
    UCT_IFACE_PARAM_FIELD_AM_ALIGN_OFFSET = 1ul << 17,
    UCT_IFACE_PARAM_FIELD_FEATURES = 1ul << 18
};

enum uct_ep_params_field {
    UCT_EP_PARAM_FIELD_IFACE = 1ul << 0,
    UCT_EP_PARAM_FIELD_USER_DATA = 1ul << 1,
    UCT_EP_PARAM_FIELD_DEV_ADDR = 1ul << 2,
    UCT_EP_PARAM_FIELD_IFACE_ADDR = 1ul << 3
};

/* What a memory domain can do: uct_md_attr_t::cap.flags. */
enum uct_md_flags {
    UCT_MD_FLAG_ALLOC = 1ul << 0,
    UCT_MD_FLAG_REG = 1ul << 1,
    UCT_MD_FLAG_NEED_MEMH = 1ul << 2,
    UCT_MD_FLAG_NEED_RKEY = 1ul << 3,
    UCT_MD_FLAG_ADVISE = 1ul << 4,
    UCT_MD_FLAG_FIXED = 1ul << 5,
    UCT_MD_FLAG_RKEY_PTR = 1ul << 6,
    UCT_MD_FLAG_SOCKADDR = 1ul << 7,
    UCT_MD_FLAG_INVALIDATE = 1ul << 8
};

enum uct_md_mem_flags {
    UCT_MD_MEM_FLAG_NONBLOCK = 1ul << 0,
    UCT_MD_MEM_FLAG_FIXED = 1ul << 1,
    UCT_MD_MEM_FLAG_LOCK = 1ul << 2,
    UCT_MD_MEM_FLAG_HIDE_ERRORS = 1ul << 3,
    UCT_MD_MEM_ACCESS_REMOTE_PUT = 1ul << 5,
    UCT_MD_MEM_ACCESS_REMOTE_GET = 1ul << 6,
    UCT_MD_MEM_ACCESS_REMOTE_ATOMIC = 1ul << 7,
    UCT_MD_MEM_ACCESS_LOCAL_READ = 1ul << 8,
    UCT_MD_MEM_ACCESS_LOCAL_WRITE = 1ul << 9,
    UCT_MD_MEM_ACCESS_ALL = 0x3e0,
    UCT_MD_MEM_ACCESS_RMA = 0x360
};

typedef enum {
    UCT_MADV_NORMAL,
    UCT_MADV_WILLNEED
} uct_mem_advice_t;

typedef struct {
    double c;
    double m;
} ucs_linear_func_t;

typedef struct uct_ppn_bandwidth {
    double dedicated;
    double shared;
} uct_ppn_bandwidth_t;

typedef struct uct_iface_attr {
    struct {
        struct {
            size_t max_short, max_bcopy, min_zcopy, max_zcopy, opt_zcopy_align, align_mtu, max_iov;
        } put, get;
        struct {
            size_t max_short, max_bcopy, min_zcopy, max_zcopy, opt_zcopy_align, align_mtu, max_hdr, max_iov;
        } am;
        struct {
            struct {
                size_t min_recv, max_zcopy, max_iov, max_outstanding;
            } recv;
            struct {
                size_t max_short, max_bcopy, max_zcopy, max_iov;
            } eager;
            struct {
                size_t max_zcopy, max_hdr, max_iov;
            } rndv;
        } tag;
        /* Bits of uct_atomic_op_t. */
        struct {
            uint64_t op_flags, fop_flags;
        } atomic32, atomic64;
        uint64_t flags;
        uint64_t event_flags;
    } cap;
    size_t                  device_addr_len;
    size_t                  iface_addr_len;
    size_t                  ep_addr_len;
    size_t                  max_conn_priv;
    struct sockaddr_storage listen_sockaddr;
    double                  overhead;
    uct_ppn_bandwidth_t     bandwidth;
    ucs_linear_func_t       latency;
    uint8_t                 priority;
    size_t                  max_num_eps;
    unsigned                dev_num_paths;
} uct_iface_attr_t;

typedef struct uct_md_attr {
    struct {
        uint64_t max_alloc;
        size_t   max_reg;
        uint64_t flags;
        uint64_t reg_mem_types;
        uint64_t detect_mem_types;
        uint64_t alloc_mem_types;
        uint64_t access_mem_types;
    } cap;
    ucs_linear_func_t reg_cost;
    char              component_name[UCT_COMPONENT_NAME_MAX];
    size_t            rkey_packed_size;
    ucs_cpu_set_t     local_cpus;
} uct_md_attr_t;

typedef ucs_status_t (*uct_error_handler_t)(void *arg, uct_ep_h ep, ucs_status_t status);
typedef ucs_status_t (*uct_am_callback_t)(void *arg, void *data, size_t length, unsigned flags);
/* A tracer of messages, which this library never calls. */
typedef enum {
    UCT_AM_TRACE_TYPE_SEND,
    UCT_AM_TRACE_TYPE_RECV,
    UCT_AM_TRACE_TYPE_SEND_DROP,
    UCT_AM_TRACE_TYPE_RECV_DROP,
    UCT_AM_TRACE_TYPE_LAST
} uct_am_trace_type_t;
typedef void (*uct_am_tracer_t)(void *arg, uct_am_trace_type_t type, uint8_t id, const void *data, size_t length,
                                char *buffer, size_t max);
typedef size_t (*uct_pack_callback_t)(void *dest, void *arg);
typedef void (*uct_unpack_callback_t)(void *arg, const void *data, size_t length);

typedef struct uct_iface_params {
    uint64_t      field_mask;
    ucs_cpu_set_t cpu_mask;
    uint64_t      open_mode;
    union {
        struct {
            const char *tl_name;
            const char *dev_name;
        } device;
        struct {
            ucs_sock_addr_t listen_sockaddr;
            void            *conn_request_arg;
            void            (*conn_request_cb)(void);
            uint32_t        cb_flags;
        } sockaddr;
    } mode;
    ucs_stats_node_t    *stats_root;
    size_t              rx_headroom;
    void                *err_handler_arg;
    uct_error_handler_t err_handler;
    uint32_t            err_handler_flags;
    /* Of what follows nothing is read. */
    void                *reserved[9];
    uint64_t            features;
} uct_iface_params_t;

typedef struct uct_ep_params {
    uint64_t                field_mask;
    uct_iface_h             iface;
    void                    *user_data;
    const uct_device_addr_t *dev_addr;
    const uct_iface_addr_t  *iface_addr;
    /* Of socket addresses; nothing is read. */
    void                    *reserved[13];
} uct_ep_params_t;

enum uct_md_mem_attr_field {
    UCT_MD_MEM_ATTR_FIELD_MEM_TYPE = 1ul << 0,
    UCT_MD_MEM_ATTR_FIELD_SYS_DEV = 1ul << 1,
    UCT_MD_MEM_ATTR_FIELD_BASE_ADDRESS = 1ul << 2,
    UCT_MD_MEM_ATTR_FIELD_ALLOC_LENGTH = 1ul << 3
};

typedef struct uct_md_mem_attr {
    uint64_t          field_mask;
    ucs_memory_type_t mem_type;
    ucs_sys_device_t  sys_dev;
    void              *base_address;
    size_t            alloc_length;
} uct_md_mem_attr_t;

typedef struct uct_allocated_memory {
    void               *address;
    size_t             length;
    uct_alloc_method_t method;
    ucs_memory_type_t  mem_type;
    uct_md_h           md;
    uct_mem_h          memh;
} uct_allocated_memory_t;

enum uct_mem_alloc_params_field {
    UCT_MEM_ALLOC_PARAM_FIELD_FLAGS = 1ul << 0,
    UCT_MEM_ALLOC_PARAM_FIELD_ADDRESS = 1ul << 1,
    UCT_MEM_ALLOC_PARAM_FIELD_MEM_TYPE = 1ul << 2,
    UCT_MEM_ALLOC_PARAM_FIELD_MDS = 1ul << 3,
    UCT_MEM_ALLOC_PARAM_FIELD_NAME = 1ul << 4
};

typedef struct {
    uint64_t          field_mask;
    unsigned          flags;
    void              *address;
    ucs_memory_type_t mem_type;
    struct {
        const uct_md_h *mds;
        unsigned       count;
    } mds;
    const char        *name;
} uct_mem_alloc_params_t;

typedef struct uct_rkey_bundle {
    uct_rkey_t rkey;
    void       *handle;
    void       *type;
} uct_rkey_bundle_t;

/* `count` pieces of `length` bytes, `stride` bytes apart. */
typedef struct uct_iov {
    void      *buffer;
    size_t    length;
    uct_mem_h memh;
    size_t    stride;
    unsigned  count;
} uct_iov_t;

typedef struct uct_completion uct_completion_t;
typedef void (*uct_completion_callback_t)(uct_completion_t *self);

/* Counts operations down; the function is called at zero. The status begins as UCS_OK. */
struct uct_completion {
    uct_completion_callback_t func;
    int                       count;
    ucs_status_t              status;
};

typedef struct uct_pending_req uct_pending_req_t;
typedef ucs_status_t (*uct_pending_callback_t)(uct_pending_req_t *self);
typedef void (*uct_pending_purge_callback_t)(uct_pending_req_t *self, void *arg);

struct uct_pending_req {
    uct_pending_callback_t func;
    char                   priv[UCT_PENDING_REQ_PRIV_LEN];
};

#ifdef __cplusplus
}
#endif

#endif

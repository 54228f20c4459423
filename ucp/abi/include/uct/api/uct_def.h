/* Part of the C interface of this project (docs/abi.md). Source compatible with programs written for UCX 1.13 to 1.23. */
#ifndef UCT_API_UCT_DEF_H_
#define UCT_API_UCT_DEF_H_

#include <ucs/async/async_fwd.h>
#include <ucs/config/types.h>
#include <ucs/datastruct/callbackq.h>
#include <ucs/datastruct/linear_func.h>
#include <ucs/datastruct/list.h>
#include <ucs/debug/debug.h>
#include <ucs/memory/memory_type.h>
#include <ucs/stats/stats_fwd.h>
#include <ucs/sys/compiler_def.h>
#include <ucs/sys/sock.h>
#include <ucs/sys/topo/base/topo.h>
#include <ucs/time/time_def.h>
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
#define UCT_DMABUF_FD_INVALID    (-1)
#define UCT_MD_GLOBAL_ID_MAX     256
#define UCT_INLINE_API           static UCS_F_ALWAYS_INLINE

/* Handles. */
typedef struct uct_component *uct_component_h;
typedef struct uct_md uct_md_t;
typedef uct_md_t *uct_md_h;
typedef struct uct_md_ops uct_md_ops_t;
typedef struct uct_worker *uct_worker_h;
typedef struct uct_iface *uct_iface_h;
typedef struct uct_ep *uct_ep_h;
typedef struct uct_cm uct_cm_t;
typedef uct_cm_t *uct_cm_h;
typedef struct uct_listener *uct_listener_h;
typedef void *uct_mem_h;
typedef uintptr_t uct_rkey_t;
typedef void *uct_conn_request_h;
typedef uint64_t uct_tag_t;
typedef int uct_worker_cb_id_t;
typedef void *uct_rkey_ctx_h;
/* Of communication that code on a GPU starts: none is ever made. */
typedef struct uct_device_ep *uct_device_ep_h;
typedef union uct_device_mem_elem uct_device_mem_elem_t;
typedef struct uct_device_local_mem_elem uct_device_local_mem_elem_t;
typedef struct uct_device_remote_tl_elem uct_device_remote_tl_elem_t;
typedef struct uct_device_remote_mem_elem uct_device_remote_mem_elem_t;
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

enum {
    UCT_COMPONENT_FLAG_CM = 1ul << 0,
    UCT_COMPONENT_FLAG_RKEY_PTR = 1ul << 1
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
#define UCT_IFACE_FLAG_INTER_NODE UCS_BIT(54)
#define UCT_IFACE_FLAG_DEVICE_EP UCS_BIT(55)
#define UCT_IFACE_FLAG_DEVICE_LKEY UCS_BIT(56)

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
    UCT_EVENT_RECV_SIG = 1ul << 2,
    UCT_EVENT_SPEED_CHANGE = 1ul << 3
};

enum uct_flush_flags {
    UCT_FLUSH_FLAG_LOCAL = 0,
    UCT_FLUSH_FLAG_CANCEL = 1ul << 0,
    UCT_FLUSH_FLAG_REMOTE = 1ul << 1
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
    UCT_IFACE_OPEN_MODE_SOCKADDR_CLIENT = 1ul << 2,
    UCT_IFACE_OPEN_MODE_STUB = 1ul << 3
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
    UCT_EP_PARAM_FIELD_IFACE_ADDR = 1ul << 3,
    UCT_EP_PARAM_FIELD_SOCKADDR = 1ul << 4,
    UCT_EP_PARAM_FIELD_SOCKADDR_CB_FLAGS = 1ul << 5,
    UCT_EP_PARAM_FIELD_SOCKADDR_PACK_CB = 1ul << 6,
    UCT_EP_PARAM_FIELD_CM = 1ul << 7,
    UCT_EP_PARAM_FIELD_CONN_REQUEST = 1ul << 8,
    UCT_EP_PARAM_FIELD_SOCKADDR_CONNECT_CB_CLIENT = 1ul << 9,
    UCT_EP_PARAM_FIELD_SOCKADDR_NOTIFY_CB_SERVER = 1ul << 10,
    UCT_EP_PARAM_FIELD_SOCKADDR_DISCONNECT_CB = 1ul << 11,
    UCT_EP_PARAM_FIELD_PATH_INDEX = 1ul << 12,
    UCT_EP_PARAM_FIELD_CM_RESOLVE_CB = 1ul << 13,
    UCT_EP_PARAM_FIELD_PRIV_DATA = 1ul << 14,
    UCT_EP_PARAM_FIELD_PRIV_DATA_LENGTH = 1ul << 15,
    UCT_EP_PARAM_FIELD_LOCAL_SOCKADDR = 1ul << 16,
    UCT_EP_PARAM_FIELD_DEV_ADDR_LENGTH = 1ul << 17,
    UCT_EP_PARAM_FIELD_IFACE_ADDR_LENGTH = 1ul << 18
};

enum uct_iface_feature {
    UCT_IFACE_FEATURE_AM = 1ul << 0,
    UCT_IFACE_FEATURE_PUT = 1ul << 1,
    UCT_IFACE_FEATURE_GET = 1ul << 2,
    UCT_IFACE_FEATURE_AMO32 = 1ul << 3,
    UCT_IFACE_FEATURE_AMO64 = 1ul << 4,
    UCT_IFACE_FEATURE_TAG = 1ul << 5,
    UCT_IFACE_FEATURE_FLUSH_REMOTE = 1ul << 6,
    UCT_IFACE_FEATURE_LAST = 1ul << 7
};

/* Connections by socket addresses, which this library leaves to ucp: calls with these are refused. */
enum uct_cm_attr_field {
    UCT_CM_ATTR_FIELD_MAX_CONN_PRIV = 1ul << 0
};

enum uct_listener_attr_field {
    UCT_LISTENER_ATTR_FIELD_SOCKADDR = 1ul << 0
};

enum uct_listener_params_field {
    UCT_LISTENER_PARAM_FIELD_BACKLOG = 1ul << 0,
    UCT_LISTENER_PARAM_FIELD_CONN_REQUEST_CB = 1ul << 1,
    UCT_LISTENER_PARAM_FIELD_USER_DATA = 1ul << 2
};

enum uct_ep_connect_params_field {
    UCT_EP_CONNECT_PARAM_FIELD_PRIVATE_DATA = 1ul << 0,
    UCT_EP_CONNECT_PARAM_FIELD_PRIVATE_DATA_LENGTH = 1ul << 1
};

enum uct_cm_ep_priv_data_pack_args_field {
    UCT_CM_EP_PRIV_DATA_PACK_ARGS_FIELD_DEVICE_NAME = 1ul << 0
};

enum uct_cm_ep_resolve_args_field {
    UCT_CM_EP_RESOLVE_ARGS_FIELD_DEV_NAME = 1ul << 0,
    UCT_CM_EP_RESOLVE_ARGS_FIELD_STATUS = 1ul << 1
};

enum uct_cm_remote_data_field {
    UCT_CM_REMOTE_DATA_FIELD_DEV_ADDR = 1ul << 0,
    UCT_CM_REMOTE_DATA_FIELD_DEV_ADDR_LENGTH = 1ul << 1,
    UCT_CM_REMOTE_DATA_FIELD_CONN_PRIV_DATA = 1ul << 2,
    UCT_CM_REMOTE_DATA_FIELD_CONN_PRIV_DATA_LENGTH = 1ul << 3
};

enum uct_cm_listener_conn_request_args_field {
    UCT_CM_LISTENER_CONN_REQUEST_ARGS_FIELD_DEV_NAME = 1ul << 0,
    UCT_CM_LISTENER_CONN_REQUEST_ARGS_FIELD_CONN_REQUEST = 1ul << 1,
    UCT_CM_LISTENER_CONN_REQUEST_ARGS_FIELD_REMOTE_DATA = 1ul << 2,
    UCT_CM_LISTENER_CONN_REQUEST_ARGS_FIELD_CLIENT_ADDR = 1ul << 3
};

enum uct_cm_ep_client_connect_args_field {
    UCT_CM_EP_CLIENT_CONNECT_ARGS_FIELD_REMOTE_DATA = 1ul << 0,
    UCT_CM_EP_CLIENT_CONNECT_ARGS_FIELD_STATUS = 1ul << 1
};

enum uct_cm_ep_server_conn_notify_args_field {
    UCT_CM_EP_SERVER_CONN_NOTIFY_ARGS_FIELD_STATUS = 1ul << 0
};

typedef enum {
    UCT_SOCKADDR_ACC_LOCAL,
    UCT_SOCKADDR_ACC_REMOTE
} uct_sockaddr_accessibility_t;

typedef struct uct_cm_attr {
    uint64_t field_mask;
    size_t   max_conn_priv;
} uct_cm_attr_t;

typedef struct uct_listener_attr {
    uint64_t                field_mask;
    struct sockaddr_storage sockaddr;
} uct_listener_attr_t;

typedef struct uct_ep_connect_params {
    uint64_t   field_mask;
    const void *private_data;
    size_t     private_data_length;
} uct_ep_connect_params_t;

typedef struct uct_cm_ep_priv_data_pack_args {
    uint64_t field_mask;
    char     dev_name[UCT_DEVICE_NAME_MAX];
} uct_cm_ep_priv_data_pack_args_t;

typedef struct uct_cm_ep_resolve_args {
    uint64_t     field_mask;
    char         dev_name[UCT_DEVICE_NAME_MAX];
    ucs_status_t status;
} uct_cm_ep_resolve_args_t;

typedef struct uct_cm_remote_data {
    uint64_t                field_mask;
    const uct_device_addr_t *dev_addr;
    size_t                  dev_addr_length;
    const void              *conn_priv_data;
    size_t                  conn_priv_data_length;
} uct_cm_remote_data_t;

typedef struct uct_cm_listener_conn_request_args {
    uint64_t                   field_mask;
    char                       dev_name[UCT_DEVICE_NAME_MAX];
    uct_conn_request_h         conn_request;
    const uct_cm_remote_data_t *remote_data;
    ucs_sock_addr_t            client_address;
} uct_cm_listener_conn_request_args_t;

typedef struct uct_cm_ep_client_connect_args {
    uint64_t                   field_mask;
    const uct_cm_remote_data_t *remote_data;
    ucs_status_t               status;
} uct_cm_ep_client_connect_args_t;

typedef struct uct_cm_ep_server_conn_notify_args {
    uint64_t     field_mask;
    ucs_status_t status;
} uct_cm_ep_server_conn_notify_args_t;

typedef void (*uct_sockaddr_conn_request_callback_t)(uct_iface_h iface, void *arg, uct_conn_request_h conn_request,
                                                     const void *conn_priv_data, size_t length);
typedef void (*uct_cm_listener_conn_request_callback_t)(uct_listener_h listener, void *arg,
                                                        const uct_cm_listener_conn_request_args_t *conn_req_args);
typedef void (*uct_cm_ep_server_conn_notify_callback_t)(uct_ep_h ep, void *arg,
                                                        const uct_cm_ep_server_conn_notify_args_t *connect_args);
typedef void (*uct_cm_ep_client_connect_callback_t)(uct_ep_h ep, void *arg,
                                                    const uct_cm_ep_client_connect_args_t *connect_args);
typedef void (*uct_ep_disconnect_cb_t)(uct_ep_h ep, void *arg);
typedef ssize_t (*uct_cm_ep_priv_data_pack_callback_t)(void *arg, const uct_cm_ep_priv_data_pack_args_t *pack_args,
                                                       void *priv_data);
typedef ucs_status_t (*uct_cm_ep_resolve_callback_t)(void *user_data, const uct_cm_ep_resolve_args_t *resolve_args);

typedef struct uct_listener_params {
    uint64_t                                field_mask;
    int                                     backlog;
    uct_cm_listener_conn_request_callback_t conn_request_cb;
    void                                    *user_data;
} uct_listener_params_t;

/* Functions of a program that matches tags by a device, of which there is none, and of asynchronous events. */
typedef ucs_status_t (*uct_tag_unexp_eager_cb_t)(void *arg, void *data, size_t length, unsigned flags,
                                                 uct_tag_t stag, uint64_t imm, void **context);
typedef ucs_status_t (*uct_tag_unexp_rndv_cb_t)(void *arg, unsigned flags, uint64_t stag, const void *header,
                                                unsigned header_length, uint64_t remote_addr, size_t length,
                                                const void *rkey_buf);
typedef void (*uct_async_event_cb_t)(void *arg, unsigned flags);

enum {
    UCT_TAG_RECV_CB_INLINE_DATA = 1ul << 0
};

struct uct_tag_context {
    void (*tag_consumed_cb)(uct_tag_context_t *self);
    void (*completed_cb)(uct_tag_context_t *self, uct_tag_t stag, uint64_t imm, size_t length, void *inline_data,
                         ucs_status_t status);
    void (*rndv_cb)(uct_tag_context_t *self, uct_tag_t stag, const void *header, unsigned header_length,
                    ucs_status_t status, unsigned flags);
    char priv[UCT_TAG_PRIV_LEN];
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
    UCT_MD_FLAG_INVALIDATE = 1ul << 8,
    UCT_MD_FLAG_EXPORTED_MKEY = 1ul << 9,
    UCT_MD_FLAG_REG_DMABUF = 1ul << 10,
    UCT_MD_FLAG_LAST = 1ul << 11
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
    UCT_MD_MEM_SYMMETRIC_RKEY = 1ul << 10,
    UCT_MD_MEM_GVA = 1ul << 11,
    UCT_MD_MEM_ACCESS_ALL = 0x3e0,
    UCT_MD_MEM_ACCESS_RMA = 0x360
};

typedef enum {
    UCT_MADV_NORMAL,
    UCT_MADV_WILLNEED
} uct_mem_advice_t;

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
    ucs_sys_device_t        ctl_device;
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
typedef enum uct_am_trace_type {
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
            ucs_sock_addr_t                      listen_sockaddr;
            void                                 *conn_request_arg;
            uct_sockaddr_conn_request_callback_t conn_request_cb;
            uint32_t                             cb_flags;
        } sockaddr;
        struct {
            ucs_status_t status;
        } stub;
    } mode;
    ucs_stats_node_t    *stats_root;
    size_t              rx_headroom;
    void                *err_handler_arg;
    uct_error_handler_t err_handler;
    uint32_t            err_handler_flags;
    /* Of what follows nothing is read. */
    void                     *eager_arg;
    uct_tag_unexp_eager_cb_t eager_cb;
    void                     *rndv_arg;
    uct_tag_unexp_rndv_cb_t  rndv_cb;
    void                     *async_event_arg;
    uct_async_event_cb_t     async_event_cb;
    ucs_time_t               keepalive_interval;
    size_t                   am_alignment;
    size_t                   am_align_offset;
    uint64_t                 features;
} uct_iface_params_t;

typedef struct uct_ep_params {
    uint64_t                field_mask;
    uct_iface_h             iface;
    void                    *user_data;
    const uct_device_addr_t *dev_addr;
    const uct_iface_addr_t  *iface_addr;
    /* Of what follows nothing is read. */
    const ucs_sock_addr_t                   *sockaddr;
    uint32_t                                sockaddr_cb_flags;
    uct_cm_ep_priv_data_pack_callback_t     sockaddr_pack_cb;
    uct_cm_h                                cm;
    uct_conn_request_h                      conn_request;
    uct_cm_ep_client_connect_callback_t     sockaddr_cb_client;
    uct_cm_ep_server_conn_notify_callback_t sockaddr_cb_server;
    uct_ep_disconnect_cb_t                  disconnect_cb;
    unsigned                                path_index;
    uct_cm_ep_resolve_callback_t            cm_resolve_cb;
    const void                              *private_data;
    size_t                                  private_data_length;
    const ucs_sock_addr_t                   *local_sockaddr;
    size_t                                  dev_addr_length;
    size_t                                  iface_addr_length;
} uct_ep_params_t;

typedef enum uct_md_mem_attr_field {
    UCT_MD_MEM_ATTR_FIELD_MEM_TYPE = 1ul << 0,
    UCT_MD_MEM_ATTR_FIELD_SYS_DEV = 1ul << 1,
    UCT_MD_MEM_ATTR_FIELD_BASE_ADDRESS = 1ul << 2,
    UCT_MD_MEM_ATTR_FIELD_ALLOC_LENGTH = 1ul << 3,
    UCT_MD_MEM_ATTR_FIELD_DMABUF_FD = 1ul << 4,
    UCT_MD_MEM_ATTR_FIELD_DMABUF_OFFSET = 1ul << 5
} uct_md_mem_attr_field_t;

typedef struct uct_md_mem_attr {
    uint64_t          field_mask;
    ucs_memory_type_t mem_type;
    ucs_sys_device_t  sys_dev;
    void              *base_address;
    size_t            alloc_length;
    int               dmabuf_fd;
    size_t            dmabuf_offset;
} uct_md_mem_attr_t;

/* UCX 1.23 has a field more, `sys_device`. No mask says that there is room for it: it is not here. */
typedef struct uct_allocated_memory {
    void               *address;
    size_t             length;
    uct_alloc_method_t method;
    ucs_memory_type_t  mem_type;
    uct_md_h           md;
    uct_mem_h          memh;
} uct_allocated_memory_t;

typedef enum {
    UCT_MEM_ALLOC_PARAM_FIELD_FLAGS = 1ul << 0,
    UCT_MEM_ALLOC_PARAM_FIELD_ADDRESS = 1ul << 1,
    UCT_MEM_ALLOC_PARAM_FIELD_MEM_TYPE = 1ul << 2,
    UCT_MEM_ALLOC_PARAM_FIELD_MDS = 1ul << 3,
    UCT_MEM_ALLOC_PARAM_FIELD_NAME = 1ul << 4,
    UCT_MEM_ALLOC_PARAM_FIELD_SYS_DEVICE = 1ul << 5
} uct_mem_alloc_params_field_t;

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
    ucs_sys_device_t  sys_device;
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

/* Part of the C interface of this project (docs/abi.md). Source compatible with programs written for UCX 1.13 to 1.23. */
#ifndef UCP_API_UCP_DEF_H_
#define UCP_API_UCP_DEF_H_

#include <ucs/memory/memory_type.h>
#include <ucs/sys/compiler_def.h>
#include <ucs/sys/sock.h>
#include <ucs/type/cpu_set.h>
#include <ucs/type/status.h>
#include <ucs/type/thread_mode.h>

#include <stddef.h>
#include <stdint.h>

/* Handles. */
typedef struct ucp_context *ucp_context_h;
typedef struct ucp_worker *ucp_worker_h;
typedef struct ucp_ep *ucp_ep_h;
typedef struct ucp_mem *ucp_mem_h;
typedef struct ucp_rkey *ucp_rkey_h;
typedef struct ucp_listener *ucp_listener_h;
typedef struct ucp_recv_desc *ucp_tag_message_h;
typedef struct ucp_conn_request *ucp_conn_request_h;
typedef struct ucp_config ucp_config_t;
typedef struct ucp_address ucp_address_t;
typedef uint64_t ucp_tag_t;
typedef uint64_t ucp_datatype_t;

/* Lists of memory for code on a GPU (ucp/api/device/ucp_host.h): none is ever made. */
typedef struct ucp_device_local_mem_list *ucp_device_local_mem_list_h;
typedef struct ucp_device_remote_mem_list *ucp_device_remote_mem_list_h;

#define UCP_ENTITY_NAME_MAX 32

/* Address and key of puts and gets whose remote side is a list. */
#define UCP_REMOTE_ADDR_INVALID UINT64_MAX
#define UCP_RKEY_INVALID        NULL

/* Values: bits of masks and flags, and numbers. */

enum ucp_params_field {
    UCP_PARAM_FIELD_FEATURES = 1ul << 0,
    UCP_PARAM_FIELD_REQUEST_SIZE = 1ul << 1,
    UCP_PARAM_FIELD_REQUEST_INIT = 1ul << 2,
    UCP_PARAM_FIELD_REQUEST_CLEANUP = 1ul << 3,
    UCP_PARAM_FIELD_TAG_SENDER_MASK = 1ul << 4,
    UCP_PARAM_FIELD_MT_WORKERS_SHARED = 1ul << 5,
    UCP_PARAM_FIELD_ESTIMATED_NUM_EPS = 1ul << 6,
    UCP_PARAM_FIELD_ESTIMATED_NUM_PPN = 1ul << 7,
    UCP_PARAM_FIELD_NAME = 1ul << 8,
    UCP_PARAM_FIELD_NODE_LOCAL_ID = 1ul << 9
};

enum ucp_feature {
    UCP_FEATURE_TAG = 1ul << 0,
    UCP_FEATURE_RMA = 1ul << 1,
    UCP_FEATURE_AMO32 = 1ul << 2,
    UCP_FEATURE_AMO64 = 1ul << 3,
    UCP_FEATURE_WAKEUP = 1ul << 4,
    UCP_FEATURE_STREAM = 1ul << 5,
    UCP_FEATURE_AM = 1ul << 6,
    UCP_FEATURE_EXPORTED_MEMH = 1ul << 7,
    UCP_FEATURE_DEVICE = 1ul << 8
};

enum ucp_lib_attr_field {
    UCP_LIB_ATTR_FIELD_MAX_THREAD_LEVEL = 1ul << 0
};

enum ucp_context_attr_field {
    UCP_ATTR_FIELD_REQUEST_SIZE = 1ul << 0,
    UCP_ATTR_FIELD_THREAD_MODE = 1ul << 1,
    UCP_ATTR_FIELD_MEMORY_TYPES = 1ul << 2,
    UCP_ATTR_FIELD_NAME = 1ul << 3,
    UCP_ATTR_FIELD_DEVICE_COUNTER_SIZE = 1ul << 4
};

enum ucp_worker_params_field {
    UCP_WORKER_PARAM_FIELD_THREAD_MODE = 1ul << 0,
    UCP_WORKER_PARAM_FIELD_CPU_MASK = 1ul << 1,
    UCP_WORKER_PARAM_FIELD_EVENTS = 1ul << 2,
    UCP_WORKER_PARAM_FIELD_USER_DATA = 1ul << 3,
    UCP_WORKER_PARAM_FIELD_EVENT_FD = 1ul << 4,
    UCP_WORKER_PARAM_FIELD_FLAGS = 1ul << 5,
    UCP_WORKER_PARAM_FIELD_NAME = 1ul << 6,
    UCP_WORKER_PARAM_FIELD_AM_ALIGNMENT = 1ul << 7,
    UCP_WORKER_PARAM_FIELD_CLIENT_ID = 1ul << 8
};

typedef enum {
    UCP_WORKER_FLAG_IGNORE_REQUEST_LEAK = 1ul << 0
} ucp_worker_flags_t;

enum ucp_worker_attr_field {
    UCP_WORKER_ATTR_FIELD_THREAD_MODE = 1ul << 0,
    UCP_WORKER_ATTR_FIELD_ADDRESS = 1ul << 1,
    UCP_WORKER_ATTR_FIELD_ADDRESS_FLAGS = 1ul << 2,
    UCP_WORKER_ATTR_FIELD_MAX_AM_HEADER = 1ul << 3,
    UCP_WORKER_ATTR_FIELD_NAME = 1ul << 4,
    UCP_WORKER_ATTR_FIELD_MAX_INFO_STRING = 1ul << 5
};

typedef enum {
    UCP_WORKER_ADDRESS_FLAG_NET_ONLY = 1ul << 0
} ucp_worker_address_flags_t;

enum ucp_worker_address_attr_field {
    UCP_WORKER_ADDRESS_ATTR_FIELD_UID = 1ul << 0
};

typedef enum ucp_wakeup_event_types {
    UCP_WAKEUP_RMA = 1ul << 0,
    UCP_WAKEUP_AMO = 1ul << 1,
    UCP_WAKEUP_TAG_SEND = 1ul << 2,
    UCP_WAKEUP_TAG_RECV = 1ul << 3,
    UCP_WAKEUP_TX = 1ul << 10,
    UCP_WAKEUP_RX = 1ul << 11,
    UCP_WAKEUP_EDGE = 1ul << 16
} ucp_wakeup_event_t;

/* Its name in UCX 1.13. */
typedef ucp_wakeup_event_t ucp_wakeup_event_types_t;

enum ucp_listener_params_field {
    UCP_LISTENER_PARAM_FIELD_SOCK_ADDR = 1ul << 0,
    UCP_LISTENER_PARAM_FIELD_ACCEPT_HANDLER = 1ul << 1,
    UCP_LISTENER_PARAM_FIELD_CONN_HANDLER = 1ul << 2
};

enum ucp_listener_attr_field {
    UCP_LISTENER_ATTR_FIELD_SOCKADDR = 1ul << 0
};

enum ucp_conn_request_attr_field {
    UCP_CONN_REQUEST_ATTR_FIELD_CLIENT_ADDR = 1ul << 0,
    UCP_CONN_REQUEST_ATTR_FIELD_CLIENT_ID = 1ul << 1
};

typedef enum {
    UCP_ERR_HANDLING_MODE_NONE,
    UCP_ERR_HANDLING_MODE_PEER,
    UCP_ERR_HANDLING_MODE_FAILOVER
} ucp_err_handling_mode_t;

enum ucp_ep_params_field {
    UCP_EP_PARAM_FIELD_REMOTE_ADDRESS = 1ul << 0,
    UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE = 1ul << 1,
    UCP_EP_PARAM_FIELD_ERR_HANDLER = 1ul << 2,
    UCP_EP_PARAM_FIELD_USER_DATA = 1ul << 3,
    UCP_EP_PARAM_FIELD_SOCK_ADDR = 1ul << 4,
    UCP_EP_PARAM_FIELD_FLAGS = 1ul << 5,
    UCP_EP_PARAM_FIELD_CONN_REQUEST = 1ul << 6,
    UCP_EP_PARAM_FIELD_NAME = 1ul << 7,
    UCP_EP_PARAM_FIELD_LOCAL_SOCK_ADDR = 1ul << 8
};

enum ucp_ep_params_flags_field {
    UCP_EP_PARAMS_FLAGS_CLIENT_SERVER = 1ul << 0,
    UCP_EP_PARAMS_FLAGS_NO_LOOPBACK = 1ul << 1,
    UCP_EP_PARAMS_FLAGS_SEND_CLIENT_ID = 1ul << 2
};

typedef enum {
    UCP_EP_CLOSE_FLAG_FORCE = 1ul << 0
} ucp_ep_close_flags_t;

enum ucp_ep_close_mode {
    UCP_EP_CLOSE_MODE_FORCE = 0,
    UCP_EP_CLOSE_MODE_FLUSH = 1
};

enum ucp_ep_attr_field {
    UCP_EP_ATTR_FIELD_NAME = 1ul << 0,
    UCP_EP_ATTR_FIELD_LOCAL_SOCKADDR = 1ul << 1,
    UCP_EP_ATTR_FIELD_REMOTE_SOCKADDR = 1ul << 2,
    UCP_EP_ATTR_FIELD_TRANSPORTS = 1ul << 3,
    UCP_EP_ATTR_FIELD_USER_DATA = 1ul << 4
};

typedef enum ucp_ep_perf_param_field {
    UCP_EP_PERF_PARAM_FIELD_MESSAGE_SIZE = 1ul << 0
} ucp_ep_perf_param_field_t;

typedef enum ucp_ep_perf_attr_field {
    UCP_EP_PERF_ATTR_FIELD_ESTIMATED_TIME = 1ul << 0
} ucp_ep_perf_attr_field_t;

enum ucp_mem_map_params_field {
    UCP_MEM_MAP_PARAM_FIELD_ADDRESS = 1ul << 0,
    UCP_MEM_MAP_PARAM_FIELD_LENGTH = 1ul << 1,
    UCP_MEM_MAP_PARAM_FIELD_FLAGS = 1ul << 2,
    UCP_MEM_MAP_PARAM_FIELD_PROT = 1ul << 3,
    UCP_MEM_MAP_PARAM_FIELD_MEMORY_TYPE = 1ul << 4,
    UCP_MEM_MAP_PARAM_FIELD_EXPORTED_MEMH_BUFFER = 1ul << 5
};

enum {
    UCP_MEM_MAP_NONBLOCK = 1ul << 0,
    UCP_MEM_MAP_ALLOCATE = 1ul << 1,
    UCP_MEM_MAP_FIXED = 1ul << 2,
    UCP_MEM_MAP_SYMMETRIC_RKEY = 1ul << 3,
    UCP_MEM_MAP_LOCK = 1ul << 4
};

enum {
    UCP_MEM_MAP_PROT_LOCAL_READ = 1ul << 0,
    UCP_MEM_MAP_PROT_LOCAL_WRITE = 1ul << 1,
    UCP_MEM_MAP_PROT_REMOTE_READ = 1ul << 8,
    UCP_MEM_MAP_PROT_REMOTE_WRITE = 1ul << 9
};

enum ucp_mem_attr_field {
    UCP_MEM_ATTR_FIELD_ADDRESS = 1ul << 0,
    UCP_MEM_ATTR_FIELD_LENGTH = 1ul << 1,
    UCP_MEM_ATTR_FIELD_MEM_TYPE = 1ul << 2
};

enum ucp_mem_advise_params_field {
    UCP_MEM_ADVISE_PARAM_FIELD_ADDRESS = 1ul << 0,
    UCP_MEM_ADVISE_PARAM_FIELD_LENGTH = 1ul << 1,
    UCP_MEM_ADVISE_PARAM_FIELD_ADVICE = 1ul << 2
};

typedef enum ucp_mem_advice {
    UCP_MADV_NORMAL,
    UCP_MADV_WILLNEED
} ucp_mem_advice_t;

enum ucp_memh_pack_params_field {
    UCP_MEMH_PACK_PARAM_FIELD_FLAGS = 1ul << 0
};

enum ucp_memh_pack_flags {
    UCP_MEMH_PACK_FLAG_EXPORT = 1ul << 0
};

enum ucp_dt_type {
    UCP_DATATYPE_CONTIG = 0,
    UCP_DATATYPE_STRIDED = 1,
    UCP_DATATYPE_IOV = 2,
    UCP_DATATYPE_SGL = 4,
    UCP_DATATYPE_GENERIC = 7,
    UCP_DATATYPE_SHIFT = 3,
    UCP_DATATYPE_CLASS_MASK = 7
};

enum ucp_dt_local_sgl_field {
    UCP_DT_LOCAL_SGL_FIELD_BUFFERS = 1ul << 0,
    UCP_DT_LOCAL_SGL_FIELD_LENGTHS = 1ul << 1,
    UCP_DT_LOCAL_SGL_FIELD_MEMHS = 1ul << 2,
    UCP_DT_LOCAL_SGL_FIELD_COUNTS = 1ul << 3,
    UCP_DT_LOCAL_SGL_FIELD_STRIDES = 1ul << 4
};

enum ucp_dt_remote_sgl_field {
    UCP_DT_REMOTE_SGL_FIELD_REMOTE_ADDRS = 1ul << 0,
    UCP_DT_REMOTE_SGL_FIELD_LENGTHS = 1ul << 1,
    UCP_DT_REMOTE_SGL_FIELD_RKEYS = 1ul << 2
};

enum ucp_datatype_attr_field {
    UCP_DATATYPE_ATTR_FIELD_PACKED_SIZE = 1ul << 0,
    UCP_DATATYPE_ATTR_FIELD_BUFFER = 1ul << 1,
    UCP_DATATYPE_ATTR_FIELD_COUNT = 1ul << 2
};

enum ucp_am_cb_flags {
    UCP_AM_FLAG_WHOLE_MSG = 1ul << 0,
    UCP_AM_FLAG_PERSISTENT_DATA = 1ul << 1
};

enum ucp_send_am_flags {
    UCP_AM_SEND_FLAG_REPLY = 1ul << 0,
    UCP_AM_SEND_FLAG_EAGER = 1ul << 1,
    UCP_AM_SEND_FLAG_RNDV = 1ul << 2,
    UCP_AM_SEND_FLAG_COPY_HEADER = 1ul << 3
};

enum ucp_cb_param_flags {
    UCP_CB_PARAM_FLAG_DATA = 1ul << 0
};

enum ucp_am_handler_param_field {
    UCP_AM_HANDLER_PARAM_FIELD_ID = 1ul << 0,
    UCP_AM_HANDLER_PARAM_FIELD_FLAGS = 1ul << 1,
    UCP_AM_HANDLER_PARAM_FIELD_CB = 1ul << 2,
    UCP_AM_HANDLER_PARAM_FIELD_ARG = 1ul << 3
};

typedef enum {
    UCP_AM_RECV_ATTR_FIELD_REPLY_EP = 1ul << 0,
    UCP_AM_RECV_ATTR_FLAG_DATA = 1ul << 16,
    UCP_AM_RECV_ATTR_FLAG_RNDV = 1ul << 17
} ucp_am_recv_attr_t;

typedef enum {
    UCP_STREAM_RECV_FLAG_WAITALL = 1ul << 0
} ucp_stream_recv_flags_t;

typedef enum {
    UCP_ATOMIC_POST_OP_ADD,
    UCP_ATOMIC_POST_OP_AND,
    UCP_ATOMIC_POST_OP_OR,
    UCP_ATOMIC_POST_OP_XOR,
    UCP_ATOMIC_POST_OP_LAST
} ucp_atomic_post_op_t;

typedef enum {
    UCP_ATOMIC_FETCH_OP_FADD,
    UCP_ATOMIC_FETCH_OP_SWAP,
    UCP_ATOMIC_FETCH_OP_CSWAP,
    UCP_ATOMIC_FETCH_OP_FAND,
    UCP_ATOMIC_FETCH_OP_FOR,
    UCP_ATOMIC_FETCH_OP_FXOR,
    UCP_ATOMIC_FETCH_OP_LAST
} ucp_atomic_fetch_op_t;

typedef enum {
    UCP_ATOMIC_OP_ADD,
    UCP_ATOMIC_OP_SWAP,
    UCP_ATOMIC_OP_CSWAP,
    UCP_ATOMIC_OP_AND,
    UCP_ATOMIC_OP_OR,
    UCP_ATOMIC_OP_XOR,
    UCP_ATOMIC_OP_LAST
} ucp_atomic_op_t;

typedef enum {
    UCP_OP_ATTR_FIELD_REQUEST = 1ul << 0,
    UCP_OP_ATTR_FIELD_CALLBACK = 1ul << 1,
    UCP_OP_ATTR_FIELD_USER_DATA = 1ul << 2,
    UCP_OP_ATTR_FIELD_DATATYPE = 1ul << 3,
    UCP_OP_ATTR_FIELD_FLAGS = 1ul << 4,
    UCP_OP_ATTR_FIELD_REPLY_BUFFER = 1ul << 5,
    UCP_OP_ATTR_FIELD_MEMORY_TYPE = 1ul << 6,
    UCP_OP_ATTR_FIELD_RECV_INFO = 1ul << 7,
    UCP_OP_ATTR_FIELD_MEMH = 1ul << 8,
    UCP_OP_ATTR_FIELD_REMOTE_DATATYPE = 1ul << 9,
    UCP_OP_ATTR_FIELD_REMOTE = 1ul << 10,
    UCP_OP_ATTR_FIELD_REMOTE_COUNT = 1ul << 11,
    UCP_OP_ATTR_FLAG_NO_IMM_CMPL = 1ul << 16,
    UCP_OP_ATTR_FLAG_FAST_CMPL = 1ul << 17,
    UCP_OP_ATTR_FLAG_FORCE_IMM_CMPL = 1ul << 18,
    UCP_OP_ATTR_FLAG_MULTI_SEND = 1ul << 19
} ucp_op_attr_t;

enum ucp_req_attr_field {
    UCP_REQUEST_ATTR_FIELD_INFO_STRING = 1ul << 0,
    UCP_REQUEST_ATTR_FIELD_INFO_STRING_SIZE = 1ul << 1,
    UCP_REQUEST_ATTR_FIELD_STATUS = 1ul << 2,
    UCP_REQUEST_ATTR_FIELD_MEM_TYPE = 1ul << 3
};

#define UCP_AM_SEND_REPLY UCP_AM_SEND_FLAG_REPLY

#endif

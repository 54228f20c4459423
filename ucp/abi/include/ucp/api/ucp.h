/* Part of the C interface of this project (docs/abi.md). Source compatible with programs written for UCX 1.13 to 1.23. */
#ifndef UCP_API_UCP_H_
#define UCP_API_UCP_H_

#include <ucp/api/ucp_def.h>
#include <ucp/api/ucp_version.h>
#include <ucs/config/types.h>

#include <stdio.h>
#include <sys/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Functions of the program. */
typedef void (*ucp_request_init_callback_t)(void *request);
typedef void (*ucp_request_cleanup_callback_t)(void *request);
typedef void (*ucp_send_callback_t)(void *request, ucs_status_t status);
typedef void (*ucp_send_nbx_callback_t)(void *request, ucs_status_t status, void *user_data);
typedef void (*ucp_err_handler_cb_t)(void *arg, ucp_ep_h ep, ucs_status_t status);
typedef void (*ucp_listener_accept_callback_t)(ucp_ep_h ep, void *arg);
typedef void (*ucp_listener_conn_callback_t)(ucp_conn_request_h conn_request, void *arg);
typedef void (*ucp_stream_recv_callback_t)(void *request, ucs_status_t status, size_t length);
typedef void (*ucp_stream_recv_nbx_callback_t)(void *request, ucs_status_t status, size_t length, void *user_data);
typedef void (*ucp_am_recv_data_nbx_callback_t)(void *request, ucs_status_t status, size_t length, void *user_data);
typedef ucs_status_t (*ucp_am_callback_t)(void *arg, void *data, size_t length, ucp_ep_h reply_ep, unsigned flags);

/* Structures. A mask says which fields are set. */
typedef struct ucp_tag_recv_info {
    ucp_tag_t sender_tag;
    size_t length;
} ucp_tag_recv_info_t;

typedef void (*ucp_tag_recv_callback_t)(void *request, ucs_status_t status, ucp_tag_recv_info_t *info);
typedef void (*ucp_tag_recv_nbx_callback_t)(void *request, ucs_status_t status, const ucp_tag_recv_info_t *tag_info,
                                            void *user_data);

typedef struct ucp_err_handler {
    ucp_err_handler_cb_t cb;
    void *arg;
} ucp_err_handler_t;

typedef struct ucp_listener_accept_handler {
    ucp_listener_accept_callback_t cb;
    void *arg;
} ucp_listener_accept_handler_t;

typedef struct ucp_listener_conn_handler {
    ucp_listener_conn_callback_t cb;
    void *arg;
} ucp_listener_conn_handler_t;

typedef struct ucp_am_recv_param {
    uint64_t recv_attr;
    ucp_ep_h reply_ep;
} ucp_am_recv_param_t;

typedef ucs_status_t (*ucp_am_recv_callback_t)(void *arg, const void *header, size_t header_length, void *data,
                                               size_t length, const ucp_am_recv_param_t *param);

typedef struct ucp_params {
    uint64_t field_mask;
    uint64_t features;
    size_t request_size;
    ucp_request_init_callback_t request_init;
    ucp_request_cleanup_callback_t request_cleanup;
    uint64_t tag_sender_mask;
    int mt_workers_shared;
    size_t estimated_num_eps;
    size_t estimated_num_ppn;
    const char *name;
    size_t node_local_id;
} ucp_params_t;

typedef struct ucp_lib_attr {
    uint64_t field_mask;
    ucs_thread_mode_t max_thread_level;
} ucp_lib_attr_t;

typedef struct ucp_context_attr {
    uint64_t field_mask;
    size_t request_size;
    ucs_thread_mode_t thread_mode;
    uint64_t memory_types;
    char name[UCP_ENTITY_NAME_MAX];
    size_t device_counter_size;
} ucp_context_attr_t;

typedef struct ucp_worker_params {
    uint64_t field_mask;
    ucs_thread_mode_t thread_mode;
    ucs_cpu_set_t cpu_mask;
    unsigned events;
    void *user_data;
    int event_fd;
    uint64_t flags;
    const char *name;
    size_t am_alignment;
    uint64_t client_id;
} ucp_worker_params_t;

typedef struct ucp_worker_attr {
    uint64_t field_mask;
    ucs_thread_mode_t thread_mode;
    uint32_t address_flags;
    ucp_address_t *address;
    size_t address_length;
    size_t max_am_header;
    char name[UCP_ENTITY_NAME_MAX];
    size_t max_debug_string;
} ucp_worker_attr_t;

typedef struct ucp_worker_address_attr {
    uint64_t field_mask;
    uint64_t worker_uid;
} ucp_worker_address_attr_t;

typedef struct ucp_ep_params {
    uint64_t field_mask;
    const ucp_address_t *address;
    ucp_err_handling_mode_t err_mode;
    ucp_err_handler_t err_handler;
    void *user_data;
    unsigned flags;
    ucs_sock_addr_t sockaddr;
    ucp_conn_request_h conn_request;
    const char *name;
    ucs_sock_addr_t local_sockaddr;
} ucp_ep_params_t;

typedef struct ucp_transport_entry {
    const char *transport_name;
    const char *device_name;
} ucp_transport_entry_t;

typedef struct ucp_transports {
    ucp_transport_entry_t *entries;
    unsigned num_entries;
    size_t entry_size;
} ucp_transports_t;

typedef struct ucp_ep_attr {
    uint64_t field_mask;
    char name[UCP_ENTITY_NAME_MAX];
    struct sockaddr_storage local_sockaddr;
    struct sockaddr_storage remote_sockaddr;
    ucp_transports_t transports;
    void *user_data;
} ucp_ep_attr_t;

typedef struct ucp_ep_evaluate_perf_param {
    uint64_t field_mask;
    size_t message_size;
} ucp_ep_evaluate_perf_param_t;

typedef struct ucp_ep_evaluate_perf_attr {
    uint64_t field_mask;
    double estimated_time;
} ucp_ep_evaluate_perf_attr_t;

typedef struct ucp_mem_map_params {
    uint64_t field_mask;
    void *address;
    size_t length;
    unsigned flags;
    unsigned prot;
    ucs_memory_type_t memory_type;
    const void *exported_memh_buffer;
} ucp_mem_map_params_t;

typedef struct ucp_mem_attr {
    uint64_t field_mask;
    void *address;
    size_t length;
    ucs_memory_type_t mem_type;
} ucp_mem_attr_t;

typedef struct ucp_mem_advise_params {
    uint64_t field_mask;
    void *address;
    size_t length;
    ucp_mem_advice_t advice;
} ucp_mem_advise_params_t;

typedef struct ucp_memh_pack_params {
    uint64_t field_mask;
    uint64_t flags;
} ucp_memh_pack_params_t;

typedef struct ucp_memh_buffer_release_params {
    uint64_t field_mask;
} ucp_memh_buffer_release_params_t;

typedef struct ucp_rkey_compare_params {
    uint64_t field_mask;
} ucp_rkey_compare_params_t;

typedef struct ucp_listener_params {
    uint64_t field_mask;
    ucs_sock_addr_t sockaddr;
    ucp_listener_accept_handler_t accept_handler;
    ucp_listener_conn_handler_t conn_handler;
} ucp_listener_params_t;

typedef struct ucp_listener_attr {
    uint64_t field_mask;
    struct sockaddr_storage sockaddr;
} ucp_listener_attr_t;

typedef struct ucp_conn_request_attr {
    uint64_t field_mask;
    struct sockaddr_storage client_address;
    uint64_t client_id;
} ucp_conn_request_attr_t;

typedef struct ucp_stream_poll_ep {
    ucp_ep_h ep;
    void *user_data;
    unsigned flags;
    uint8_t reserved[16];
} ucp_stream_poll_ep_t;

typedef struct ucp_am_handler_param {
    uint64_t field_mask;
    unsigned id;
    uint32_t flags;
    ucp_am_recv_callback_t cb;
    void *arg;
} ucp_am_handler_param_t;

typedef struct ucp_dt_iov {
    void *buffer;
    size_t length;
} ucp_dt_iov_t;

/* Lists of local and remote memory of one put or get, of equal lengths. Counts and strides are refused. */
typedef struct {
    uint64_t        field_mask;
    void * const    *buffers;
    const size_t    *lengths;
    ucp_mem_h const *memhs;
    const size_t    *counts;
    const size_t    *strides;
} ucp_dt_local_sgl_t;

typedef struct {
    uint64_t         field_mask;
    const uint64_t   *remote_addrs;
    const size_t     *lengths;
    ucp_rkey_h const *rkeys;
} ucp_dt_remote_sgl_t;

typedef struct ucp_generic_dt_ops {
    void *(*start_pack)(void *context, const void *buffer, size_t count);
    void *(*start_unpack)(void *context, void *buffer, size_t count);
    size_t (*packed_size)(void *state);
    size_t (*pack)(void *state, size_t offset, void *dest, size_t max_length);
    ucs_status_t (*unpack)(void *state, size_t offset, const void *src, size_t length);
    void (*finish)(void *state);
} ucp_generic_dt_ops_t;

typedef struct ucp_datatype_attr {
    uint64_t field_mask;
    size_t packed_size;
    const void *buffer;
    size_t count;
} ucp_datatype_attr_t;

typedef struct {
    uint32_t op_attr_mask;
    uint32_t flags;
    void     *request;
    union {
        ucp_send_nbx_callback_t         send;
        ucp_tag_recv_nbx_callback_t     recv;
        ucp_stream_recv_nbx_callback_t  recv_stream;
        ucp_am_recv_data_nbx_callback_t recv_am;
    } cb;
    ucp_datatype_t    datatype;
    void              *user_data;
    void              *reply_buffer;
    ucs_memory_type_t memory_type;
    union {
        size_t              *length;
        ucp_tag_recv_info_t *tag_info;
    } recv_info;
    ucp_mem_h memh;
    ucp_datatype_t remote_datatype;
    const void *remote;
    size_t remote_count;
} ucp_request_param_t;

typedef struct ucp_request_attr {
    uint64_t field_mask;
    char *debug_string;
    size_t debug_string_size;
    ucs_status_t status;
    ucs_memory_type_t mem_type;
} ucp_request_attr_t;

/* Element types of data. */
#define ucp_dt_make_contig(_elem_size) (((ucp_datatype_t)(_elem_size) << UCP_DATATYPE_SHIFT) | UCP_DATATYPE_CONTIG)
#define ucp_dt_make_iov()              ((ucp_datatype_t)UCP_DATATYPE_IOV)
#define ucp_dt_make_sgl()              ((ucp_datatype_t)UCP_DATATYPE_SGL)

/* Contexts, and what the library says of itself */
ucs_status_t ucp_init_version(unsigned major, unsigned minor, const ucp_params_t *params,
                              const ucp_config_t *config, ucp_context_h *context);
void ucp_cleanup(ucp_context_h context);
ucs_status_t ucp_context_query(ucp_context_h context, ucp_context_attr_t *attr);
ucs_status_t ucp_lib_query(ucp_lib_attr_t *attr);
void ucp_get_version(unsigned *major, unsigned *minor, unsigned *release);
const char *ucp_get_version_string(void);

/* Configurations */
ucs_status_t ucp_config_read(const char *prefix, const char *filename, ucp_config_t **config);
void ucp_config_release(ucp_config_t *config);
ucs_status_t ucp_config_modify(ucp_config_t *config, const char *name, const char *value);
void ucp_config_print(const ucp_config_t *config, FILE *stream, const char *title,
                      ucs_config_print_flags_t flags);

/* Workers */
ucs_status_t ucp_worker_create(ucp_context_h context, const ucp_worker_params_t *params,
                               ucp_worker_h *worker);
void ucp_worker_destroy(ucp_worker_h worker);
ucs_status_t ucp_worker_query(ucp_worker_h worker, ucp_worker_attr_t *attr);
ucs_status_t ucp_worker_get_address(ucp_worker_h worker, ucp_address_t **address, size_t *len);
void ucp_worker_release_address(ucp_worker_h worker, ucp_address_t *address);
ucs_status_t ucp_worker_address_query(ucp_address_t *address, ucp_worker_address_attr_t *attr);
unsigned ucp_worker_progress(ucp_worker_h worker);

/* Sleeping for events */
ucs_status_t ucp_worker_get_efd(ucp_worker_h worker, int *fd);
ucs_status_t ucp_worker_arm(ucp_worker_h worker);
ucs_status_t ucp_worker_wait(ucp_worker_h worker);
void ucp_worker_wait_mem(ucp_worker_h worker, void *address);
ucs_status_t ucp_worker_signal(ucp_worker_h worker);

/* Endpoints */
ucs_status_t ucp_ep_create(ucp_worker_h worker, const ucp_ep_params_t *params, ucp_ep_h *ep);
ucs_status_ptr_t ucp_ep_close_nbx(ucp_ep_h ep, const ucp_request_param_t *param);
ucs_status_ptr_t ucp_ep_close_nb(ucp_ep_h ep, unsigned mode);
ucs_status_ptr_t ucp_disconnect_nb(ucp_ep_h ep);
void ucp_ep_destroy(ucp_ep_h ep);
ucs_status_ptr_t ucp_ep_modify_nb(ucp_ep_h ep, const ucp_ep_params_t *params);
ucs_status_t ucp_ep_query(ucp_ep_h ep, ucp_ep_attr_t *attr);
ucs_status_t ucp_ep_evaluate_perf(ucp_ep_h ep, const ucp_ep_evaluate_perf_param_t *param,
                                  ucp_ep_evaluate_perf_attr_t *attr);

/* Requests */
ucs_status_t ucp_request_check_status(void *request);
ucs_status_t ucp_tag_recv_request_test(void *request, ucp_tag_recv_info_t *info);
ucs_status_t ucp_request_test(void *request, ucp_tag_recv_info_t *info);
ucs_status_t ucp_stream_recv_request_test(void *request, size_t *length);
int ucp_request_is_completed(void *request);
void ucp_request_free(void *request);
void ucp_request_release(void *request);
void ucp_request_cancel(ucp_worker_h worker, void *request);
void *ucp_request_alloc(ucp_worker_h worker);
ucs_status_t ucp_request_query(void *request, ucp_request_attr_t *attr);

/* Tagged messages */
ucs_status_ptr_t ucp_tag_send_nbx(ucp_ep_h ep, const void *buffer, size_t count, ucp_tag_t tag,
                                  const ucp_request_param_t *param);
ucs_status_ptr_t ucp_tag_send_sync_nbx(ucp_ep_h ep, const void *buffer, size_t count, ucp_tag_t tag,
                                       const ucp_request_param_t *param);
ucs_status_ptr_t ucp_tag_send_nb(ucp_ep_h ep, const void *buffer, size_t count, ucp_datatype_t datatype,
                                 ucp_tag_t tag, ucp_send_callback_t cb);
ucs_status_ptr_t ucp_tag_send_sync_nb(ucp_ep_h ep, const void *buffer, size_t count, ucp_datatype_t datatype,
                                      ucp_tag_t tag, ucp_send_callback_t cb);
ucs_status_t ucp_tag_send_nbr(ucp_ep_h ep, const void *buffer, size_t count, ucp_datatype_t datatype,
                              ucp_tag_t tag, void *request);
ucs_status_ptr_t ucp_tag_recv_nbx(ucp_worker_h worker, void *buffer, size_t count, ucp_tag_t tag,
                                  ucp_tag_t mask, const ucp_request_param_t *param);
ucs_status_ptr_t ucp_tag_recv_nb(ucp_worker_h worker, void *buffer, size_t count, ucp_datatype_t datatype,
                                 ucp_tag_t tag, ucp_tag_t mask, ucp_tag_recv_callback_t cb);
ucs_status_t ucp_tag_recv_nbr(ucp_worker_h worker, void *buffer, size_t count, ucp_datatype_t datatype,
                              ucp_tag_t tag, ucp_tag_t mask, void *request);
ucp_tag_message_h ucp_tag_probe_nb(ucp_worker_h worker, ucp_tag_t tag, ucp_tag_t mask, int remove,
                                   ucp_tag_recv_info_t *info);
ucs_status_ptr_t ucp_tag_msg_recv_nb(ucp_worker_h worker, void *buffer, size_t count, ucp_datatype_t datatype,
                                     ucp_tag_message_h message, ucp_tag_recv_callback_t cb);
ucs_status_ptr_t ucp_tag_msg_recv_nbx(ucp_worker_h worker, void *buffer, size_t count,
                                      ucp_tag_message_h message, const ucp_request_param_t *param);

/* Active messages, by the present interface and the old one */
ucs_status_t ucp_worker_set_am_recv_handler(ucp_worker_h worker, const ucp_am_handler_param_t *param);
ucs_status_t ucp_worker_set_am_handler(ucp_worker_h worker, uint16_t id, ucp_am_callback_t cb, void *arg,
                                       uint32_t flags);
ucs_status_ptr_t ucp_am_send_nbx(ucp_ep_h ep, unsigned id, const void *header, size_t header_length,
                                 const void *buffer, size_t count, const ucp_request_param_t *param);
ucs_status_ptr_t ucp_am_send_nb(ucp_ep_h ep, uint16_t id, const void *buffer, size_t count,
                                ucp_datatype_t datatype, ucp_send_callback_t cb, unsigned flags);
ucs_status_ptr_t ucp_am_recv_data_nbx(ucp_worker_h worker, void *desc, void *buffer, size_t count,
                                      const ucp_request_param_t *param);
void ucp_am_data_release(ucp_worker_h worker, void *data);

/* Streams */
ucs_status_ptr_t ucp_stream_send_nbx(ucp_ep_h ep, const void *buffer, size_t count,
                                     const ucp_request_param_t *param);
ucs_status_ptr_t ucp_stream_send_nb(ucp_ep_h ep, const void *buffer, size_t count, ucp_datatype_t datatype,
                                    ucp_send_callback_t cb, unsigned flags);
ucs_status_ptr_t ucp_stream_recv_nbx(ucp_ep_h ep, void *buffer, size_t count, size_t *length,
                                     const ucp_request_param_t *param);
ucs_status_ptr_t ucp_stream_recv_nb(ucp_ep_h ep, void *buffer, size_t count, ucp_datatype_t datatype,
                                    ucp_stream_recv_callback_t cb, size_t *length, unsigned flags);
ucs_status_ptr_t ucp_stream_recv_data_nb(ucp_ep_h ep, size_t *length);
void ucp_stream_data_release(ucp_ep_h ep, void *data);
ssize_t ucp_stream_worker_poll(ucp_worker_h worker, ucp_stream_poll_ep_t *found, size_t max, unsigned flags);

/* Memory that peers may access */
ucs_status_t ucp_mem_map(ucp_context_h context, const ucp_mem_map_params_t *params, ucp_mem_h *memh);
ucs_status_t ucp_mem_unmap(ucp_context_h context, ucp_mem_h memh);
ucs_status_t ucp_mem_query(const ucp_mem_h memh, ucp_mem_attr_t *attr);
ucs_status_t ucp_mem_advise(ucp_context_h context, ucp_mem_h memh, ucp_mem_advise_params_t *params);
ucs_status_t ucp_memh_pack(ucp_mem_h memh, const ucp_memh_pack_params_t *params, void **buffer, size_t *size);
void ucp_memh_buffer_release(void *buffer, const ucp_memh_buffer_release_params_t *params);

/* Remote keys */
ucs_status_t ucp_rkey_pack(ucp_context_h context, ucp_mem_h memh, void **buffer, size_t *size);
void ucp_rkey_buffer_release(void *buffer);
ucs_status_t ucp_ep_rkey_unpack(ucp_ep_h ep, const void *buffer, ucp_rkey_h *rkey);
void ucp_rkey_destroy(ucp_rkey_h rkey);
ucs_status_t ucp_rkey_ptr(ucp_rkey_h rkey, uint64_t raddr, void **addr);
ucs_status_t ucp_rkey_compare(ucp_worker_h worker, ucp_rkey_h one, ucp_rkey_h other,
                              const ucp_rkey_compare_params_t *params, int *result);

/* Put and get */
ucs_status_ptr_t ucp_put_nbx(ucp_ep_h ep, const void *buffer, size_t count, uint64_t remote, ucp_rkey_h rkey,
                             const ucp_request_param_t *param);
ucs_status_ptr_t ucp_put_nb(ucp_ep_h ep, const void *buffer, size_t len, uint64_t remote, ucp_rkey_h rkey,
                            ucp_send_callback_t cb);
ucs_status_t ucp_put_nbi(ucp_ep_h ep, const void *buffer, size_t len, uint64_t remote, ucp_rkey_h rkey);
ucs_status_t ucp_put(ucp_ep_h ep, const void *buffer, size_t len, uint64_t remote, ucp_rkey_h rkey);
ucs_status_ptr_t ucp_get_nbx(ucp_ep_h ep, void *buffer, size_t count, uint64_t remote, ucp_rkey_h rkey,
                             const ucp_request_param_t *param);
ucs_status_ptr_t ucp_get_nb(ucp_ep_h ep, void *buffer, size_t len, uint64_t remote, ucp_rkey_h rkey,
                            ucp_send_callback_t cb);
ucs_status_t ucp_get_nbi(ucp_ep_h ep, void *buffer, size_t len, uint64_t remote, ucp_rkey_h rkey);
ucs_status_t ucp_get(ucp_ep_h ep, void *buffer, size_t len, uint64_t remote, ucp_rkey_h rkey);

/* Atomic operations on 32- and 64-bit words */
ucs_status_t ucp_atomic_post(ucp_ep_h ep, ucp_atomic_post_op_t opcode, uint64_t value, size_t size,
                             uint64_t remote, ucp_rkey_h rkey);
ucs_status_ptr_t ucp_atomic_fetch_nb(ucp_ep_h ep, ucp_atomic_fetch_op_t opcode, uint64_t value, void *result,
                                     size_t size, uint64_t remote, ucp_rkey_h rkey, ucp_send_callback_t cb);
ucs_status_ptr_t ucp_atomic_op_nbx(ucp_ep_h ep, ucp_atomic_op_t opcode, const void *buffer, size_t count,
                                   uint64_t remote, ucp_rkey_h rkey, const ucp_request_param_t *param);
ucs_status_t ucp_atomic_add32(ucp_ep_h ep, uint32_t add, uint64_t remote, ucp_rkey_h rkey);
ucs_status_t ucp_atomic_add64(ucp_ep_h ep, uint64_t add, uint64_t remote, ucp_rkey_h rkey);
ucs_status_t ucp_atomic_fadd32(ucp_ep_h ep, uint32_t add, uint64_t remote, ucp_rkey_h rkey, uint32_t *result);
ucs_status_t ucp_atomic_fadd64(ucp_ep_h ep, uint64_t add, uint64_t remote, ucp_rkey_h rkey, uint64_t *result);
ucs_status_t ucp_atomic_swap32(ucp_ep_h ep, uint32_t swap, uint64_t remote, ucp_rkey_h rkey,
                               uint32_t *result);
ucs_status_t ucp_atomic_swap64(ucp_ep_h ep, uint64_t swap, uint64_t remote, ucp_rkey_h rkey,
                               uint64_t *result);
ucs_status_t ucp_atomic_cswap32(ucp_ep_h ep, uint32_t compare, uint32_t swap, uint64_t remote,
                                ucp_rkey_h rkey, uint32_t *result);
ucs_status_t ucp_atomic_cswap64(ucp_ep_h ep, uint64_t compare, uint64_t swap, uint64_t remote,
                                ucp_rkey_h rkey, uint64_t *result);

/* Flush and fence */
ucs_status_ptr_t ucp_ep_flush_nbx(ucp_ep_h ep, const ucp_request_param_t *param);
ucs_status_ptr_t ucp_ep_flush_nb(ucp_ep_h ep, unsigned flags, ucp_send_callback_t cb);
ucs_status_t ucp_ep_flush(ucp_ep_h ep);
ucs_status_ptr_t ucp_worker_flush_nbx(ucp_worker_h worker, const ucp_request_param_t *param);
ucs_status_ptr_t ucp_worker_flush_nb(ucp_worker_h worker, unsigned flags, ucp_send_callback_t cb);
ucs_status_t ucp_worker_flush(ucp_worker_h worker);
ucs_status_t ucp_worker_fence(ucp_worker_h worker);

/* Client-server connections */
ucs_status_t ucp_listener_create(ucp_worker_h worker, const ucp_listener_params_t *params,
                                 ucp_listener_h *listener);
void ucp_listener_destroy(ucp_listener_h listener);
ucs_status_t ucp_listener_query(ucp_listener_h listener, ucp_listener_attr_t *attr);
ucs_status_t ucp_listener_reject(ucp_listener_h listener, ucp_conn_request_h request);
ucs_status_t ucp_conn_request_query(ucp_conn_request_h request, ucp_conn_request_attr_t *attr);

/* Datatypes */
ucs_status_t ucp_dt_create_generic(const ucp_generic_dt_ops_t *ops, void *context, ucp_datatype_t *datatype);
void ucp_dt_destroy(ucp_datatype_t datatype);
ucs_status_t ucp_dt_query(ucp_datatype_t datatype, ucp_datatype_attr_t *attr);

/* Functions that print, to a stream of the C library */
void ucp_context_print_info(const ucp_context_h context, FILE *stream);
void ucp_worker_print_info(ucp_worker_h worker, FILE *stream);
void ucp_ep_print_info(ucp_ep_h ep, FILE *stream);
void ucp_mem_print_info(const char *size, ucp_context_h context, FILE *stream);

static inline ucs_status_t ucp_init(const ucp_params_t *params, const ucp_config_t *config, ucp_context_h *context)
{
    return ucp_init_version(UCP_API_MAJOR, UCP_API_MINOR, params, config, context);
}

#ifdef __cplusplus
}
#endif

#endif

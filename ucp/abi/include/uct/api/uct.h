/* Part of the C interface of this project (docs/abi.md). Source compatible with programs written for UCX 1.13 to 1.23. */
#ifndef UCT_API_UCT_H_
#define UCT_API_UCT_H_

#include <uct/api/tl.h>
#include <uct/api/uct_def.h>

#ifdef __cplusplus
extern "C" {
#endif

extern const char *uct_alloc_method_names[];
extern const char *uct_device_type_names[];

ucs_status_t uct_query_components(uct_component_h **components_p, unsigned *num_components_p);
void uct_release_component_list(uct_component_h *components);
ucs_status_t uct_component_query(uct_component_h component, uct_component_attr_t *component_attr);
ucs_status_t uct_md_open(uct_component_h component, const char *md_name, const uct_md_config_t *config,
    uct_md_h *md_p);
void uct_md_close(uct_md_h md);
ucs_status_t uct_md_query(uct_md_h md, uct_md_attr_t *md_attr);
ucs_status_t uct_md_query_tl_resources(uct_md_h md, uct_tl_resource_desc_t **resources_p,
    unsigned *num_resources_p);
void uct_release_tl_resource_list(uct_tl_resource_desc_t *resources);
ucs_status_t uct_md_config_read(uct_component_h component, const char *env_prefix, const char *filename,
    uct_md_config_t **config_p);
ucs_status_t uct_md_iface_config_read(uct_md_h md, const char *tl_name, const char *env_prefix,
    const char *filename, uct_iface_config_t **config_p);
void uct_config_release(void *config);
ucs_status_t uct_config_get(void *config, const char *name, char *value, size_t max);
ucs_status_t uct_config_modify(void *config, const char *name, const char *value);
ucs_status_t uct_md_mem_reg(uct_md_h md, void *address, size_t length, unsigned flags, uct_mem_h *memh_p);
ucs_status_t uct_md_mem_dereg(uct_md_h md, uct_mem_h memh);
ucs_status_t uct_md_mem_advise(uct_md_h md, uct_mem_h memh, void *addr, size_t length,
    uct_mem_advice_t advice);
ucs_status_t uct_md_mem_query(uct_md_h md, const void *address, size_t length, uct_md_mem_attr_t *mem_attr);
ucs_status_t uct_md_detect_memory_type(uct_md_h md, const void *addr, size_t length,
    ucs_memory_type_t *mem_type_p);
ucs_status_t uct_mem_alloc(size_t length, const uct_alloc_method_t *methods, unsigned num_methods,
    const uct_mem_alloc_params_t *params, uct_allocated_memory_t *mem);
ucs_status_t uct_mem_free(const uct_allocated_memory_t *mem);
ucs_status_t uct_md_mkey_pack(uct_md_h md, uct_mem_h memh, void *rkey_buffer);
ucs_status_t uct_rkey_unpack(uct_component_h component, const void *rkey_buffer, uct_rkey_bundle_t *rkey_ob);
ucs_status_t uct_rkey_ptr(uct_component_h component, uct_rkey_bundle_t *rkey_ob, uint64_t remote_addr,
    void **addr_p);
ucs_status_t uct_rkey_release(uct_component_h component, const uct_rkey_bundle_t *rkey_ob);
ucs_status_t uct_worker_create(ucs_async_context_t *async, ucs_thread_mode_t thread_mode,
    uct_worker_h *worker_p);
void uct_worker_destroy(uct_worker_h worker);
void uct_worker_progress_register_safe(uct_worker_h worker, ucs_callback_t func, void *arg, unsigned flags,
    uct_worker_cb_id_t *id_p);
void uct_worker_progress_unregister_safe(uct_worker_h worker, uct_worker_cb_id_t *id_p);
ucs_status_t uct_iface_open(uct_md_h md, uct_worker_h worker, const uct_iface_params_t *params,
    const uct_iface_config_t *config, uct_iface_h *iface_p);
void uct_iface_close(uct_iface_h iface);
ucs_status_t uct_iface_query(uct_iface_h iface, uct_iface_attr_t *iface_attr);
ucs_status_t uct_iface_get_device_address(uct_iface_h iface, uct_device_addr_t *addr);
ucs_status_t uct_iface_get_address(uct_iface_h iface, uct_iface_addr_t *addr);
int uct_iface_is_reachable(const uct_iface_h iface, const uct_device_addr_t *dev_addr,
    const uct_iface_addr_t *iface_addr);
ucs_status_t uct_iface_event_fd_get(uct_iface_h iface, int *fd_p);
ucs_status_t uct_iface_event_arm(uct_iface_h iface, unsigned events);
ucs_status_t uct_iface_mem_alloc(uct_iface_h iface, size_t length, unsigned flags, const char *name,
    uct_allocated_memory_t *mem);
void uct_iface_mem_free(const uct_allocated_memory_t *mem);
ucs_status_t uct_iface_set_am_handler(uct_iface_h iface, uint8_t id, uct_am_callback_t cb, void *arg,
    uint32_t flags);
ucs_status_t uct_iface_set_am_tracer(uct_iface_h iface, uct_am_tracer_t tracer, void *arg);
ucs_status_t uct_ep_create(const uct_ep_params_t *params, uct_ep_h *ep_p);
void uct_ep_destroy(uct_ep_h ep);
ucs_status_t uct_ep_get_address(uct_ep_h ep, uct_ep_addr_t *addr);
ucs_status_t uct_ep_connect_to_ep(uct_ep_h ep, const uct_device_addr_t *dev_addr,
    const uct_ep_addr_t *ep_addr);
ucs_status_t uct_ep_check(const uct_ep_h ep, unsigned flags, uct_completion_t *comp);
ucs_status_t uct_cm_open(uct_component_h component, uct_worker_h worker, const uct_cm_config_t *config,
    uct_cm_h *cm_p);
void uct_cm_close(uct_cm_h cm);
ucs_status_t uct_cm_query(uct_cm_h cm, uct_cm_attr_t *cm_attr);
ucs_status_t uct_cm_config_read(uct_component_h component, const char *env_prefix, const char *filename,
    uct_cm_config_t **config_p);
ucs_status_t uct_cm_client_ep_conn_notify(uct_ep_h ep);
ucs_status_t uct_listener_create(uct_cm_h cm, const struct sockaddr *saddr, socklen_t socklen,
    const uct_listener_params_t *params, uct_listener_h *listener_p);
void uct_listener_destroy(uct_listener_h listener);
ucs_status_t uct_listener_reject(uct_listener_h listener, uct_conn_request_h conn_request);
ucs_status_t uct_listener_query(uct_listener_h listener, uct_listener_attr_t *listener_attr);
ucs_status_t uct_iface_accept(uct_iface_h iface, uct_conn_request_h conn_request);
ucs_status_t uct_iface_reject(uct_iface_h iface, uct_conn_request_h conn_request);
ucs_status_t uct_ep_connect(uct_ep_h ep, const uct_ep_connect_params_t *params);
ucs_status_t uct_ep_disconnect(uct_ep_h ep, unsigned flags);
int uct_md_is_sockaddr_accessible(uct_md_h md, const ucs_sock_addr_t *sockaddr,
    uct_sockaddr_accessibility_t mode);

/* Calls through the table of an interface. */

static inline void uct_iface_release_desc(void *desc)
{
    uct_recv_desc_t *found = uct_recv_desc(desc);
    found->cb(found, desc);
}

static inline unsigned uct_worker_progress(uct_worker_h worker)
{
    return ucs_callbackq_dispatch(&worker->progress_q);
}

static inline ucs_status_t uct_ep_put_short(uct_ep_h ep, const void *buffer, unsigned length,
    uint64_t remote_addr, uct_rkey_t rkey)
{
    return ep->iface->ops.ep_put_short(ep, buffer, length, remote_addr, rkey);
}

static inline ssize_t uct_ep_put_bcopy(uct_ep_h ep, uct_pack_callback_t pack_cb, void *arg,
    uint64_t remote_addr, uct_rkey_t rkey)
{
    return ep->iface->ops.ep_put_bcopy(ep, pack_cb, arg, remote_addr, rkey);
}

static inline ucs_status_t uct_ep_put_zcopy(uct_ep_h ep, const uct_iov_t *iov, size_t iovcnt,
    uint64_t remote_addr, uct_rkey_t rkey, uct_completion_t *comp)
{
    return ep->iface->ops.ep_put_zcopy(ep, iov, iovcnt, remote_addr, rkey, comp);
}

static inline ucs_status_t uct_ep_get_short(uct_ep_h ep, void *buffer, unsigned length, uint64_t remote_addr,
    uct_rkey_t rkey)
{
    return ep->iface->ops.ep_get_short(ep, buffer, length, remote_addr, rkey);
}

static inline ucs_status_t uct_ep_get_bcopy(uct_ep_h ep, uct_unpack_callback_t unpack_cb, void *arg,
    size_t length, uint64_t remote_addr, uct_rkey_t rkey, uct_completion_t *comp)
{
    return ep->iface->ops.ep_get_bcopy(ep, unpack_cb, arg, length, remote_addr, rkey, comp);
}

static inline ucs_status_t uct_ep_get_zcopy(uct_ep_h ep, const uct_iov_t *iov, size_t iovcnt,
    uint64_t remote_addr, uct_rkey_t rkey, uct_completion_t *comp)
{
    return ep->iface->ops.ep_get_zcopy(ep, iov, iovcnt, remote_addr, rkey, comp);
}

static inline ucs_status_t uct_ep_am_short(uct_ep_h ep, uint8_t id, uint64_t header, const void *payload,
    unsigned length)
{
    return ep->iface->ops.ep_am_short(ep, id, header, payload, length);
}

static inline ucs_status_t uct_ep_am_short_iov(uct_ep_h ep, uint8_t id, const uct_iov_t *iov, size_t iovcnt)
{
    return ep->iface->ops.ep_am_short_iov(ep, id, iov, iovcnt);
}

static inline ssize_t uct_ep_am_bcopy(uct_ep_h ep, uint8_t id, uct_pack_callback_t pack_cb, void *arg,
    unsigned flags)
{
    return ep->iface->ops.ep_am_bcopy(ep, id, pack_cb, arg, flags);
}

static inline ucs_status_t uct_ep_am_zcopy(uct_ep_h ep, uint8_t id, const void *header,
    unsigned header_length, const uct_iov_t *iov, size_t iovcnt, unsigned flags, uct_completion_t *comp)
{
    return ep->iface->ops.ep_am_zcopy(ep, id, header, header_length, iov, iovcnt, flags, comp);
}

static inline ucs_status_t uct_ep_atomic_cswap64(uct_ep_h ep, uint64_t compare, uint64_t swap,
    uint64_t remote_addr, uct_rkey_t rkey, uint64_t *result, uct_completion_t *comp)
{
    return ep->iface->ops.ep_atomic_cswap64(ep, compare, swap, remote_addr, rkey, result, comp);
}

static inline ucs_status_t uct_ep_atomic_cswap32(uct_ep_h ep, uint32_t compare, uint32_t swap,
    uint64_t remote_addr, uct_rkey_t rkey, uint32_t *result, uct_completion_t *comp)
{
    return ep->iface->ops.ep_atomic_cswap32(ep, compare, swap, remote_addr, rkey, result, comp);
}

static inline ucs_status_t uct_ep_atomic32_post(uct_ep_h ep, uct_atomic_op_t opcode, uint32_t value,
    uint64_t remote_addr, uct_rkey_t rkey)
{
    return ep->iface->ops.ep_atomic32_post(ep, opcode, value, remote_addr, rkey);
}

static inline ucs_status_t uct_ep_atomic64_post(uct_ep_h ep, uct_atomic_op_t opcode, uint64_t value,
    uint64_t remote_addr, uct_rkey_t rkey)
{
    return ep->iface->ops.ep_atomic64_post(ep, opcode, value, remote_addr, rkey);
}

static inline ucs_status_t uct_ep_atomic32_fetch(uct_ep_h ep, uct_atomic_op_t opcode, uint32_t value,
    uint32_t *result, uint64_t remote_addr, uct_rkey_t rkey, uct_completion_t *comp)
{
    return ep->iface->ops.ep_atomic32_fetch(ep, opcode, value, result, remote_addr, rkey, comp);
}

static inline ucs_status_t uct_ep_atomic64_fetch(uct_ep_h ep, uct_atomic_op_t opcode, uint64_t value,
    uint64_t *result, uint64_t remote_addr, uct_rkey_t rkey, uct_completion_t *comp)
{
    return ep->iface->ops.ep_atomic64_fetch(ep, opcode, value, result, remote_addr, rkey, comp);
}

static inline ucs_status_t uct_ep_tag_eager_short(uct_ep_h ep, uct_tag_t tag, const void *data, size_t length)
{
    return ep->iface->ops.ep_tag_eager_short(ep, tag, data, length);
}

static inline ssize_t uct_ep_tag_eager_bcopy(uct_ep_h ep, uct_tag_t tag, uint64_t imm,
    uct_pack_callback_t pack_cb, void *arg, unsigned flags)
{
    return ep->iface->ops.ep_tag_eager_bcopy(ep, tag, imm, pack_cb, arg, flags);
}

static inline ucs_status_t uct_ep_tag_eager_zcopy(uct_ep_h ep, uct_tag_t tag, uint64_t imm,
    const uct_iov_t *iov, size_t iovcnt, unsigned flags, uct_completion_t *comp)
{
    return ep->iface->ops.ep_tag_eager_zcopy(ep, tag, imm, iov, iovcnt, flags, comp);
}

static inline ucs_status_ptr_t uct_ep_tag_rndv_zcopy(uct_ep_h ep, uct_tag_t tag, const void *header,
    unsigned header_length, const uct_iov_t *iov, size_t iovcnt, unsigned flags, uct_completion_t *comp)
{
    return ep->iface->ops.ep_tag_rndv_zcopy(ep, tag, header, header_length, iov, iovcnt, flags, comp);
}

static inline ucs_status_t uct_ep_tag_rndv_cancel(uct_ep_h ep, void *op)
{
    return ep->iface->ops.ep_tag_rndv_cancel(ep, op);
}

static inline ucs_status_t uct_ep_tag_rndv_request(uct_ep_h ep, uct_tag_t tag, const void *header,
    unsigned header_length, unsigned flags)
{
    return ep->iface->ops.ep_tag_rndv_request(ep, tag, header, header_length, flags);
}

static inline ucs_status_t uct_iface_tag_recv_zcopy(uct_iface_h iface, uct_tag_t tag, uct_tag_t tag_mask,
    const uct_iov_t *iov, size_t iovcnt, uct_tag_context_t *ctx)
{
    return iface->ops.iface_tag_recv_zcopy(iface, tag, tag_mask, iov, iovcnt, ctx);
}

static inline ucs_status_t uct_iface_tag_recv_cancel(uct_iface_h iface, uct_tag_context_t *ctx, int force)
{
    return iface->ops.iface_tag_recv_cancel(iface, ctx, force);
}

static inline ucs_status_t uct_ep_pending_add(uct_ep_h ep, uct_pending_req_t *req, unsigned flags)
{
    return ep->iface->ops.ep_pending_add(ep, req, flags);
}

static inline void uct_ep_pending_purge(uct_ep_h ep, uct_pending_purge_callback_t cb, void *arg)
{
    ep->iface->ops.ep_pending_purge(ep, cb, arg);
}

static inline ucs_status_t uct_ep_flush(uct_ep_h ep, unsigned flags, uct_completion_t *comp)
{
    return ep->iface->ops.ep_flush(ep, flags, comp);
}

static inline ucs_status_t uct_ep_fence(uct_ep_h ep, unsigned flags)
{
    return ep->iface->ops.ep_fence(ep, flags);
}

static inline ucs_status_t uct_iface_flush(uct_iface_h iface, unsigned flags, uct_completion_t *comp)
{
    return iface->ops.iface_flush(iface, flags, comp);
}

static inline ucs_status_t uct_iface_fence(uct_iface_h iface, unsigned flags)
{
    return iface->ops.iface_fence(iface, flags);
}

static inline void uct_iface_progress_enable(uct_iface_h iface, unsigned flags)
{
    iface->ops.iface_progress_enable(iface, flags);
}

static inline void uct_iface_progress_disable(uct_iface_h iface, unsigned flags)
{
    iface->ops.iface_progress_disable(iface, flags);
}

static inline unsigned uct_iface_progress(uct_iface_h iface)
{
    return iface->ops.iface_progress(iface);
}

static inline void uct_completion_update_status(uct_completion_t *comp, ucs_status_t status)
{
    if (comp->status == UCS_OK) {
        comp->status = status;
    }
}

#ifdef __cplusplus
}
#endif

#endif

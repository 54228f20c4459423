/* Part of uct.c: functions of the second header, and those that the rest does not call. */
#include <uct/api/v2/uct_v2.h>

static unsigned ticks;
static uct_completion_t ended;

static unsigned tick(void *arg)
{
    CHECK(arg == &ticks);
    ticks++;
    return 1;
}

static void attributes_by_mask(void)
{
    uct_md_attr_v2_t by_mask;

    memset(&by_mask, 0x77, sizeof(by_mask));
    by_mask.field_mask = UCT_MD_ATTR_FIELD_FLAGS | UCT_MD_ATTR_FIELD_RKEY_PACKED_SIZE | UCT_MD_ATTR_FIELD_REG_COST |
                         UCT_MD_ATTR_FIELD_COMPONENT_NAME | UCT_MD_ATTR_FIELD_REG_ALIGNMENT;
    CHECK(uct_md_query_v2(md, &by_mask) == UCS_OK);
    CHECK((by_mask.flags == md_attr.cap.flags) && (by_mask.rkey_packed_size == md_attr.rkey_packed_size));
    CHECK(!strcmp(by_mask.component_name, md_attr.component_name) && (by_mask.reg_alignment == 1));
    CHECK(by_mask.max_reg == 0x7777777777777777ul);
    /* Measured: some time, and less than a second. It is measured once. */
    CHECK((by_mask.reg_cost.c >= 0) && (by_mask.reg_cost.c < 1) && (by_mask.reg_cost.m >= 0));
    CHECK((by_mask.reg_cost.c == md_attr.reg_cost.c) && (by_mask.reg_cost.m == md_attr.reg_cost.m));
    CHECK((md_attr.reg_cost.c > 0) || !(md_attr.cap.flags & UCT_MD_FLAG_REG));
    by_mask.field_mask = UCT_MD_ATTR_FIELD_MAX_REG | UCT_MD_ATTR_FIELD_MAX_ALLOC | UCT_MD_ATTR_FIELD_GLOBAL_ID;
    CHECK(uct_md_query_v2(md, &by_mask) == UCS_OK);
    CHECK((by_mask.max_reg == md_attr.cap.max_reg) && (by_mask.max_alloc == md_attr.cap.max_alloc));
    CHECK(uct_md_query_v2(md, NULL) == UCS_ERR_INVALID_PARAM);
    CHECK(uct_md_query_v2(NULL, &by_mask) == UCS_ERR_INVALID_PARAM);
}

static void keys_by_mask(void)
{
    uct_md_mem_reg_params_t reg     = {.field_mask = UCT_MD_MEM_REG_FIELD_FLAGS, .flags = UCT_MD_MEM_ACCESS_RMA};
    uct_md_mem_dereg_params_t dereg = {.field_mask = UCT_MD_MEM_DEREG_FIELD_MEMH};
    uct_md_mkey_pack_params_t pack_params = {.field_mask = UCT_MD_MKEY_PACK_FIELD_FLAGS};
    uct_rkey_unpack_params_t unpack_params = {.field_mask = 0};
    uct_rkey_compare_params_t compare      = {.field_mask = 0};
    void *buffer                           = malloc(md_attr.rkey_packed_size);
    uct_allocated_memory_t mem[2];
    uct_rkey_bundle_t keys[3];
    uct_mem_h memh;
    int order, back;
    unsigned i;

    CHECK(uct_iface_mem_alloc(to, 5000, UCT_MD_MEM_ACCESS_ALL, "forms", &mem[0]) == UCS_OK);
    CHECK(uct_iface_mem_alloc(to, 5000, UCT_MD_MEM_ACCESS_ALL, "forms", &mem[1]) == UCS_OK);
    for (i = 0; i < 3; i++) {
        uct_allocated_memory_t *of = &mem[i / 2];
        pack_params.flags          = 0;
        CHECK(uct_md_mkey_pack_v2(md, of->memh, of->address, 5000, &pack_params, buffer) == UCS_OK);
        CHECK(uct_rkey_unpack_v2(component, buffer, &unpack_params, &keys[i]) == UCS_OK);
    }
    CHECK(uct_md_mkey_pack_v2(md, mem[0].memh, mem[0].address, mem[0].length + 1, &pack_params, buffer) ==
          UCS_ERR_INVALID_PARAM);
    pack_params.flags = UCT_MD_MKEY_PACK_FLAG_EXPORT;
    CHECK(uct_md_mkey_pack_v2(md, mem[0].memh, mem[0].address, 1, &pack_params, buffer) == UCS_ERR_UNSUPPORTED);
    CHECK(uct_rkey_compare(component, keys[0].rkey, keys[1].rkey, &compare, &order) == UCS_OK && order == 0);
    CHECK(uct_rkey_compare(component, keys[0].rkey, keys[2].rkey, &compare, &order) == UCS_OK);
    CHECK(uct_rkey_compare(component, keys[2].rkey, keys[0].rkey, &compare, &back) == UCS_OK);
    CHECK(order == -back);
    CHECK(uct_rkey_compare(component, UCT_INVALID_RKEY, keys[0].rkey, &compare, &back) == UCS_ERR_INVALID_PARAM);
    for (i = 0; i < 3; i++) {
        CHECK(uct_rkey_release(component, &keys[i]) == UCS_OK);
    }
    uct_iface_mem_free(&mem[0]);
    uct_iface_mem_free(&mem[1]);
    free(buffer);

    if (md_attr.cap.flags & UCT_MD_FLAG_REG) {
        CHECK(uct_md_mem_reg_v2(md, copy, sizeof(copy), &reg, &memh) == UCS_OK);
        dereg.memh = memh;
        CHECK(uct_md_mem_dereg_v2(md, &dereg) == UCS_OK);
        /* With an end of the access by keys, where the domain has that. */
        CHECK(uct_md_mem_reg_v2(md, copy, sizeof(copy), &reg, &memh) == UCS_OK);
        dereg.field_mask = UCT_MD_MEM_DEREG_FIELD_MEMH | UCT_MD_MEM_DEREG_FIELD_FLAGS | UCT_MD_MEM_DEREG_FIELD_COMPLETION;
        dereg.flags      = UCT_MD_MEM_DEREG_FLAG_INVALIDATE;
        dereg.memh       = memh;
        dereg.comp       = &ended;
        ended.count       = 1;
        ended.func        = on_complete;
        completed        = 0;
        if (uct_md_mem_dereg_v2(md, &dereg) == UCS_OK) {
            CHECK(completed == 1);
        } else {
            dereg.flags = 0;
            CHECK(uct_md_mem_dereg_v2(md, &dereg) == UCS_OK);
        }
        reg.field_mask |= UCT_MD_MEM_REG_FIELD_DMABUF_FD;
        reg.dmabuf_fd = 0;
        CHECK(uct_md_mem_reg_v2(md, copy, sizeof(copy), &reg, &memh) == UCS_ERR_UNSUPPORTED);
    }
}

static void addresses_by_mask(void)
{
    uct_iface_is_reachable_params_t params = {.field_mask = 0};
    uct_ep_is_connected_params_t connected = {.field_mask = 0};
    unsigned char *device  = malloc(attr.device_addr_len + 1);
    unsigned char *address = malloc(attr.iface_addr_len + 1);
    char reason[100];

    CHECK(uct_iface_get_device_address(to, (uct_device_addr_t*)device) == UCS_OK);
    CHECK(uct_iface_get_address(to, (uct_iface_addr_t*)address) == UCS_OK);
    params.field_mask         = UCT_IFACE_IS_REACHABLE_FIELD_DEVICE_ADDR | UCT_IFACE_IS_REACHABLE_FIELD_IFACE_ADDR |
                                UCT_IFACE_IS_REACHABLE_FIELD_INFO_STRING | UCT_IFACE_IS_REACHABLE_FIELD_INFO_STRING_LENGTH;
    params.device_addr        = (uct_device_addr_t*)device;
    params.iface_addr         = (uct_iface_addr_t*)address;
    params.info_string        = reason;
    params.info_string_length = sizeof(reason);
    CHECK(uct_iface_is_reachable_v2(from, &params) == 1);
    CHECK(reason[0] == '\0');
    params.field_mask |= UCT_IFACE_IS_REACHABLE_FIELD_SCOPE;
    params.scope = UCT_IFACE_REACHABILITY_SCOPE_DEVICE;
    CHECK(uct_iface_is_reachable_v2(from, &params) == 1);
    if (attr.iface_addr_len > 0) {
        params.field_mask |= UCT_IFACE_IS_REACHABLE_FIELD_IFACE_ADDR_LENGTH;
        params.iface_addr_length = attr.iface_addr_len - 1;
        CHECK(uct_iface_is_reachable_v2(from, &params) == 0);
        CHECK(strlen(reason) > 10);
    }
    CHECK(uct_iface_is_reachable_v2(from, NULL) == 0);

    connected.field_mask  = UCT_EP_IS_CONNECTED_FIELD_DEVICE_ADDR | UCT_EP_IS_CONNECTED_FIELD_IFACE_ADDR;
    connected.device_addr = (uct_device_addr_t*)device;
    connected.iface_addr  = (uct_iface_addr_t*)address;
    CHECK(uct_ep_is_connected(ep, &connected) == 1);
    if (attr.iface_addr_len > 0) {
        address[attr.iface_addr_len - 1] ^= 1;
        CHECK(uct_ep_is_connected(ep, &connected) == 0);
    }
    free(device);
    free(address);
}

static void progress_of_the_program(void)
{
    uct_worker_cb_id_t id = UCS_CALLBACKQ_ID_NULL;
    unsigned i;

    uct_worker_progress_register_safe(worker, tick, &ticks, 0, &id);
    for (i = 0; i < 3; i++) {
        uct_worker_progress(worker);
    }
    uct_worker_progress_unregister_safe(worker, &id);
    CHECK((ticks == 3) && (id == UCS_CALLBACKQ_ID_NULL));
    uct_worker_progress(worker);
    CHECK(ticks == 3);
    uct_iface_progress_disable(to, UCT_PROGRESS_SEND | UCT_PROGRESS_RECV);
    uct_iface_progress(to);
    uct_iface_progress_enable(to, UCT_PROGRESS_SEND | UCT_PROGRESS_RECV);
    ended.status = UCS_OK;
    uct_completion_update_status(&ended, UCS_ERR_CANCELED);
    CHECK(ended.status == UCS_ERR_CANCELED);
    ended.status = UCS_OK;
}

static unsigned came;

static ucs_status_t on_pair(void *arg, void *data, size_t length, unsigned flags)
{
    came++;
    return UCS_OK;
}

/* Two endpoints that are connected to each other, one by each form. Before, they refuse operations. */
static void endpoint_pair(void)
{
    uct_ep_connect_to_ep_params_t lengths;
    uct_ep_params_t params;
    char device[2][256], address[2][256];
    uct_iface_h ifaces[2];
    uct_ep_h pair[2], early;
    uct_iface_attr_t a;
    size_t length = 8;
    time_t limit = time(NULL) + 60;
    ucs_status_t status;
    int i;

    ifaces[0] = from;
    ifaces[1] = to;
    CHECK(uct_iface_query(from, &a) == UCS_OK);
    CHECK(a.cap.flags & UCT_IFACE_FLAG_CONNECT_TO_EP);
    CHECK((a.ep_addr_len <= 256) && (a.device_addr_len <= 256));
    params.field_mask = UCT_EP_PARAM_FIELD_IFACE;
    for (i = 0; i < 2; i++) {
        params.iface = ifaces[i];
        CHECK(uct_ep_create(&params, &pair[i]) == UCS_OK);
        CHECK(uct_iface_get_device_address(ifaces[i], (uct_device_addr_t*)device[i]) == UCS_OK);
        memset(address[i], 0x5a, 256);
        CHECK(uct_ep_get_address(pair[i], (uct_ep_addr_t*)address[i]) == UCS_OK);
        CHECK((a.ep_addr_len == 256) || (address[i][a.ep_addr_len] == 0x5a));
        CHECK((a.ep_addr_len == 0) || (uct_ep_get_address(pair[i], NULL) == UCS_ERR_INVALID_PARAM));
    }
    CHECK(uct_ep_am_short(pair[0], 4, 1, NULL, 0) == UCS_ERR_NOT_CONNECTED);
    CHECK(uct_ep_am_bcopy(pair[0], 4, pack, &length, 0) == UCS_ERR_NOT_CONNECTED);
    CHECK(uct_ep_put_short(pair[0], source, 8, 0, 0) == UCS_ERR_NOT_CONNECTED);
    CHECK(uct_ep_flush(pair[0], 0, NULL) == UCS_ERR_NOT_CONNECTED);
    CHECK(uct_ep_check(pair[0], 0, NULL) == UCS_ERR_NOT_CONNECTED);
    CHECK(UCS_PTR_STATUS(uct_ep_tag_rndv_zcopy(pair[0], 1, NULL, 0, NULL, 0, 0, NULL)) == UCS_ERR_NOT_CONNECTED);
    uct_ep_pending_purge(pair[0], NULL, NULL);
    CHECK((a.ep_addr_len == 0) ||
          (uct_ep_connect_to_ep(pair[0], (uct_device_addr_t*)device[1], NULL) == UCS_ERR_INVALID_PARAM));
    /* One that is never connected. */
    params.iface = from;
    CHECK(uct_ep_create(&params, &early) == UCS_OK);
    uct_ep_destroy(early);
    CHECK(uct_ep_connect_to_ep(pair[0], (uct_device_addr_t*)device[1], (uct_ep_addr_t*)address[1]) == UCS_OK);
    CHECK(uct_ep_connect_to_ep(pair[0], (uct_device_addr_t*)device[1], (uct_ep_addr_t*)address[1]) ==
          UCS_ERR_INVALID_PARAM);
    lengths.field_mask         = UCT_EP_CONNECT_TO_EP_PARAM_FIELD_DEVICE_ADDR_LENGTH |
                                 UCT_EP_CONNECT_TO_EP_PARAM_FIELD_EP_ADDR_LENGTH;
    lengths.device_addr_length = a.device_addr_len;
    lengths.ep_addr_length     = a.ep_addr_len - 1;
    CHECK((a.ep_addr_len == 0) || (uct_ep_connect_to_ep_v2(pair[1], (uct_device_addr_t*)device[0],
          (uct_ep_addr_t*)address[0], &lengths) == UCS_ERR_INVALID_PARAM));
    lengths.ep_addr_length = a.ep_addr_len;
    CHECK(uct_ep_connect_to_ep_v2(pair[1], (uct_device_addr_t*)device[0], (uct_ep_addr_t*)address[0], &lengths) ==
          UCS_OK);
    if (a.cap.flags & UCT_IFACE_FLAG_AM_SHORT) {
        for (i = 0; i < 2; i++) {
            CHECK(uct_iface_set_am_handler(ifaces[1 - i], 4, on_pair, NULL, 0) == UCS_OK);
            came = 0;
            while ((status = uct_ep_am_short(pair[i], 4, 1, NULL, 0)) == UCS_ERR_NO_RESOURCE) {
                uct_worker_progress(worker);
                CHECK(time(NULL) < limit);
            }
            CHECK(status == UCS_OK);
            while (came == 0) {
                uct_worker_progress(worker);
                CHECK(time(NULL) < limit);
            }
            CHECK(uct_iface_set_am_handler(ifaces[1 - i], 4, NULL, NULL, 0) == UCS_OK);
        }
    }
    for (i = 0; i < 2; i++) {
        while ((status = uct_ep_flush(pair[i], 0, NULL)) == UCS_INPROGRESS) {
            uct_worker_progress(worker);
            CHECK(time(NULL) < limit);
        }
        CHECK(status == UCS_OK);
        uct_ep_destroy(pair[i]);
    }
}

/* What an operation costs, and the forms that no transport has. */
static void other_forms(void)
{
    uct_md_mem_attach_params_t attach = {.field_mask = 0};
    uct_ep_attr_t ep_attr             = {.field_mask = 0};
    uct_iface_attr_t a;
    uct_perf_attr_t perf;
    uct_mem_h memh;

    CHECK(uct_iface_query(from, &a) == UCS_OK);
    memset(&perf, 0x77, sizeof(perf));
    perf.field_mask = UCT_PERF_ATTR_FIELD_OPERATION | UCT_PERF_ATTR_FIELD_BANDWIDTH | UCT_PERF_ATTR_FIELD_LATENCY |
                      UCT_PERF_ATTR_FIELD_SEND_PRE_OVERHEAD;
    perf.operation  = UCT_EP_OP_AM_SHORT;
    CHECK(uct_iface_estimate_perf(from, &perf) == UCS_OK);
    CHECK((perf.bandwidth.shared == a.bandwidth.shared) && (perf.bandwidth.dedicated == a.bandwidth.dedicated));
    CHECK((perf.latency.c == a.latency.c) && (perf.send_pre_overhead == a.overhead));
    CHECK(perf.max_inflight_eps == 0x7777777777777777ul);
    perf.field_mask = UCT_PERF_ATTR_FIELD_MAX_INFLIGHT_EPS | UCT_PERF_ATTR_FIELD_FLAGS |
                      UCT_PERF_ATTR_FIELD_SEND_POST_OVERHEAD | UCT_PERF_ATTR_FIELD_RECV_OVERHEAD;
    CHECK(uct_iface_estimate_perf(from, &perf) == UCS_OK);
    CHECK((perf.max_inflight_eps == a.max_num_eps) && (perf.flags == 0) && (perf.send_post_overhead == 0));
    CHECK(uct_iface_estimate_perf(from, NULL) == UCS_ERR_INVALID_PARAM);
    CHECK(uct_iface_estimate_perf(NULL, &perf) == UCS_ERR_INVALID_PARAM);
    CHECK(uct_ep_query(ep, &ep_attr) == UCS_OK);
    ep_attr.field_mask = UCT_EP_ATTR_FIELD_LOCAL_SOCKADDR;
    CHECK(uct_ep_query(ep, &ep_attr) == UCS_ERR_UNSUPPORTED);
    CHECK(uct_ep_query(ep, NULL) == UCS_ERR_INVALID_PARAM);
    CHECK(uct_md_mem_attach(md, source, &attach, &memh) == UCS_ERR_UNSUPPORTED);
    perf.field_mask = UCT_PERF_ATTR_FIELD_PATH_BANDWIDTH;
    CHECK(uct_iface_estimate_perf(from, &perf) == UCS_OK);
    CHECK((perf.path_bandwidth.shared == a.bandwidth.shared) && (perf.path_bandwidth.dedicated == a.bandwidth.dedicated));
    CHECK(a.ctl_device == UCS_SYS_DEVICE_ID_UNKNOWN);
    CHECK(!strcmp(uct_ep_operation_names[UCT_EP_OP_FLUSH], "flush"));
    /* A program that was built with UCX 1.23 finds one callback, too: its elements of the queue have 16 bytes. */
    CHECK(((void**)worker)[0] && !((void**)worker)[2] && !((void**)worker)[3]);
}

/* Attributes of UCX 1.23, and the operations that no transport has. */
static void forms_of_lists_and_devices(void)
{
    uct_iface_attr_v2_t v2    = {.field_mask = UCT_IFACE_ATTR_FIELD_CAP_FLAGS | UCT_IFACE_ATTR_FIELD_MAX_PUT_SGL_ZCOPY_COUNT};
    uct_md_mem_attr_v2_t attr = {.field_mask = UCT_MD_MEM_ATTR_V2_FIELD_MEM_TYPE | UCT_MD_MEM_ATTR_V2_FIELD_MEM_FLAGS |
                                               UCT_MD_MEM_ATTR_V2_FIELD_DMABUF_FD};
    uct_ep_invalidate_params_t invalidate   = {.field_mask = 0};
    uct_ep_outstanding_purge_params_t purge = {.field_mask = 0};
    uct_device_ep_h device;
    uint64_t element;
    void *made;

    v2.cap.flags               = 77;
    v2.max_put_sgl_zcopy_count = 77;
    CHECK(uct_iface_query_v2(from, &v2) == UCS_OK);
    CHECK((v2.cap.flags == 0) && (v2.max_put_sgl_zcopy_count == 0));
    v2.field_mask = UCT_IFACE_ATTR_FIELD_TX_TOKEN;
    CHECK(uct_iface_query_v2(from, &v2) == UCS_ERR_UNSUPPORTED);
    attr.mem_flags = 77;
    CHECK(uct_md_mem_query_v2(md, source, 10, &attr) == UCS_OK);
    CHECK((attr.mem_type == UCS_MEMORY_TYPE_HOST) && (attr.mem_flags == 0) && (attr.dmabuf_fd == UCT_DMABUF_FD_INVALID));
    CHECK(uct_ep_invalidate(ep, &invalidate) == UCS_ERR_UNSUPPORTED);
    CHECK(uct_ep_outstanding_purge(ep, &purge) == UCS_ERR_UNSUPPORTED);
    CHECK(uct_ep_put_sgl_zcopy(ep, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0, NULL) == UCS_ERR_UNSUPPORTED);
    CHECK(uct_ep_get_sgl_zcopy(ep, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0, NULL) == UCS_ERR_UNSUPPORTED);
    CHECK(uct_ep_get_device_ep(ep, &device) == UCS_ERR_UNSUPPORTED);
    CHECK(uct_md_mem_elem_pack(md, NULL, 0, (uct_device_mem_elem_t*)&element, &made) == UCS_ERR_UNSUPPORTED);
    uct_md_mem_elem_release(md, NULL);
}

/* Functions of socket addresses: each answers. */
static void no_socket_addresses(void)
{
    uct_cm_config_t *config = NULL;
    uct_listener_h made     = NULL;

    CHECK(uct_cm_query(NULL, NULL) == UCS_ERR_UNSUPPORTED);
    CHECK(uct_cm_config_read(component, NULL, NULL, &config) == UCS_ERR_UNSUPPORTED);
    CHECK(uct_cm_client_ep_conn_notify(ep) == UCS_ERR_UNSUPPORTED);
    CHECK(uct_listener_create(NULL, (const struct sockaddr*)source, 16, NULL, &made) == UCS_ERR_UNSUPPORTED);
    CHECK(uct_listener_reject(NULL, NULL) == UCS_ERR_UNSUPPORTED);
    CHECK(uct_listener_query(NULL, NULL) == UCS_ERR_UNSUPPORTED);
    CHECK(uct_iface_accept(from, NULL) == UCS_ERR_UNSUPPORTED);
    CHECK(uct_iface_reject(from, NULL) == UCS_ERR_UNSUPPORTED);
    CHECK(uct_ep_connect(ep, NULL) == UCS_ERR_UNSUPPORTED);
    CHECK(uct_ep_disconnect(ep, 0) == UCS_ERR_UNSUPPORTED);
    CHECK(uct_md_is_sockaddr_accessible(md, (const ucs_sock_addr_t*)source, UCT_SOCKADDR_ACC_LOCAL) == 0);
    uct_listener_destroy(NULL);
    uct_cm_close(NULL);
    CHECK(made == NULL && config == NULL);
}

static void forms(void)
{
    attributes_by_mask();
    keys_by_mask();
    addresses_by_mask();
    progress_of_the_program();
    other_forms();
    forms_of_lists_and_devices();
    endpoint_pair();
    no_socket_addresses();
}

/* Part of uct.c: values of masks and flags that the rest does not use. uct_values.rs says the state of each. */

#define IFACE_FLAGS_NEVER_SET \
    (UCT_IFACE_FLAG_ATOMIC_DEVICE | UCT_IFACE_FLAG_ERRHANDLE_SHORT_BUF | UCT_IFACE_FLAG_ERRHANDLE_BCOPY_BUF | \
     UCT_IFACE_FLAG_ERRHANDLE_ZCOPY_BUF | UCT_IFACE_FLAG_ERRHANDLE_AM_ID | UCT_IFACE_FLAG_ERRHANDLE_REMOTE_MEM | \
     UCT_IFACE_FLAG_ERRHANDLE_BCOPY_LEN | UCT_IFACE_FLAG_CONNECT_TO_SOCKADDR | UCT_IFACE_FLAG_AM_DUP | \
     UCT_IFACE_FLAG_CB_ASYNC | UCT_IFACE_FLAG_EP_KEEPALIVE | UCT_IFACE_FLAG_TAG_EAGER_SHORT | \
     UCT_IFACE_FLAG_TAG_EAGER_BCOPY | UCT_IFACE_FLAG_TAG_EAGER_ZCOPY | UCT_IFACE_FLAG_TAG_RNDV_ZCOPY | \
     UCT_IFACE_FLAG_DEVICE_EP | UCT_IFACE_FLAG_DEVICE_LKEY)

/* Flags of a transport: all of a mask, or none of it. */
static void each_of(uint64_t flags, uint64_t mask, int has_it)
{
    CHECK((flags & mask) == (has_it ? mask : 0));
}

static void flags_that_are_reported(const char *tl)
{
    const uint64_t one_sided     = UCT_IFACE_FLAG_PUT_SHORT | UCT_IFACE_FLAG_PUT_BCOPY | UCT_IFACE_FLAG_PUT_ZCOPY |
                                   UCT_IFACE_FLAG_GET_BCOPY | UCT_IFACE_FLAG_GET_ZCOPY;
    int self = !strcmp(tl, "self"), efa = !strcmp(tl, "efa"), cma = !strcmp(tl, "cma");
    uct_iface_attr_v2_t v2       = {.field_mask = UCT_IFACE_ATTR_FIELD_CAP_FLAGS};
    uct_component_attr_t of_tl   = {.field_mask = UCT_COMPONENT_ATTR_FIELD_FLAGS};
    uct_tl_resource_desc_t *resources;
    uct_device_type_t type;
    unsigned count;

    CHECK(uct_iface_query(from, &attr) == UCS_OK);
    CHECK(!(attr.cap.flags & IFACE_FLAGS_NEVER_SET));
    each_of(attr.cap.flags, one_sided, 1);
    each_of(attr.cap.flags, UCT_IFACE_FLAG_AM_BCOPY | UCT_IFACE_FLAG_AM_ZCOPY, !cma);
    each_of(attr.cap.flags, UCT_IFACE_FLAG_ERRHANDLE_PEER_FAILURE, !self);
    each_of(attr.cap.flags, UCT_IFACE_FLAG_EP_CHECK, 1);
    each_of(attr.cap.flags, UCT_IFACE_FLAG_INTER_NODE, efa);
    CHECK(!(attr.cap.event_flags & (UCT_IFACE_FLAG_EVENT_RECV_SIG | UCT_IFACE_FLAG_EVENT_ASYNC_CB)));
    each_of(attr.cap.event_flags, UCT_IFACE_FLAG_EVENT_RECV | UCT_IFACE_FLAG_EVENT_FD, 1);
    each_of(attr.cap.event_flags, UCT_IFACE_FLAG_EVENT_SEND_COMP, cma || efa);
    CHECK(uct_iface_query_v2(from, &v2) == UCS_OK);
    CHECK(!(v2.cap.flags &
            (UCT_IFACE_FLAG_V2_PUT_SGL_ZCOPY | UCT_IFACE_FLAG_V2_GET_SGL_ZCOPY | UCT_IFACE_FLAG_V2_QUERY_TOKEN)));
    CHECK(uct_component_query(component, &of_tl) == UCS_OK);
    CHECK(!(of_tl.flags & (UCT_COMPONENT_FLAG_CM | UCT_COMPONENT_FLAG_RKEY_PTR)));
    CHECK(uct_md_query_tl_resources(md, &resources, &count) == UCS_OK);
    type = resources[0].dev_type;
    CHECK(type != UCT_DEVICE_TYPE_ACC);
    CHECK(type == (self ? UCT_DEVICE_TYPE_SELF : efa ? UCT_DEVICE_TYPE_NET : UCT_DEVICE_TYPE_SHM));
    uct_release_tl_resource_list(resources);

    CHECK(!(md_attr.cap.flags & (UCT_MD_FLAG_SOCKADDR | UCT_MD_FLAG_EXPORTED_MKEY | UCT_MD_FLAG_REG_DMABUF |
                                 UCT_MD_FLAG_MEMTYPE_COPY)));
    each_of(md_attr.cap.flags, UCT_MD_FLAG_ADVISE, 1);
    each_of(md_attr.cap.flags, UCT_MD_FLAG_ALLOC | UCT_MD_FLAG_FIXED, md_attr.cap.max_alloc > 0);
    each_of(md_attr.cap.flags, UCT_MD_FLAG_INVALIDATE | UCT_MD_FLAG_INVALIDATE_RMA | UCT_MD_FLAG_INVALIDATE_AMO,
            self || efa);
    each_of(md_attr.cap.flags, UCT_MD_FLAG_NEED_RKEY, 1);
}

/* Attributes of a domain that are the same for all. */
static void attributes_without_a_choice(void)
{
    uct_md_attr_v2_t v2;

    memset(&v2, 0x77, sizeof(v2));
    v2.field_mask = UCT_MD_ATTR_FIELD_REG_MEM_TYPES | UCT_MD_ATTR_FIELD_ALLOC_MEM_TYPES |
                    UCT_MD_ATTR_FIELD_ACCESS_MEM_TYPES | UCT_MD_ATTR_FIELD_CACHE_MEM_TYPES |
                    UCT_MD_ATTR_FIELD_DETECT_MEM_TYPES | UCT_MD_ATTR_FIELD_DMABUF_MEM_TYPES |
                    UCT_MD_ATTR_FIELD_REG_NONBLOCK_MEM_TYPES | UCT_MD_ATTR_FIELD_GVA_MEM_TYPES |
                    UCT_MD_ATTR_FIELD_EXPORTED_MKEY_PACKED_SIZE | UCT_MD_ATTR_FIELD_REQUIRED_MEM_FLAGS |
                    UCT_MD_ATTR_FIELD_LOCAL_CPUS;
    CHECK(uct_md_query_v2(md, &v2) == UCS_OK);
    CHECK((v2.reg_mem_types == md_attr.cap.reg_mem_types) && (v2.alloc_mem_types == md_attr.cap.alloc_mem_types));
    CHECK((v2.access_mem_types == md_attr.cap.access_mem_types) && (v2.cache_mem_types == v2.reg_mem_types));
    CHECK((v2.detect_mem_types == 0) && (v2.dmabuf_mem_types == 0) && (v2.reg_nonblock_mem_types == 0));
    CHECK((v2.gva_mem_types == 0) && (v2.exported_mkey_packed_size == 0) && (v2.required_mem_flags == 0));
    CHECK(!memcmp(&v2.local_cpus, &md_attr.local_cpus, sizeof(v2.local_cpus)));
}

/* Interfaces take each field; those that this library does not have change nothing. */
static void fields_of_interfaces(const char *tl, const char *dev)
{
    uct_iface_params_t params;
    uct_iface_h iface;

    memset(&params, 0xff, sizeof(params));
    params.field_mask = UCT_IFACE_PARAM_FIELD_OPEN_MODE | UCT_IFACE_PARAM_FIELD_CPU_MASK |
                        UCT_IFACE_PARAM_FIELD_SOCKADDR | UCT_IFACE_PARAM_FIELD_STATS_ROOT |
                        UCT_IFACE_PARAM_FIELD_RX_HEADROOM | UCT_IFACE_PARAM_FIELD_ERR_HANDLER_FLAGS |
                        UCT_IFACE_PARAM_FIELD_HW_TM_EAGER_ARG | UCT_IFACE_PARAM_FIELD_HW_TM_EAGER_CB |
                        UCT_IFACE_PARAM_FIELD_HW_TM_RNDV_ARG | UCT_IFACE_PARAM_FIELD_HW_TM_RNDV_CB |
                        UCT_IFACE_PARAM_FIELD_ASYNC_EVENT_ARG | UCT_IFACE_PARAM_FIELD_ASYNC_EVENT_CB |
                        UCT_IFACE_PARAM_FIELD_KEEPALIVE_INTERVAL | UCT_IFACE_PARAM_FIELD_AM_ALIGNMENT |
                        UCT_IFACE_PARAM_FIELD_AM_ALIGN_OFFSET | UCT_IFACE_PARAM_FIELD_FEATURES;
    params.open_mode            = UCT_IFACE_OPEN_MODE_DEVICE;
    params.mode.device.tl_name  = tl;
    params.mode.device.dev_name = dev;
    params.features             = UCT_IFACE_FEATURE_AM | UCT_IFACE_FEATURE_PUT | UCT_IFACE_FEATURE_GET |
                                  UCT_IFACE_FEATURE_AMO32 | UCT_IFACE_FEATURE_AMO64 | UCT_IFACE_FEATURE_TAG |
                                  UCT_IFACE_FEATURE_FLUSH_REMOTE;
    CHECK(uct_iface_open(md, worker, &params, NULL, &iface) == UCS_OK);
    uct_iface_close(iface);
    params.open_mode = UCT_IFACE_OPEN_MODE_SOCKADDR_CLIENT;
    CHECK(uct_iface_open(md, worker, &params, NULL, &iface) == UCS_ERR_UNSUPPORTED);
    params.open_mode = UCT_IFACE_OPEN_MODE_STUB;
    CHECK(uct_iface_open(md, worker, &params, NULL, &iface) == UCS_ERR_UNSUPPORTED);
}

static void fields_of_endpoints(void)
{
    const uint64_t of_a_cm = UCT_EP_PARAM_FIELD_SOCKADDR | UCT_EP_PARAM_FIELD_CM | UCT_EP_PARAM_FIELD_CONN_REQUEST |
                             UCT_EP_PARAM_FIELD_LOCAL_SOCKADDR;
    uct_ep_params_t params;
    char device[256], address[256];
    uct_ep_h made;

    memset(&params, 0xff, sizeof(params));
    CHECK(uct_iface_get_device_address(to, (uct_device_addr_t*)device) == UCS_OK);
    CHECK(uct_iface_get_address(to, (uct_iface_addr_t*)address) == UCS_OK);
    params.field_mask = of_a_cm;
    CHECK(uct_ep_create(&params, &made) == UCS_ERR_UNSUPPORTED);
    params.field_mask = of_a_cm | UCT_EP_PARAM_FIELD_IFACE | UCT_EP_PARAM_FIELD_DEV_ADDR |
                        UCT_EP_PARAM_FIELD_IFACE_ADDR | UCT_EP_PARAM_FIELD_USER_DATA | UCT_EP_PARAM_FIELD_PATH_INDEX |
                        UCT_EP_PARAM_FIELD_DEV_ADDR_LENGTH | UCT_EP_PARAM_FIELD_IFACE_ADDR_LENGTH |
                        UCT_EP_PARAM_FIELD_SOCKADDR_CB_FLAGS | UCT_EP_PARAM_FIELD_SOCKADDR_PACK_CB |
                        UCT_EP_PARAM_FIELD_SOCKADDR_CONNECT_CB_CLIENT | UCT_EP_PARAM_FIELD_SOCKADDR_NOTIFY_CB_SERVER |
                        UCT_EP_PARAM_FIELD_SOCKADDR_DISCONNECT_CB | UCT_EP_PARAM_FIELD_CM_RESOLVE_CB |
                        UCT_EP_PARAM_FIELD_PRIV_DATA | UCT_EP_PARAM_FIELD_PRIV_DATA_LENGTH;
    params.iface      = from;
    params.dev_addr   = (uct_device_addr_t*)device;
    params.iface_addr = (uct_iface_addr_t*)address;
    CHECK(uct_ep_create(&params, &made) == UCS_OK);
    uct_ep_destroy(made);
}

static unsigned plain_messages;

static ucs_status_t on_plain_message(void *arg, void *data, size_t length, unsigned flags)
{
    CHECK(!(flags & (UCT_CB_PARAM_FLAG_DESC | UCT_CB_PARAM_FLAG_FIRST | UCT_CB_PARAM_FLAG_MORE)));
    plain_messages++;
    return UCS_OK;
}

static void flags_of_operations(void)
{
    size_t length = 8;
    ssize_t sent;

    CHECK(uct_ep_flush(ep, UCT_FLUSH_FLAG_REMOTE, NULL) == UCS_ERR_UNSUPPORTED);
    CHECK(uct_iface_flush(from, UCT_FLUSH_FLAG_REMOTE, NULL) == UCS_ERR_UNSUPPORTED);
    CHECK(uct_iface_flush(from, UCT_FLUSH_FLAG_CANCEL, NULL) == UCS_ERR_UNSUPPORTED);
    uct_iface_progress_disable(to, UCT_PROGRESS_THREAD_SAFE);
    uct_iface_progress_enable(to, UCT_PROGRESS_THREAD_SAFE);
    if (has(UCT_IFACE_FLAG_AM_BCOPY)) {
        /* Still progressed. */
        CHECK(uct_iface_set_am_handler(to, 5, on_plain_message, NULL, UCT_CB_FLAG_RESERVED | UCT_CB_FLAG_ASYNC) ==
              UCS_OK);
        while ((sent = uct_ep_am_bcopy(ep, 5, pack, &length, UCT_SEND_FLAG_SIGNALED | UCT_SEND_FLAG_PEER_CHECK)) ==
               UCS_ERR_NO_RESOURCE) {
            progress();
        }
        CHECK(sent == 8);
        while (plain_messages == 0) {
            progress();
        }
        CHECK(uct_iface_set_am_handler(to, 5, NULL, NULL, 0) == UCS_OK);
    }
    flush();
    while (uct_iface_event_arm(to, UCT_EVENT_SPEED_CHANGE) == UCS_ERR_BUSY) {
        progress();
    }
    while (uct_iface_event_arm(to, UCT_EVENT_SEND_COMP | UCT_EVENT_RECV | UCT_EVENT_RECV_SIG) == UCS_ERR_BUSY) {
        progress();
    }
}

static void flags_of_memory(void)
{
    uct_alloc_method_t methods[]    = {UCT_ALLOC_METHOD_HUGE, UCT_ALLOC_METHOD_THP, UCT_ALLOC_METHOD_HEAP};
    uct_alloc_method_t no_method    = UCT_ALLOC_METHOD_DEFAULT;
    uct_alloc_method_t of_md        = UCT_ALLOC_METHOD_MD;
    uct_mem_alloc_params_t params   = {.field_mask = UCT_MEM_ALLOC_PARAM_FIELD_FLAGS |
                                                     UCT_MEM_ALLOC_PARAM_FIELD_MEM_TYPE |
                                                     UCT_MEM_ALLOC_PARAM_FIELD_NAME |
                                                     UCT_MEM_ALLOC_PARAM_FIELD_SYS_DEVICE};
    const unsigned access           = UCT_MD_MEM_ACCESS_REMOTE_PUT | UCT_MD_MEM_ACCESS_REMOTE_GET |
                                      UCT_MD_MEM_ACCESS_REMOTE_ATOMIC | UCT_MD_MEM_ACCESS_LOCAL_READ |
                                      UCT_MD_MEM_ACCESS_LOCAL_WRITE;
    const unsigned hints            = UCT_MD_MEM_FLAG_LOCK | UCT_MD_MEM_SYMMETRIC_RKEY | UCT_MD_MEM_GVA;
    uct_md_mem_reg_params_t reg     = {.field_mask = UCT_MD_MEM_REG_FIELD_FLAGS | UCT_MD_MEM_REG_FIELD_DMABUF_FD |
                                                     UCT_MD_MEM_REG_FIELD_DMABUF_OFFSET |
                                                     UCT_MD_MEM_REG_FIELD_MEM_TYPE};
    uct_md_mem_attr_t of            = {.field_mask = UCT_MD_MEM_ATTR_FIELD_SYS_DEV | UCT_MD_MEM_ATTR_FIELD_DMABUF_FD |
                                                     UCT_MD_MEM_ATTR_FIELD_DMABUF_OFFSET};
    uct_md_mem_attr_v2_t of_v2      = {.field_mask = UCT_MD_MEM_ATTR_V2_FIELD_SYS_DEV |
                                                     UCT_MD_MEM_ATTR_V2_FIELD_BASE_ADDRESS |
                                                     UCT_MD_MEM_ATTR_V2_FIELD_ALLOC_LENGTH |
                                                     UCT_MD_MEM_ATTR_V2_FIELD_DMABUF_OFFSET};
    uct_allocated_memory_t mem;
    uct_mem_h memh;
    void *place;

    CHECK(access == UCT_MD_MEM_ACCESS_ALL);
    params.flags      = access | hints;
    params.mem_type   = UCS_MEMORY_TYPE_HOST;
    params.name       = "values";
    params.sys_device = UCS_SYS_DEVICE_ID_UNKNOWN;
    CHECK(uct_mem_alloc(10000, methods, 3, &params, &mem) == UCS_OK);
    memset(mem.address, 1, 10000);
    CHECK(uct_mem_free(&mem) == UCS_OK);
    CHECK(uct_mem_alloc(10000, &no_method, 1, &params, &mem) == UCS_ERR_INVALID_PARAM);
    params.mem_type = UCS_MEMORY_TYPE_CUDA;
    CHECK(uct_mem_alloc(10000, methods, 3, &params, &mem) == UCS_ERR_UNSUPPORTED);

    /* At an address that is free. */
    params.mem_type = UCS_MEMORY_TYPE_HOST;
    place           = mmap(NULL, 1 << 16, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK((place != MAP_FAILED) && (munmap(place, 1 << 16) == 0));
    params.field_mask |= UCT_MEM_ALLOC_PARAM_FIELD_ADDRESS | UCT_MEM_ALLOC_PARAM_FIELD_MDS;
    params.flags       = access | hints | UCT_MD_MEM_FLAG_FIXED | UCT_MD_MEM_FLAG_HIDE_ERRORS;
    params.address     = place;
    params.mds.mds     = &md;
    params.mds.count   = 1;
    CHECK(uct_mem_alloc(1 << 16, &of_md, 1, &params, &mem) == UCS_OK);
    CHECK((mem.address == place) && (mem.method == UCT_ALLOC_METHOD_MD));
    CHECK(uct_md_mem_advise(md, mem.memh, mem.address, 4096, UCT_MADV_NORMAL) == UCS_OK);
    CHECK(uct_md_mem_query(md, mem.address, 100, &of) == UCS_OK);
    CHECK((of.sys_dev == UCS_SYS_DEVICE_ID_UNKNOWN) && (of.dmabuf_fd == UCT_DMABUF_FD_INVALID) &&
          (of.dmabuf_offset == 0));
    CHECK(uct_md_mem_query_v2(md, mem.address, 100, &of_v2) == UCS_OK);
    CHECK((of_v2.sys_dev == UCS_SYS_DEVICE_ID_UNKNOWN) && (of_v2.dmabuf_offset == 0));
    CHECK((of_v2.base_address <= mem.address) && (of_v2.alloc_length >= 100));
    CHECK(uct_mem_free(&mem) == UCS_OK);

    if (md_attr.cap.flags & UCT_MD_FLAG_REG) {
        reg.flags         = access | hints | UCT_MD_MEM_FLAG_NONBLOCK | UCT_MD_MEM_FLAG_FIXED;
        reg.dmabuf_fd     = UCT_DMABUF_FD_INVALID;
        reg.dmabuf_offset = 77;
        reg.mem_type      = UCS_MEMORY_TYPE_HOST;
        CHECK(uct_md_mem_reg_v2(md, copy, sizeof(copy), &reg, &memh) == UCS_OK);
        CHECK(uct_md_mem_dereg(md, memh) == UCS_OK);
    }
}

static void flags_of_keys(void)
{
    int revokes                        = (md_attr.cap.flags & UCT_MD_FLAG_INVALIDATE) != 0;
    uct_md_mkey_pack_params_t pack_params = {.field_mask = UCT_MD_MKEY_PACK_FIELD_FLAGS,
                                             .flags      = UCT_MD_MKEY_PACK_FLAG_INVALIDATE_RMA |
                                                           UCT_MD_MKEY_PACK_FLAG_INVALIDATE_AMO};
    uct_rkey_unpack_params_t unpack_params = {.field_mask = UCT_RKEY_UNPACK_FIELD_SYS_DEVICE,
                                              .sys_device = UCS_SYS_DEVICE_ID_UNKNOWN};
    void *buffer                       = malloc(md_attr.rkey_packed_size);
    uct_allocated_memory_t mem;
    uct_rkey_bundle_t key;

    CHECK(uct_iface_mem_alloc(to, 5000, UCT_MD_MEM_ACCESS_ALL, "values", &mem) == UCS_OK);
    CHECK(uct_md_mkey_pack_v2(md, mem.memh, mem.address, 5000, &pack_params, buffer) ==
          (revokes ? UCS_OK : UCS_ERR_UNSUPPORTED));
    pack_params.flags = 0;
    CHECK(uct_md_mkey_pack_v2(md, mem.memh, mem.address, 5000, &pack_params, buffer) == UCS_OK);
    CHECK(uct_rkey_unpack_v2(component, buffer, &unpack_params, &key) == UCS_OK);
    CHECK(uct_rkey_release(component, &key) == UCS_OK);
    uct_iface_mem_free(&mem);
    free(buffer);
}

static void fields_of_addresses(void)
{
    uct_iface_is_reachable_params_t params = {.field_mask = UCT_IFACE_IS_REACHABLE_FIELD_DEVICE_ADDR |
                                                            UCT_IFACE_IS_REACHABLE_FIELD_DEVICE_ADDR_LENGTH |
                                                            UCT_IFACE_IS_REACHABLE_FIELD_SCOPE};
    uct_ep_is_connected_params_t connected = {.field_mask = UCT_EP_IS_CONNECTED_FIELD_EP_ADDR};
    char device[256], address[256];

    CHECK(uct_iface_get_device_address(to, (uct_device_addr_t*)device) == UCS_OK);
    CHECK(uct_iface_get_address(to, (uct_iface_addr_t*)address) == UCS_OK);
    params.device_addr        = (uct_device_addr_t*)device;
    params.device_addr_length = attr.device_addr_len;
    params.scope              = UCT_IFACE_REACHABILITY_SCOPE_NETWORK;
    CHECK(uct_iface_is_reachable_v2(from, &params) == 1);
    if (attr.device_addr_len > 0) {
        params.device_addr_length = attr.device_addr_len - 1;
        CHECK(uct_iface_is_reachable_v2(from, &params) == 0);
    }
    connected.ep_addr = (uct_ep_addr_t*)address;
    CHECK(uct_ep_is_connected(ep, &connected) == 1);
}

/* Every operation has one cost, whatever the memory. */
static void costs(void)
{
    const uct_ep_operation_t operations[] = {
        UCT_EP_OP_AM_SHORT, UCT_EP_OP_AM_BCOPY, UCT_EP_OP_AM_ZCOPY, UCT_EP_OP_PUT_SHORT, UCT_EP_OP_PUT_BCOPY,
        UCT_EP_OP_PUT_ZCOPY, UCT_EP_OP_GET_SHORT, UCT_EP_OP_GET_BCOPY, UCT_EP_OP_GET_ZCOPY, UCT_EP_OP_EAGER_SHORT,
        UCT_EP_OP_EAGER_BCOPY, UCT_EP_OP_EAGER_ZCOPY, UCT_EP_OP_RNDV_ZCOPY, UCT_EP_OP_ATOMIC_POST,
        UCT_EP_OP_ATOMIC_FETCH, UCT_EP_OP_FLUSH
    };
    uct_perf_attr_t perf;
    unsigned i;

    for (i = 0; i < sizeof(operations) / sizeof(operations[0]); i++) {
        perf.field_mask         = UCT_PERF_ATTR_FIELD_OPERATION | UCT_PERF_ATTR_FIELD_LOCAL_MEMORY_TYPE |
                                  UCT_PERF_ATTR_FIELD_REMOTE_MEMORY_TYPE | UCT_PERF_ATTR_FIELD_LOCAL_SYS_DEVICE |
                                  UCT_PERF_ATTR_FIELD_REMOTE_SYS_DEVICE | UCT_PERF_ATTR_FIELD_LATENCY |
                                  UCT_PERF_ATTR_FIELD_FLAGS;
        perf.operation          = operations[i];
        perf.local_memory_type  = UCS_MEMORY_TYPE_CUDA;
        perf.remote_memory_type = UCS_MEMORY_TYPE_HOST;
        perf.local_sys_device   = UCS_SYS_DEVICE_ID_UNKNOWN;
        perf.remote_sys_device  = UCS_SYS_DEVICE_ID_UNKNOWN;
        CHECK(uct_iface_estimate_perf(from, &perf) == UCS_OK);
        CHECK(perf.latency.c == attr.latency.c);
        CHECK(!(perf.flags & UCT_PERF_ATTR_FLAGS_TX_RX_SHARED));
        CHECK(uct_ep_operation_names[operations[i]] != NULL);
    }
}

static void values_that_are_refused(void)
{
    uct_md_mem_attach_params_t attach = {.field_mask = UCT_MD_MEM_ATTACH_FIELD_FLAGS |
                                                       UCT_MD_MEM_ATTACH_FIELD_MKEY_SIZE,
                                         .flags      = UCT_MD_MEM_ATTACH_FLAG_HIDE_ERRORS, .mkey_size = 8};
    uct_iface_attr_v2_t v2            = {.field_mask = UCT_IFACE_ATTR_FIELD_MAX_GET_SGL_ZCOPY_COUNT |
                                                       UCT_IFACE_ATTR_FIELD_TX_TOKEN_LENGTH |
                                                       UCT_IFACE_ATTR_FIELD_RX_TOKEN_LENGTH};
    uct_ep_attr_t of_ep;
    uct_mem_h memh;

    of_ep.field_mask = UCT_EP_ATTR_FIELD_REMOTE_SOCKADDR;
    CHECK(uct_ep_query(ep, &of_ep) == UCS_ERR_UNSUPPORTED);
    of_ep.field_mask = UCT_EP_ATTR_FIELD_TX_TOKEN;
    CHECK(uct_ep_query(ep, &of_ep) == UCS_ERR_UNSUPPORTED);
    CHECK(uct_md_mem_attach(md, source, &attach, &memh) == UCS_ERR_UNSUPPORTED);
    CHECK(uct_iface_query_v2(from, &v2) == UCS_OK);
    CHECK((v2.max_get_sgl_zcopy_count == 0) && (v2.tx_token_length == 0) && (v2.rx_token_length == 0));
    v2.field_mask = UCT_IFACE_ATTR_FIELD_RX_TOKEN;
    CHECK(uct_iface_query_v2(from, &v2) == UCS_ERR_UNSUPPORTED);
    CHECK(uct_md_is_sockaddr_accessible(md, (const ucs_sock_addr_t*)source, UCT_SOCKADDR_ACC_REMOTE) == 0);
}

static void values(const char *tl, const char *dev)
{
    flags_that_are_reported(tl);
    attributes_without_a_choice();
    fields_of_interfaces(tl, dev);
    fields_of_endpoints();
    flags_of_operations();
    flags_of_memory();
    flags_of_keys();
    fields_of_addresses();
    costs();
    values_that_are_refused();
}

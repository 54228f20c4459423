/* The uct interface in one process: two interfaces of a transport, of which one sends to the other.
 * uct TRANSPORT DEVICE */
#include "check_macro.h"
#include <uct/api/uct.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

static uct_component_h component;
static uct_md_h md;
static char md_name[UCT_MD_NAME_MAX];
static uct_md_attr_t md_attr;
static uct_worker_h worker;
static uct_iface_h from, to;
static uct_iface_attr_t attr;
static uct_ep_h ep;
static int is_self;

static int has(uint64_t flag)
{
    return (attr.cap.flags & flag) != 0;
}

static void progress(void)
{
    static time_t end;

    if (end == 0) {
        end = time(NULL) + 60;
    }
    CHECK(time(NULL) < end);
    uct_worker_progress(worker);
}

/* Opens the memory domain and interfaces of a transport, by way of the lists. */
static void find_component(const char *tl)
{
    uct_component_h *components;
    uct_component_attr_t component_attr;
    unsigned count, i;

    CHECK(uct_query_components(&components, &count) == UCS_OK);
    component_attr.field_mask = UCT_COMPONENT_ATTR_FIELD_NAME | UCT_COMPONENT_ATTR_FIELD_FLAGS;
    for (i = 0; i < count; i++) {
        CHECK(uct_component_query(components[i], &component_attr) == UCS_OK);
        CHECK(component_attr.flags == 0);
        if (!strcmp(component_attr.name, tl)) {
            component = components[i];
        }
    }
    /* Only a list of this library is freed, and once. */
    uct_release_component_list((uct_component_h*)&attr);
    uct_release_tl_resource_list((uct_tl_resource_desc_t*)components);
    uct_release_component_list(components);
    uct_release_component_list(components);
    uct_release_component_list(NULL);
    CHECK(component != NULL);
}

static void open_md(const char *tl, const char *dev)
{
    uct_component_attr_t component_attr;
    uct_tl_resource_desc_t *resources;
    uct_md_config_t *config;
    unsigned count, i;

    component_attr.field_mask = UCT_COMPONENT_ATTR_FIELD_MD_RESOURCE_COUNT;
    CHECK(uct_component_query(component, &component_attr) == UCS_OK);
    CHECK(component_attr.md_resource_count > 0);
    component_attr.field_mask   = UCT_COMPONENT_ATTR_FIELD_MD_RESOURCES;
    component_attr.md_resources = calloc(component_attr.md_resource_count, sizeof(uct_md_resource_desc_t));
    CHECK(uct_component_query(component, &component_attr) == UCS_OK);
    for (i = 0; i < component_attr.md_resource_count; i++) {
        CHECK(uct_md_config_read(component, NULL, NULL, &config) == UCS_OK);
        CHECK(uct_md_open(component, component_attr.md_resources[i].md_name, config, &md) == UCS_OK);
        uct_config_release(config);
        CHECK(uct_md_query_tl_resources(md, &resources, &count) == UCS_OK);
        CHECK((count == 1) && !strcmp(resources[0].tl_name, tl));
        if (!strcmp(resources[0].dev_name, dev)) {
            memcpy(md_name, component_attr.md_resources[i].md_name, sizeof(md_name));
            uct_release_tl_resource_list(resources);
            break;
        }
        uct_release_tl_resource_list(resources);
        uct_md_close(md);
        md = NULL;
    }
    free(component_attr.md_resources);
    CHECK(md != NULL);
    CHECK(uct_md_query(md, &md_attr) == UCS_OK);
    CHECK(!strcmp(md_attr.component_name, tl));
}

static unsigned errors;

static ucs_status_t on_error(void *arg, uct_ep_h failed, ucs_status_t status)
{
    CHECK((arg == &errors) && (failed == ep) && (status < 0));
    errors++;
    return UCS_OK;
}

static uct_iface_h open_iface_of(uct_md_h md, uct_worker_h worker, const char *tl, const char *dev)
{
    uct_iface_config_t *config;
    uct_iface_params_t params;
    uct_iface_h iface;

    memset(&params, 0xff, sizeof(params));
    params.field_mask           = UCT_IFACE_PARAM_FIELD_OPEN_MODE | UCT_IFACE_PARAM_FIELD_DEVICE |
                                  UCT_IFACE_PARAM_FIELD_ERR_HANDLER | UCT_IFACE_PARAM_FIELD_ERR_HANDLER_ARG;
    params.open_mode            = UCT_IFACE_OPEN_MODE_DEVICE;
    params.mode.device.tl_name  = tl;
    params.mode.device.dev_name = dev;
    params.err_handler          = on_error;
    params.err_handler_arg      = &errors;
    CHECK(uct_md_iface_config_read(md, tl, NULL, NULL, &config) == UCS_OK);
    CHECK(uct_iface_open(md, worker, &params, config, &iface) == UCS_OK);
    uct_config_release(config);
    uct_iface_progress_enable(iface, UCT_PROGRESS_SEND | UCT_PROGRESS_RECV);
    return iface;
}

static uct_iface_h open_iface(const char *tl, const char *dev)
{
    return open_iface_of(md, worker, tl, dev);
}

static void connect_ep(void)
{
    uct_ep_params_t params;
    void *device, *address;

    CHECK(uct_iface_query(to, &attr) == UCS_OK);
    CHECK(has(UCT_IFACE_FLAG_CONNECT_TO_IFACE) && has(UCT_IFACE_FLAG_CB_SYNC));
    device  = malloc(attr.device_addr_len + 1);
    address = malloc(attr.iface_addr_len + 1);
    CHECK(uct_iface_get_device_address(to, device) == UCS_OK);
    CHECK(uct_iface_get_address(to, address) == UCS_OK);
    CHECK(uct_iface_is_reachable(from, device, address) == 1);
    CHECK(uct_iface_is_reachable(from, device, NULL) == 1);
    params.field_mask = UCT_EP_PARAM_FIELD_IFACE | UCT_EP_PARAM_FIELD_DEV_ADDR | UCT_EP_PARAM_FIELD_IFACE_ADDR;
    params.iface      = from;
    params.dev_addr   = device;
    params.iface_addr = address;
    CHECK(uct_ep_create(&params, &ep) == UCS_OK);
    params.iface_addr = NULL;
    CHECK((attr.iface_addr_len == 0) || (uct_ep_create(&params, &ep) == UCS_ERR_INVALID_PARAM));
    free(device);
    free(address);
}

static unsigned completed;

static void on_complete(uct_completion_t *completion)
{
    CHECK(completion->count == 0);
    completed++;
}

static uct_completion_t completion_of(int count)
{
    uct_completion_t completion = { on_complete, count, UCS_OK };
    return completion;
}

/* Starts an operation until there is room, and waits for its completion; the status of the operation. */
#define WAIT(operation) \
    ({ \
        uct_completion_t comp = completion_of(1); \
        unsigned before = completed; \
        ucs_status_t status; \
        while ((status = (operation)) == UCS_ERR_NO_RESOURCE) { \
            progress(); \
        } \
        if (status == UCS_INPROGRESS) { \
            while (completed == before) { \
                progress(); \
            } \
            status = comp.status; \
        } \
        status; \
    })

static void flush(void)
{
    CHECK(WAIT(uct_ep_flush(ep, UCT_FLUSH_FLAG_LOCAL, &comp)) == UCS_OK);
    CHECK(WAIT(uct_iface_flush(from, UCT_FLUSH_FLAG_LOCAL, &comp)) == UCS_OK);
}

static unsigned char received[8192];
static size_t received_length;
static unsigned arrived;

static ucs_status_t on_message(void *arg, void *data, size_t length, unsigned flags)
{
    CHECK((arg == received) && (length <= sizeof(received)));
    CHECK(!(flags & UCT_CB_PARAM_FLAG_DESC));
    memcpy(received, data, length);
    received_length = length;
    arrived++;
    return UCS_OK;
}

/* The message after the last one expected; it may have come within its send. */
static void expect(const void *data, size_t length)
{
    static unsigned before;

    while (arrived == before) {
        progress();
    }
    CHECK((arrived == ++before) && (received_length == length) && !memcmp(received, data, length));
}

static unsigned char source[1 << 17], copy[1 << 17];

static size_t pack(void *dest, void *arg)
{
    size_t length = *(size_t*)arg;
    memcpy(dest, source, length);
    return length;
}

static void unpack(void *arg, const void *data, size_t length)
{
    memcpy(arg, data, length);
}

static uct_mem_h register_memory(void *at, size_t length)
{
    uct_mem_h memh = UCT_MEM_HANDLE_NULL;

    if (md_attr.cap.flags & UCT_MD_FLAG_NEED_MEMH) {
        CHECK(uct_md_mem_reg(md, at, length, UCT_MD_MEM_ACCESS_ALL, &memh) == UCS_OK);
    }
    return memh;
}

static void messages(void)
{
    uint64_t header = 0x0102030405060708ul;
    unsigned char expected[8192];
    uct_mem_h memh = register_memory(source, sizeof(source));
    uct_iov_t iov[3] = {
        { source, 5, memh, 0, 1 }, { source + 1000, 8, memh, 0, 1 }, { source + 2000, 1, memh, 0, 1 }
    };
    size_t length = 1000;
    ssize_t sent;

    if (!has(UCT_IFACE_FLAG_AM_SHORT)) {
        CHECK(uct_ep_am_short(ep, 3, header, source, 8) == UCS_ERR_UNSUPPORTED);
        CHECK(uct_ep_am_bcopy(ep, 3, pack, &length, 0) == UCS_ERR_UNSUPPORTED);
        return;
    }
    CHECK(uct_iface_set_am_handler(to, 3, on_message, received, 0) == UCS_OK);
    CHECK(WAIT((comp.count = 1, uct_ep_am_short(ep, 3, header, source, 16))) == UCS_OK);
    CHECK(!is_self || (arrived == 1));
    memcpy(expected, &header, 8);
    memcpy(expected + 8, source, 16);
    expect(expected, 24);
    CHECK(WAIT((comp.count = 1, uct_ep_am_short_iov(ep, 3, iov, 3))) == UCS_OK);
    memcpy(expected, source, 5);
    memcpy(expected + 5, source + 1000, 8);
    memcpy(expected + 13, source + 2000, 1);
    expect(expected, 14);
    while ((sent = uct_ep_am_bcopy(ep, 3, pack, &length, 0)) == UCS_ERR_NO_RESOURCE) {
        progress();
    }
    CHECK(sent == 1000);
    expect(source, 1000);
    CHECK(WAIT(uct_ep_am_zcopy(ep, 3, "header", 6, iov, 1, 0, &comp)) == UCS_OK);
    memcpy(expected, "header", 6);
    memcpy(expected + 6, source, 5);
    expect(expected, 11);
    CHECK(uct_ep_am_short(ep, UCT_AM_ID_MAX, header, source, 8) == UCS_ERR_INVALID_PARAM);
    CHECK(uct_ep_am_zcopy(ep, 3, NULL, 0, iov, 1000, 0, NULL) == UCS_ERR_EXCEEDS_LIMIT);
    CHECK(uct_ep_am_short(ep, 3, header, source, (unsigned)attr.cap.am.max_short) < 0);
    flush();
    if (memh != UCT_MEM_HANDLE_NULL) {
        CHECK(uct_md_mem_dereg(md, memh) == UCS_OK);
    }
}

typedef struct {
    uct_pending_req_t super;
    int number;
} waiting_t;

static int blocked, order[8], done;
/* What the next calls answer, of which none keeps its request from being tried again. */
static const ucs_status_t refusals[] = { UCS_ERR_NO_MEMORY, UCS_ERR_BUSY, UCS_ERR_IO_ERROR };
static size_t to_refuse;

static ucs_status_t attempt(uct_pending_req_t *request)
{
    waiting_t *waiting = (waiting_t*)request;
    ucs_status_t status;

    if (blocked) {
        return UCS_ERR_NO_RESOURCE;
    }
    if (to_refuse > 0) {
        return refusals[--to_refuse];
    }
    status = uct_ep_am_short(ep, 4, waiting->number, NULL, 0);
    if (status != UCS_ERR_NO_RESOURCE) {
        order[done++] = waiting->number;
    }
    return status;
}

static void purged(uct_pending_req_t *request, void *arg)
{
    CHECK(arg == order);
    order[done++] = ((waiting_t*)request)->number;
}

static ucs_status_t count_message(void *arg, void *data, size_t length, unsigned flags)
{
    ++*(unsigned*)arg;
    return UCS_OK;
}

static void fill_and_queue(waiting_t *waiting, unsigned *sent)
{
    ucs_status_t status;
    int i;

    done = 0;
    do {
        status = uct_ep_am_short(ep, 4, 0, NULL, 0);
        *sent += (status == UCS_OK) || (status == UCS_INPROGRESS);
        CHECK(*sent < 1000000);
    } while (status != UCS_ERR_NO_RESOURCE);
    for (i = 0; i < 3; i++) {
        waiting[i].super.func = attempt;
        waiting[i].number     = i + 1;
        CHECK(uct_ep_pending_add(ep, &waiting[i].super, 0) == UCS_OK);
    }
}

typedef struct {
    waiting_t *waiting;
    unsigned *sent;
    int is_done;
} fill_t;

static ucs_status_t on_fill(void *arg, void *data, size_t length, unsigned flags)
{
    fill_t *fill = arg;

    fill_and_queue(fill->waiting, fill->sent);
    fill->is_done = 1;
    return UCS_OK;
}

/* From a handler: `self` passes messages to handlers within the send, and keeps only what these send. */
static void fill(waiting_t *waiting, unsigned *sent)
{
    fill_t fill = { waiting, sent, 0 };

    CHECK(uct_iface_set_am_handler(to, 6, on_fill, &fill, 0) == UCS_OK);
    while (uct_ep_am_short(ep, 6, 0, NULL, 0) == UCS_ERR_NO_RESOURCE) {
        progress();
    }
    while (!fill.is_done) {
        progress();
    }
    CHECK(uct_iface_set_am_handler(to, 6, NULL, NULL, 0) == UCS_OK);
}

static void pending(void)
{
    waiting_t waiting[3];
    unsigned sent = 0, seen = 0, i;

    if (!has(UCT_IFACE_FLAG_PENDING) || !has(UCT_IFACE_FLAG_AM_SHORT)) {
        return;
    }
    CHECK(uct_iface_set_am_handler(to, 4, count_message, &seen, 0) == UCS_OK);
    blocked = 1;
    fill(waiting, &sent);
    for (i = 0; i < 100; i++) {
        progress();
    }
    CHECK(done == 0);
    uct_ep_pending_purge(ep, purged, order);
    CHECK((done == 3) && (order[0] == 1) && (order[1] == 2) && (order[2] == 3));
    blocked = 0;
    flush();
    to_refuse = sizeof(refusals) / sizeof(refusals[0]);
    fill(waiting, &sent);
    while (done < 3) {
        progress();
    }
    CHECK((order[0] == 1) && (order[1] == 2) && (order[2] == 3));
    while (seen < sent + 3) {
        progress();
    }
    flush();
    CHECK(uct_ep_pending_add(ep, &waiting[0].super, 0) == UCS_ERR_BUSY);
}

static void one_sided(void)
{
    uct_mem_h memh = register_memory(copy, sizeof(copy)), source_memh = register_memory(source, sizeof(source));
    uct_iov_t pieces[2] = { { source, 3000, source_memh, 0, 1 }, { source + 5000, 1000, source_memh, 0, 1 } };
    uct_iov_t into = { copy, 4000, memh, 0, 1 };
    size_t length = 500, all = sizeof(source);
    uct_allocated_memory_t mem, later[2];
    uct_rkey_bundle_t rkey;
    uint64_t remote;
    ssize_t sent;
    void *buffer, *mapped;

    /* A caller that was built with 1.13 has 40 bytes: nothing behind is written. */
    memset(later, 0x77, sizeof(later));
    CHECK(uct_iface_mem_alloc(to, all, UCT_MD_MEM_ACCESS_ALL, "test", &later[0]) == UCS_OK);
    CHECK(*(unsigned char*)&later[1] == 0x77);
    mem    = later[0];
    remote = (uintptr_t)mem.address;
    CHECK((mem.length >= all) && (mem.md == md) && (mem.mem_type == UCS_MEMORY_TYPE_HOST));
    buffer = malloc(md_attr.rkey_packed_size);
    CHECK(uct_md_mkey_pack(md, mem.memh, buffer) == UCS_OK);
    CHECK(uct_rkey_unpack(component, buffer, &rkey) == UCS_OK);
    free(buffer);

    CHECK(WAIT((comp.count = 1, uct_ep_put_short(ep, source, 8, remote, rkey.rkey))) == UCS_OK);
    flush();
    CHECK(!memcmp(mem.address, source, 8));
    /* At the end of the memory there is less room than a callback may fill. */
    while ((sent = uct_ep_put_bcopy(ep, pack, &length, remote + all - 500, rkey.rkey)) == UCS_ERR_NO_RESOURCE) {
        progress();
    }
    CHECK(sent == 500);
    while ((sent = uct_ep_put_bcopy(ep, pack, &length, remote + 100, rkey.rkey)) == UCS_ERR_NO_RESOURCE) {
        progress();
    }
    CHECK(sent == 500);
    CHECK(WAIT(uct_ep_put_zcopy(ep, pieces, 1, remote + 1000, rkey.rkey, &comp)) == UCS_OK);
    CHECK(WAIT(uct_ep_put_zcopy(ep, pieces + 1, 1, remote + 4000, rkey.rkey, &comp)) == UCS_OK);
    if (attr.cap.put.max_iov >= 2) {
        CHECK(WAIT(uct_ep_put_zcopy(ep, pieces, 2, remote + 50000, rkey.rkey, &comp)) == UCS_OK);
        flush();
        CHECK(!memcmp((char*)mem.address + 53000, source + 5000, 1000));
    }
    flush();
    CHECK(!memcmp((char*)mem.address + all - 500, source, 500) && !memcmp((char*)mem.address + 100, source, 500));
    CHECK(!memcmp((char*)mem.address + 1000, source, 3000) && !memcmp((char*)mem.address + 4000, source + 5000, 1000));
    CHECK(uct_ep_fence(ep, 0) == UCS_OK);
    CHECK(uct_iface_fence(from, 0) == UCS_OK);

    CHECK(WAIT(uct_ep_get_zcopy(ep, &into, 1, remote + 1000, rkey.rkey, &comp)) == UCS_OK);
    CHECK(!memcmp(copy, source, 3000) && !memcmp(copy + 3000, source + 5000, 1000));
    memset(copy, 0, sizeof(copy));
    CHECK(WAIT(uct_ep_get_bcopy(ep, unpack, copy, 400, remote + 100, rkey.rkey, &comp)) == UCS_OK);
    CHECK(!memcmp(copy, source, 400) && (copy[400] == 0));
    if (has(UCT_IFACE_FLAG_GET_SHORT)) {
        memset(copy, 0, sizeof(copy));
        CHECK(uct_ep_get_short(ep, copy, 8, remote + 100, rkey.rkey) == UCS_OK);
        CHECK(!memcmp(copy, source, 8));
    } else {
        CHECK(uct_ep_get_short(ep, copy, 8, remote, rkey.rkey) == UCS_ERR_UNSUPPORTED);
    }
    if (md_attr.cap.flags & UCT_MD_FLAG_RKEY_PTR) {
        CHECK(uct_rkey_ptr(component, &rkey, remote + 100, &mapped) == UCS_OK);
        CHECK(!memcmp(mapped, source, 500));
        CHECK(uct_rkey_ptr(component, &rkey, remote + (1ul << 40), &mapped) == UCS_ERR_INVALID_ADDR);
    }
    CHECK(uct_ep_put_short(ep, source, 8, remote, UCT_INVALID_RKEY) == UCS_ERR_INVALID_PARAM);
    CHECK(uct_ep_put_bcopy(ep, pack, &length, remote + mem.length + 4096 * 1024, rkey.rkey) < 0 ||
          !strcmp(md_attr.component_name, "cma"));
    flush();
    if (strcmp(md_attr.component_name, "cma")) {
        /* Beyond the key: refused at once, or by the completion. */
        CHECK(WAIT(uct_ep_put_zcopy(ep, pieces, 1, remote + mem.length - 8, rkey.rkey, &comp)) < 0);
    }
    CHECK(uct_rkey_release(component, &rkey) == UCS_OK);
    uct_iface_mem_free(&mem);
    if (memh != UCT_MEM_HANDLE_NULL) {
        CHECK(uct_md_mem_dereg(md, memh) == UCS_OK);
        CHECK(uct_md_mem_dereg(md, source_memh) == UCS_OK);
    }
}

static void atomics(void)
{
    uct_allocated_memory_t mem;
    uct_rkey_bundle_t rkey;
    volatile uint64_t *word;
    volatile uint32_t *half;
    uint64_t remote, old64 = 0;
    uint32_t old32 = 0;
    void *buffer;

    if (!has(UCT_IFACE_FLAG_ATOMIC_CPU)) {
        CHECK(attr.cap.atomic64.fop_flags == 0);
        return;
    }
    CHECK(uct_iface_mem_alloc(to, 4096, UCT_MD_MEM_ACCESS_ALL, "words", &mem) == UCS_OK);
    buffer = malloc(md_attr.rkey_packed_size);
    CHECK(uct_md_mkey_pack(md, mem.memh, buffer) == UCS_OK);
    CHECK(uct_rkey_unpack(component, buffer, &rkey) == UCS_OK);
    free(buffer);
    word   = mem.address;
    half   = (uint32_t*)mem.address + 16;
    remote = (uintptr_t)mem.address;
    *word  = 0xf0;
    *half  = 7;
#define POST(op, value) CHECK(WAIT((comp.count = 1, uct_ep_atomic64_post(ep, op, value, remote, rkey.rkey))) == UCS_OK)
    POST(UCT_ATOMIC_OP_ADD, 5);
    flush();
    CHECK(*word == 0xf5);
    POST(UCT_ATOMIC_OP_AND, 0x3f);
    flush();
    CHECK(*word == 0x35);
    POST(UCT_ATOMIC_OP_OR, 0x100);
    flush();
    CHECK(*word == 0x135);
    POST(UCT_ATOMIC_OP_XOR, 0xff);
    flush();
    CHECK(*word == 0x1ca);
#define FETCH(op, value) \
    CHECK(WAIT(uct_ep_atomic64_fetch(ep, op, value, &old64, remote, rkey.rkey, &comp)) == UCS_OK)
    FETCH(UCT_ATOMIC_OP_ADD, 1);
    CHECK((old64 == 0x1ca) && (*word == 0x1cb));
    FETCH(UCT_ATOMIC_OP_AND, 0xf0);
    CHECK((old64 == 0x1cb) && (*word == 0xc0));
    FETCH(UCT_ATOMIC_OP_OR, 3);
    CHECK((old64 == 0xc0) && (*word == 0xc3));
    FETCH(UCT_ATOMIC_OP_XOR, 1);
    CHECK((old64 == 0xc3) && (*word == 0xc2));
    FETCH(UCT_ATOMIC_OP_SWAP, 99);
    CHECK((old64 == 0xc2) && (*word == 99));
    CHECK(WAIT(uct_ep_atomic_cswap64(ep, 98, 1, remote, rkey.rkey, &old64, &comp)) == UCS_OK);
    CHECK((old64 == 99) && (*word == 99));
    CHECK(WAIT(uct_ep_atomic_cswap64(ep, 99, 1, remote, rkey.rkey, &old64, &comp)) == UCS_OK);
    CHECK((old64 == 99) && (*word == 1));
    remote += 64;
    CHECK(WAIT((comp.count = 1, uct_ep_atomic32_post(ep, UCT_ATOMIC_OP_ADD, 1, remote, rkey.rkey))) == UCS_OK);
    flush();
    CHECK(WAIT(uct_ep_atomic32_fetch(ep, UCT_ATOMIC_OP_ADD, 2, &old32, remote, rkey.rkey, &comp)) == UCS_OK);
    CHECK((old32 == 8) && (*half == 10));
    CHECK(WAIT(uct_ep_atomic_cswap32(ep, 10, 3, remote, rkey.rkey, &old32, &comp)) == UCS_OK);
    CHECK((old32 == 10) && (*half == 3));
    CHECK(uct_ep_atomic64_fetch(ep, UCT_ATOMIC_OP_CSWAP, 1, &old64, remote, rkey.rkey, NULL) == UCS_ERR_UNSUPPORTED);
    CHECK(uct_ep_atomic64_post(ep, 77, 1, remote, rkey.rkey) == UCS_ERR_UNSUPPORTED);
    CHECK(uct_rkey_release(component, &rkey) == UCS_OK);
    uct_iface_mem_free(&mem);
}

static void events(void)
{
    struct pollfd fd = { -1, POLLIN, 0 };
    unsigned seen = 0;
    ucs_status_t status;

    if (!(attr.cap.event_flags & UCT_IFACE_FLAG_EVENT_FD) || !has(UCT_IFACE_FLAG_AM_SHORT)) {
        return;
    }
    CHECK(uct_iface_set_am_handler(to, 5, count_message, &seen, 0) == UCS_OK);
    CHECK(uct_iface_event_fd_get(to, &fd.fd) == UCS_OK);
    while ((status = uct_iface_event_arm(to, UCT_EVENT_RECV)) == UCS_ERR_BUSY) {
        progress();
    }
    CHECK(status == UCS_OK);
    CHECK(poll(&fd, 1, 0) == 0);
    CHECK(WAIT((comp.count = 1, uct_ep_am_short(ep, 5, 1, NULL, 0))) == UCS_OK);
    CHECK(poll(&fd, 1, 20000) == 1);
    CHECK(uct_iface_event_arm(to, UCT_EVENT_RECV) == UCS_ERR_BUSY);
    while (seen == 0) {
        progress();
    }
    CHECK(WAIT(uct_ep_check(ep, 0, &comp)) == UCS_OK);
}

static void configurations(const char *tl)
{
    uct_iface_config_t *config;
    char value[64];

    CHECK(uct_md_iface_config_read(md, tl, NULL, NULL, &config) == UCS_OK);
    CHECK(uct_config_get(config, "NO_SUCH_KEY", value, sizeof(value)) == UCS_ERR_NO_ELEM);
    CHECK(uct_config_modify(config, "NO_SUCH_KEY", "1") == UCS_ERR_NO_ELEM);
    if (!strcmp(tl, "posix")) {
        CHECK(uct_config_modify(config, "FIFO_BUFS", "many") == UCS_ERR_INVALID_PARAM);
        CHECK(uct_config_modify(config, "FIFO_BUFS", "64") == UCS_OK);
        CHECK(uct_config_get(config, "FIFO_BUFS", value, sizeof(value)) == UCS_OK);
        CHECK(!strcmp(value, "64"));
        CHECK(uct_config_get(config, "FIFO_BUFS", value, 2) == UCS_ERR_BUFFER_TOO_SMALL);
    }
    uct_config_release(config);
    if (!strcmp(tl, "posix")) {
        /* What is set for a prefix is for those that read with it. */
        CHECK(setenv("UCX_PREFIX_POSIX_FIFO_BUFS", "32", 1) == 0);
        CHECK(uct_md_iface_config_read(md, tl, "PREFIX", NULL, &config) == UCS_OK);
        CHECK(uct_config_get(config, "FIFO_BUFS", value, sizeof(value)) == UCS_OK && !strcmp(value, "32"));
        uct_config_release(config);
        CHECK(uct_md_iface_config_read(md, tl, NULL, NULL, &config) == UCS_OK);
        CHECK(uct_config_get(config, "FIFO_BUFS", value, sizeof(value)) == UCS_OK && strcmp(value, "32"));
        uct_config_release(config);
    }
    CHECK(uct_md_iface_config_read(md, "none", NULL, NULL, &config) == UCS_ERR_NO_DEVICE);
}

/* Memory that no domain has registered, as a program asks for that has none yet. */
static void memory_without_domain(void)
{
    uct_alloc_method_t methods[]  = { UCT_ALLOC_METHOD_MD, UCT_ALLOC_METHOD_HEAP, UCT_ALLOC_METHOD_MMAP };
    uct_mem_alloc_params_t params = { .field_mask = UCT_MEM_ALLOC_PARAM_FIELD_FLAGS, .flags = UCT_MD_MEM_ACCESS_ALL };
    uct_allocated_memory_t mem[2];
    uct_mem_h memh;
    int i;

    for (i = 0; i < 2; i++) {
        CHECK(uct_mem_alloc(10000, methods + i, 2, &params, &mem[i]) == UCS_OK);
        CHECK(mem[i].memh == UCT_MEM_HANDLE_NULL && mem[i].md == NULL && mem[i].mem_type == UCS_MEMORY_TYPE_HOST);
        CHECK(mem[i].method == UCT_ALLOC_METHOD_HEAP && mem[i].length >= 10000);
        memset(mem[i].address, 1, mem[i].length);
    }
    CHECK(mem[0].address != mem[1].address);
    if (uct_md_mem_reg(md, mem[0].address, mem[0].length, UCT_MD_MEM_ACCESS_LOCAL_READ, &memh) == UCS_OK) {
        CHECK(uct_md_mem_dereg(md, memh) == UCS_OK);
    }
    CHECK(uct_mem_free(&mem[0]) == UCS_OK && uct_mem_free(&mem[1]) == UCS_OK);
    CHECK(uct_mem_free(&mem[0]) == UCS_ERR_INVALID_PARAM);
    CHECK(uct_mem_alloc(10000, methods, 1, &params, &mem[0]) == UCS_ERR_UNSUPPORTED);
    CHECK(uct_mem_alloc(0, methods, 3, &params, &mem[0]) == UCS_ERR_INVALID_PARAM);
}

static void memory(void)
{
    uct_alloc_method_t methods[] = { UCT_ALLOC_METHOD_MD, UCT_ALLOC_METHOD_MMAP };
    uct_mem_alloc_params_t params;
    uct_allocated_memory_t mem;
    uct_md_mem_attr_t mem_attr;
    ucs_memory_type_t type;

    params.field_mask = UCT_MEM_ALLOC_PARAM_FIELD_MDS | UCT_MEM_ALLOC_PARAM_FIELD_FLAGS;
    params.flags      = UCT_MD_MEM_ACCESS_RMA | UCT_MD_MEM_FLAG_NONBLOCK;
    params.mds.mds    = &md;
    params.mds.count  = 1;
    CHECK(uct_mem_alloc(10000, methods, 2, &params, &mem) == UCS_OK);
    memset(mem.address, 1, mem.length);
    CHECK(uct_md_mem_advise(md, mem.memh, mem.address, 4096, UCT_MADV_WILLNEED) == UCS_OK);
    CHECK(uct_md_mem_advise(md, mem.memh, mem.address, mem.length + 1, UCT_MADV_WILLNEED) == UCS_ERR_INVALID_PARAM);
    mem_attr.field_mask = UCT_MD_MEM_ATTR_FIELD_MEM_TYPE | UCT_MD_MEM_ATTR_FIELD_BASE_ADDRESS |
                          UCT_MD_MEM_ATTR_FIELD_ALLOC_LENGTH;
    CHECK(uct_md_mem_query(md, mem.address, 100, &mem_attr) == UCS_OK);
    CHECK((mem_attr.mem_type == UCS_MEMORY_TYPE_HOST) && (mem_attr.base_address <= mem.address));
    CHECK(uct_md_detect_memory_type(md, mem.address, 100, &type) == UCS_OK);
    CHECK(type == UCS_MEMORY_TYPE_HOST);
    CHECK(uct_mem_free(&mem) == UCS_OK);
    memory_without_domain();
}

/* Messages are not traced. */
static void trace(void *arg, uct_am_trace_type_t type, uint8_t id, const void *data, size_t length, char *buffer,
                  size_t max)
{
    CHECK(0);
}

static void bad_input(const char *tl, const char *dev)
{
    uct_iface_params_t params = { UCT_IFACE_PARAM_FIELD_OPEN_MODE | UCT_IFACE_PARAM_FIELD_DEVICE };
    uct_iov_t iov = { source, 8, NULL, 0, 1 };
    uct_component_attr_t component_attr;
    uct_md_config_t *config;
    uct_rkey_bundle_t rkey;
    uct_worker_h other;
    uct_iface_h iface;
    uct_md_h another;
    uct_mem_h memh;
    uct_ep_params_t ep_params;
    uct_ep_h none;
    void *cm;
    size_t length = 8;

    CHECK(uct_query_components(NULL, NULL) == UCS_ERR_INVALID_PARAM);
    CHECK(uct_component_query(NULL, &component_attr) == UCS_ERR_INVALID_PARAM);
    CHECK(uct_component_query(component, NULL) == UCS_ERR_INVALID_PARAM);
    CHECK(uct_component_query((uct_component_h)md, &component_attr) == UCS_ERR_INVALID_PARAM);
    CHECK(uct_md_config_read(component, NULL, NULL, NULL) == UCS_ERR_INVALID_PARAM);
    CHECK(uct_md_config_read(component, NULL, NULL, &config) == UCS_OK);
    CHECK(uct_md_open(component, "no such", config, &another) == UCS_ERR_NO_DEVICE);
    CHECK(uct_md_open(component, NULL, config, &another) == UCS_ERR_INVALID_PARAM);
    uct_config_release(config);
    uct_config_release(NULL);
    CHECK(uct_md_query(NULL, &md_attr) == UCS_ERR_INVALID_PARAM);
    CHECK(uct_md_query((uct_md_h)worker, &md_attr) == UCS_ERR_INVALID_PARAM);
    CHECK(uct_md_mem_reg(md, NULL, 10, 0, &memh) == UCS_ERR_INVALID_PARAM);
    CHECK(uct_md_mem_dereg(md, NULL) == UCS_ERR_INVALID_PARAM);
    CHECK(uct_md_mkey_pack(md, NULL, source) == UCS_ERR_INVALID_PARAM);
    CHECK(uct_rkey_unpack(component, NULL, &rkey) == UCS_ERR_INVALID_PARAM);
    memset(copy, 0xa5, 300);
    CHECK(uct_rkey_unpack(component, copy, &rkey) < 0);
    CHECK(uct_worker_create(NULL, UCS_THREAD_MODE_MULTI, &other) == UCS_OK);
    CHECK(uct_worker_create(NULL, UCS_THREAD_MODE_SINGLE, NULL) == UCS_ERR_INVALID_PARAM);
    params.open_mode            = UCT_IFACE_OPEN_MODE_DEVICE;
    params.mode.device.tl_name  = tl;
    params.mode.device.dev_name = "none";
    CHECK(uct_iface_open(md, worker, &params, NULL, &iface) == UCS_ERR_NO_DEVICE);
    params.mode.device.dev_name = NULL;
    CHECK(uct_iface_open(md, worker, &params, NULL, &iface) == UCS_ERR_INVALID_PARAM);
    params.mode.device.dev_name = dev;
    CHECK(uct_iface_open(md, other, &params, NULL, &iface) == UCS_ERR_UNSUPPORTED);
    uct_worker_destroy(other);
    CHECK(uct_iface_open(NULL, worker, &params, NULL, &iface) == UCS_ERR_INVALID_PARAM);
    CHECK(uct_iface_open(md, NULL, &params, NULL, &iface) == UCS_ERR_INVALID_PARAM);
    CHECK(uct_iface_open(md, worker, NULL, NULL, &iface) == UCS_ERR_INVALID_PARAM);
    params.open_mode = UCT_IFACE_OPEN_MODE_SOCKADDR_SERVER;
    CHECK(uct_iface_open(md, worker, &params, NULL, &iface) == UCS_ERR_UNSUPPORTED);
    CHECK(uct_iface_query(NULL, &attr) == UCS_ERR_INVALID_PARAM);
    CHECK(uct_iface_set_am_handler(to, UCT_AM_ID_MAX, on_message, NULL, 0) == UCS_ERR_INVALID_PARAM);
    CHECK(uct_iface_set_am_tracer(NULL, trace, NULL) == UCS_ERR_INVALID_PARAM);
    ep_params.field_mask = 0;
    CHECK(uct_ep_create(&ep_params, &none) == UCS_ERR_UNSUPPORTED);
    ep_params.field_mask = UCT_EP_PARAM_FIELD_IFACE | UCT_EP_PARAM_FIELD_DEV_ADDR;
    ep_params.iface      = from;
    ep_params.dev_addr   = (uct_device_addr_t*)source;
    CHECK(uct_ep_create(&ep_params, &none) == UCS_ERR_UNSUPPORTED);
    CHECK(uct_ep_create(NULL, &none) == UCS_ERR_INVALID_PARAM);
    uct_ep_destroy(NULL);
    CHECK(uct_ep_put_short(ep, NULL, 8, 0, 0) == UCS_ERR_INVALID_PARAM);
    CHECK(uct_ep_put_zcopy(ep, NULL, 1, 0, 0, NULL) == UCS_ERR_INVALID_PARAM);
    CHECK(uct_ep_put_zcopy(ep, &iov, 1, 0, 0, NULL) == UCS_ERR_INVALID_PARAM);
    CHECK(uct_ep_am_bcopy(ep, 3, NULL, &length, 0) == UCS_ERR_INVALID_PARAM);
    CHECK(uct_ep_pending_add(ep, NULL, 0) == UCS_ERR_INVALID_PARAM);
    CHECK(uct_ep_check(ep, 1, NULL) == UCS_ERR_INVALID_PARAM);
    CHECK(uct_iface_flush(from, 1 << 9, NULL) == UCS_ERR_UNSUPPORTED);
    CHECK(uct_ep_tag_eager_short(ep, 1, source, 8) == UCS_ERR_UNSUPPORTED);
    CHECK(uct_ep_tag_eager_bcopy(ep, 1, 0, pack, &length, 0) == UCS_ERR_UNSUPPORTED);
    CHECK(UCS_PTR_STATUS(uct_ep_tag_rndv_zcopy(ep, 1, NULL, 0, &iov, 1, 0, NULL)) == UCS_ERR_UNSUPPORTED);
    CHECK(uct_cm_open(component, worker, NULL, (uct_cm_h*)&cm) == UCS_ERR_UNSUPPORTED);
    CHECK(uct_ep_connect_to_ep(ep, NULL, NULL) == UCS_ERR_INVALID_PARAM);
    CHECK(uct_ep_connect_to_ep(NULL, NULL, NULL) == UCS_ERR_INVALID_PARAM);
    CHECK(uct_ep_get_address(NULL, (uct_ep_addr_t*)copy) == UCS_ERR_INVALID_PARAM);
}

#include "uct_forms.h"
#include "uct_threads.h"
#include "uct_values.h"

int main(int argc, char **argv)
{
    size_t i;

    CHECK(argc == 3);
    for (i = 0; i < sizeof(source); i++) {
        source[i] = (unsigned char)(i * 31 + i / 256);
    }
    CHECK(ucs_async_context_create(UCS_ASYNC_MODE_THREAD_SPINLOCK, &async) == UCS_OK);
    CHECK(uct_worker_create(async, UCS_THREAD_MODE_SINGLE, &worker) == UCS_OK);
    is_self = !strcmp(argv[1], "self");
    find_component(argv[1]);
    open_md(argv[1], argv[2]);
    from = open_iface(argv[1], argv[2]);
    to   = open_iface(argv[1], argv[2]);
    connect_ep();
    CHECK(uct_iface_set_am_tracer(to, trace, NULL) == UCS_OK);
    messages();
    pending();
    one_sided();
    atomics();
    events();
    configurations(argv[1]);
    memory();
    bad_input(argv[1], argv[2]);
    forms();
    callbacks_of_threads();
    key_of_threads(argv[1], argv[2]);
    values(argv[1], argv[2]);
    CHECK(WAIT(uct_ep_flush(ep, UCT_FLUSH_FLAG_CANCEL, &comp)) == UCS_OK);
    uct_ep_destroy(ep);
    uct_iface_close(from);
    uct_iface_close(to);
    uct_md_close(md);
    uct_worker_destroy(worker);
    ucs_async_context_destroy(async);
    CHECK(errors == 0);
    return 0;
}

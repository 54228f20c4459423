/* The uct interface between two processes and by several threads: a peer that is killed, a serialized worker
 * that another thread uses, and addresses and keys that are no such things.
 * uct_peer TRANSPORT DEVICE */
#include "check_macro.h"
#include <uct/api/uct.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

typedef struct {
    uct_component_h component;
    uct_md_h md;
    uct_worker_h worker;
    uct_iface_h iface;
    uct_iface_attr_t attr;
    unsigned failures;
} side_t;

typedef struct {
    char device[256], iface[256];
} address_t;

static ucs_status_t on_error(void *arg, uct_ep_h ep, ucs_status_t status)
{
    side_t *side = arg;
    CHECK((ep != NULL) && (status < 0));
    side->failures++;
    return UCS_OK;
}

static void open_side(side_t *side, const char *tl, const char *dev, ucs_thread_mode_t mode)
{
    uct_iface_params_t params;
    uct_component_attr_t attr;
    uct_component_h *components;
    unsigned count, i;

    memset(side, 0, sizeof(*side));
    CHECK(uct_query_components(&components, &count) == UCS_OK);
    for (i = 0; i < count; i++) {
        attr.field_mask = UCT_COMPONENT_ATTR_FIELD_NAME;
        CHECK(uct_component_query(components[i], &attr) == UCS_OK);
        if (!strcmp(attr.name, tl)) {
            side->component = components[i];
        }
    }
    uct_release_component_list(components);
    CHECK(side->component != NULL);
    /* A memory domain has the name of the network device, or of the component. */
    CHECK(uct_md_open(side->component, strcmp(dev, "memory") ? dev : tl, NULL, &side->md) == UCS_OK);
    CHECK(uct_worker_create(NULL, mode, &side->worker) == UCS_OK);
    params.field_mask           = UCT_IFACE_PARAM_FIELD_OPEN_MODE | UCT_IFACE_PARAM_FIELD_DEVICE |
                                  UCT_IFACE_PARAM_FIELD_ERR_HANDLER | UCT_IFACE_PARAM_FIELD_ERR_HANDLER_ARG;
    params.open_mode            = UCT_IFACE_OPEN_MODE_DEVICE;
    params.mode.device.tl_name  = tl;
    params.mode.device.dev_name = dev;
    params.err_handler          = on_error;
    params.err_handler_arg      = side;
    CHECK(uct_iface_open(side->md, side->worker, &params, NULL, &side->iface) == UCS_OK);
    uct_iface_progress_enable(side->iface, UCT_PROGRESS_SEND | UCT_PROGRESS_RECV);
    CHECK(uct_iface_query(side->iface, &side->attr) == UCS_OK);
    CHECK((side->attr.device_addr_len <= 256) && (side->attr.iface_addr_len <= 256));
}

static void close_side(side_t *side)
{
    uct_iface_close(side->iface);
    uct_worker_destroy(side->worker);
    uct_md_close(side->md);
}

static address_t address_of(side_t *side)
{
    address_t address;
    memset(&address, 0, sizeof(address));
    CHECK(uct_iface_get_device_address(side->iface, (uct_device_addr_t*)address.device) == UCS_OK);
    CHECK(uct_iface_get_address(side->iface, (uct_iface_addr_t*)address.iface) == UCS_OK);
    return address;
}

static ucs_status_t connect_to(side_t *side, const address_t *address, uct_ep_h *ep)
{
    uct_ep_params_t params;
    params.field_mask = UCT_EP_PARAM_FIELD_IFACE | UCT_EP_PARAM_FIELD_DEV_ADDR | UCT_EP_PARAM_FIELD_IFACE_ADDR;
    params.iface      = side->iface;
    params.dev_addr   = (const uct_device_addr_t*)address->device;
    params.iface_addr = (const uct_iface_addr_t*)address->iface;
    return uct_ep_create(&params, ep);
}

static unsigned ended;

static void on_end(uct_completion_t *completion)
{
    ended++;
}

/* The peer gets a message and is killed. Messages to it then fail, and the endpoint can be given up. */
static void killed_peer(const char *tl, const char *dev)
{
    uct_completion_t completion = { on_end, 1, UCS_OK };
    int to_parent[2], failed = 0;
    time_t limit = time(NULL) + 60;
    address_t address;
    ucs_status_t status;
    side_t side;
    uct_ep_h ep;
    pid_t child;

    CHECK(pipe(to_parent) == 0);
    child = fork();
    if (child == 0) {
        open_side(&side, tl, dev, UCS_THREAD_MODE_SINGLE);
        address = address_of(&side);
        CHECK(write(to_parent[1], &address, sizeof(address)) == sizeof(address));
        for (;;) {
            uct_worker_progress(side.worker);
        }
    }
    CHECK(read(to_parent[0], &address, sizeof(address)) == sizeof(address));
    open_side(&side, tl, dev, UCS_THREAD_MODE_SINGLE);
    CHECK(connect_to(&side, &address, &ep) == UCS_OK);
    while ((status = uct_ep_am_short(ep, 1, 1, NULL, 0)) == UCS_ERR_NO_RESOURCE) {
        uct_worker_progress(side.worker);
    }
    CHECK(status >= 0);
    while ((status = uct_ep_flush(ep, 0, NULL)) == UCS_INPROGRESS) {
        uct_worker_progress(side.worker);
        CHECK(time(NULL) < limit);
    }
    kill(child, SIGKILL);
    CHECK(waitpid(child, NULL, 0) == child);
    while (!failed && (side.failures == 0)) {
        status = uct_ep_am_short(ep, 1, 1, NULL, 0);
        failed = (status < 0) && (status != UCS_ERR_NO_RESOURCE);
        uct_worker_progress(side.worker);
        CHECK(time(NULL) < limit);
    }
    while ((status = uct_ep_flush(ep, UCT_FLUSH_FLAG_CANCEL, &completion)) == UCS_ERR_NO_RESOURCE) {
        uct_worker_progress(side.worker);
        CHECK(time(NULL) < limit);
    }
    CHECK((status == UCS_OK) || (status == UCS_INPROGRESS));
    while ((status == UCS_INPROGRESS) && (ended == 0)) {
        uct_worker_progress(side.worker);
        CHECK(time(NULL) < limit);
    }
    uct_ep_destroy(ep);
    close_side(&side);
    close(to_parent[0]);
    close(to_parent[1]);
}

static ucs_status_t count_message(void *arg, void *data, size_t length, unsigned flags)
{
    ++*(unsigned*)arg;
    return UCS_OK;
}

static void *use_worker(void *arg)
{
    side_t *side = arg;
    address_t address = address_of(side);
    time_t limit = time(NULL) + 60;
    unsigned seen = 0, sent = 0;
    uct_ep_h ep;

    CHECK(uct_iface_set_am_handler(side->iface, 2, count_message, &seen, 0) == UCS_OK);
    CHECK(connect_to(side, &address, &ep) == UCS_OK);
    while (seen < 1000) {
        sent += (sent < 1000) && (uct_ep_am_short(ep, 2, sent, NULL, 0) >= 0);
        uct_worker_progress(side->worker);
        CHECK(time(NULL) < limit);
    }
    while (uct_ep_flush(ep, 0, NULL) == UCS_INPROGRESS) {
        uct_worker_progress(side->worker);
    }
    uct_ep_destroy(ep);
    CHECK(uct_iface_set_am_handler(side->iface, 2, NULL, NULL, 0) == UCS_OK);
    return NULL;
}

/* A serialized worker is used by one thread after another. */
static void threads(const char *tl, const char *dev)
{
    pthread_t thread;
    side_t side;
    int i;

    open_side(&side, tl, dev, UCS_THREAD_MODE_SERIALIZED);
    use_worker(&side);
    for (i = 0; i < 3; i++) {
        CHECK(pthread_create(&thread, NULL, use_worker, &side) == 0);
        CHECK(pthread_join(thread, NULL) == 0);
    }
    close_side(&side);
}

/* Changed addresses and keys answer a status. */
static void garbage(const char *tl, const char *dev)
{
    address_t good, bad;
    unsigned char key[256], changed[256];
    uct_allocated_memory_t mem;
    uct_rkey_bundle_t rkey;
    uct_md_attr_t attr;
    side_t side;
    uct_ep_h ep;
    unsigned i, j;

    open_side(&side, tl, dev, UCS_THREAD_MODE_SINGLE);
    good = address_of(&side);
    srand(7);
    for (i = 0; i < 200; i++) {
        bad = good;
        for (j = 0; j < 1 + i % 8; j++) {
            bad.iface[rand() % (side.attr.iface_addr_len + 1)] ^= 1 << (rand() % 8);
            bad.device[rand() % (side.attr.device_addr_len + 1)] ^= (i % 2) << (rand() % 8);
        }
        if (uct_iface_is_reachable(side.iface, (uct_device_addr_t*)bad.device, (uct_iface_addr_t*)bad.iface) &&
            (connect_to(&side, &bad, &ep) == UCS_OK)) {
            uct_ep_destroy(ep);
        }
    }
    CHECK(uct_md_query(side.md, &attr) == UCS_OK);
    CHECK(attr.rkey_packed_size <= sizeof(key));
    CHECK(uct_iface_mem_alloc(side.iface, 4096, UCT_MD_MEM_ACCESS_ALL, "keys", &mem) == UCS_OK);
    memset(key, 0, sizeof(key));
    CHECK(uct_md_mkey_pack(side.md, mem.memh, key) == UCS_OK);
    for (i = 0; i < 200; i++) {
        memcpy(changed, key, sizeof(key));
        for (j = 0; j < 1 + i % 4; j++) {
            changed[rand() % attr.rkey_packed_size] ^= 1 << (rand() % 8);
        }
        if (uct_rkey_unpack(side.component, changed, &rkey) == UCS_OK) {
            CHECK(uct_rkey_release(side.component, &rkey) == UCS_OK);
        }
    }
    uct_iface_mem_free(&mem);
    close_side(&side);
}

int main(int argc, char **argv)
{
    CHECK(argc == 3);
    if (strcmp(argv[1], "self") && strcmp(argv[1], "cma")) {
        killed_peer(argv[1], argv[2]);
    }
    if (strcmp(argv[1], "cma")) {
        threads(argv[1], argv[2]);
    }
    garbage(argv[1], argv[2]);
    return 0;
}

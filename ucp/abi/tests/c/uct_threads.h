/* Part of uct.c: functions that several threads may call at a time. */
#include <pthread.h>

static ucs_async_context_t *async;

/* Adds and removes callbacks beside progress; the last one stays. */
typedef struct {
    uct_worker_h worker;
    pthread_t thread;
    volatile int is_done;
    unsigned long calls;
    uct_worker_cb_id_t id;
} registering_t;

static unsigned count_call(void *arg)
{
    ++*(unsigned long*)arg;
    return 1;
}

static void *register_often(void *arg)
{
    registering_t *own = arg;
    int i;

    for (i = 0; i < 200000; i++) {
        uct_worker_cb_id_t id = UCS_CALLBACKQ_ID_NULL;
        uct_worker_progress_register_safe(own->worker, count_call, &own->calls,
                                          i % 3 == 0 ? UCS_CALLBACKQ_FLAG_ONESHOT : 0, &id);
        CHECK(id != UCS_CALLBACKQ_ID_NULL);
        uct_worker_progress_unregister_safe(own->worker, &id);
        CHECK(id == UCS_CALLBACKQ_ID_NULL);
    }
    own->id = UCS_CALLBACKQ_ID_NULL;
    uct_worker_progress_register_safe(own->worker, count_call, &own->calls, 0, &own->id);
    own->is_done = 1;
    return NULL;
}

static void callbacks_of_threads(void)
{
    registering_t threads[2];
    uct_worker_h shared;
    unsigned long before;
    int i;

    CHECK(uct_worker_create(async, UCS_THREAD_MODE_SINGLE, &shared) == UCS_OK);
    memset(threads, 0, sizeof(threads));
    for (i = 0; i < 2; i++) {
        threads[i].worker = shared;
        CHECK(pthread_create(&threads[i].thread, NULL, register_often, &threads[i]) == 0);
    }
    while (!threads[0].is_done || !threads[1].is_done) {
        uct_worker_progress(shared);
    }
    for (i = 0; i < 2; i++) {
        CHECK(pthread_join(threads[i].thread, NULL) == 0);
    }
    before = threads[0].calls;
    CHECK(uct_worker_progress(shared) == 2);
    CHECK(threads[0].calls == before + 1);
    uct_worker_progress_unregister_safe(shared, &threads[0].id);
    CHECK(uct_worker_progress(shared) == 1);
    uct_worker_progress_unregister_safe(shared, &threads[1].id);
    CHECK(uct_worker_progress(shared) == 0);
    uct_worker_destroy(shared);
}

/* Each thread has a memory domain and an interface of its own; all use one key. */
enum { KEY_THREADS = 3, KEYS = 50 };

static struct {
    const char *tl, *dev;
    void *device, *address;
    pthread_barrier_t barrier;
    uint64_t *words;
    uct_rkey_bundle_t key;
} shared_key;

static void *use_shared_keys(void *arg)
{
    uint64_t number = (uintptr_t)arg, value;
    uct_ep_params_t params;
    uct_worker_h own_worker;
    uct_md_config_t *config;
    uct_iface_h own_iface;
    ucs_status_t status;
    uct_md_h own_md;
    uct_ep_h own_ep;
    int i;

    CHECK(uct_md_config_read(component, NULL, NULL, &config) == UCS_OK);
    CHECK(uct_md_open(component, md_name, config, &own_md) == UCS_OK);
    uct_config_release(config);
    CHECK(uct_worker_create(async, UCS_THREAD_MODE_SINGLE, &own_worker) == UCS_OK);
    own_iface         = open_iface_of(own_md, own_worker, shared_key.tl, shared_key.dev);
    params.field_mask = UCT_EP_PARAM_FIELD_IFACE | UCT_EP_PARAM_FIELD_DEV_ADDR | UCT_EP_PARAM_FIELD_IFACE_ADDR;
    params.iface      = own_iface;
    params.dev_addr   = shared_key.device;
    params.iface_addr = shared_key.address;
    CHECK(uct_ep_create(&params, &own_ep) == UCS_OK);
    for (i = 0; i < KEYS; i++) {
        pthread_barrier_wait(&shared_key.barrier);
        value = i * KEY_THREADS + number;
        while ((status = uct_ep_put_short(own_ep, &value, 8, (uintptr_t)&shared_key.words[number],
                                          shared_key.key.rkey)) == UCS_ERR_NO_RESOURCE) {
            uct_worker_progress(own_worker);
        }
        CHECK(status == UCS_OK);
        while ((status = uct_ep_flush(own_ep, 0, NULL)) == UCS_INPROGRESS) {
            uct_worker_progress(own_worker);
        }
        CHECK(status == UCS_OK);
        pthread_barrier_wait(&shared_key.barrier);
    }
    uct_ep_destroy(own_ep);
    uct_iface_close(own_iface);
    uct_worker_destroy(own_worker);
    uct_md_close(own_md);
    return NULL;
}

static void key_of_threads(const char *tl, const char *dev)
{
    uct_allocated_memory_t mem;
    pthread_t threads[KEY_THREADS];
    void *packed;
    uintptr_t i, n;

    if (strcmp(tl, "posix")) {
        return; /* one transport is enough, and `self` has endpoints to itself only */
    }
    shared_key.tl      = tl;
    shared_key.dev     = dev;
    shared_key.device  = malloc(attr.device_addr_len + 1);
    shared_key.address = malloc(attr.iface_addr_len + 1);
    CHECK(uct_iface_get_device_address(to, shared_key.device) == UCS_OK);
    CHECK(uct_iface_get_address(to, shared_key.address) == UCS_OK);
    CHECK(uct_iface_mem_alloc(to, 4096, UCT_MD_MEM_ACCESS_ALL, "key", &mem) == UCS_OK);
    shared_key.words = mem.address;
    packed           = malloc(md_attr.rkey_packed_size);
    CHECK(uct_md_mkey_pack(md, mem.memh, packed) == UCS_OK);
    CHECK(pthread_barrier_init(&shared_key.barrier, NULL, KEY_THREADS + 1) == 0);
    for (i = 0; i < KEY_THREADS; i++) {
        CHECK(pthread_create(&threads[i], NULL, use_shared_keys, (void*)i) == 0);
    }
    for (n = 0; n < KEYS; n++) {
        CHECK(uct_rkey_unpack(component, packed, &shared_key.key) == UCS_OK);
        pthread_barrier_wait(&shared_key.barrier);
        pthread_barrier_wait(&shared_key.barrier);
        for (i = 0; i < KEY_THREADS; i++) {
            CHECK(shared_key.words[i] == n * KEY_THREADS + i);
        }
        CHECK(uct_rkey_release(component, &shared_key.key) == UCS_OK);
    }
    for (i = 0; i < KEY_THREADS; i++) {
        CHECK(pthread_join(threads[i], NULL) == 0);
    }
    CHECK(pthread_barrier_destroy(&shared_key.barrier) == 0);
    uct_iface_mem_free(&mem);
    free(packed);
    free(shared_key.device);
    free(shared_key.address);
}

/* What programs built for UCX rely on beyond the headers, one function each. */
#define _GNU_SOURCE
#include "check.h"

#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define LONG 300000

/* Of libucm, whose header programs bring along. */
ucs_status_t ucm_test_events(int events);
ucs_status_t ucm_test_external_events(int events);
void ucm_vm_munmap(void *address, size_t length);

static unsigned called;
static ucs_status_t last_status;

static void until_called(pair_t *pair, unsigned count)
{
    time_t end = time(NULL) + 60;
    while (called < count) {
        progress(pair);
        CHECK(time(NULL) < end);
    }
}

/* A message each way, of a length that needs more than a packet, and of a short one. */
static void exchange(pair_t *pair, ucp_ep_h to_b, ucp_ep_h to_a)
{
    ucp_request_param_t param = plain();
    unsigned char *out = malloc(LONG), *in = malloc(LONG);
    size_t length;

    for (length = 5; length <= LONG; length += LONG - 5) {
        ucs_status_ptr_t recv, send;
        fill(out, length, 3);
        recv = ucp_tag_recv_nbx(pair->b, in, length, 77, ~0ull, &param);
        send = ucp_tag_send_nbx(to_b, out, length, 77, &param);
        wait_for(pair, recv, UCS_OK);
        wait_for(pair, send, UCS_OK);
        check_filled(in, length, 3);
        recv = ucp_tag_recv_nbx(pair->a, in, length, 78, ~0ull, &param);
        send = ucp_tag_send_nbx(to_a, out, length, 78, &param);
        wait_for(pair, recv, UCS_OK);
        wait_for(pair, send, UCS_OK);
    }
    free(out);
    free(in);
}

/* 1: only attributes that are asked for are written, and a structure may end behind them. */
static void attributes_asked_for(pair_t *pair)
{
    unsigned char memory[sizeof(ucp_worker_attr_t)];
    ucp_worker_attr_t *attr = (ucp_worker_attr_t*)memory;
    ucp_context_attr_t *of_context = (ucp_context_attr_t*)memory;
    ucp_ep_attr_t of_ep;
    size_t i;

    memset(memory, 0xee, sizeof(memory));
    attr->field_mask = UCP_WORKER_ATTR_FIELD_THREAD_MODE;
    CHECK(ucp_worker_query(pair->a, attr) == UCS_OK);
    for (i = 12; i < sizeof(memory); i++) {
        CHECK(memory[i] == 0xee);
    }
    memset(memory, 0xee, sizeof(memory));
    of_context->field_mask = UCP_ATTR_FIELD_REQUEST_SIZE;
    CHECK(ucp_context_query(pair->context, of_context) == UCS_OK);
    for (i = 16; i < sizeof(memory); i++) {
        CHECK(memory[i] == 0xee);
    }
    memset(&of_ep, 0xee, sizeof(of_ep));
    of_ep.field_mask = UCP_EP_ATTR_FIELD_NAME;
    CHECK(ucp_ep_query(pair->ab, &of_ep) == UCS_OK);
    for (i = offsetof(ucp_ep_attr_t, local_sockaddr); i < sizeof(of_ep); i++) {
        CHECK(((unsigned char*)&of_ep)[i] == 0xee);
    }
}

static void on_sync_send(void *request, ucs_status_t status, void *user_data)
{
    (void)user_data; /* whatever is in the register */
    CHECK(*(unsigned*)request == USER_MARK && status == UCS_OK);
    called++;
}

/* 7: Open MPI passes its callback of three arguments as one of two. */
static void callback_of_other_type(pair_t *pair)
{
    ucp_request_param_t param = plain();
    uint64_t out = 5, in = 0;
    ucs_status_ptr_t send;

    called = 0;
    send   = ucp_tag_send_sync_nb(pair->ab, &out, 8, ucp_dt_make_contig(1), 9, (ucp_send_callback_t)(void*)on_sync_send);
    CHECK(UCS_PTR_IS_PTR(send));
    wait_for(pair, ucp_tag_recv_nbx(pair->b, &in, 8, 9, ~0ull, &param), UCS_OK);
    until_called(pair, 1);
    CHECK(in == 5 && called == 1);
    wait_for(pair, send, UCS_OK);
}

static void release_in_callback(void *request, ucs_status_t status, const ucp_tag_recv_info_t *info, void *user_data)
{
    CHECK(info->length == LONG && user_data == &called);
    last_status = status;
    called++;
    ucp_request_release(request);
}

static void called_after_release(void *request, ucs_status_t status, const ucp_tag_recv_info_t *info, void *user_data)
{
    CHECK(*(unsigned*)request == USER_MARK && status == UCS_OK && info->length == LONG && user_data == &called);
    called++;
}

static pair_t *the_pair;

/* The callback starts an operation: it gets another request, and its own stays as it is. */
static void starts_after_release(void *request, ucs_status_t status, const ucp_tag_recv_info_t *info, void *user_data)
{
    ucp_request_param_t param = plain();
    uint64_t other;
    ucs_status_ptr_t recv;

    CHECK(status == UCS_ERR_MESSAGE_TRUNCATED && info->sender_tag == 14 && info->length == LONG);
    recv = ucp_tag_recv_nbx(the_pair->b, &other, 8, 99, ~0ull, &param);
    CHECK(UCS_PTR_IS_PTR(recv) && recv != request);
    CHECK(*(unsigned*)request == USER_MARK);
    ucp_request_cancel(the_pair->b, recv);
    CHECK(ucp_request_check_status(recv) == UCS_ERR_CANCELED);
    ucp_request_free(recv);
    called++;
}

/* 8: a request is freed before its operation ends, or by its callback. */
static void early_frees(pair_t *pair)
{
    ucp_request_param_t param = plain(), with_call = plain();
    ucp_mem_map_params_t map  = {.field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH};
    unsigned char *out = malloc(LONG), *in = malloc(LONG);
    ucs_status_ptr_t recv, send;
    ucp_mem_h memh;
    ucp_rkey_h rkey;
    void *packed;
    size_t size;
    int i;

    fill(out, LONG, 8);
    called                  = 0;
    with_call.op_attr_mask  = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
    with_call.cb.recv       = release_in_callback;
    with_call.user_data     = &called;
    recv                    = ucp_tag_recv_nbx(pair->b, in, LONG, 11, ~0ull, &with_call);
    CHECK(UCS_PTR_IS_PTR(recv));
    send = ucp_tag_send_nbx(pair->ab, out, LONG, 11, &param);
    if (UCS_PTR_IS_PTR(send)) {
        ucp_request_free(send);
    }
    until_called(pair, 1);
    CHECK(last_status == UCS_OK);
    check_filled(in, LONG, 8);

    /* The callback of a request that is freed is not called; of one that is released it is. */
    called    = 0;
    recv      = ucp_tag_recv_nbx(pair->b, in, LONG, 12, ~0ull, &with_call);
    ucp_request_free(recv);
    wait_for(pair, ucp_tag_send_nbx(pair->ab, out, LONG, 12, &param), UCS_OK);
    exchange(pair, pair->ab, pair->ba);
    CHECK(called == 0);
    check_filled(in, LONG, 8);
    with_call.cb.recv = called_after_release;
    recv              = ucp_tag_recv_nbx(pair->b, in, LONG, 13, ~0ull, &with_call);
    ucp_request_release(recv);
    wait_for(pair, ucp_tag_send_nbx(pair->ab, out, LONG, 13, &param), UCS_OK);
    until_called(pair, 1);
    the_pair          = pair;
    with_call.cb.recv = starts_after_release;
    recv              = ucp_tag_recv_nbx(pair->b, in, 8, 14, ~0ull, &with_call);
    ucp_request_release(recv);
    wait_for(pair, ucp_tag_send_nbx(pair->ab, out, LONG, 14, &param), UCS_OK);
    until_called(pair, 2);

    map.address = in;
    map.length  = LONG;
    CHECK(ucp_mem_map(pair->context, &map, &memh) == UCS_OK);
    CHECK(ucp_rkey_pack(pair->context, memh, &packed, &size) == UCS_OK);
    CHECK(ucp_ep_rkey_unpack(pair->ab, packed, &rkey) == UCS_OK);
    ucp_rkey_buffer_release(packed);
    for (i = 0; i < 10; i++) {
        fill(out, LONG, i);
        send = ucp_put_nbx(pair->ab, out, LONG, (uintptr_t)in, rkey, &param);
        CHECK(!UCS_PTR_IS_ERR(send));
        if (send != NULL) {
            ucp_request_free(send);
        }
        wait_for(pair, ucp_ep_flush_nbx(pair->ab, &param), UCS_OK);
        check_filled(in, LONG, i);
    }
    ucp_rkey_destroy(rkey);
    CHECK(ucp_mem_unmap(pair->context, memh) == UCS_OK);
    free(out);
    free(in);
}

/* 10, 27: a worker has a full address and one for the network; both are short. */
static void addresses(pair_t *pair)
{
    ucp_worker_attr_t attr = {.field_mask = UCP_WORKER_ATTR_FIELD_ADDRESS | UCP_WORKER_ATTR_FIELD_ADDRESS_FLAGS};
    ucp_ep_params_t params = {.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS};
    ucp_worker_address_attr_t full = {.field_mask = UCP_WORKER_ADDRESS_ATTR_FIELD_UID}, net = full;
    ucp_address_t *address;
    ucp_ep_h ep;
    size_t length;

    attr.address_flags = UCP_WORKER_ADDRESS_FLAG_NET_ONLY;
    CHECK(ucp_worker_query(pair->b, &attr) == UCS_OK);
    CHECK(ucp_worker_get_address(pair->b, &address, &length) == UCS_OK);
    CHECK(length <= 400 && attr.address_length <= length);
    CHECK(ucp_worker_address_query(address, &full) == UCS_OK);
    CHECK(ucp_worker_address_query(attr.address, &net) == UCS_OK);
    CHECK(full.worker_uid == net.worker_uid);
    ucp_worker_release_address(pair->b, address);
    params.address = attr.address;
    if (ucp_ep_create(pair->a, &params, &ep) == UCS_OK) {
        exchange(pair, ep, pair->ba);
        wait_for(pair, ucp_ep_close_nb(ep, UCP_EP_CLOSE_MODE_FLUSH), UCS_OK);
    } else {
        /* No network among the transports. */
        CHECK(strstr(getenv("UCX_TLS"), "efa") == NULL);
    }
    ucp_worker_release_address(pair->b, attr.address);
}

/* 11: a prefix wins, and the names of any configuration of UCX are taken. */
static void configurations(void)
{
    static const char *names[] = {"UCX_RNDV_THRESH=8k", "UCX_NET_DEVICES=all", "UCX_IB_NUM_PATHS=2",
                                  "UCX_MEMTYPE_CACHE=n", "UCX_MAX_RNDV_RAILS=2", "UCX_UNHEARD_OF=1",
                                  "UCX_WARN_UNUSED_ENV_VARS=n", "UCX_MPI_RNDV_SCHEME=put_zcopy"};
    ucp_params_t params = {.field_mask = UCP_PARAM_FIELD_FEATURES, .features = UCP_FEATURE_TAG};
    ucp_config_t *config;
    ucp_context_h context;
    char *text  = NULL;
    size_t size = 0, i;
    FILE *stream;

    for (i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        CHECK(putenv((char*)names[i]) == 0);
    }
    setenv("UCX_MPI_TLS", "self", 1);
    CHECK(ucp_config_read("MPI", NULL, &config) == UCS_OK);
    CHECK(ucp_init(&params, config, &context) == UCS_OK);
    ucp_config_release(config);
    stream = open_memstream(&text, &size);
    ucp_context_print_info(context, stream);
    fclose(stream);
    CHECK(strstr(text, "-- self/") != NULL && strstr(text, "-- posix/") == NULL && strstr(text, "-- efa/") == NULL);
    free(text);
    ucp_cleanup(context);
    CHECK(ucp_config_read(NULL, NULL, &config) == UCS_OK);
    CHECK(ucp_config_modify(config, "TLS", "self") == UCS_OK);
    CHECK(ucp_config_modify(config, "RNDV_THRESH", "many") == UCS_ERR_INVALID_PARAM);
    CHECK(ucp_config_modify(config, "SEG_SIZE", "many") == UCS_ERR_INVALID_PARAM);
    CHECK(ucp_config_modify(config, "SEG_SIZE", "3M") == UCS_OK);
    text   = NULL;
    stream = open_memstream(&text, &size);
    ucp_config_print(config, stream, NULL, UCS_CONFIG_PRINT_CONFIG);
    fclose(stream);
    CHECK(strstr(text, "UCX_TLS=self\n") != NULL && strstr(text, "UCX_SEG_SIZE=3M\n") != NULL);
    CHECK(strstr(text, "UCX_RNDV_THRESH=8k\n") != NULL && strstr(text, "UCX_MEMTYPE_CACHE=n\n") != NULL);
    free(text);
    CHECK(ucp_init(&params, config, &context) == UCS_OK);
    ucp_config_release(config);
    ucp_cleanup(context);
    unsetenv("UCX_MPI_TLS");
    for (i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        char name[64];
        *strchr(strcpy(name, names[i]), '=') = '\0';
        unsetenv(name);
    }
}

/* 12: consumers refuse 1.8, and warn below the version of their headers. */
static void version(void)
{
    unsigned major, minor, release;
    char text[32];

    ucp_get_version(&major, &minor, &release);
    CHECK(major == 1 && minor >= 23);
    snprintf(text, sizeof(text), "%u.%u.%u", major, minor, release);
    CHECK(strcmp(text, ucp_get_version_string()) == 0);
}

/* 13: Open MPI reads the resources of a context from its printed form. */
static void printed_resources(pair_t *pair)
{
    char *text = NULL, *line, *rest, name[128], want[32];
    size_t size  = 0;
    FILE *stream = open_memstream(&text, &size);
    int at, md, dev, found = 0;

    ucp_context_print_info(pair->context, stream);
    fclose(stream);
    snprintf(want, sizeof(want), "%.*s", (int)strcspn(getenv("UCX_TLS"), ","), getenv("UCX_TLS"));
    for (line = strtok_r(text, "\n", &rest); line != NULL; line = strtok_r(NULL, "\n", &rest)) {
        CHECK(strlen(line) <= 127);
        if (sscanf(line, "# resource %d : md %d dev %d flags -- %127s", &at, &md, &dev, name) == 4) {
            char *slash = strchr(name, '/');
            CHECK(slash != NULL && slash[1] != '\0');
            found += strncmp(name, want, strlen(want)) == 0;
        }
    }
    CHECK(found > 0);
    free(text);
}

/* 14: memory that is unmapped and mapped again at its place has other contents. */
static void remapped_memory(pair_t *pair)
{
    ucp_request_param_t param = plain();
    unsigned char *in         = malloc(1 << 21), *at;
    int i;

    CHECK(ucm_test_events(~0) == UCS_OK && ucm_test_external_events(~0) == UCS_OK);
    at = mmap(NULL, 1 << 21, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (i = 0; i < 5; i++) {
        ucs_status_ptr_t recv, send;
        fill(at, 1 << 21, i);
        recv = ucp_tag_recv_nbx(pair->b, in, 1 << 21, 14, ~0ull, &param);
        send = ucp_tag_send_nbx(pair->ab, at, 1 << 21, 14, &param);
        wait_for(pair, recv, UCS_OK);
        wait_for(pair, send, UCS_OK);
        check_filled(in, 1 << 21, i);
        ucm_vm_munmap(at, 1 << 21); /* a hook's call */
        CHECK(munmap(at, 1 << 21) == 0);
        CHECK(mmap(at, 1 << 21, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == at);
    }
    CHECK(munmap(at, 1 << 21) == 0);
    free(in);
}

/* 15: a module that announces events stays when it is closed. MODULE is the path of module.c, compiled. */
static void announcing_module(void)
{
    const char *path = getenv("MODULE");
    void *module;
    void (*announce)(void);

    if (path == NULL) {
        return;
    }
    module = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    CHECK(module != NULL);
    announce = (void (*)(void))dlsym(module, "announce");
    announce();
    CHECK(dlclose(module) == 0);
    module = dlopen(path, RTLD_NOW | RTLD_NOLOAD);
    CHECK(module != NULL);
    dlclose(module);
}

/* 20: a key of memory that is not mapped here says so. */
static void unmapped_key(pair_t *pair)
{
    ucp_mem_map_params_t map = {.field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH};
    static char memory[5000];
    void *packed, *here = &called;
    ucp_rkey_h rkey;
    ucp_mem_h memh;
    size_t size;

    map.address = memory;
    map.length  = sizeof(memory);
    CHECK(ucp_mem_map(pair->context, &map, &memh) == UCS_OK);
    CHECK(ucp_rkey_pack(pair->context, memh, &packed, &size) == UCS_OK);
    CHECK(ucp_ep_rkey_unpack(pair->ab, packed, &rkey) == UCS_OK);
    ucp_rkey_buffer_release(packed);
    if (strcmp(getenv("UCX_TLS"), "efa") == 0) {
        CHECK(ucp_rkey_ptr(rkey, (uintptr_t)memory, &here) != UCS_OK && here == &called);
    }
    ucp_rkey_destroy(rkey);
    CHECK(ucp_mem_unmap(pair->context, memh) == UCS_OK);
}

/* 22: the peer of an endpoint is gone when it is closed. */
static void close_without_peer(pair_t *pair)
{
    ucp_worker_h gone = make_worker(pair->context, UCS_THREAD_MODE_SINGLE);
    ucp_ep_h ep       = connect_to(pair->a, gone), never_used = connect_to(pair->a, gone);
    ucp_request_param_t param = plain();
    time_t end                = time(NULL) + 60;
    ucs_status_ptr_t closing;
    uint64_t word = 1;

    CHECK(!UCS_PTR_IS_ERR(ucp_tag_send_nbx(ep, &word, 8, 22, &param)));
    ucp_worker_destroy(gone);
    closing = ucp_disconnect_nb(ep);
    while (UCS_PTR_IS_PTR(closing) && ucp_request_check_status(closing) == UCS_INPROGRESS) {
        progress(pair);
        CHECK(time(NULL) < end);
    }
    if (UCS_PTR_IS_PTR(closing)) {
        ucp_request_free(closing);
    }
    ucp_ep_destroy(never_used);
}

static pair_t *shared;
static volatile int stop;

static void *any_thread(void *arg)
{
    ucp_request_param_t param = plain();
    uint64_t tag = 1000 + (uintptr_t)arg, out, in;
    int i;

    for (i = 0; i < 200; i++) {
        ucp_ep_h ep = connect_to(shared->a, shared->b); /* during the others' traffic */
        ucs_status_ptr_t recv, send;
        out  = tag * 1000 + i;
        in   = 0;
        recv = ucp_tag_recv_nbx(shared->b, &in, 8, tag, ~0ull, &param);
        send = ucp_tag_send_nbx(ep, &out, 8, tag, &param);
        CHECK(!UCS_PTR_IS_ERR(recv) && !UCS_PTR_IS_ERR(send));
        while (recv != NULL && ucp_request_check_status(recv) == UCS_INPROGRESS) {
            progress(shared);
        }
        CHECK(in == out);
        if (recv != NULL) {
            ucp_request_free(recv);
        }
        if (send != NULL) {
            ucp_request_free(send);
        }
        if (i % 20 == 0) {
            wait_for(shared, ucp_ep_close_nb(ep, UCP_EP_CLOSE_MODE_FLUSH), UCS_OK);
        }
    }
    return NULL;
}

/* 23: calls from any thread on a worker of mode multi, also ones that make endpoints. */
static void threads(void)
{
    ucp_worker_attr_t attr = {.field_mask = UCP_WORKER_ATTR_FIELD_THREAD_MODE};
    pthread_t all[4];
    pair_t pair;
    size_t i;

    make_pair(&pair, UCS_THREAD_MODE_MULTI);
    shared = &pair;
    CHECK(ucp_worker_query(pair.a, &attr) == UCS_OK && attr.thread_mode == UCS_THREAD_MODE_MULTI);
    for (i = 0; i < 4; i++) {
        CHECK(pthread_create(&all[i], NULL, any_thread, (void*)i) == 0);
    }
    for (i = 0; i < 4; i++) {
        pthread_join(all[i], NULL);
    }
    free_pair(&pair);
}

/* 25: no signal handlers, fork is legal, and the library is loaded and closed in any order. */
static void polite_guest(const struct sigaction *before)
{
    void *again;
    int number, status;
    pid_t child;

    for (number = 1; number < NSIG; number++) {
        struct sigaction now;
        if (sigaction(number, NULL, &now) == 0) {
            CHECK(now.sa_handler == before[number].sa_handler);
        }
    }
    child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        exit(7);
    }
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 7);
    again = dlopen("libucp.so.0", RTLD_NOW | RTLD_LOCAL);
    CHECK(again != NULL && dlclose(again) == 0);
}

/* 26: every status has a text. */
static void statuses(void)
{
    int i;
    for (i = -128; i < 128; i++) {
        CHECK(strlen(ucs_status_string((ucs_status_t)i)) > 0);
    }
}

/* Requests that the library makes ahead of operations. */
static void allocated_requests(pair_t *pair)
{
    ucp_request_param_t param = plain();
    ucp_tag_recv_info_t info;
    uint64_t out = 6, in = 0;
    void *first, *request;
    ucs_status_ptr_t send;
    int i;

    first              = ucp_request_alloc(pair->b);
    param.op_attr_mask = UCP_OP_ATTR_FIELD_REQUEST;
    param.request      = first;
    CHECK(first != NULL && *(unsigned*)first == USER_MARK);
    for (i = 0; i < 3; i++) {
        CHECK(ucp_tag_recv_nbx(pair->b, &in, 8, 30, ~0ull, &param) == first);
        CHECK(ucp_request_check_status(first) == UCS_INPROGRESS);
        send = ucp_tag_send_nb(pair->ab, &out, 8, ucp_dt_make_contig(1), 30, NULL);
        while (ucp_request_check_status(first) == UCS_INPROGRESS) {
            progress(pair);
        }
        CHECK(ucp_tag_recv_request_test(first, &info) == UCS_OK && info.length == 8 && in == 6);
        wait_for(pair, send, UCS_OK);
    }
    ucp_request_free(first);
    request = ucp_request_alloc(pair->b);
    /* With UCX_CHECK=y freed requests are not used again. */
    CHECK((request == first || getenv("UCX_CHECK")) && *(unsigned*)request == USER_MARK);
    CHECK((first = ucp_request_alloc(pair->b)) != request);
    ucp_request_free(request);
    ucp_request_free(first);
}

/* A receive ends in its call if its message has come as a whole. Else nothing is posted, and the message stays. */
static void forced_receives(pair_t *pair, unsigned char *longer)
{
    ucp_request_param_t param = plain(), none = plain();
    uint64_t out = 77, in = 0;
    ucp_tag_recv_info_t info;
    ucs_status_ptr_t send;

    param.op_attr_mask       = UCP_OP_ATTR_FLAG_FORCE_IMM_CMPL | UCP_OP_ATTR_FIELD_RECV_INFO;
    param.recv_info.tag_info = &info;
    wait_for(pair, ucp_tag_send_nbx(pair->ab, &out, 8, 32, &none), UCS_OK);
    UNTIL(pair, ucp_tag_probe_nb(pair->b, 32, ~0ull, 0, &info) != NULL);
    CHECK(UCS_PTR_RAW_STATUS(ucp_tag_recv_nbx(pair->b, &in, 8, 33, ~0ull, &param)) == UCS_ERR_NO_RESOURCE);
    memset(&info, 0, sizeof(info));
    CHECK(ucp_tag_recv_nbx(pair->b, &in, 8, 32, ~0ull, &param) == NULL);
    CHECK(in == 77 && info.length == 8 && info.sender_tag == 32);
    CHECK(UCS_PTR_RAW_STATUS(ucp_tag_recv_nbx(pair->b, &in, 8, 32, ~0ull, &param)) == UCS_ERR_NO_RESOURCE);
    /* One that is too long ends, too. */
    wait_for(pair, ucp_tag_send_nbx(pair->ab, &out, 8, 32, &none), UCS_OK);
    UNTIL(pair, ucp_tag_probe_nb(pair->b, 32, ~0ull, 0, &info) != NULL);
    CHECK(UCS_PTR_RAW_STATUS(ucp_tag_recv_nbx(pair->b, &in, 4, 32, ~0ull, &param)) == UCS_ERR_MESSAGE_TRUNCATED);
    /* Of one that is announced nothing has come yet. */
    send = ucp_tag_send_nbx(pair->ab, longer, LONG, 32, &none);
    UNTIL(pair, ucp_tag_probe_nb(pair->b, 32, ~0ull, 0, &info) != NULL);
    (void)ucp_tag_recv_nbx(pair->b, longer, LONG, 99, ~0ull, &param);
    wait_for(pair, ucp_tag_recv_nbx(pair->b, longer, LONG, 32, ~0ull, &none), UCS_OK);
    wait_for(pair, send, UCS_OK);
}

/* Sends that end in their call or fail. */
static void forced_ends(pair_t *pair)
{
    ucp_request_param_t param = plain(), none = plain();
    uint64_t out = 9, in = 0;
    unsigned char *longer = malloc(LONG);
    ucs_status_ptr_t recv;

    exchange(pair, pair->ab, pair->ba);
    param.op_attr_mask = UCP_OP_ATTR_FLAG_FORCE_IMM_CMPL;
    recv               = ucp_tag_recv_nbx(pair->b, &in, 8, 31, ~0ull, &none);
    CHECK(ucp_tag_send_nbx(pair->ab, &out, 8, 31, &param) == NULL);
    wait_for(pair, recv, UCS_OK);
    CHECK(in == 9);
    CHECK(UCS_PTR_RAW_STATUS(ucp_tag_send_nbx(pair->ab, longer, LONG, 31, &param)) == UCS_ERR_NO_RESOURCE);
    CHECK(UCS_PTR_RAW_STATUS(ucp_tag_recv_nbx(pair->b, &in, 8, 31, ~0ull, &param)) == UCS_ERR_NO_RESOURCE);
    forced_receives(pair, longer);
    CHECK(UCS_PTR_RAW_STATUS(ucp_am_send_nbx(pair->ab, 1, "h", 1, longer, LONG, &param)) == UCS_ERR_NO_RESOURCE);
    CHECK(ucp_am_send_nbx(pair->ab, 1, "h", 1, &out, 8, &param) == NULL); /* nobody handles it */
    exchange(pair, pair->ab, pair->ba);
    free(longer);
}

/* Events of a worker by a descriptor of the program. */
static void own_event_descriptor(pair_t *pair)
{
    ucp_worker_params_t params = {.field_mask = UCP_WORKER_PARAM_FIELD_EVENT_FD | UCP_WORKER_PARAM_FIELD_USER_DATA};
    struct epoll_event event;
    ucp_worker_h worker;
    ucs_status_t status;
    time_t end = time(NULL) + 60;
    int fd     = epoll_create1(0), theirs;

    params.event_fd  = fd;
    params.user_data = &called;
    CHECK(ucp_worker_create(pair->context, &params, &worker) == UCS_OK);
    CHECK(ucp_worker_get_efd(worker, &theirs) == UCS_ERR_UNSUPPORTED);
    while ((status = ucp_worker_arm(worker)) == UCS_ERR_BUSY) {
        ucp_worker_progress(worker);
        CHECK(time(NULL) < end);
    }
    CHECK(status == UCS_OK && epoll_wait(fd, &event, 1, 0) == 0);
    CHECK(ucp_worker_signal(worker) == UCS_OK);
    CHECK(epoll_wait(fd, &event, 1, 10000) == 1 && event.data.ptr == &called);
    ucp_worker_destroy(worker);
    CHECK(epoll_wait(fd, &event, 1, 0) == 0);
    close(fd);
    params.event_fd = -1;
    CHECK(ucp_worker_create(pair->context, &params, &worker) == UCS_ERR_INVALID_PARAM);
}

static void on_failure(void *arg, ucp_ep_h ep, ucs_status_t status)
{
    CHECK(arg == &last_status && ep != NULL && status != UCS_OK);
    called++;
}

/* The error handler and the user data of an endpoint change; its peer does not. */
static void modified_endpoint(pair_t *pair)
{
    ucp_ep_params_t params    = {.field_mask = UCP_EP_PARAM_FIELD_ERR_HANDLER};
    ucp_request_param_t param = plain();
    ucp_ep_attr_t attr        = {.field_mask = UCP_EP_ATTR_FIELD_NAME};
    ucp_worker_h gone         = make_worker(pair->context, UCS_THREAD_MODE_SINGLE);
    ucp_ep_h ep               = connect_to(pair->a, gone);
    time_t end                = time(NULL) + 60;
    uint64_t word             = 1;
    ucs_status_ptr_t send;

    params.err_handler.cb  = on_failure;
    params.err_handler.arg = &last_status;
    CHECK(ucp_ep_modify_nb(ep, &params) == NULL);
    CHECK(ucp_ep_query(ep, &attr) == UCS_OK);
    params.field_mask |= UCP_EP_PARAM_FIELD_REMOTE_ADDRESS;
    CHECK(UCS_PTR_RAW_STATUS(ucp_ep_modify_nb(ep, &params)) == UCS_ERR_INVALID_PARAM);
    ucp_worker_destroy(gone);
    called = 0;
    while (called == 0) {
        send = ucp_tag_send_nbx(ep, &word, 8, 22, &param);
        if (UCS_PTR_IS_PTR(send)) {
            ucp_request_free(send);
        } else if (UCS_PTR_IS_ERR(send)) {
            break;
        }
        progress(pair);
        usleep(1000);
        CHECK(time(NULL) < end);
    }
    wait_for(pair, ucp_ep_close_nb(ep, UCP_EP_CLOSE_MODE_FORCE), UCS_OK);
}

static ucp_ep_h reply;

static ucs_status_t on_question(void *arg, const void *header, size_t header_length, void *data, size_t length,
                                const ucp_am_recv_param_t *param)
{
    ucp_ep_params_t params = {.field_mask  = UCP_EP_PARAM_FIELD_ERR_HANDLER,
                              .err_handler = {on_failure, &last_status}};

    CHECK(param->recv_attr & UCP_AM_RECV_ATTR_FIELD_REPLY_EP);
    CHECK(ucp_ep_modify_nb(param->reply_ep, &params) == NULL);
    reply = param->reply_ep;
    return UCS_OK;
}

/* So do those of an endpoint for answers, which the library has made. */
static void modified_reply_endpoint(pair_t *pair)
{
    ucp_am_handler_param_t handler = {.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB,
                                      .id = 9, .cb = on_question};
    ucp_request_param_t param      = plain(), asks = plain();
    ucp_worker_h gone              = make_worker(pair->context, UCS_THREAD_MODE_SINGLE);
    ucp_ep_h ep                    = connect_to(gone, pair->a);
    time_t end                     = time(NULL) + 60;
    uint64_t word                  = 1;
    ucs_status_ptr_t send;

    CHECK(ucp_worker_set_am_recv_handler(pair->a, &handler) == UCS_OK);
    asks.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
    asks.flags        = UCP_AM_SEND_FLAG_REPLY;
    send              = ucp_am_send_nbx(ep, 9, NULL, 0, &word, 8, &asks);
    UNTIL(pair, (ucp_worker_progress(gone), reply != NULL));
    if (UCS_PTR_IS_PTR(send)) {
        ucp_request_free(send);
    }
    ucp_worker_destroy(gone);
    called = 0;
    while (called == 0) {
        send = ucp_tag_send_nbx(reply, &word, 8, 22, &param);
        if (UCS_PTR_IS_PTR(send)) {
            ucp_request_free(send);
        }
        progress(pair);
        usleep(1000);
        CHECK(time(NULL) < end);
    }
    CHECK(called == 1);
    wait_for(pair, ucp_ep_close_nb(reply, UCP_EP_CLOSE_MODE_FORCE), UCS_OK);
    handler.cb = NULL;
    CHECK(ucp_worker_set_am_recv_handler(pair->a, &handler) == UCS_OK);
}

int main(void)
{
    struct sigaction before[NSIG];
    pair_t pair;
    int number;

    for (number = 1; number < NSIG; number++) {
        sigaction(number, NULL, &before[number]);
    }
    configurations();
    make_pair(&pair, UCS_THREAD_MODE_SINGLE);
    attributes_asked_for(&pair);
    callback_of_other_type(&pair);
    early_frees(&pair);
    addresses(&pair);
    version();
    printed_resources(&pair);
    remapped_memory(&pair);
    announcing_module();
    unmapped_key(&pair);
    statuses();
    allocated_requests(&pair);
    forced_ends(&pair);
    own_event_descriptor(&pair);
    close_without_peer(&pair);
    modified_endpoint(&pair);
    modified_reply_endpoint(&pair);
    exchange(&pair, pair.ab, pair.ba);
    polite_guest(before);
    free_pair(&pair);
    threads();
    return 0;
}

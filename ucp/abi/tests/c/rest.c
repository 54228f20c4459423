/* Functions that the other programs do not call: forms that wait, old forms, and those that describe. Compiled with the headers of
 * this project. */
#include "check.h"

#include <pthread.h>
#include <unistd.h>

static volatile int stop;

/* Makes progress for the peer of calls that wait. */
static void *other_side(void *worker)
{
    while (!stop) {
        ucp_worker_progress(worker);
    }
    return NULL;
}

static void put_get(pair_t *pair, uint64_t *target, ucp_rkey_h rkey)
{
    uint64_t local = 11, back = 0, at = (uintptr_t)target;
    uint32_t word, *half = (uint32_t*)target;

    CHECK(ucp_put(pair->ab, &local, 8, at, rkey) == UCS_OK);
    CHECK(ucp_ep_flush(pair->ab) == UCS_OK && *target == 11);
    CHECK(ucp_get(pair->ab, &back, 8, at, rkey) == UCS_OK && back == 11);
    local = 12;
    wait_for(pair, ucp_put_nb(pair->ab, &local, 8, at, rkey, NULL), UCS_OK);
    CHECK(ucp_worker_flush(pair->a) == UCS_OK && *target == 12);
    wait_for(pair, ucp_get_nb(pair->ab, &back, 8, at, rkey, NULL), UCS_OK);
    CHECK(back == 12);
    wait_for(pair, ucp_ep_flush_nb(pair->ab, 0, NULL), UCS_OK);
    wait_for(pair, ucp_worker_flush_nb(pair->a, 0, NULL), UCS_OK);

    CHECK(ucp_atomic_add64(pair->ab, 3, at, rkey) == UCS_OK && ucp_ep_flush(pair->ab) == UCS_OK && *target == 15);
    CHECK(ucp_atomic_fadd64(pair->ab, 1, at, rkey, &back) == UCS_OK && back == 15 && *target == 16);
    CHECK(ucp_atomic_swap64(pair->ab, 20, at, rkey, &back) == UCS_OK && back == 16 && *target == 20);
    CHECK(ucp_atomic_cswap64(pair->ab, 1, 2, at, rkey, &back) == UCS_OK && back == 20 && *target == 20);
    CHECK(ucp_atomic_cswap64(pair->ab, 20, 2, at, rkey, &back) == UCS_OK && back == 20 && *target == 2);
    *target = 30;
    CHECK(ucp_atomic_add32(pair->ab, 3, at, rkey) == UCS_OK && ucp_ep_flush(pair->ab) == UCS_OK && *half == 33);
    CHECK(ucp_atomic_fadd32(pair->ab, 1, at, rkey, &word) == UCS_OK && word == 33 && *half == 34);
    CHECK(ucp_atomic_swap32(pair->ab, 7, at, rkey, &word) == UCS_OK && word == 34 && *half == 7);
    CHECK(ucp_atomic_cswap32(pair->ab, 7, 9, at, rkey, &word) == UCS_OK && word == 7 && *half == 9);
    CHECK(target[1] == 0);
}

static void memory(pair_t *pair)
{
    static uint64_t words[2000];
    ucp_mem_map_params_t map = {.field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH};
    ucp_memh_pack_params_t pack              = {.field_mask = 0};
    ucp_memh_buffer_release_params_t release = {.field_mask = 0};
    ucp_rkey_compare_params_t compare        = {.field_mask = 0};
    ucp_mem_advise_params_t advise           = {.field_mask = UCP_MEM_ADVISE_PARAM_FIELD_ADDRESS |
                                                              UCP_MEM_ADVISE_PARAM_FIELD_LENGTH |
                                                              UCP_MEM_ADVISE_PARAM_FIELD_ADVICE};
    ucp_rkey_h rkey, same;
    ucp_mem_h memh;
    void *packed;
    size_t size;
    int order;

    map.address = words;
    map.length  = sizeof(words);
    CHECK(ucp_mem_map(pair->context, &map, &memh) == UCS_OK);
    CHECK(ucp_memh_pack(memh, &pack, &packed, &size) == UCS_OK);
    CHECK(ucp_ep_rkey_unpack(pair->ab, packed, &rkey) == UCS_OK);
    CHECK(ucp_ep_rkey_unpack(pair->ab, packed, &same) == UCS_OK);
    CHECK(ucp_rkey_compare(pair->a, rkey, same, &compare, &order) == UCS_OK && order == 0);
    ucp_rkey_destroy(same);
    ucp_memh_buffer_release(packed, &release);
    pack.field_mask = UCP_MEMH_PACK_PARAM_FIELD_FLAGS;
    pack.flags      = UCP_MEMH_PACK_FLAG_EXPORT;
    CHECK(ucp_memh_pack(memh, &pack, &packed, &size) == UCS_ERR_UNSUPPORTED);
    advise.address = words;
    advise.length  = sizeof(words);
    advise.advice  = UCP_MADV_WILLNEED;
    CHECK(ucp_mem_advise(pair->context, memh, &advise) == UCS_OK);
    put_get(pair, words, rkey);
    ucp_rkey_destroy(rkey);
    CHECK(ucp_mem_unmap(pair->context, memh) == UCS_OK);
}

static void descriptions(pair_t *pair)
{
    ucp_lib_attr_t lib                 = {.field_mask = UCP_LIB_ATTR_FIELD_MAX_THREAD_LEVEL};
    ucp_ep_evaluate_perf_param_t param = {.field_mask = UCP_EP_PERF_PARAM_FIELD_MESSAGE_SIZE, .message_size = 4096};
    ucp_ep_evaluate_perf_attr_t perf   = {.field_mask = UCP_EP_PERF_ATTR_FIELD_ESTIMATED_TIME};
    ucp_datatype_attr_t attr           = {.field_mask = UCP_DATATYPE_ATTR_FIELD_PACKED_SIZE | UCP_DATATYPE_ATTR_FIELD_COUNT};
    ucp_dt_iov_t pieces[3]             = {{&param, 7}, {NULL, 0}, {&perf, 1000}};
    ucp_transport_entry_t entries[4];
    const char *names[2] = {NULL, NULL};
    ucp_ep_attr_t of_ep = {.field_mask = UCP_EP_ATTR_FIELD_TRANSPORTS};
    ucp_config_t *config;
    double last;
    char *text   = NULL;
    size_t size  = 0;
    FILE *stream = open_memstream(&text, &size);

    CHECK(ucp_lib_query(&lib) == UCS_OK && lib.max_thread_level == UCS_THREAD_MODE_MULTI);
    CHECK(ucp_ep_evaluate_perf(pair->ab, &param, &perf) == UCS_OK);
    CHECK(perf.estimated_time > 0 && perf.estimated_time < 1);
    last               = perf.estimated_time;
    param.message_size = 64 << 20;
    CHECK(ucp_ep_evaluate_perf(pair->ab, &param, &perf) == UCS_OK);
    CHECK(perf.estimated_time > 100 * last && perf.estimated_time < 10);
    attr.count = 7;
    CHECK(ucp_dt_query(ucp_dt_make_contig(3), &attr) == UCS_OK && attr.packed_size == 21);
    attr.field_mask |= UCP_DATATYPE_ATTR_FIELD_BUFFER;
    attr.buffer      = pieces;
    attr.count       = 3;
    CHECK(ucp_dt_query(ucp_dt_make_iov(), &attr) == UCS_OK && attr.packed_size == 1007);
    attr.field_mask &= ~UCP_DATATYPE_ATTR_FIELD_COUNT;
    CHECK(ucp_dt_query(ucp_dt_make_iov(), &attr) == UCS_OK && attr.packed_size == 7);
    pieces[0].length = SIZE_MAX;
    attr.field_mask |= UCP_DATATYPE_ATTR_FIELD_COUNT;
    CHECK(ucp_dt_query(ucp_dt_make_iov(), &attr) == UCS_ERR_INVALID_PARAM);
    attr.buffer = NULL;
    CHECK(ucp_dt_query(ucp_dt_make_iov(), &attr) == UCS_ERR_INVALID_PARAM);
    of_ep.transports.entries     = entries;
    of_ep.transports.num_entries = 4;
    of_ep.transports.entry_size  = sizeof(entries[0]);
    CHECK(ucp_ep_query(pair->ab, &of_ep) == UCS_OK && of_ep.transports.num_entries >= 1);
    CHECK(strlen(entries[0].transport_name) > 0);
    /* Entries of a program that knows the first member only. */
    of_ep.transports.entries     = (ucp_transport_entry_t*)names;
    of_ep.transports.num_entries = 1;
    of_ep.transports.entry_size  = sizeof(names[0]);
    CHECK(ucp_ep_query(pair->ab, &of_ep) == UCS_OK && of_ep.transports.num_entries == 1);
    CHECK(!strcmp(names[0], entries[0].transport_name) && names[1] == NULL);
    CHECK(ucp_config_read(NULL, NULL, &config) == UCS_OK);
    ucp_config_print(config, stream, "no title", UCS_CONFIG_PRINT_CONFIG);
    ucp_config_print(config, stream, "a title", UCS_CONFIG_PRINT_CONFIG | UCS_CONFIG_PRINT_HEADER);
    ucp_config_release(config);
    ucp_worker_print_info(pair->a, stream);
    ucp_ep_print_info(pair->ab, stream);
    ucp_mem_print_info("64k", pair->context, stream);
    fclose(stream);
    CHECK(strstr(text, "no title") == NULL && strstr(text, "a title") != NULL);
    CHECK(strstr(text, "UCX_TLS=") != NULL);
    CHECK(strstr(text, "UCP worker") != NULL && strstr(text, "UCP endpoint") != NULL);
    CHECK(strstr(text, "allocated 65536 bytes") != NULL);
    free(text);
}

static void on_stream(void *request, ucs_status_t status, size_t length)
{
    (void)request;
    (void)status;
    (void)length;
}

static void requests(pair_t *pair)
{
    ucp_request_param_t param = {.op_attr_mask = 0};
    ucp_request_attr_t attr   = {.field_mask = UCP_REQUEST_ATTR_FIELD_STATUS | UCP_REQUEST_ATTR_FIELD_MEM_TYPE |
                                               UCP_REQUEST_ATTR_FIELD_INFO_STRING |
                                               UCP_REQUEST_ATTR_FIELD_INFO_STRING_SIZE};
    uint64_t out = 5, in = 0;
    char text[100];
    ucs_status_ptr_t recv;
    size_t length = 0;
    ucp_worker_h other;
    ucp_ep_h ep;

    recv                   = ucp_tag_recv_nbx(pair->b, &in, 8, 1, ~0ull, &param);
    attr.debug_string      = text;
    attr.debug_string_size = sizeof(text);
    CHECK(!ucp_request_is_completed(recv));
    CHECK(ucp_request_query(recv, &attr) == UCS_OK && attr.status == UCS_INPROGRESS && strlen(text) > 0);
    CHECK(attr.mem_type == UCS_MEMORY_TYPE_HOST);
    CHECK(!UCS_PTR_IS_ERR(ucp_tag_send_nbx(pair->ab, &out, 8, 1, &param)));
    while (!ucp_request_is_completed(recv)) {
        progress(pair);
    }
    CHECK(ucp_request_query(recv, &attr) == UCS_OK && attr.status == UCS_OK && in == 5);
    ucp_request_free(recv);

    in   = 0;
    recv = ucp_stream_recv_nb(pair->ba, &in, 1, ucp_dt_make_contig(8), on_stream, &length, UCP_STREAM_RECV_FLAG_WAITALL);
    wait_for(pair, ucp_stream_send_nbx(pair->ab, &out, 8, &param), UCS_OK);
    wait_for(pair, recv, UCS_OK);
    CHECK(in == 5);

    other              = make_worker(pair->context, UCS_THREAD_MODE_SINGLE);
    ep                 = connect_to(pair->a, other);
    param.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
    param.flags        = UCP_EP_CLOSE_FLAG_FORCE;
    wait_for(pair, ucp_ep_close_nbx(ep, &param), UCS_OK);
    ucp_worker_destroy(other);
}

/* Variables of each size and alignment can be watched: nothing is said of them. */
static void waits_for_variables(pair_t *pair)
{
    FILE *said = tmpfile();
    int kept   = dup(STDERR_FILENO);
    uint64_t words[2] = {0};
    int at;

    CHECK((said != NULL) && (kept >= 0));
    CHECK(dup2(fileno(said), STDERR_FILENO) == STDERR_FILENO);
    for (at = 0; at < 8; ++at) {
        ucp_worker_wait_mem(pair->a, (char*)words + at);
    }
    CHECK(dup2(kept, STDERR_FILENO) == STDERR_FILENO);
    CHECK(lseek(fileno(said), 0, SEEK_END) == 0);
    close(kept);
    fclose(said);
}

static void waits(pair_t *pair)
{
    uint64_t word = 1;
    time_t end    = time(NULL) + 60;

    ucp_worker_wait_mem(pair->a, &word); /* returns after a while */
    waits_for_variables(pair);
    while (ucp_worker_arm(pair->b) == UCS_ERR_BUSY) {
        progress(pair);
        CHECK(time(NULL) < end);
    }
    CHECK(ucp_worker_signal(pair->b) == UCS_OK);
    CHECK(ucp_worker_wait(pair->b) == UCS_OK);
}

/* A longer list of pieces than one operation on the network takes. */
static void many_pieces(pair_t *pair)
{
    enum { PIECES = 23, OF = 700 };
    static unsigned char target[PIECES * OF];
    ucp_mem_map_params_t map  = {.field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH};
    ucp_request_param_t param = {.op_attr_mask = UCP_OP_ATTR_FIELD_DATATYPE};
    unsigned char *memory     = malloc(PIECES * OF * 2);
    ucp_dt_iov_t pieces[PIECES];
    ucp_rkey_h rkey;
    ucp_mem_h memh;
    void *packed;
    size_t size;
    int i;

    map.address = target;
    map.length  = sizeof(target);
    CHECK(ucp_mem_map(pair->context, &map, &memh) == UCS_OK);
    CHECK(ucp_rkey_pack(pair->context, memh, &packed, &size) == UCS_OK);
    CHECK(ucp_ep_rkey_unpack(pair->ab, packed, &rkey) == UCS_OK);
    ucp_rkey_buffer_release(packed);
    for (i = 0; i < PIECES; i++) {
        pieces[i].buffer = memory + i * OF * 2;
        pieces[i].length = OF;
        fill(pieces[i].buffer, OF, i);
    }
    param.datatype = ucp_dt_make_iov();
    wait_for(pair, ucp_put_nbx(pair->ab, pieces, PIECES, (uintptr_t)target, rkey, &param), UCS_OK);
    CHECK(ucp_ep_flush(pair->ab) == UCS_OK);
    for (i = 0; i < PIECES; i++) {
        check_filled(target + i * OF, OF, i);
    }
    memset(memory, 0, PIECES * OF * 2);
    wait_for(pair, ucp_get_nbx(pair->ab, pieces, PIECES, (uintptr_t)target, rkey, &param), UCS_OK);
    for (i = 0; i < PIECES; i++) {
        check_filled(pieces[i].buffer, OF, i);
        CHECK(memory[i * OF * 2 + OF] == 0);
    }
    ucp_rkey_destroy(rkey);
    CHECK(ucp_mem_unmap(pair->context, memh) == UCS_OK);
    free(memory);
}

int main(void)
{
    pair_t pair;
    ucp_params_t params = {.field_mask = UCP_PARAM_FIELD_FEATURES, .features = UCP_FEATURE_TAG};
    ucp_context_h context;
    pthread_t thread;

    CHECK(ucp_init_version(1, 13, &params, NULL, &context) == UCS_OK);
    ucp_cleanup(context);
    make_pair(&pair, UCS_THREAD_MODE_MULTI);
    CHECK(pthread_create(&thread, NULL, other_side, pair.b) == 0);
    memory(&pair);
    many_pieces(&pair);
    stop = 1;
    pthread_join(thread, NULL);
    descriptions(&pair);
    requests(&pair);
    waits(&pair);
    free_pair(&pair);
    return 0;
}

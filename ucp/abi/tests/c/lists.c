/* Puts and gets on lists of local and remote memory (UCP_DATATYPE_SGL). */
#include "check.h"

#define PIECES 40
#define SPAN   30000

typedef struct {
    pair_t        pair;
    unsigned char *memory[2]; /* of worker b, one mapped by its context and one allocated by it */
    ucp_mem_h     mapped[2], local_memh;
    ucp_rkey_h    rkey[2];
    unsigned char *local;
    void          *buffers[PIECES];
    size_t        lengths[PIECES];
    ucp_mem_h     memhs[PIECES];
    uint64_t      addrs[PIECES];
    ucp_rkey_h    rkeys[PIECES];
} lists_t;

static ucp_mem_h map(ucp_context_h context, void *address, size_t length, void **at)
{
    ucp_mem_map_params_t params;
    ucp_mem_attr_t attr;
    ucp_mem_h memh;

    params.field_mask = UCP_MEM_MAP_PARAM_FIELD_LENGTH | UCP_MEM_MAP_PARAM_FIELD_FLAGS;
    params.flags      = (address == NULL) ? UCP_MEM_MAP_ALLOCATE : 0;
    params.length     = length;
    if (address != NULL) {
        params.field_mask |= UCP_MEM_MAP_PARAM_FIELD_ADDRESS;
        params.address     = address;
    }
    CHECK(ucp_mem_map(context, &params, &memh) == UCS_OK);
    attr.field_mask = UCP_MEM_ATTR_FIELD_ADDRESS;
    CHECK(ucp_mem_query(memh, &attr) == UCS_OK);
    *at = attr.address;
    return memh;
}

/* Pieces of 0 to SPAN bytes, in reverse order in memory that takes turns. */
static void make_lists(lists_t *of)
{
    static const size_t lengths[] = {1, 8, 0, 100, 4000, 9001, SPAN};
    void *at;
    size_t i;

    of->memory[0] = calloc(PIECES, SPAN);
    of->mapped[0] = map(of->pair.context, of->memory[0], PIECES * SPAN, &at);
    of->mapped[1] = map(of->pair.context, NULL, PIECES * SPAN, &at);
    of->memory[1] = at;
    memset(of->memory[1], 0, PIECES * SPAN);
    of->local      = malloc(PIECES * SPAN);
    of->local_memh = map(of->pair.context, of->local, PIECES * SPAN, &at);
    for (i = 0; i < 2; i++) {
        void *packed;
        size_t size;
        CHECK(ucp_rkey_pack(of->pair.context, of->mapped[i], &packed, &size) == UCS_OK);
        CHECK(ucp_ep_rkey_unpack(of->pair.ab, packed, &of->rkey[i]) == UCS_OK);
        ucp_rkey_buffer_release(packed);
    }
    for (i = 0; i < PIECES; i++) {
        of->buffers[i] = of->local + i * SPAN;
        of->lengths[i] = lengths[i % 7];
        of->memhs[i]   = of->local_memh;
        of->addrs[i]   = (uintptr_t)of->memory[i % 2] + (PIECES - 1 - i) * SPAN;
        of->rkeys[i]   = of->rkey[i % 2];
    }
}

static void free_lists(lists_t *of)
{
    int i;

    for (i = 0; i < 2; i++) {
        ucp_rkey_destroy(of->rkey[i]);
        CHECK(ucp_mem_unmap(of->pair.context, of->mapped[i]) == UCS_OK);
    }
    CHECK(ucp_mem_unmap(of->pair.context, of->local_memh) == UCS_OK);
    free(of->memory[0]);
    free(of->local);
}

static ucp_dt_local_sgl_t local_of(lists_t *of)
{
    ucp_dt_local_sgl_t local;

    memset(&local, 0xff, sizeof(local)); /* arrays that the mask does not name are not read */
    local.field_mask = UCP_DT_LOCAL_SGL_FIELD_BUFFERS | UCP_DT_LOCAL_SGL_FIELD_LENGTHS;
    local.buffers    = of->buffers;
    local.lengths    = of->lengths;
    return local;
}

static ucp_dt_remote_sgl_t remote_of(lists_t *of)
{
    ucp_dt_remote_sgl_t remote;

    remote.field_mask   = UCP_DT_REMOTE_SGL_FIELD_REMOTE_ADDRS | UCP_DT_REMOTE_SGL_FIELD_LENGTHS |
                          UCP_DT_REMOTE_SGL_FIELD_RKEYS;
    remote.remote_addrs = of->addrs;
    remote.lengths      = of->lengths;
    remote.rkeys        = of->rkeys;
    return remote;
}

static ucp_request_param_t param_of(const ucp_dt_remote_sgl_t *remote, size_t count)
{
    ucp_request_param_t param = plain();

    param.op_attr_mask   |= UCP_OP_ATTR_FIELD_DATATYPE | UCP_OP_ATTR_FIELD_REMOTE_DATATYPE |
                            UCP_OP_ATTR_FIELD_REMOTE | UCP_OP_ATTR_FIELD_REMOTE_COUNT;
    param.datatype        = ucp_dt_make_sgl();
    param.remote_datatype = ucp_dt_make_sgl();
    param.remote          = remote;
    param.remote_count    = count;
    return param;
}

static ucs_status_ptr_t put(lists_t *of, const void *local, size_t count, const ucp_request_param_t *param)
{
    return ucp_put_nbx(of->pair.ab, local, count, UCP_REMOTE_ADDR_INVALID, UCP_RKEY_INVALID, param);
}

static ucs_status_ptr_t get(lists_t *of, void *local, size_t count, const ucp_request_param_t *param)
{
    return ucp_get_nbx(of->pair.ab, local, count, UCP_REMOTE_ADDR_INVALID, UCP_RKEY_INVALID, param);
}

static void flush(lists_t *of)
{
    ucp_request_param_t param = plain();
    wait_for(&of->pair, ucp_ep_flush_nbx(of->pair.ab, &param), UCS_OK);
}

/* Exactly the bytes of the pieces have been written. */
static void check_written(lists_t *of, size_t count, unsigned seed)
{
    size_t i, at;

    for (i = 0; i < PIECES; i++) {
        const unsigned char *piece = (const unsigned char*)(uintptr_t)of->addrs[i];
        size_t length = (i < count) ? of->lengths[i] : 0;
        check_filled(piece, length, seed + i);
        for (at = length; at < SPAN; at++) {
            CHECK(piece[at] == 0);
        }
    }
}

static int calls;

static void on_end(void *request, ucs_status_t status, void *arg)
{
    CHECK(request != NULL && status == UCS_OK && arg == &calls);
    calls++;
}

static void copies(lists_t *of)
{
    static const size_t counts[] = {0, 1, 2, 5, PIECES};
    size_t i, n;

    for (n = 0; n < sizeof(counts) / sizeof(counts[0]); n++) {
        size_t count = counts[n];
        ucp_dt_local_sgl_t local   = local_of(of);
        ucp_dt_remote_sgl_t remote = remote_of(of);
        ucp_request_param_t param  = param_of(&remote, count);
        ucs_status_ptr_t request;

        memset(of->memory[0], 0, PIECES * SPAN);
        memset(of->memory[1], 0, PIECES * SPAN);
        for (i = 0; i < PIECES; i++) {
            fill(of->buffers[i], of->lengths[i], n * 100 + i);
        }
        if (n % 2 == 1) {
            local.field_mask |= UCP_DT_LOCAL_SGL_FIELD_MEMHS;
            local.memhs       = of->memhs;
            param.op_attr_mask &= ~UCP_OP_ATTR_FIELD_REMOTE_COUNT;
        } else {
            param.op_attr_mask |= UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA |
                                  UCP_OP_ATTR_FLAG_NO_IMM_CMPL;
            param.cb.send   = on_end;
            param.user_data = &calls;
            calls           = 0;
        }
        request = put(of, &local, count, &param);
        /* The structures may be gone: the arrays stay. */
        memset(&local, 0, sizeof(local));
        memset(&remote, 0, sizeof(remote));
        wait_for(&of->pair, request, UCS_OK);
        CHECK(n % 2 == 1 || calls == 1);
        flush(of);
        check_written(of, count, n * 100);

        memset(of->local, 0, PIECES * SPAN);
        local        = local_of(of);
        remote       = remote_of(of);
        param.remote = &remote;
        wait_for(&of->pair, get(of, &local, count, &param), UCS_OK);
        for (i = 0; i < count; i++) {
            const unsigned char *piece = of->buffers[i];
            check_filled(piece, of->lengths[i], n * 100 + i);
            CHECK(of->lengths[i] == SPAN || piece[of->lengths[i]] == 0);
        }
    }
}

/* All of it, or nothing. */
static void forced(lists_t *of)
{
    ucp_dt_local_sgl_t local   = local_of(of);
    ucp_dt_remote_sgl_t remote = remote_of(of);
    ucp_request_param_t param  = param_of(&remote, PIECES);
    ucs_status_ptr_t ended;
    size_t i;

    memset(of->memory[0], 0, PIECES * SPAN);
    memset(of->memory[1], 0, PIECES * SPAN);
    for (i = 0; i < PIECES; i++) {
        fill(of->buffers[i], of->lengths[i], 7 + i);
    }
    param.op_attr_mask |= UCP_OP_ATTR_FLAG_FORCE_IMM_CMPL;
    ended = put(of, &local, PIECES, &param);
    CHECK(ended == NULL || UCS_PTR_STATUS(ended) == UCS_ERR_NO_RESOURCE);
    check_written(of, (ended == NULL) ? PIECES : 0, 7);
    ended = get(of, &local, PIECES, &param);
    CHECK(ended == NULL || UCS_PTR_STATUS(ended) == UCS_ERR_NO_RESOURCE);
}

#define REFUSED(_change) \
    do { \
        ucp_dt_local_sgl_t local   = local_of(of); \
        ucp_dt_remote_sgl_t remote = remote_of(of); \
        ucp_request_param_t param  = param_of(&remote, PIECES); \
        size_t count               = PIECES; \
        ucs_status_t expected      = UCS_ERR_INVALID_PARAM; \
        _change; \
        CHECK(UCS_PTR_STATUS(put(of, &local, count, &param)) == expected); \
        CHECK(UCS_PTR_STATUS(get(of, &local, count, &param)) == expected); \
        (void)expected; \
    } while (0)

/* What is wrong is said before anything is written. */
static void refused(lists_t *of)
{
    size_t other[PIECES];
    ucp_rkey_h keys[PIECES];
    ucp_mem_h memhs[PIECES];
    void *buffers[PIECES];
    uint64_t addrs[PIECES];
    ucp_request_param_t param;
    ucp_dt_remote_sgl_t remote = remote_of(of);
    ucp_dt_local_sgl_t local   = local_of(of);
    int of_byte;

    memset(of->memory[0], 0, PIECES * SPAN);
    memset(of->memory[1], 0, PIECES * SPAN);
    memcpy(other, of->lengths, sizeof(other));
    memcpy(keys, of->rkeys, sizeof(keys));
    memcpy(memhs, of->memhs, sizeof(memhs));
    memcpy(buffers, of->buffers, sizeof(buffers));
    memcpy(addrs, of->addrs, sizeof(addrs));
    other[PIECES - 1]++;
    keys[PIECES - 1]    = NULL;
    memhs[PIECES - 1]   = NULL;
    buffers[PIECES - 1] = NULL;
    addrs[PIECES - 1]   = 64;
    CHECK(of->lengths[PIECES - 1] > 0);
    REFUSED(param.op_attr_mask &= ~UCP_OP_ATTR_FIELD_REMOTE);
    REFUSED(param.op_attr_mask &= ~UCP_OP_ATTR_FIELD_REMOTE_DATATYPE);
    REFUSED(param.op_attr_mask &= ~UCP_OP_ATTR_FIELD_DATATYPE);
    REFUSED(param.remote_datatype = ucp_dt_make_contig(1));
    REFUSED(param.datatype = ucp_dt_make_iov());
    REFUSED(param.remote = NULL);
    REFUSED(param.remote_count = PIECES - 1);
    REFUSED(local.field_mask &= ~UCP_DT_LOCAL_SGL_FIELD_BUFFERS);
    REFUSED(local.field_mask &= ~UCP_DT_LOCAL_SGL_FIELD_LENGTHS);
    REFUSED(local.buffers = NULL);
    REFUSED(local.lengths = NULL);
    REFUSED(local.buffers = buffers);
    REFUSED(local.lengths = other);
    REFUSED((local.field_mask |= UCP_DT_LOCAL_SGL_FIELD_MEMHS, local.memhs = NULL));
    REFUSED((local.field_mask |= UCP_DT_LOCAL_SGL_FIELD_MEMHS, local.memhs = memhs));
    REFUSED(remote.field_mask &= ~UCP_DT_REMOTE_SGL_FIELD_REMOTE_ADDRS);
    REFUSED(remote.field_mask &= ~UCP_DT_REMOTE_SGL_FIELD_LENGTHS);
    REFUSED(remote.field_mask &= ~UCP_DT_REMOTE_SGL_FIELD_RKEYS);
    REFUSED(remote.rkeys = NULL);
    REFUSED(remote.rkeys = keys);
    REFUSED(remote.lengths = NULL);
    REFUSED((count = SIZE_MAX, param.remote_count = SIZE_MAX));
    REFUSED((local.field_mask |= UCP_DT_LOCAL_SGL_FIELD_COUNTS, local.counts = of->lengths,
             expected = UCS_ERR_UNSUPPORTED));
    REFUSED((remote.remote_addrs = addrs, expected = UCS_ERR_REJECTED));
    /* memory that the handle does not hold */
    memhs[PIECES - 1] = of->mapped[0];
    REFUSED((local.field_mask |= UCP_DT_LOCAL_SGL_FIELD_MEMHS, local.memhs = memhs));
    /* an address or a key beside the lists */
    param = param_of(&remote, PIECES);
    CHECK(UCS_PTR_STATUS(ucp_put_nbx(of->pair.ab, &local, PIECES, of->addrs[0], NULL, &param)) ==
          UCS_ERR_INVALID_PARAM);
    CHECK(UCS_PTR_STATUS(ucp_put_nbx(of->pair.ab, &local, PIECES, UCP_REMOTE_ADDR_INVALID, of->rkey[0], &param)) ==
          UCS_ERR_INVALID_PARAM);
    CHECK(UCS_PTR_STATUS(put(of, NULL, PIECES, &param)) == UCS_ERR_INVALID_PARAM);
    /* other operations take no lists */
    CHECK(UCS_PTR_STATUS(ucp_tag_send_nbx(of->pair.ab, &local, 1, 1, &param)) == UCS_ERR_UNSUPPORTED);
    flush(of);
    for (of_byte = 0; of_byte < PIECES * SPAN; of_byte++) {
        CHECK(of->memory[0][of_byte] == 0 && of->memory[1][of_byte] == 0);
    }
}

int main(void)
{
    static const ucs_thread_mode_t modes[] = {UCS_THREAD_MODE_SINGLE, UCS_THREAD_MODE_MULTI};
    int i;

    for (i = 0; i < 2; i++) {
        lists_t of;
        make_pair(&of.pair, modes[i]);
        make_lists(&of);
        copies(&of);
        forced(&of);
        refused(&of);
        free_lists(&of);
        free_pair(&of.pair);
    }
    return 0;
}

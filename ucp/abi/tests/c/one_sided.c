/* Memory, keys, puts, gets, atomics, flush and fence. */
#include "check.h"

#include <sys/mman.h>
#include <unistd.h>

#define SIZE (1 << 20)

static ucp_mem_h map(pair_t *pair, void *address, size_t length, unsigned flags, void **at)
{
    ucp_mem_map_params_t params;
    ucp_mem_attr_t attr;
    ucp_mem_h memh;

    memset(&params, 0xff, sizeof(params));
    params.field_mask = UCP_MEM_MAP_PARAM_FIELD_LENGTH | UCP_MEM_MAP_PARAM_FIELD_FLAGS;
    if (address != NULL) {
        params.field_mask |= UCP_MEM_MAP_PARAM_FIELD_ADDRESS;
        params.address     = address;
    }
    params.length = length;
    params.flags  = flags;
    CHECK(ucp_mem_map(pair->context, &params, &memh) == UCS_OK);
    attr.field_mask = UCP_MEM_ATTR_FIELD_ADDRESS | UCP_MEM_ATTR_FIELD_LENGTH;
    CHECK(ucp_mem_query(memh, &attr) == UCS_OK && attr.length == length);
    *at = attr.address;
    return memh;
}

static ucp_rkey_h key_of(pair_t *pair, ucp_mem_h memh)
{
    void *packed;
    size_t size;
    ucp_rkey_h rkey;

    CHECK(ucp_rkey_pack(pair->context, memh, &packed, &size) == UCS_OK && size > 0);
    CHECK(ucp_ep_rkey_unpack(pair->ab, packed, &rkey) == UCS_OK);
    ucp_rkey_buffer_release(packed);
    return rkey;
}

static void flush(pair_t *pair)
{
    ucp_request_param_t param = plain();
    wait_for(pair, ucp_ep_flush_nbx(pair->ab, &param), UCS_OK);
    wait_for(pair, ucp_worker_flush_nbx(pair->a, &param), UCS_OK);
}

static void copies(pair_t *pair, unsigned char *target, ucp_rkey_h rkey)
{
    static const size_t lengths[] = {1, 8, 500, 5000, 100000, SIZE};
    ucp_request_param_t param = plain();
    unsigned char *local = malloc(SIZE);
    size_t i;

    for (i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
        ucs_status_t status;
        fill(local, lengths[i], i);
        wait_for(pair, ucp_put_nbx(pair->ab, local, lengths[i], (uintptr_t)target, rkey, &param), UCS_OK);
        flush(pair);
        check_filled(target, lengths[i], i);
        memset(local, 0, lengths[i]);
        wait_for(pair, ucp_get_nbx(pair->ab, local, lengths[i], (uintptr_t)target, rkey, &param), UCS_OK);
        check_filled(local, lengths[i], i);
        fill(local, lengths[i], i + 50);
        status = ucp_put_nbi(pair->ab, local, lengths[i], (uintptr_t)target, rkey);
        CHECK(status == UCS_OK || status == UCS_INPROGRESS);
        CHECK(ucp_worker_fence(pair->a) == UCS_OK);
        flush(pair);
        check_filled(target, lengths[i], i + 50);
        memset(local, 0, lengths[i]);
        status = ucp_get_nbi(pair->ab, local, lengths[i], (uintptr_t)target, rkey);
        CHECK(status == UCS_OK || status == UCS_INPROGRESS);
        flush(pair);
        check_filled(local, lengths[i], i + 50);
    }
    free(local);
}

static int ended;

static void on_end(void *request, ucs_status_t status, void *user_data)
{
    CHECK(status == UCS_OK && user_data == &ended);
    ended++;
}

/* What the key does not cover, operations of no bytes, and callbacks. */
static void bounds(pair_t *pair, unsigned char *target, ucp_rkey_h rkey)
{
    ucp_request_param_t param = plain();
    uint64_t word = 7, end = (uintptr_t)target + SIZE;
    ucs_status_ptr_t request;

    CHECK(UCS_PTR_STATUS(ucp_put_nbx(pair->ab, &word, 8, end - 7, rkey, &param)) == UCS_ERR_REJECTED);
    CHECK(UCS_PTR_STATUS(ucp_get_nbx(pair->ab, &word, 8, end, rkey, &param)) == UCS_ERR_REJECTED);
    CHECK(UCS_PTR_STATUS(ucp_put_nbx(pair->ab, &word, 1, (uintptr_t)target - 1, rkey, &param)) == UCS_ERR_REJECTED);
    CHECK(ucp_put_nbi(pair->ab, &word, 8, end - 7, rkey) == UCS_ERR_REJECTED);
    CHECK(UCS_PTR_STATUS(ucp_put_nbx(pair->ab, NULL, 8, (uintptr_t)target, rkey, &param)) == UCS_ERR_INVALID_PARAM);
    CHECK(UCS_PTR_STATUS(ucp_put_nbx(pair->ab, &word, 8, (uintptr_t)target, NULL, &param)) == UCS_ERR_INVALID_PARAM);
    CHECK(UCS_PTR_STATUS(ucp_get_nbx(NULL, &word, 8, (uintptr_t)target, rkey, &param)) == UCS_ERR_INVALID_PARAM);
    CHECK(UCS_PTR_STATUS(ucp_put_nbx(pair->ab, &word, 8, (uintptr_t)target, rkey, NULL)) == UCS_ERR_INVALID_PARAM);
    wait_for(pair, ucp_put_nbx(pair->ab, NULL, 0, end, rkey, &param), UCS_OK);
    wait_for(pair, ucp_get_nbx(pair->ab, NULL, 0, (uintptr_t)target, rkey, &param), UCS_OK);
    /* A request, and the callback, although it may end in the call. */
    ended              = 0;
    param.op_attr_mask = UCP_OP_ATTR_FLAG_NO_IMM_CMPL | UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
    param.cb.send      = on_end;
    param.user_data    = &ended;
    request            = ucp_put_nbx(pair->ab, &word, 8, (uintptr_t)target, rkey, &param);
    CHECK(UCS_PTR_IS_PTR(request));
    wait_for(pair, request, UCS_OK);
    CHECK(ended == 1);
    /* Else a callback belongs to a request. */
    param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_DATATYPE;
    param.datatype     = ucp_dt_make_contig(4);
    request            = ucp_put_nbx(pair->ab, &word, 2, (uintptr_t)target, rkey, &param);
    CHECK(!UCS_PTR_IS_ERR(request));
    wait_for(pair, request, UCS_OK);
    CHECK(ended == (request == NULL ? 1 : 2));
    flush(pair);
    CHECK(memcmp(target, &word, 8) == 0);
}

static uint64_t fetched(pair_t *pair, ucp_atomic_fetch_op_t op, uint64_t value, uint64_t result, size_t size,
                        void *target, ucp_rkey_h rkey)
{
    ucs_status_ptr_t request;
    request = ucp_atomic_fetch_nb(pair->ab, op, value, &result, size, (uintptr_t)target, rkey, NULL);
    wait_for(pair, request, UCS_OK);
    return size == 4 ? (uint32_t)result : result;
}

static void atomics(pair_t *pair, void *memory, ucp_rkey_h rkey)
{
    volatile uint64_t *word = memory;
    size_t size;

    for (size = 4; size <= 8; size += 4) {
        ucp_request_param_t param = plain();
        uint64_t value, reply;

        *word = 100;
        CHECK(ucp_atomic_post(pair->ab, UCP_ATOMIC_POST_OP_ADD, 5, size, (uintptr_t)word, rkey) == UCS_OK);
        flush(pair);
        CHECK(*word == 105);
        CHECK(fetched(pair, UCP_ATOMIC_FETCH_OP_FADD, 1, 0, size, memory, rkey) == 105 && *word == 106);
        CHECK(fetched(pair, UCP_ATOMIC_FETCH_OP_SWAP, 0xf0, 0, size, memory, rkey) == 106 && *word == 0xf0);
        CHECK(fetched(pair, UCP_ATOMIC_FETCH_OP_FAND, 0x30, 0, size, memory, rkey) == 0xf0 && *word == 0x30);
        CHECK(fetched(pair, UCP_ATOMIC_FETCH_OP_FOR, 0x05, 0, size, memory, rkey) == 0x30 && *word == 0x35);
        CHECK(fetched(pair, UCP_ATOMIC_FETCH_OP_FXOR, 0xff, 0, size, memory, rkey) == 0x35 && *word == 0xca);
        CHECK(fetched(pair, UCP_ATOMIC_FETCH_OP_CSWAP, 1, 2, size, memory, rkey) == 0xca && *word == 0xca);
        CHECK(fetched(pair, UCP_ATOMIC_FETCH_OP_CSWAP, 0xca, 2, size, memory, rkey) == 0xca && *word == 2);
        /* the operand is what is compared, the reply buffer has the new value */
        param.op_attr_mask = UCP_OP_ATTR_FIELD_DATATYPE | UCP_OP_ATTR_FIELD_REPLY_BUFFER;
        param.datatype     = ucp_dt_make_contig(size);
        param.reply_buffer = &reply;
        value              = 2;
        reply              = 77;
        wait_for(pair, ucp_atomic_op_nbx(pair->ab, UCP_ATOMIC_OP_CSWAP, &value, 1, (uintptr_t)word, rkey, &param),
                 UCS_OK);
        CHECK((uint32_t)reply == 2 && *word == 77);
        param.op_attr_mask = UCP_OP_ATTR_FIELD_DATATYPE;
        value              = 3;
        wait_for(pair, ucp_atomic_op_nbx(pair->ab, UCP_ATOMIC_OP_ADD, &value, 1, (uintptr_t)word, rkey, &param),
                 UCS_OK);
        flush(pair);
        CHECK(*word == 80);
        CHECK(UCS_PTR_IS_ERR(ucp_atomic_fetch_nb(pair->ab, UCP_ATOMIC_FETCH_OP_FADD, 1, &reply, 2, (uintptr_t)word,
                                                 rkey, NULL)));
    }
}

/* A size that words do not have is refused before anything of the result is read. */
static void odd_sizes(pair_t *pair, void *memory, ucp_rkey_h rkey)
{
    long page   = sysconf(_SC_PAGESIZE);
    char *pages = mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    size_t size;

    CHECK(pages != MAP_FAILED && mprotect(pages + page, page, PROT_NONE) == 0);
    for (size = 0; size <= 3; ++size) {
        CHECK(UCS_PTR_STATUS(ucp_atomic_fetch_nb(pair->ab, UCP_ATOMIC_FETCH_OP_CSWAP, 1, pages + page - size, size,
                                                 (uintptr_t)memory, rkey, NULL)) == UCS_ERR_INVALID_PARAM);
    }
    munmap(pages, 2 * page);
}

/* Operations that have to end in their call do so on mapped memory, and are not started on other. */
static void forced(pair_t *pair, void *memory, ucp_rkey_h rkey, int is_mapped)
{
    ucp_request_param_t param = plain();
    ucs_status_t expected     = is_mapped ? UCS_OK : UCS_ERR_NO_RESOURCE;
    volatile uint64_t *word   = memory;
    uint64_t value = 5, old = 0;

    *word              = 1;
    param.op_attr_mask = UCP_OP_ATTR_FLAG_FORCE_IMM_CMPL;
    CHECK(UCS_PTR_RAW_STATUS(ucp_put_nbx(pair->ab, &value, 8, (uintptr_t)word, rkey, &param)) == expected);
    CHECK(*word == (is_mapped ? 5 : 1));
    CHECK(UCS_PTR_RAW_STATUS(ucp_get_nbx(pair->ab, &old, 8, (uintptr_t)word, rkey, &param)) == expected);
    CHECK(old == (is_mapped ? 5 : 0));
    param.op_attr_mask |= UCP_OP_ATTR_FIELD_DATATYPE;
    param.datatype      = ucp_dt_make_contig(8);
    CHECK(UCS_PTR_RAW_STATUS(ucp_atomic_op_nbx(pair->ab, UCP_ATOMIC_OP_ADD, &value, 1, (uintptr_t)word, rkey,
                                               &param)) == expected);
    CHECK(*word == (is_mapped ? 10 : 1));
    param.op_attr_mask |= UCP_OP_ATTR_FLAG_NO_IMM_CMPL;
    CHECK(UCS_PTR_RAW_STATUS(ucp_put_nbx(pair->ab, &value, 8, (uintptr_t)word, rkey, &param)) ==
          UCS_ERR_NO_RESOURCE);
    param.op_attr_mask = UCP_OP_ATTR_FLAG_FORCE_IMM_CMPL;
    CHECK(UCS_PTR_RAW_STATUS(ucp_put_nbx(NULL, &value, 8, (uintptr_t)word, rkey, &param)) == UCS_ERR_INVALID_PARAM);
    CHECK(UCS_PTR_RAW_STATUS(ucp_get_nbx(pair->ab, &old, 8, (uintptr_t)word, NULL, &param)) == UCS_ERR_INVALID_PARAM);
    CHECK(UCS_PTR_RAW_STATUS(ucp_atomic_op_nbx(pair->ab, UCP_ATOMIC_OP_ADD, &value, 1, (uintptr_t)word, NULL,
                                               &param)) == UCS_ERR_INVALID_PARAM);
}

static void of_memory(pair_t *pair, ucp_mem_h memh, void *at, ucs_status_t mapped)
{
    ucp_rkey_h rkey = key_of(pair, memh);
    void *here;

    copies(pair, at, rkey);
    bounds(pair, at, rkey);
    atomics(pair, at, rkey);
    odd_sizes(pair, at, rkey);
    forced(pair, at, rkey, mapped == UCS_OK);
    CHECK(ucp_rkey_ptr(rkey, (uintptr_t)at, &here) == mapped);
    CHECK(mapped != UCS_OK || memcmp(here, at, 4096) == 0);
    ucp_rkey_destroy(rkey);
    CHECK(ucp_mem_unmap(pair->context, memh) == UCS_OK);
}

static void in_mode(ucs_thread_mode_t mode)
{
    pair_t pair;
    void *at, *hole, *program;
    ucp_mem_h memh;

    /* Shared memory that the library has allocated is mapped by peers. */
    ucs_status_t mapped = strncmp(getenv("UCX_TLS"), "posix", 5) == 0 ? UCS_OK : UCS_ERR_UNREACHABLE;

    make_pair(&pair, mode);
    memh = map(&pair, NULL, SIZE, UCP_MEM_MAP_ALLOCATE, &at);
    of_memory(&pair, memh, at, mapped);
    memh = map(&pair, NULL, SIZE, UCP_MEM_MAP_ALLOCATE | UCP_MEM_MAP_NONBLOCK, &at);
    of_memory(&pair, memh, at, mapped);
    hole = mmap(NULL, 4 * SIZE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(munmap(hole, 4 * SIZE) == 0);
    memh = map(&pair, (char*)hole + SIZE, SIZE, UCP_MEM_MAP_ALLOCATE | UCP_MEM_MAP_FIXED, &at);
    CHECK(at == (char*)hole + SIZE);
    of_memory(&pair, memh, at, mapped);
    program = aligned_alloc(4096, SIZE);
    memh    = map(&pair, program, SIZE, 0, &at);
    CHECK(at == program);
    of_memory(&pair, memh, at, UCS_ERR_UNREACHABLE);
    free(program);
    memh = map(&pair, NULL, 0, 0, &at);
    ucp_rkey_destroy(key_of(&pair, memh));
    CHECK(ucp_mem_unmap(pair.context, memh) == UCS_OK);
    free_pair(&pair);
}

int main(void)
{
    in_mode(UCS_THREAD_MODE_SINGLE);
    in_mode(UCS_THREAD_MODE_SERIALIZED);
    in_mode(UCS_THREAD_MODE_MULTI);
    return 0;
}

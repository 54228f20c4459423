/* Atomic and, or, xor of words of 4 and of 8 bytes in memory that UCX allocates, from one worker to another: what they return and
 * what they leave. It runs on any UCX (ucp/abi/tests/consumers). Its arguments name the tests; without any all are run. */
#include "check.h"

enum { BEFORE = 0xf0, OPERAND = 0x3c };

typedef struct {
    const char *name;
    ucp_atomic_op_t op;
    int is_fetching;
    uint64_t after;
} test_t;

static const test_t tests[] = {
    {"fetch-and", UCP_ATOMIC_OP_AND, 1, BEFORE & OPERAND},
    {"fetch-or", UCP_ATOMIC_OP_OR, 1, BEFORE | OPERAND},
    {"fetch-xor", UCP_ATOMIC_OP_XOR, 1, BEFORE ^ OPERAND},
    {"and", UCP_ATOMIC_OP_AND, 0, BEFORE & OPERAND},
    {"or", UCP_ATOMIC_OP_OR, 0, BEFORE | OPERAND},
    {"xor", UCP_ATOMIC_OP_XOR, 0, BEFORE ^ OPERAND},
};

/* Memory of the context, and its key. */
static volatile uint64_t *allocate(pair_t *pair, ucp_mem_h *memh, ucp_rkey_h *rkey)
{
    ucp_mem_map_params_t params;
    ucp_mem_attr_t attr;
    void *packed;
    size_t size;

    memset(&params, 0, sizeof(params));
    params.field_mask = UCP_MEM_MAP_PARAM_FIELD_LENGTH | UCP_MEM_MAP_PARAM_FIELD_FLAGS;
    params.length     = 4096;
    params.flags      = UCP_MEM_MAP_ALLOCATE;
    CHECK(ucp_mem_map(pair->context, &params, memh) == UCS_OK);
    attr.field_mask = UCP_MEM_ATTR_FIELD_ADDRESS;
    CHECK(ucp_mem_query(*memh, &attr) == UCS_OK);
    CHECK(ucp_rkey_pack(pair->context, *memh, &packed, &size) == UCS_OK);
    CHECK(ucp_ep_rkey_unpack(pair->ab, packed, rkey) == UCS_OK);
    ucp_rkey_buffer_release(packed);
    return attr.address;
}

/* Whether an operation on a word returns and leaves what it should. */
static int is_right(pair_t *pair, const test_t *test, size_t size, volatile uint64_t *word, ucp_rkey_h rkey)
{
    ucp_request_param_t param = plain(), flush = plain();
    uint64_t operand = OPERAND, old = 0;

    *word              = BEFORE;
    param.op_attr_mask = UCP_OP_ATTR_FIELD_DATATYPE | (test->is_fetching ? UCP_OP_ATTR_FIELD_REPLY_BUFFER : 0);
    param.datatype     = ucp_dt_make_contig(size);
    param.reply_buffer = &old;
    wait_for(pair, ucp_atomic_op_nbx(pair->ab, test->op, &operand, 1, (uintptr_t)word, rkey, &param), UCS_OK);
    wait_for(pair, ucp_ep_flush_nbx(pair->ab, &flush), UCS_OK);
    if ((test->is_fetching && old != BEFORE) || *word != test->after) {
        fprintf(stderr, "%s of %zu bytes returned %#llx and left %#llx, not %#llx\n", test->name, size,
                (unsigned long long)old, (unsigned long long)*word, (unsigned long long)test->after);
        return 0;
    }
    return 1;
}

int main(int argc, char **argv)
{
    unsigned at, run = 0, failed = 0;
    volatile uint64_t *word;
    ucp_rkey_h rkey;
    ucp_mem_h memh;
    pair_t pair;
    size_t size;
    int i;

    make_pair(&pair, UCS_THREAD_MODE_SINGLE);
    word = allocate(&pair, &memh, &rkey);
    for (at = 0; at < sizeof(tests) / sizeof(tests[0]); at++) {
        int wanted = argc == 1;
        for (i = 1; i < argc; i++) {
            wanted |= strcmp(argv[i], tests[at].name) == 0;
        }
        if (wanted) {
            run++;
            for (size = 4; size <= 8; size += 4) {
                failed += !is_right(&pair, &tests[at], size, word, rkey);
            }
        }
    }
    ucp_rkey_destroy(rkey);
    CHECK(ucp_mem_unmap(pair.context, memh) == UCS_OK);
    free_pair(&pair);
    if (failed == 0) {
        printf("all is well: %u tests\n", run);
    }
    return failed == 0 ? 0 : 3;
}

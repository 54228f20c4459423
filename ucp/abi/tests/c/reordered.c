/*
 * A datatype of callbacks whose bytes come in another order than they were sent: each byte is unpacked once, at its
 * offset, and the datatype is finished once. With SOFTEFA_REORDER some offsets go back.
 */
#include "check.h"

#define LENGTH 1000000
#define ROUNDS 20

typedef struct {
    unsigned char *buffer;
    unsigned char *seen;
    size_t count, next, unpacked;
} state_t;

static unsigned started, finished, steps_back;
static unsigned char seen[LENGTH];

static void *start_pack(void *context, const void *buffer, size_t count)
{
    state_t *state = calloc(1, sizeof(*state));

    state->buffer = (unsigned char*)buffer;
    state->count  = count;
    started++;
    return state;
}

static void *start_unpack(void *context, void *buffer, size_t count)
{
    state_t *state = start_pack(context, buffer, count);

    memset(seen, 0, sizeof(seen));
    state->seen = seen;
    return state;
}

static size_t packed_size(void *state)
{
    return ((state_t*)state)->count;
}

static size_t pack(void *arg, size_t offset, void *dest, size_t max)
{
    state_t *state = arg;
    size_t length  = state->count - offset < max ? state->count - offset : max;

    memcpy(dest, state->buffer + offset, length);
    return length;
}

static ucs_status_t unpack(void *arg, size_t offset, const void *src, size_t length)
{
    state_t *state = arg;
    size_t i;

    CHECK(offset + length <= state->count);
    steps_back += offset < state->next;
    state->next = offset + length;
    for (i = 0; i < length; i++) {
        CHECK(!state->seen[offset + i]);
        state->seen[offset + i] = 1;
    }
    memcpy(state->buffer + offset, src, length);
    state->unpacked += length;
    return UCS_OK;
}

static void finish(void *arg)
{
    state_t *state = arg;

    CHECK(!state->seen || state->unpacked == state->count);
    free(state);
    finished++;
}

int main(void)
{
    ucp_generic_dt_ops_t ops     = {start_pack, start_unpack, packed_size, pack, unpack, finish};
    ucp_request_param_t generic  = {.op_attr_mask = UCP_OP_ATTR_FIELD_DATATYPE}, none = {.op_attr_mask = 0};
    unsigned char *out           = malloc(LENGTH), *in = malloc(LENGTH);
    ucs_status_ptr_t recv, send;
    pair_t pair;
    int round;

    make_pair(&pair, UCS_THREAD_MODE_SINGLE);
    CHECK(ucp_dt_create_generic(&ops, NULL, &generic.datatype) == UCS_OK);
    for (round = 0; round < ROUNDS; round++) {
        const size_t length = LENGTH - round * 40000;

        fill(out, length, round);
        memset(in, 0, length);
        /* In turn: the receive first, and the message first; the sender packs, or has bytes. */
        if (round % 2) {
            recv = ucp_tag_recv_nbx(pair.b, in, length, 1, ~0ull, &generic);
            send = ucp_tag_send_nbx(pair.ab, out, length, 1, round % 4 == 1 ? &generic : &none);
        } else {
            ucp_tag_recv_info_t info;
            send = ucp_tag_send_nbx(pair.ab, out, length, 1, round % 4 == 2 ? &generic : &none);
            UNTIL(&pair, ucp_tag_probe_nb(pair.b, 1, ~0ull, 0, &info) != NULL);
            recv = ucp_tag_recv_nbx(pair.b, in, length, 1, ~0ull, &generic);
        }
        wait_for(&pair, recv, UCS_OK);
        wait_for(&pair, send, UCS_OK);
        check_filled(in, length, round);
        CHECK(started == finished);
    }
    CHECK(steps_back > 0 || getenv("SOFTEFA_REORDER") == NULL);
    ucp_dt_destroy(generic.datatype);
    free_pair(&pair);
    free(out);
    free(in);
    return 0;
}

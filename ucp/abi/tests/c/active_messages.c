/* Active messages: each form of a send brings the same message, and data that the program keeps stays where it is. */
#include "check.h"

#define ID 7
#define MAX 20000
#define KEPT 48

/* What the handler does with a message. */
typedef enum { COPY, KEEP, FAIL, NEST, TAKE, REFUSE } what_t;

static pair_t *the_pair;
static what_t what;
/* The last message. */
static unsigned got;
static unsigned char header_in[4096], in[MAX];
static size_t header_length_in, length_in;
static uint64_t attr_in;
static ucp_ep_h reply_in;
static ucs_status_ptr_t receiving;
/* Registered memory with room for a message, and data that has been announced. */
static ucp_mem_h memory_in;
static void *announced;
/* All data that the program has kept. */
static struct {
    unsigned char *at, first_header;
    size_t length;
} kept[KEPT];
static unsigned kept_count;
/* Data is aligned to this. */
static size_t alignment = 1;

static ucs_status_t on_am(void *arg, const void *header, size_t header_length, void *data, size_t length,
                          const ucp_am_recv_param_t *param)
{
    ucp_request_param_t recv = plain();
    unsigned char before[8];
    unsigned mine;

    CHECK(arg == &got && header_length <= sizeof(header_in) && length <= MAX);
    memcpy(header_in, header, header_length);
    header_length_in = header_length;
    length_in        = length;
    attr_in          = param->recv_attr;
    reply_in         = param->recv_attr & UCP_AM_RECV_ATTR_FIELD_REPLY_EP ? param->reply_ep : NULL;
    mine             = ++got;
    if (what == REFUSE) {
        recv.op_attr_mask = UCP_OP_ATTR_FIELD_MEMH;
        recv.memh         = memory_in;
        announced         = param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV ? data : NULL;
        CHECK(length > 1 && UCS_PTR_IS_ERR(ucp_am_recv_data_nbx(the_pair->b, data, before, length, &recv)));
        if (announced == NULL) {
            recv.op_attr_mask = 0;
            CHECK(ucp_am_recv_data_nbx(the_pair->b, data, in, length, &recv) == NULL);
        }
        return UCS_INPROGRESS;
    }
    if (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) {
        receiving = ucp_am_recv_data_nbx(the_pair->b, data, in, length, &recv);
        return UCS_INPROGRESS;
    }
    CHECK(param->recv_attr & UCP_AM_RECV_ATTR_FLAG_DATA);
    CHECK(length == 0 || (uintptr_t)data % alignment == 0);
    switch (what) {
    case COPY:
        memcpy(in, data, length);
        return UCS_OK;
    case KEEP:
        CHECK(kept_count < KEPT);
        kept[kept_count].at           = data;
        kept[kept_count].length       = length;
        kept[kept_count].first_header = header_length > 0 ? header_in[0] : 0;
        kept_count++;
        return UCS_INPROGRESS;
    case FAIL:
        memcpy(in, data, length);
        return UCS_ERR_NO_MEMORY;
    case NEST:
        CHECK(length <= sizeof(before));
        memcpy(before, data, length);
        /* The handler is called for the next message, and another one. */
        if (mine < 3) {
            while (got < mine + 1) {
                progress(the_pair);
            }
        }
        CHECK(memcmp(before, data, length) == 0);
        return UCS_OK;
    case TAKE:
        CHECK(ucp_am_recv_data_nbx(the_pair->b, data, in, length, &recv) == NULL);
        /* What has been received is not kept. */
        return UCS_INPROGRESS;
    case REFUSE:
        break;
    }
    return UCS_OK;
}

static void set_handler(ucp_worker_h worker)
{
    ucp_am_handler_param_t handler;

    handler.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB |
                         UCP_AM_HANDLER_PARAM_FIELD_ARG;
    handler.id         = ID;
    handler.cb         = on_am;
    handler.arg        = &got;
    CHECK(ucp_worker_set_am_recv_handler(worker, &handler) == UCS_OK);
}

static unsigned sent_callbacks;

static void on_sent(void *request, ucs_status_t status, void *user_data)
{
    CHECK(status == UCS_OK && user_data == &sent_callbacks);
    sent_callbacks++;
}

/* A way to pass the same message. */
typedef struct {
    uint32_t mask, flags;
    ucp_datatype_t datatype;
    size_t element;
} form_t;

static void send_each_form(pair_t *pair)
{
    static const form_t forms[] = {
        {0, 0, 0, 1},
        {UCP_OP_ATTR_FIELD_DATATYPE, 0, ucp_dt_make_contig(1), 1},
        {UCP_OP_ATTR_FIELD_DATATYPE, 0, ucp_dt_make_contig(4), 4},
        {UCP_OP_ATTR_FIELD_DATATYPE, 0, ucp_dt_make_iov(), 0},
        {UCP_OP_ATTR_FIELD_FLAGS, UCP_AM_SEND_FLAG_REPLY, 0, 1},
        {UCP_OP_ATTR_FIELD_FLAGS, UCP_AM_SEND_FLAG_EAGER, 0, 1},
        {UCP_OP_ATTR_FIELD_FLAGS, UCP_AM_SEND_FLAG_RNDV, 0, 1},
        {UCP_OP_ATTR_FIELD_FLAGS, UCP_AM_SEND_FLAG_RNDV | UCP_AM_SEND_FLAG_REPLY, 0, 1},
        {UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA, 0, 0, 1},
        {UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FLAG_NO_IMM_CMPL, 0, 0, 1},
        {UCP_OP_ATTR_FLAG_NO_IMM_CMPL, 0, 0, 1},
        {UCP_OP_ATTR_FLAG_FORCE_IMM_CMPL, 0, 0, 1},
        {UCP_OP_ATTR_FIELD_MEMORY_TYPE, 0, 0, 1},
        {UCP_OP_ATTR_FIELD_REQUEST, 0, 0, 1},
    };
    static const size_t headers[] = {0, 1, 3, 8, 200, 4096};
    static const size_t lengths[] = {0, 1, 5, 8, 16, 100, 248, 300, 5000, MAX};
    ucp_context_attr_t context    = {.field_mask = UCP_ATTR_FIELD_REQUEST_SIZE};
    unsigned char *header = malloc(4096), *out = malloc(MAX);
    size_t f, h, l, element, length;
    unsigned before, callbacks;
    ucs_status_ptr_t sent;
    char *own;

    CHECK(ucp_context_query(pair->context, &context) == UCS_OK);
    own  = calloc(1, context.request_size + USER_SIZE);
    what = COPY;
    for (f = 0; f < sizeof(forms) / sizeof(forms[0]); f++) {
        for (h = 0; h < sizeof(headers) / sizeof(headers[0]); h++) {
            for (l = 0; l < sizeof(lengths) / sizeof(lengths[0]); l++) {
                const form_t *form        = &forms[f];
                ucp_request_param_t param = plain();
                ucp_dt_iov_t pieces[2];
                const void *buffer = out;
                size_t count;

                element = form->element;
                length  = element == 4 ? lengths[l] / 4 * 4 : lengths[l];
                count   = element == 0 ? 2 : length / element;
                fill(header, headers[h], f + l);
                fill(out, length, h + l + f);
                if (element == 0) {
                    pieces[0].buffer = out;
                    pieces[0].length = length / 3;
                    pieces[1].buffer = out + length / 3;
                    pieces[1].length = length - length / 3;
                    buffer           = pieces;
                }
                param.op_attr_mask = form->mask;
                param.flags        = form->flags;
                param.datatype     = form->datatype;
                param.cb.send      = on_sent;
                param.user_data    = &sent_callbacks;
                param.memory_type  = UCS_MEMORY_TYPE_HOST;
                param.request      = own + context.request_size;
                before             = got;
                callbacks          = sent_callbacks;
                receiving          = NULL;
                memset(in, 0xee, MAX);
                sent = ucp_am_send_nbx(pair->ab, ID, headers[h] == 0 ? NULL : header, headers[h],
                                       length == 0 && element == 1 ? NULL : buffer, count, &param);
                if (form->mask & UCP_OP_ATTR_FLAG_FORCE_IMM_CMPL && UCS_PTR_IS_ERR(sent)) {
                    CHECK(UCS_PTR_STATUS(sent) == UCS_ERR_NO_RESOURCE);
                    CHECK(headers[h] + length > 300);
                    continue;
                }
                CHECK(!UCS_PTR_IS_ERR(sent));
                if (form->mask & UCP_OP_ATTR_FLAG_NO_IMM_CMPL) {
                    CHECK(UCS_PTR_IS_PTR(sent));
                }
                UNTIL(pair, got > before);
                wait_for(pair, receiving, UCS_OK);
                if (form->mask & UCP_OP_ATTR_FIELD_REQUEST) {
                    UNTIL(pair, sent == NULL || ucp_request_check_status(sent) == UCS_OK);
                } else {
                    int has_callback = sent != NULL && form->mask & UCP_OP_ATTR_FIELD_CALLBACK;
                    wait_for(pair, sent, UCS_OK);
                    CHECK(sent_callbacks == callbacks + has_callback);
                }
                CHECK(got == before + 1 && header_length_in == headers[h] && length_in == length);
                check_filled(header_in, headers[h], f + l);
                check_filled(in, length, h + l + f);
                CHECK((reply_in != NULL) == !!(form->flags & UCP_AM_SEND_FLAG_REPLY));
                if (form->flags & UCP_AM_SEND_FLAG_EAGER) {
                    CHECK(attr_in & UCP_AM_RECV_ATTR_FLAG_DATA);
                }
                if (form->flags & UCP_AM_SEND_FLAG_RNDV && length > 0) {
                    CHECK(attr_in & UCP_AM_RECV_ATTR_FLAG_RNDV);
                }
            }
        }
    }
    free(own);
    free(header);
    free(out);
}

/* Starts a send without header or with one byte. The bytes are those of the number. */
static ucs_status_ptr_t start_one(pair_t *pair, unsigned char number, int has_header, size_t length)
{
    static unsigned char out[3][4096], numbers[3];
    static unsigned sends;
    unsigned char *at = out[sends % 3], *header = &numbers[sends++ % 3];
    ucp_request_param_t param = plain();

    CHECK(length <= sizeof(out[0]));
    fill(at, length, number);
    *header = number;
    return ucp_am_send_nbx(pair->ab, ID, has_header ? header : NULL, has_header, at, length, &param);
}

/* Sends a message, with which the handler does something. */
static void send_one(pair_t *pair, unsigned char number, int has_header, size_t length)
{
    unsigned before       = got;
    ucs_status_ptr_t sent = start_one(pair, number, has_header, length);

    UNTIL(pair, got == before + 1);
    wait_for(pair, sent, UCS_OK);
}

/* Data that has been kept is where it was, whatever has come since, at an address that no other data has. */
static void keep_many(pair_t *pair)
{
    /* Eight bytes in all lie in the message itself inside the library. */
    static const size_t lengths[] = {8, 7, 8, 0, 8, 100, 0, 7, 3000, 8};
    ucp_request_param_t recv      = plain();
    unsigned i, j, round;

    for (round = 0; round < 3; round++) {
        kept_count = 0;
        for (i = 0; i < KEPT; i++) {
            what = KEEP;
            send_one(pair, i + round, i % 10 == 1 || i % 10 >= 6, lengths[i % 10]);
            /* One that is not kept, behind each. */
            what = i % 3 ? COPY : FAIL;
            send_one(pair, 99, 0, lengths[i % 10]);
            CHECK(kept_count == i + 1);
        }
        for (i = 0; i < KEPT; i++) {
            CHECK(kept[i].length == lengths[i % 10]);
            check_filled(kept[i].at, kept[i].length, i + round);
            for (j = 0; j < i; j++) {
                CHECK(kept[i].at != kept[j].at);
            }
        }
        for (i = 0; i < KEPT; i++) {
            if (i % 2 == round % 2) {
                ucp_am_data_release(pair->b, kept[i].at);
                continue;
            }
            memset(in, 0xee, sizeof(in));
            CHECK(ucp_am_recv_data_nbx(pair->b, kept[i].at, in, kept[i].length, &recv) == NULL);
            check_filled(in, kept[i].length, i + round);
        }
    }
}

static void other_ends(pair_t *pair)
{
    static const size_t lengths[] = {8, 7, 5, 0};
    ucs_status_ptr_t sent[3];
    unsigned i, j;

    for (i = 0; i < 8; i++) {
        what = TAKE;
        send_one(pair, i, i % 2, lengths[i % 4]);
        check_filled(in, lengths[i % 4], i);
        what = NEST;
        got  = 0;
        for (j = 0; j < 3; j++) {
            sent[j] = start_one(pair, i + j, i % 2, lengths[i % 4]);
        }
        UNTIL(pair, got == 3);
        for (j = 0; j < 3; j++) {
            wait_for(pair, sent[j], UCS_OK);
        }
    }
}

static void refused(pair_t *pair)
{
    ucp_request_param_t param = plain(), both = plain();
    ucs_status_t status = UCS_ERR_INVALID_PARAM;
    uint64_t word = 5;
    unsigned before = got;
    int i;

    both.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
    both.flags        = UCP_AM_SEND_FLAG_EAGER | UCP_AM_SEND_FLAG_RNDV;
    CHECK(UCS_PTR_RAW_STATUS(ucp_am_send_nbx(NULL, ID, NULL, 0, &word, 8, &param)) == status);
    CHECK(UCS_PTR_RAW_STATUS(ucp_am_send_nbx(pair->ab, 0x10000 | ID, NULL, 0, &word, 8, &param)) == status);
    CHECK(UCS_PTR_RAW_STATUS(ucp_am_send_nbx(pair->ab, ID, NULL, 8, &word, 8, &param)) == status);
    CHECK(UCS_PTR_RAW_STATUS(ucp_am_send_nbx(pair->ab, ID, NULL, 0, NULL, 8, &param)) == status);
    CHECK(UCS_PTR_RAW_STATUS(ucp_am_send_nbx(pair->ab, ID, NULL, 0, &word, 8, NULL)) == status);
    CHECK(UCS_PTR_RAW_STATUS(ucp_am_send_nbx(pair->ab, ID, NULL, 0, &word, 8, &both)) == status);
    CHECK(UCS_PTR_IS_ERR(ucp_am_send_nbx(pair->ab, ID, in, 5000, &word, 8, &param)));
    for (i = 0; i < 1000; i++) {
        progress(pair);
    }
    CHECK(got == before);
}

/* Data has the alignment that the worker has been created with. */
static void aligned(pair_t *pair, size_t to)
{
    ucp_worker_params_t params;
    ucp_worker_h before  = pair->b;
    ucp_ep_h ep_before   = pair->ab;

    params.field_mask   = UCP_WORKER_PARAM_FIELD_AM_ALIGNMENT | UCP_WORKER_PARAM_FIELD_THREAD_MODE;
    params.am_alignment = to;
    params.thread_mode  = UCS_THREAD_MODE_SINGLE;
    CHECK(ucp_worker_create(pair->context, &params, &pair->b) == UCS_OK);
    pair->ab  = connect_to(pair->a, pair->b);
    alignment = to;
    set_handler(pair->b);
    keep_many(pair);
    other_ends(pair);
    alignment = 1;
    close_ep(pair, pair->ab);
    ucp_worker_destroy(pair->b);
    pair->b  = before;
    pair->ab = ep_before;
}

/* A receive into other memory than the handle's is refused, and the next one gets the message. */
static void refused_memory(pair_t *pair)
{
    ucp_mem_map_params_t map  = {.field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH};
    ucp_request_param_t param = plain(), named = plain();
    unsigned char *out = malloc(MAX), *room = malloc(MAX), *other = malloc(MAX);
    ucp_dt_iov_t pieces[2] = {{room, 100}, {other, MAX - 100}};
    ucp_tag_recv_info_t info;
    ucp_tag_message_h message;
    ucs_status_ptr_t sent;
    unsigned before, i;

    map.address = room;
    map.length  = MAX;
    CHECK(ucp_mem_map(pair->context, &map, &memory_in) == UCS_OK);
    named.op_attr_mask = UCP_OP_ATTR_FIELD_MEMH;
    named.memh         = memory_in;
    /* Data that was announced, that comes with the handler, and that the program keeps. */
    for (i = 0; i < 3; i++) {
        before             = got;
        kept_count         = 0;
        what               = i == 2 ? KEEP : REFUSE;
        param.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
        param.flags        = i == 0 ? UCP_AM_SEND_FLAG_RNDV : UCP_AM_SEND_FLAG_EAGER;
        announced          = NULL;
        fill(out, MAX, i);
        memset(in, 0xee, MAX);
        sent = ucp_am_send_nbx(pair->ab, ID, NULL, 0, out, MAX, &param);
        UNTIL(pair, got > before);
        if (i == 1) {
            wait_for(pair, sent, UCS_OK);
            check_filled(in, MAX, i);
            continue;
        }
        announced          = i == 0 ? announced : kept[0].at;
        named.op_attr_mask = UCP_OP_ATTR_FIELD_MEMH;
        CHECK(UCS_PTR_IS_ERR(ucp_am_recv_data_nbx(pair->b, announced, other, MAX, &named)));
        CHECK(UCS_PTR_IS_ERR(ucp_am_recv_data_nbx(pair->b, announced, room + 1, MAX, &named)));
        named.op_attr_mask = UCP_OP_ATTR_FIELD_MEMH | UCP_OP_ATTR_FIELD_DATATYPE;
        named.datatype     = ucp_dt_make_iov();
        CHECK(UCS_PTR_IS_ERR(ucp_am_recv_data_nbx(pair->b, announced, pieces, 2, &named)));
        named.op_attr_mask = UCP_OP_ATTR_FIELD_MEMH;
        memset(room, 0xee, MAX);
        wait_for(pair, ucp_am_recv_data_nbx(pair->b, announced, room, MAX, &named), UCS_OK);
        check_filled(room, MAX, i);
        CHECK(UCS_PTR_IS_ERR(ucp_am_recv_data_nbx(pair->b, announced, room, MAX, &named)));
        wait_for(pair, sent, UCS_OK);
    }
    /* A tagged message that a probe has taken stays, too. */
    param.op_attr_mask = 0;
    fill(out, MAX, 9);
    sent = ucp_tag_send_nbx(pair->ab, out, MAX, 9, &param);
    UNTIL(pair, (message = ucp_tag_probe_nb(pair->b, 9, ~0ull, 1, &info)) != NULL);
    CHECK(UCS_PTR_IS_ERR(ucp_tag_msg_recv_nbx(pair->b, other, MAX, message, &named)));
    wait_for(pair, ucp_tag_msg_recv_nbx(pair->b, room, MAX, message, &named), UCS_OK);
    check_filled(room, MAX, 9);
    wait_for(pair, sent, UCS_OK);
    CHECK(ucp_mem_unmap(pair->context, memory_in) == UCS_OK);
    free(out);
    free(room);
    free(other);
}

/* MPICH asks for the longest header: one of as many bytes as the worker says arrives, and none that is longer is sent. */
static void longest_header(pair_t *pair)
{
    ucp_worker_attr_t attr    = {.field_mask = UCP_WORKER_ATTR_FIELD_MAX_AM_HEADER};
    ucp_request_param_t param = plain();
    unsigned before           = got;
    unsigned char *header;

    CHECK(ucp_worker_query(pair->a, &attr) == UCS_OK && attr.max_am_header >= 256);
    CHECK(attr.max_am_header <= sizeof(header_in));
    header = malloc(attr.max_am_header + 1);
    fill(header, attr.max_am_header + 1, 3);
    what = COPY;
    wait_for(pair, ucp_am_send_nbx(pair->ab, ID, header, attr.max_am_header, NULL, 0, &param), UCS_OK);
    UNTIL(pair, got > before);
    CHECK(header_length_in == attr.max_am_header && length_in == 0);
    check_filled(header_in, attr.max_am_header, 3);
    CHECK(UCS_PTR_STATUS(ucp_am_send_nbx(pair->ab, ID, header, attr.max_am_header + 1, NULL, 0, &param)) ==
          UCS_ERR_INVALID_PARAM);
    free(header);
}

int main(void)
{
    static const ucs_thread_mode_t modes[] = {UCS_THREAD_MODE_SINGLE, UCS_THREAD_MODE_MULTI};
    static pair_t pair;
    int i;

    the_pair = &pair;
    for (i = 0; i < 2; i++) {
        make_pair(&pair, modes[i]);
        set_handler(pair.b);
        send_each_form(&pair);
        longest_header(&pair);
        keep_many(&pair);
        other_ends(&pair);
        refused(&pair);
        refused_memory(&pair);
        aligned(&pair, 8);
        aligned(&pair, 64);
        free_pair(&pair);
    }
    return 0;
}

/*
 * 22: a close ends though the peer's process was killed while a message to it was under way. The message ends with an
 * error.
 */
#include "check.h"
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define LENGTH (1 << 20)
/* More than a process needs that checks its peers each 20 s. */
#define LIMIT 60

static ucp_context_h open_context(void)
{
    ucp_params_t params = {.field_mask = UCP_PARAM_FIELD_FEATURES, .features = UCP_FEATURE_TAG};
    ucp_context_h context;

    CHECK(ucp_init(&params, NULL, &context) == UCS_OK);
    return context;
}

static void read_all(int fd, void *to, size_t length)
{
    while (length > 0) {
        ssize_t count = read(fd, to, length);
        CHECK(count > 0);
        to      = (char*)to + count;
        length -= count;
    }
}

/* Tells its address, and that a message has come; then makes progress, and receives nothing, until it is killed. */
static void serve(int to_parent)
{
    ucp_request_param_t param = {.op_attr_mask = 0};
    ucp_worker_h worker       = make_worker(open_context(), UCS_THREAD_MODE_SINGLE);
    uint64_t word             = 0;
    ucs_status_ptr_t recv;
    ucp_address_t *address;
    size_t length;

    CHECK(prctl(PR_SET_PDEATHSIG, SIGKILL) == 0);
    CHECK(ucp_worker_get_address(worker, &address, &length) == UCS_OK);
    CHECK(write(to_parent, &length, sizeof(length)) == sizeof(length));
    CHECK(write(to_parent, address, length) == (ssize_t)length);
    recv = ucp_tag_recv_nbx(worker, &word, sizeof(word), 1, ~0ull, &param);
    CHECK(UCS_PTR_IS_PTR(recv));
    while (ucp_request_check_status(recv) == UCS_INPROGRESS) {
        ucp_worker_progress(worker);
    }
    CHECK(word == 5 && write(to_parent, &word, 1) == 1);
    for (;;) {
        ucp_worker_progress(worker);
        usleep(100);
    }
}

/* Copies by the kernel have a lane to the other process, which is told of. */
static void kernel_is_a_lane(ucp_context_h context, ucp_ep_h ep)
{
    ucp_ep_attr_t attr = {.field_mask = UCP_EP_ATTR_FIELD_TRANSPORTS};
    ucp_transport_entry_t entries[16];
    char *text   = NULL;
    size_t size  = 0, found = 0;
    FILE *stream = open_memstream(&text, &size);
    unsigned i;

    ucp_context_print_info(context, stream);
    fclose(stream);
    attr.transports.entries     = entries;
    attr.transports.num_entries = 16;
    attr.transports.entry_size  = sizeof(entries[0]);
    CHECK(ucp_ep_query(ep, &attr) == UCS_OK);
    for (i = 0; i < attr.transports.num_entries; i++) {
        found += !strcmp(entries[i].transport_name, "cma") && !strcmp(entries[i].device_name, "memory");
    }
    CHECK(found == (strstr(text, "cma/memory") != NULL));
    free(text);
}

static void until_ended(ucp_worker_h worker, ucs_status_ptr_t request)
{
    time_t end = time(NULL) + LIMIT;

    while (ucp_request_check_status(request) == UCS_INPROGRESS) {
        ucp_worker_progress(worker);
        CHECK(time(NULL) < end);
    }
}

int main(void)
{
    ucp_request_param_t param = {.op_attr_mask = 0};
    ucp_ep_params_t params    = {.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS};
    char *data                = calloc(1, LENGTH), byte;
    uint64_t word             = 5;
    ucs_status_ptr_t sent, announced, closing;
    ucp_context_h context;
    ucp_worker_h worker;
    size_t length;
    void *address;
    int pipes[2];
    ucp_ep_h ep;
    pid_t child;

    CHECK(pipe(pipes) == 0);
    child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        serve(pipes[1]);
    }
    context = open_context();
    worker  = make_worker(context, UCS_THREAD_MODE_SINGLE);
    read_all(pipes[0], &length, sizeof(length));
    address = malloc(length);
    read_all(pipes[0], address, length);
    params.address = address;
    CHECK(ucp_ep_create(worker, &params, &ep) == UCS_OK);
    sent = ucp_tag_send_nbx(ep, &word, sizeof(word), 1, &param);
    CHECK(!UCS_PTR_IS_ERR(sent));
    if (sent != NULL) {
        until_ended(worker, sent);
        CHECK(ucp_request_check_status(sent) == UCS_OK);
        ucp_request_free(sent);
    }
    /* The peer has received: both know of each other. */
    {
        ucs_status_ptr_t flush = ucp_ep_flush_nbx(ep, &param);
        CHECK(!UCS_PTR_IS_ERR(flush));
        if (flush != NULL) {
            until_ended(worker, flush);
            ucp_request_free(flush);
        }
    }
    read_all(pipes[0], &byte, 1);
    kernel_is_a_lane(context, ep);
    announced = ucp_tag_send_nbx(ep, data, LENGTH, 2, &param);
    CHECK(UCS_PTR_IS_PTR(announced));
    CHECK(kill(child, SIGKILL) == 0 && waitpid(child, NULL, 0) == child);
    closing = ucp_disconnect_nb(ep);
    if (UCS_PTR_IS_PTR(closing)) {
        until_ended(worker, closing);
        ucp_request_free(closing);
    }
    until_ended(worker, announced);
    CHECK(ucp_request_check_status(announced) < 0);
    ucp_request_free(announced);
    ucp_worker_destroy(worker);
    ucp_cleanup(context);
    free(address);
    free(data);
    return 0;
}

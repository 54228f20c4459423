/*
 * A child of `fork` that uses the library while its parent's context is open: it makes a context of its own, and
 * communicates in it. The parent goes on.
 */
#include "check.h"

#include <sys/wait.h>
#include <unistd.h>

static void exchange(pair_t *pair)
{
    ucp_request_param_t none = {.op_attr_mask = 0};
    unsigned char out[20000], in[20000];
    ucs_status_ptr_t recv, send;
    unsigned i;

    for (i = 0; i < 100; i++) {
        const size_t length = i % 2 ? 8 : sizeof(out);

        fill(out, length, i);
        recv = ucp_tag_recv_nbx(pair->b, in, length, i, ~0ull, &none);
        send = ucp_tag_send_nbx(pair->ab, out, length, i, &none);
        wait_for(pair, recv, UCS_OK);
        wait_for(pair, send, UCS_OK);
        check_filled(in, length, i);
    }
}

int main(void)
{
    pair_t pair, childs;
    pid_t child;
    int round, status;

    make_pair(&pair, UCS_THREAD_MODE_SINGLE);
    exchange(&pair);
    for (round = 0; round < 3; round++) {
        child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            inits = cleanups = 0;
            make_pair(&childs, UCS_THREAD_MODE_SINGLE);
            exchange(&childs);
            free_pair(&childs);
            _exit(0);
        }
        exchange(&pair);
        CHECK(waitpid(child, &status, 0) == child);
        CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
        exchange(&pair);
    }
    free_pair(&pair);
    return 0;
}

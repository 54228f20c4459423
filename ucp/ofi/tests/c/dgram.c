/* FI_EP_DGRAM: sends end while the receiver makes no progress, and datagrams leave while the sender makes no calls, as
 * with any datagram. Links to the system's libfabric, which loads the provider from FI_PROVIDER_PATH. */
#include <stdio.h>
#include <time.h>

#include "ends.h"

enum { COUNT = 1000, LEN = 8192, SECONDS = 20 };

static unsigned char out[LEN], in[LEN];

int main(int argc, char **argv)
{
    struct fi_cq_tagged_entry entry;
    struct fi_cq_err_entry error = {0};
    fi_addr_t to;
    time_t until = time(NULL) + SECONDS;
    int i, ended = 0;

    ep_type = FI_EP_DGRAM;
    open_ends(FI_MSG, argc, argv);
    IS(fi_av_insert(a.av, b.name, 1, &to, 0, NULL), 1);
    IS(fi_send(a.ep, out, LEN + 1, NULL, to, NULL), -FI_EMSGSIZE);
    for (i = 0; i < COUNT; i++) {
        out[0] = (unsigned char)i;
        OK(fi_send(a.ep, out, LEN, NULL, to, out));
        /* The buffer is the program's again when the send has ended. */
        for (;;) {
            ssize_t got = fi_cq_read(a.cq, &entry, 1);
            if (got == 1)
                break;
            IS(got, -FI_EAGAIN);
            CHECK(time(NULL) < until);
        }
        CHECK(entry.op_context == out && entry.flags == (FI_MSG | FI_SEND));
        ended++;
    }
    CHECK(ended == COUNT);
    IS(fi_cq_readerr(a.cq, &error, 0), -FI_EAGAIN);
    /* The sender makes no call until all have arrived. */
    until = time(NULL) + SECONDS;
    for (i = 0; i < COUNT; i++) {
        ssize_t got;
        OK(fi_recv(b.ep, in, LEN, NULL, FI_ADDR_UNSPEC, in));
        while ((got = fi_cq_read(b.cq, &entry, 1)) == -FI_EAGAIN)
            CHECK(time(NULL) < until);
        IS(got, 1);
        CHECK(entry.len == LEN && in[0] == (unsigned char)i);
    }
    IS(fi_cq_read(a.cq, &entry, 1), -FI_EAGAIN);
    close_ends();
    printf("ok\n");
    return 0;
}

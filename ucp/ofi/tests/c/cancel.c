/* fi_cancel of sends: one of which nothing has been sent ends as cancelled, another one goes on. Links to the system's
 * libfabric, which loads the provider from FI_PROVIDER_PATH. */
#include <stdio.h>
#include <string.h>
#include <rdma/fi_tagged.h>

#include "ends.h"

enum { MOST = 2000, LEN = 4096 };

static char out[LEN], in[LEN];
static int contexts[MOST];
static char not_initialized[64] = {1};

/* Sends, without progress of the receiver, until the endpoint takes no more. Returns how many. */
static int send_many(fi_addr_t to)
{
    int sent = 0;
    while (sent < MOST && fi_tsend(a.ep, out, LEN, NULL, to, (uint64_t)sent, &contexts[sent]) == 0)
        sent++;
    return sent;
}

int main(int argc, char **argv)
{
    struct fi_cq_tagged_entry entry;
    struct fi_cq_err_entry error = {0};
    fi_addr_t to;
    int i, sent, ended = 0;

    open_ends(FI_TAGGED, argc, argv);
    IS(fi_av_insert(a.av, b.name, 1, &to, 0, NULL), 1);
    IS(fi_cancel(&a.ep->fid, &contexts[0]), -FI_ENOENT);
    sent = send_many(to);
    CHECK(sent > 10);
    /* The last one waits behind all others. */
    OK(fi_cancel(&a.ep->fid, &contexts[sent - 1]));
    IS(fi_cancel(&a.ep->fid, &contexts[sent - 1]), -FI_ENOENT);
    IS(fi_cancel(&a.ep->fid, &contexts[0]), -FI_ENOENT);
    for (i = 0; i < sent - 1; i++) {
        OK(fi_trecv(b.ep, in, LEN, NULL, FI_ADDR_UNSPEC, (uint64_t)i, 0, in));
        IS(next_of(&b, &entry, NULL), 1);
        CHECK(entry.tag == (uint64_t)i && entry.len == LEN);
    }
    while (ended < sent) {
        ssize_t got = next_of(&a, &entry, NULL);
        if (got == -FI_EAVAIL) {
            /* Reads no text: a program may not have initialized these fields, as one of fabtests has not. */
            error.err_data = not_initialized;
            error.err_data_size = sizeof not_initialized;
            IS(fi_cq_readerr(a.cq, &error, 0), 1);
            CHECK(error.err_data_size == 0 && error.err_data == NULL && not_initialized[0] == 1);
            CHECK(strlen(fi_cq_strerror(a.cq, error.prov_errno, error.err_data, NULL, 0)) > 0);
            IS(error.err, FI_ECANCELED);
            CHECK(error.op_context == &contexts[sent - 1] && error.flags == (FI_TAGGED | FI_SEND));
        } else {
            CHECK(got == 1 && entry.op_context != &contexts[sent - 1]);
        }
        ended++;
    }
    CHECK(error.err == FI_ECANCELED);
    /* The conversation goes on. */
    OK(fi_trecv(b.ep, in, LEN, NULL, FI_ADDR_UNSPEC, MOST, 0, in));
    OK(fi_tsend(a.ep, out, LEN, NULL, to, MOST, out));
    IS(next_of(&b, &entry, NULL), 1);
    CHECK(entry.tag == MOST);
    close_ends();
    printf("ok: %d sends\n", sent);
    return 0;
}

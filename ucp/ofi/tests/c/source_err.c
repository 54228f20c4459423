/* FI_SOURCE_ERR: a message whose sender is not in the address vector ends as an error with the name of the sender, which
 * the vector takes. Links to the system's libfabric, which loads the provider from FI_PROVIDER_PATH. */
#include <stdio.h>
#include <rdma/fi_tagged.h>

#include "ends.h"

enum { TAG = 7 };

static char in[64];

static void refusals(int argc, char **argv)
{
    struct fi_info *found, *hints = hints_of(FI_MSG | FI_SOURCE_ERR, argc, argv);
    IS(fi_getinfo(FI_VERSION(1, 17), NULL, NULL, 0, hints, &found), -FI_ENODATA);
    hints->caps = FI_MSG | FI_SOURCE | FI_SOURCE_ERR | FI_NAMED_RX_CTX;
    IS(fi_getinfo(FI_VERSION(1, 17), NULL, NULL, 0, hints, &found), -FI_ENODATA);
    hints->caps = FI_MSG | FI_SOURCE | FI_SOURCE_ERR;
    hints->ep_attr->type = FI_EP_MSG;
    IS(fi_getinfo(FI_VERSION(1, 17), NULL, NULL, 0, hints, &found), -FI_ENODATA);
    hints->caps = 0;
    hints->ep_attr->type = FI_EP_RDM;
    OK(fi_getinfo(FI_VERSION(1, 17), NULL, NULL, 0, hints, &found));
    CHECK(!(found->caps & FI_SOURCE_ERR));
    fi_freeinfo(found);
    fi_freeinfo(hints);
}

/* Posts a receive at `to` and sends it a message. */
static void message(struct end *from, struct end *to, fi_addr_t address, const char *text)
{
    OK(fi_trecv(to->ep, in, sizeof(in), NULL, FI_ADDR_UNSPEC, TAG, 0, in));
    OK(fi_tinject(from->ep, text, strlen(text) + 1, address, TAG));
}

/* Takes the error of a message from a stranger. The name goes to `name`, or stays in memory of the provider. */
static struct fi_cq_err_entry stranger(struct end *e, const char *text, char *name, size_t room)
{
    struct fi_cq_tagged_entry entry;
    struct fi_cq_err_entry error = { .err_data = name, .err_data_size = room };
    fi_addr_t source;
    IS(next_of(e, &entry, &source), -FI_EAVAIL);
    IS(fi_cq_readfrom(e->cq, &entry, 1, &source), -FI_EAVAIL);
    IS(fi_cq_readerr(e->cq, &error, 0), 1);
    IS(error.err, FI_EADDRNOTAVAIL);
    CHECK(error.op_context == in && error.flags == (FI_TAGGED | FI_RECV) && error.tag == TAG);
    CHECK(error.len == strlen(text) + 1 && error.olen == 0 && !strcmp(in, text));
    CHECK(!strcmp(fi_cq_strerror(e->cq, error.prov_errno, error.err_data, NULL, 0),
                  "the sender is not in the address vector"));
    IS(fi_cq_readerr(e->cq, &error, 0), -FI_EAGAIN);
    return error;
}

static void known(struct end *e, const char *text, fi_addr_t expected)
{
    struct fi_cq_tagged_entry entry;
    fi_addr_t source;
    IS(next_of(e, &entry, &source), 1);
    CHECK(entry.len == strlen(text) + 1 && !strcmp(in, text));
    IS(source, expected);
}

int main(int argc, char **argv)
{
    char name[1024];
    fi_addr_t to_b, to_a;
    struct fi_cq_err_entry error;

    refusals(argc, argv);
    open_ends(FI_TAGGED | FI_SOURCE | FI_SOURCE_ERR, argc, argv);
    CHECK(info->caps & FI_SOURCE_ERR && info->rx_attr->caps & FI_SOURCE_ERR);
    CHECK(info->domain_attr->max_err_data >= a.len);
    IS(fi_av_insert(a.av, b.name, 1, &to_b, 0, NULL), 1);

    message(&a, &b, to_b, "first");
    error = stranger(&b, "first", name, sizeof(name));
    CHECK(error.err_data == name && error.err_data_size == a.len);
    message(&a, &b, to_b, "second");
    error = stranger(&b, "second", NULL, 0);
    CHECK(error.err_data_size == a.len && !memcmp(error.err_data, name, a.len));
    /* The address is inserted while a message waits in the queue. */
    message(&a, &b, to_b, "third");
    IS(fi_av_insert(b.av, error.err_data, 1, &to_a, 0, NULL), 1);
    known(&b, "third", to_a);
    message(&b, &a, to_a, "answer");
    known(&a, "answer", to_b);
    message(&a, &b, to_b, "last");
    known(&b, "last", to_a);

    close_ends();
    printf("ok\n");
    return 0;
}

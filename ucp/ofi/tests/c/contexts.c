/* Aliases of an endpoint, shared transmit contexts, and addresses in words, with an endpoint that sends to itself. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_tagged.h>

#include "check.h"

static struct fid_fabric *fabric;
static struct fid_domain *domain;
static struct fid_av *av;
static struct fid_cq *tx, *rx;
static struct fid_ep *ep;
static struct fid_stx *stx;
static char name[512];
static fi_addr_t self;
static char out[8], in[8];

static void open_all(struct fi_info *info)
{
    struct fi_cq_attr cq_attr = { .format = FI_CQ_FORMAT_TAGGED };
    struct fi_av_attr av_attr = {0};
    size_t len = sizeof(name);

    OK(fi_fabric(info->fabric_attr, &fabric, NULL));
    OK(fi_domain(fabric, info, &domain, NULL));
    OK(fi_av_open(domain, &av_attr, &av, NULL));
    OK(fi_cq_open(domain, &cq_attr, &tx, NULL));
    OK(fi_cq_open(domain, &cq_attr, &rx, NULL));
    OK(fi_stx_context(domain, NULL, &stx, NULL));
    OK(fi_endpoint(domain, info, &ep, NULL));
    OK(fi_ep_bind(ep, &av->fid, 0));
    OK(fi_ep_bind(ep, &tx->fid, FI_TRANSMIT | FI_SELECTIVE_COMPLETION));
    OK(fi_ep_bind(ep, &rx->fid, FI_RECV));
    /* Opened for a shared context. */
    IS(fi_enable(ep), -FI_EOPBADSTATE);
    OK(fi_ep_bind(ep, &stx->fid, 0));
    IS(fi_ep_bind(ep, &stx->fid, 0), -FI_EINVAL);
    OK(fi_enable(ep));
    OK(fi_getname(&ep->fid, name, &len));
}

/* Text of an address and back. */
static void addresses_in_words(void)
{
    char text[2048] = "", again[2048] = "", found[512];
    size_t len = sizeof(text), name_len = sizeof(found);
    fi_addr_t number = FI_ADDR_UNSPEC;

    CHECK(fi_av_straddr(av, name, text, &len) == text && strlen(text) + 1 == len);
    IS(fi_av_insertsvc(av, text, NULL, &self, 0, NULL), 1);
    OK(fi_av_lookup(av, self, found, &name_len));
    len = sizeof(again);
    CHECK(strcmp(fi_av_straddr(av, found, again, &len), text) == 0);
    CHECK(memcmp(found, name, name_len) == 0);
    IS(fi_av_insertsym(av, text, 1, NULL, 0, &number, 0, NULL), 1);
    CHECK(number == self + 1);
    IS(fi_av_insertsym(av, text, 2, NULL, 0, &number, 0, NULL), -FI_ENOSYS);
    IS(fi_av_insertsvc(av, text, "7471", &number, 0, NULL), -FI_EINVAL);
    IS(fi_av_insertsvc(av, NULL, "7471", &number, 0, NULL), -FI_EINVAL);
    IS(fi_av_insertsvc(av, text, NULL, &number, FI_FENCE, NULL), -FI_EBADFLAGS);
    for (size_t cut = 0; cut < 24; cut++) {
        char bad[2048];
        strcpy(bad, text);
        bad[cut] = '\0';
        number = 0;
        /* Nothing is inserted, by one way or the other. */
        long got = fi_av_insertsvc(av, bad, NULL, &number, 0, NULL);
        CHECK(got == -FI_EINVAL || (got == 0 && number == FI_ADDR_NOTAVAIL));
    }
    IS(fi_av_insertsvc(av, "fi_addr_efa4://\xc3\xa4\xc3\xa4", NULL, &number, 0, NULL), -FI_EINVAL);
}

static struct fi_cq_tagged_entry wait_for(struct fid_cq *cq)
{
    struct fi_cq_tagged_entry entry, none;
    ssize_t got;
    while ((got = fi_cq_read(cq, &entry, 1)) == -FI_EAGAIN) {
        fi_cq_read(tx, &none, 0);
        fi_cq_read(rx, &none, 0);
    }
    IS(got, 1);
    return entry;
}

static void send_to_self(struct fid_ep *from, uint64_t tag, void *context)
{
    OK(fi_trecv(from, in, sizeof(in), NULL, FI_ADDR_UNSPEC, tag, 0, NULL));
    OK(fi_tsend(from, out, sizeof(out), NULL, self, tag, context));
    CHECK(wait_for(rx).tag == tag);
}

/* An alias has flags of its own, and all else of its endpoint. */
static void aliases(void)
{
    struct fi_cq_tagged_entry entry;
    struct fid_ep *alias;
    struct fid *none;
    char other[512];
    size_t len = sizeof(other);
    uint64_t flags = FI_TRANSMIT;
    int context;

    IS(fi_ep_alias(ep, &alias, 0), -FI_EINVAL);
    IS(fi_ep_alias(ep, &alias, FI_TRANSMIT | FI_RECV), -FI_EINVAL);
    IS(fi_alias(&domain->fid, &none, FI_TRANSMIT), -FI_ENOSYS);
    OK(fi_ep_alias(ep, &alias, FI_TRANSMIT | FI_COMPLETION));
    OK(fi_control(&alias->fid, FI_GETOPSFLAG, &flags));
    CHECK(flags == FI_COMPLETION);
    flags = FI_TRANSMIT;
    OK(fi_control(&ep->fid, FI_GETOPSFLAG, &flags));
    CHECK(flags == 0);
    OK(fi_getname(&alias->fid, other, &len));
    CHECK(memcmp(name, other, len) == 0);
    send_to_self(alias, 1, &context);
    CHECK(wait_for(tx).op_context == &context);
    send_to_self(ep, 2, &context);
    IS(fi_cq_read(tx, &entry, 1), -FI_EAGAIN);
    IS(fi_close(&ep->fid), -FI_EBUSY);
    OK(fi_close(&alias->fid));
}

int main(int argc, char **argv)
{
    struct fi_info *hints = fi_allocinfo(), *info;

    hints->caps = FI_MSG | FI_TAGGED;
    hints->ep_attr->type = FI_EP_RDM;
    hints->ep_attr->tx_ctx_cnt = FI_SHARED_CONTEXT;
    hints->addr_format = argc > 1 ? (uint32_t)atoi(argv[1]) : FI_FORMAT_UNSPEC;
    hints->fabric_attr->prov_name = strdup("efa4");
    OK(fi_getinfo(FI_VERSION(1, 17), NULL, NULL, 0, hints, &info));
    CHECK(info->ep_attr->tx_ctx_cnt == FI_SHARED_CONTEXT && info->domain_attr->max_ep_stx_ctx > 0);
    open_all(info);
    addresses_in_words();
    aliases();
    IS(fi_close(&stx->fid), -FI_EBUSY);
    OK(fi_close(&ep->fid));
    OK(fi_close(&stx->fid));
    OK(fi_close(&tx->fid));
    OK(fi_close(&rx->fid));
    OK(fi_close(&av->fid));
    OK(fi_close(&domain->fid));
    OK(fi_close(&fabric->fid));
    fi_freeinfo(info);
    fi_freeinfo(hints);
    return 0;
}

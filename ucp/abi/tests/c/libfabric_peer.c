/* One end of the test with libfabric's EFA provider: prints its raw address, reads that of a worker of the C interface,
 * and exchanges tagged messages with it, every length both ways. Runs under `softefa run`. */
#include "check_macro.h"
#include "libfabric_lengths.h"
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_tagged.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct fi_info *info;
static struct fid_fabric *fabric;
static struct fid_domain *domain;
static struct fid_cq *cq;
static struct fid_av *av;
static struct fid_ep *ep;

static void open_endpoint(void)
{
    struct fi_info *hints      = fi_allocinfo();
    struct fi_av_attr av_attr  = {.type = FI_AV_TABLE};
    struct fi_cq_attr cq_attr  = {.format = FI_CQ_FORMAT_TAGGED};

    hints->fabric_attr->prov_name = strdup("efa");
    hints->ep_attr->type          = FI_EP_RDM;
    hints->caps                   = FI_MSG | FI_TAGGED | FI_SOURCE | FI_DIRECTED_RECV;
    hints->mode                   = FI_CONTEXT | FI_CONTEXT2;
    hints->domain_attr->mr_mode   = FI_MR_LOCAL | FI_MR_ALLOCATED | FI_MR_PROV_KEY | FI_MR_VIRT_ADDR;
    CHECK(fi_getinfo(FI_VERSION(1, 17), NULL, NULL, 0, hints, &info) == 0);
    fi_freeinfo(hints);
    CHECK(fi_fabric(info->fabric_attr, &fabric, NULL) == 0);
    CHECK(fi_domain(fabric, info, &domain, NULL) == 0);
    CHECK(fi_av_open(domain, &av_attr, &av, NULL) == 0);
    CHECK(fi_cq_open(domain, &cq_attr, &cq, NULL) == 0);
    CHECK(fi_endpoint(domain, info, &ep, NULL) == 0);
    CHECK(fi_ep_bind(ep, &av->fid, 0) == 0);
    CHECK(fi_ep_bind(ep, &cq->fid, FI_TRANSMIT | FI_RECV) == 0);
    CHECK(fi_enable(ep) == 0);
}

/* Waits for the completion of an operation. */
static void complete(struct fi_context2 *operation, size_t length)
{
    struct fi_cq_tagged_entry entry;
    ssize_t got;

    do {
        got = fi_cq_read(cq, &entry, 1);
        CHECK(got == 1 || got == -FI_EAGAIN);
    } while (got != 1);
    CHECK(entry.op_context == operation);
    CHECK(!(entry.flags & FI_RECV) || entry.len == length);
}

static void exchange(fi_addr_t peer, unsigned char *buffer, void *desc)
{
    struct fi_context2 operation;
    size_t i;
    ssize_t started;

    for (i = 0; i < LENGTHS; i++) {
        memset(buffer, 0, lengths[i]);
        CHECK(fi_trecv(ep, buffer, lengths[i], desc, peer, TO_LIBFABRIC + i, 0, &operation) == 0);
        complete(&operation, lengths[i]);
        check_pattern(buffer, lengths[i], TO_LIBFABRIC + i);
        fill_pattern(buffer, lengths[i], TO_UCP + i);
        do {
            started = fi_tsend(ep, buffer, lengths[i], desc, peer, TO_UCP + i, &operation);
            if (started == -FI_EAGAIN) {
                fi_cq_read(cq, NULL, 0);
            }
        } while (started == -FI_EAGAIN);
        CHECK(started == 0);
        complete(&operation, 0);
    }
}

int main(void)
{
    unsigned char raw[64], *buffer = (unsigned char*)malloc(LONGEST);
    size_t length = sizeof(raw);
    struct fid_mr *mr;
    fi_addr_t peer;

    alarm(100);
    open_endpoint();
    CHECK(fi_getname(&ep->fid, raw, &length) == 0);
    CHECK(length >= RAW_LENGTH);
    print_raw(raw);
    read_raw(raw);
    CHECK(fi_av_insert(av, raw, 1, &peer, 0, NULL) == 1);
    CHECK(fi_mr_reg(domain, buffer, LONGEST, FI_SEND | FI_RECV, 0, 1, 0, &mr, NULL) == 0);
    exchange(peer, buffer, fi_mr_desc(mr));
    printf("done\n");
    fflush(stdout);
    /* The other end needs answers until it has closed. */
    while (!input_has_ended()) {
        fi_cq_read(cq, NULL, 0);
    }
    CHECK(fi_close(&mr->fid) == 0);
    CHECK(fi_close(&ep->fid) == 0);
    fi_close(&cq->fid);
    fi_close(&av->fid);
    fi_close(&domain->fid);
    fi_close(&fabric->fid);
    fi_freeinfo(info);
    free(buffer);
    return 0;
}

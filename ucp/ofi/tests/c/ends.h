/* Two endpoints of one process, each with an address vector and a queue of its own. */
#ifndef ENDS_H
#define ENDS_H

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>

#include "check.h"

struct end {
    struct fid_ep *ep;
    struct fid_av *av;
    struct fid_cq *cq;
    char name[1024];
    size_t len;
};

static struct fi_info *info;
static struct fid_fabric *fabric;
static struct fid_domain *domain;
static struct end a, b;
static enum fi_ep_type ep_type = FI_EP_RDM;
static struct fi_av_attr av_attr = { .type = FI_AV_TABLE };
static int mr_mode;
static uint32_t api_version = FI_VERSION(1, 17);

static void open_end(struct end *e)
{
    struct fi_cq_attr cq_attr = { .format = FI_CQ_FORMAT_TAGGED };
    OK(fi_endpoint(domain, info, &e->ep, NULL));
    OK(fi_av_open(domain, &av_attr, &e->av, NULL));
    OK(fi_cq_open(domain, &cq_attr, &e->cq, NULL));
    OK(fi_ep_bind(e->ep, &e->av->fid, 0));
    OK(fi_ep_bind(e->ep, &e->cq->fid, FI_TRANSMIT | FI_RECV));
    OK(fi_enable(e->ep));
    e->len = sizeof(e->name);
    OK(fi_getname(&e->ep->fid, e->name, &e->len));
}

/* Hints by capabilities and the arguments of the program: threading, data progress, address format. */
static struct fi_info *hints_of(uint64_t caps, int argc, char **argv)
{
    struct fi_info *hints = fi_allocinfo();
    hints->caps = caps;
    hints->ep_attr->type = ep_type;
    hints->fabric_attr->prov_name = strdup("efa4");
    hints->domain_attr->mr_mode = mr_mode;
    hints->domain_attr->threading = argc > 1 ? atoi(argv[1]) : FI_THREAD_SAFE;
    hints->domain_attr->data_progress = argc > 2 ? atoi(argv[2]) : FI_PROGRESS_UNSPEC;
    hints->addr_format = argc > 3 ? (uint32_t)atoi(argv[3]) : FI_FORMAT_UNSPEC;
    return hints;
}

/* Opens a domain by the first answer, which is left in `info`. */
static void open_domain(uint64_t caps, int argc, char **argv)
{
    struct fi_info *hints = hints_of(caps, argc, argv);
    OK(fi_getinfo(api_version, NULL, NULL, 0, hints, &info));
    fi_freeinfo(hints);
    OK(fi_fabric(info->fabric_attr, &fabric, NULL));
    OK(fi_domain(fabric, info, &domain, NULL));
}

/* Opens everything. */
static inline void open_ends(uint64_t caps, int argc, char **argv)
{
    open_domain(caps, argc, argv);
    open_end(&a);
    open_end(&b);
}

static void close_domain(void)
{
    OK(fi_close(&domain->fid));
    OK(fi_close(&fabric->fid));
    fi_freeinfo(info);
}

static inline void close_ends(void)
{
    struct end *ends[] = { &a, &b };
    for (int i = 0; i < 2; i++) {
        OK(fi_close(&ends[i]->ep->fid));
        OK(fi_close(&ends[i]->cq->fid));
        OK(fi_close(&ends[i]->av->fid));
    }
    close_domain();
}

/* Result of the next read of a queue that has something; the other endpoint makes progress meanwhile. */
static inline ssize_t next_of(struct end *e, struct fi_cq_tagged_entry *entry, fi_addr_t *source)
{
    struct fi_cq_tagged_entry none;
    struct end *other = e == &a ? &b : &a;
    ssize_t got;
    while ((got = fi_cq_readfrom(e->cq, entry, 1, source)) == -FI_EAGAIN)
        fi_cq_read(other->cq, &none, 0);
    return got;
}

#endif

/*
 * The provider's objects: domain for as long as the process lives, endpoint from `open` to `close`, and the peers it knows.
 */
#include "peer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct fid_domain *domain;
struct fid_cq *cq;
struct fid_av *av;
struct fid_ep *ep;
fi_addr_t peers[MAX_PEERS];
int n_peers;
static struct fi_info *info;
static struct fid_fabric *fabric;

void close_endpoint(void)
{
	if (ep)
		fi_close(&ep->fid);
	drop_ops();
	drop_regions();
	if (cq)
		fi_close(&cq->fid);
	if (av)
		fi_close(&av->fid);
	ep = NULL, cq = NULL, av = NULL;
	n_peers = 0;
}

void close_fabric(void)
{
	if (domain)
		fi_close(&domain->fid);
	if (fabric)
		fi_close(&fabric->fid);
	fi_freeinfo(info);
}

/* What is wanted: everything, or untagged messages of one packet each in any order, which libfabric 1.22 to 2.5 receives
 * without a copy. */
static bool messages_only(void)
{
	return n_words > 1 && strcmp(words[1], "messages") == 0;
}

/* Longest message of an endpoint for messages only. */
static const size_t one_packet = 8000;

static long open_domain(void)
{
	if (domain)
		return 0;
	const char *provider = getenv("PEER_PROVIDER");
	struct fi_info *hints = fi_allocinfo();
	hints->fabric_attr->prov_name = strdup(provider ? provider : "efa");
	hints->addr_format = FI_ADDR_EFA;
	hints->ep_attr->type = FI_EP_RDM;
	hints->caps = FI_MSG | FI_TAGGED | FI_RMA | FI_ATOMIC | FI_SOURCE | FI_DIRECTED_RECV | FI_MULTI_RECV;
	hints->mode = FI_CONTEXT | FI_CONTEXT2;
	hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_ALLOCATED | FI_MR_PROV_KEY | FI_MR_VIRT_ADDR;
	hints->domain_attr->resource_mgmt = FI_RM_ENABLED;
	hints->tx_attr->msg_order = hints->rx_attr->msg_order = FI_ORDER_SAS;
	if (messages_only()) {
		hints->caps = FI_MSG | FI_SOURCE;
		hints->tx_attr->msg_order = hints->rx_attr->msg_order = 0;
#if FI_MAJOR_VERSION >= 2
		hints->fabric_attr->name = strdup("efa"); /* not efa-direct */
#endif
	}
	long err = fi_getinfo(FI_VERSION(1, 17), NULL, NULL, 0, hints, &info);
	fi_freeinfo(hints);
	if (!err)
		err = fi_fabric(info->fabric_attr, &fabric, NULL);
	return err ? err : fi_domain(fabric, info, &domain, NULL);
}

static long limit_messages(void)
{
	if (!messages_only())
		return 0;
#if FI_MAJOR_VERSION > 1 || FI_MINOR_VERSION >= 22
	return fi_setopt(&ep->fid, FI_OPT_ENDPOINT, FI_OPT_MAX_MSG_SIZE, &one_packet, sizeof one_packet);
#else
	(void)one_packet;
	return -FI_ENOSYS;
#endif
}

/* open [messages]: answers the raw address. */
void step_open(void)
{
	long err = open_domain();
	if (err) {
		no_fi("no EFA domain", err);
		return;
	}
	struct fi_av_attr av_attr = { .type = FI_AV_TABLE };
	struct fi_cq_attr cq_attr = { .format = FI_CQ_FORMAT_TAGGED };
	size_t room = 64;
	unsigned char name[64];
	if ((err = fi_av_open(domain, &av_attr, &av, NULL)) || (err = fi_cq_open(domain, &cq_attr, &cq, NULL)) ||
	    (err = fi_endpoint(domain, info, &ep, NULL)) || (err = fi_ep_bind(ep, &av->fid, 0)) ||
	    (err = fi_ep_bind(ep, &cq->fid, FI_TRANSMIT | FI_RECV)) || (err = limit_messages()) ||
	    (err = fi_enable(ep)) || (err = fi_getname(&ep->fid, name, &room))) {
		no_fi("no endpoint", err);
		return;
	}
	printf("ok ");
	for (size_t i = 0; i < 32; i++)
		printf("%02x", name[i]);
	puts("");
}

/* peer ADDRESS: answers the number of the peer. */
void step_peer(void)
{
	unsigned char raw[32] = { 0 };
	if (n_words < 2 || strlen(words[1]) != 64 || n_peers == MAX_PEERS || !av) {
		no("peer takes an address of 64 hexadecimal digits, after open");
		return;
	}
	for (int i = 0; i < 32; i++) {
		char pair[3] = { words[1][2 * i], words[1][2 * i + 1], 0 };
		raw[i] = (unsigned char)strtoul(pair, NULL, 16);
	}
	int n = fi_av_insert(av, raw, 1, &peers[n_peers], 0, NULL);
	if (n != 1) {
		no("fi_av_insert refuses the address");
		return;
	}
	printf("ok %d\n", n_peers++);
}

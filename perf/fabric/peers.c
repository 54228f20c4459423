/*
 * Memory per known peer in libfabric's EFA provider: resident memory before and after fi_av_insert of N addresses that
 * differ in GID and queue pair. `ucp/tests/counted/peer_memory.rs` measures the same of ours.
 *
 *   cc -O2 -o peers perf/fabric/peers.c -lfabric
 *   SOFTEFA_MAX_AH=65536 target/release/softefa run -- ./peers 10000
 *
 * Prints one line: peers, bytes of resident memory and of the heap for each.
 */
#include <malloc.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>

static void must(long ret, const char *what)
{
	if (ret < 0) {
		fprintf(stderr, "peers: %s: %s\n", what, fi_strerror((int)-ret));
		exit(1);
	}
}

static size_t resident(void)
{
	unsigned long pages = 0, all = 0;
	FILE *f = fopen("/proc/self/statm", "r");

	if (!f || fscanf(f, "%lu %lu", &all, &pages) != 2) {
		perror("peers: /proc/self/statm");
		exit(1);
	}
	fclose(f);
	return pages * (size_t)sysconf(_SC_PAGESIZE);
}

int main(int argc, char **argv)
{
	long n = argc > 1 ? atol(argv[1]) : 10000;
	struct fi_info *hints = fi_allocinfo(), *info;
	struct fi_av_attr av_attr = { .type = FI_AV_TABLE };
	struct fi_cq_attr cq_attr = { .format = FI_CQ_FORMAT_TAGGED };
	struct fid_fabric *fabric;
	struct fid_domain *domain;
	struct fid_av *av;
	struct fid_cq *cq;
	struct fid_ep *ep;
	uint8_t own[32];
	size_t len = sizeof(own), before, heap;
	long i;

	setenv("FI_EFA_ENABLE_SHM_TRANSFER", "0", 1);
	hints->caps = FI_MSG | FI_TAGGED;
	hints->ep_attr->type = FI_EP_RDM;
	hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_ALLOCATED | FI_MR_PROV_KEY | FI_MR_VIRT_ADDR;
	hints->fabric_attr->prov_name = strdup("efa");
	must(fi_getinfo(FI_VERSION(1, 17), NULL, NULL, 0, hints, &info), "fi_getinfo");
	must(fi_fabric(info->fabric_attr, &fabric, NULL), "fi_fabric");
	must(fi_domain(fabric, info, &domain, NULL), "fi_domain");
	must(fi_av_open(domain, &av_attr, &av, NULL), "fi_av_open");
	must(fi_cq_open(domain, &cq_attr, &cq, NULL), "fi_cq_open");
	must(fi_endpoint(domain, info, &ep, NULL), "fi_endpoint");
	must(fi_ep_bind(ep, &av->fid, 0), "fi_ep_bind");
	must(fi_ep_bind(ep, &cq->fid, FI_TRANSMIT | FI_RECV), "fi_ep_bind");
	must(fi_enable(ep), "fi_enable");
	must(fi_getname(&ep->fid, own, &len), "fi_getname");

	before = resident();
	heap = mallinfo2().uordblks + mallinfo2().hblkhd;
	for (i = 0; i < n; i++) {
		/* GID, queue pair number, 16 bits of padding, q-key. */
		uint8_t addr[32] = { 0xfe, 0x80 };
		uint16_t qpn = (uint16_t)(100 + i % 200);
		uint32_t qkey = (uint32_t)(i + 1);
		uint64_t iid = (uint64_t)(i + 1) << 8;
		fi_addr_t to;

		memcpy(addr + 8, &iid, sizeof(iid));
		memcpy(addr + 16, &qpn, sizeof(qpn));
		memcpy(addr + 20, &qkey, sizeof(qkey));
		if (fi_av_insert(av, addr, 1, &to, 0, NULL) != 1) {
			fprintf(stderr, "peers: address %ld was not taken\n", i);
			return 1;
		}
	}
	printf("%ld peers: %zu bytes of resident memory and %zu of the heap for each (libfabric %u.%u)\n", n,
	       (resident() - before) / (size_t)n,
	       (mallinfo2().uordblks + mallinfo2().hblkhd - heap) / (size_t)n, FI_MAJOR(fi_version()),
	       FI_MINOR(fi_version()));
	return 0;
}

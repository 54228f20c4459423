/*
 * Known peers of a libfabric provider: resident memory before and after one call of fi_av_insert with N addresses that differ, and
 * its time. `ucp/tests/counted/peer_memory.rs` measures the memory of ours below the provider.
 *
 *   cc -O2 -o peers perf/fabric/peers.c -lfabric
 *   SOFTEFA_MAX_AH=65536 target/release/softefa run -- ./peers                      libfabric's efa, 10000 addresses
 *   FI_PROVIDER_PATH=PREFIX/lib/libfabric UCX_TLS=all ./peers efa4 100000           names of all transports
 *   FI_PROVIDER_PATH=PREFIX/lib/libfabric UCX_TLS=efa ./peers efa4 100000 efa       names of libfabric's efa
 *   ./peers 'tcp;ofi_rxm' 100000
 *
 * Prints one line: addresses, bytes of a name, nanoseconds by the clock and of the processor, bytes of resident memory and of the heap for each.
 */
#include <arpa/inet.h>
#include <malloc.h>
#include <netinet/in.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
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

static size_t heap(void)
{
	struct mallinfo2 info = mallinfo2();

	return info.uordblks + info.hblkhd;
}

static double now(clockid_t clock)
{
	struct timespec at;

	clock_gettime(clock, &at);
	return at.tv_sec * 1e9 + at.tv_nsec;
}

/* Name of another endpoint than the one whose name is there. */
static void make_other(uint32_t format, uint8_t *name, uint32_t i)
{
	if (format == FI_ADDR_EFA) {
		/* GID, queue pair number, 16 bits of padding, q-key. */
		uint16_t qpn = (uint16_t)(100 + i % 200);
		uint32_t qkey = i + 1;
		uint64_t iid = (uint64_t)(i + 1) << 8;

		memset(name, 0, 32);
		memcpy(name, "\xfe\x80", 2);
		memcpy(name + 8, &iid, sizeof(iid));
		memcpy(name + 16, &qpn, sizeof(qpn));
		memcpy(name + 20, &qkey, sizeof(qkey));
	} else if (format == FI_SOCKADDR_IN) {
		((struct sockaddr_in *)name)->sin_addr.s_addr = htonl(0x0a000001 + i);
	} else {
		/* In the identity of efa4's packed address. */
		i++;
		memcpy(name + 4, &i, sizeof(i));
	}
}

int main(int argc, char **argv)
{
	const char *provider = argc > 1 ? argv[1] : "efa";
	size_t n = argc > 2 ? strtoul(argv[2], NULL, 10) : 10000, i;
	int is_efa = strcmp(argc > 3 ? argv[3] : provider, "efa") == 0;
	struct fi_info *hints = fi_allocinfo(), *info;
	struct fi_av_attr av_attr = { .type = FI_AV_TABLE };
	struct fi_cq_attr cq_attr = { .format = FI_CQ_FORMAT_TAGGED };
	struct fid_fabric *fabric;
	struct fid_domain *domain;
	struct fid_av *av;
	struct fid_cq *cq;
	struct fid_ep *ep;
	uint8_t own[1024], *names;
	size_t len = sizeof(own), before, heap_before;
	fi_addr_t *numbers;
	double start, took, own_start, own_took;
	int inserted;

	setenv("FI_EFA_ENABLE_SHM_TRANSFER", "0", 0);
	hints->caps = FI_MSG | FI_TAGGED;
	hints->ep_attr->type = FI_EP_RDM;
	hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_ALLOCATED | FI_MR_PROV_KEY | FI_MR_VIRT_ADDR;
	hints->fabric_attr->prov_name = strdup(provider);
	hints->addr_format = is_efa ? FI_ADDR_EFA : FI_FORMAT_UNSPEC;
	must(fi_getinfo(FI_VERSION(1, 17), NULL, NULL, 0, hints, &info), "fi_getinfo");
	while (strncmp(provider, "tcp", 3) == 0 && info->addr_format != FI_SOCKADDR_IN && info->next)
		info = info->next;
	must(fi_fabric(info->fabric_attr, &fabric, NULL), "fi_fabric");
	must(fi_domain(fabric, info, &domain, NULL), "fi_domain");
	must(fi_av_open(domain, &av_attr, &av, NULL), "fi_av_open");
	must(fi_cq_open(domain, &cq_attr, &cq, NULL), "fi_cq_open");
	must(fi_endpoint(domain, info, &ep, NULL), "fi_endpoint");
	must(fi_ep_bind(ep, &av->fid, 0), "fi_ep_bind");
	must(fi_ep_bind(ep, &cq->fid, FI_TRANSMIT | FI_RECV), "fi_ep_bind");
	must(fi_enable(ep), "fi_enable");
	must(fi_getname(&ep->fid, own, &len), "fi_getname");

	names = malloc(n * len);
	numbers = malloc(n * sizeof(*numbers));
	for (i = 0; i < n; i++) {
		memcpy(names + i * len, own, len);
		make_other(info->addr_format, names + i * len, (uint32_t)i);
		numbers[i] = 0;
	}
	before = resident();
	heap_before = heap();
	start = now(CLOCK_MONOTONIC);
	own_start = now(CLOCK_PROCESS_CPUTIME_ID);
	inserted = fi_av_insert(av, names, n, numbers, 0, NULL);
	took = now(CLOCK_MONOTONIC) - start;
	own_took = now(CLOCK_PROCESS_CPUTIME_ID) - own_start;
	if (inserted != (int)n) {
		fprintf(stderr, "peers: %d of %zu addresses were taken\n", inserted, n);
		return 1;
	}
	printf("%zu peers, names of %zu bytes: %.0f ns, %.0f of them of the processor, %zu bytes of resident memory and %zu of the heap for each (%s, libfabric %u.%u)\n",
	       n, len, took / (double)n, own_took / (double)n, (resident() - before) / n, (heap() - heap_before) / n, provider, FI_MAJOR(fi_version()),
	       FI_MINOR(fi_version()));
	/* The provider removes its file in /dev/shm only when its objects are closed. */
	must(fi_close(&ep->fid), "close of the endpoint");
	must(fi_close(&cq->fid), "close of the completion queue");
	must(fi_close(&av->fid), "close of the address vector");
	must(fi_close(&domain->fid), "close of the domain");
	must(fi_close(&fabric->fid), "close of the fabric");
	fi_freeinfo(info);
	return 0;
}

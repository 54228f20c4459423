/*
 * Rate of tagged messages of several threads, each of which has a pair of endpoints with a completion queue of its own, and
 * an address vector for each, as libfabric's EFA provider wants it, in the one domain of the process. A thread sends from one endpoint of its pair to the other, in windows,
 * so that it needs no other thread. BENCH_PROVIDER names the provider, efa without it; BENCH_THREADING the number of a
 * threading model, FI_THREAD_SAFE without it. Started by `versus --threads`. Prints one line of JSON: messages a second of all.
 *
 *   threads THREADS SIZE ITERS       ITERS: messages of each thread
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
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
#include <rdma/fi_tagged.h>

enum { WINDOW = 64, BATCH = 16, MOST = 64, TAG = 1 };

/* A thread and what it owns. */
struct pair {
	pthread_t thread;
	int number;
	struct fid_ep *from, *to;
	struct fid_av *av, *av_of_to; /* `av` is of `from` */
	struct fid_cq *cq;
	fi_addr_t peer;
	char *out, *in;
	struct fi_context2 sends[WINDOW], recvs[WINDOW];
	char apart[128]; /* nothing of two threads in one cache line */
};

static struct fi_info *info;
static struct fid_fabric *fabric;
static struct fid_domain *domain;
static struct pair *pairs;
static pthread_barrier_t start, end;
static size_t size;
static uint64_t iters;

static void must(long err, const char *what)
{
	if (err < 0) {
		fprintf(stderr, "threads: %s: %s\n", what, fi_strerror((int)-err));
		exit(1);
	}
}

static struct fid_ep *open_ep(struct pair *p, struct fid_av **av)
{
	struct fi_av_attr attr = { .type = FI_AV_TABLE };
	struct fid_ep *ep;
	must(fi_av_open(domain, &attr, av, NULL), "fi_av_open");
	must(fi_endpoint(domain, info, &ep, NULL), "fi_endpoint");
	must(fi_ep_bind(ep, &(*av)->fid, 0), "fi_ep_bind");
	must(fi_ep_bind(ep, &p->cq->fid, FI_TRANSMIT | FI_RECV), "fi_ep_bind");
	must(fi_enable(ep), "fi_enable");
	return ep;
}

static void open_pair(struct pair *p)
{
	struct fi_cq_attr cq_attr = { .format = FI_CQ_FORMAT_MSG };
	char name[512] = { 0 };
	size_t room = sizeof name;
	must(fi_cq_open(domain, &cq_attr, &p->cq, NULL), "fi_cq_open");
	p->from = open_ep(p, &p->av);
	p->to = open_ep(p, &p->av_of_to);
	must(fi_getname(&p->to->fid, name, &room), "fi_getname");
	must(fi_av_insert(p->av, name, 1, &p->peer, 0, NULL) - 1, "fi_av_insert");
	p->out = calloc(1, size + 1);
	p->in = calloc(WINDOW, size + 1);
}

/* Reads completions; returns how many. */
static int poll_cq(struct pair *p)
{
	struct fi_cq_msg_entry entries[BATCH];
	ssize_t n = fi_cq_read(p->cq, entries, BATCH);
	if (n == -FI_EAVAIL) {
		struct fi_cq_err_entry e = { 0 };
		fi_cq_readerr(p->cq, &e, 0);
		must(-e.err, "operation");
	}
	if (n == -FI_EAGAIN)
		return 0;
	must(n, "fi_cq_read");
	return (int)n;
}

static void exchange(struct pair *p, uint64_t messages)
{
	for (uint64_t left = messages; left > 0;) {
		int n = left < WINDOW ? (int)left : WINDOW, ended = 0;
		ssize_t err;
		left -= n;
		for (int i = 0; i < n; i++) {
			while ((err = fi_trecv(p->to, p->in + i * size, size, NULL, FI_ADDR_UNSPEC, TAG, 0, &p->recvs[i])) == -FI_EAGAIN)
				ended += poll_cq(p);
			must(err, "fi_trecv");
		}
		for (int i = 0; i < n; i++) {
			while ((err = fi_tsend(p->from, p->out, size, NULL, p->peer, TAG, &p->sends[i])) == -FI_EAGAIN)
				ended += poll_cq(p);
			must(err, "fi_tsend");
		}
		while (ended < 2 * n)
			ended += poll_cq(p);
	}
}

static void *run(void *arg)
{
	struct pair *p = arg;
	cpu_set_t set;
	CPU_ZERO(&set);
	CPU_SET(p->number % (int)sysconf(_SC_NPROCESSORS_ONLN), &set);
	pthread_setaffinity_np(pthread_self(), sizeof set, &set);
	exchange(p, iters / 10 + WINDOW);
	pthread_barrier_wait(&start);
	exchange(p, iters);
	pthread_barrier_wait(&end);
	return NULL;
}

static void open_domain(void)
{
	const char *provider = getenv("BENCH_PROVIDER"), *threading = getenv("BENCH_THREADING");
	struct fi_info *hints = fi_allocinfo();
	hints->fabric_attr->prov_name = strdup(provider ? provider : "efa");
	hints->ep_attr->type = FI_EP_RDM;
	hints->caps = FI_TAGGED;
	hints->mode = FI_CONTEXT | FI_CONTEXT2;
	hints->domain_attr->threading = threading ? atoi(threading) : FI_THREAD_SAFE;
	must(fi_getinfo(FI_VERSION(1, 17), NULL, NULL, 0, hints, &info), "no endpoint of the provider");
	fi_freeinfo(hints);
	must(fi_fabric(info->fabric_attr, &fabric, NULL), "fi_fabric");
	must(fi_domain(fabric, info, &domain, NULL), "fi_domain");
}

static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

int main(int argc, char **argv)
{
	int count = argc == 4 ? atoi(argv[1]) : 0;
	if (count < 1 || count > MOST) {
		fprintf(stderr, "usage: threads THREADS SIZE ITERS\n");
		return 2;
	}
	size = strtoull(argv[2], NULL, 0);
	iters = strtoull(argv[3], NULL, 0);
	pthread_barrier_init(&start, NULL, (unsigned)count + 1);
	pthread_barrier_init(&end, NULL, (unsigned)count + 1);
	open_domain();
	pairs = calloc((size_t)count, sizeof *pairs);
	for (int i = 0; i < count; i++) {
		pairs[i].number = i;
		open_pair(&pairs[i]);
		if (pthread_create(&pairs[i].thread, NULL, run, &pairs[i]))
			must(-FI_ENOMEM, "pthread_create");
	}
	pthread_barrier_wait(&start);
	double began = now();
	pthread_barrier_wait(&end);
	double took = now() - began;
	printf("{\"threads\":%d,\"msg_rate\":%.0f}\n", count, (double)iters * count / took);
	/* Providers remove their files in /dev/shm only when their objects are closed. */
	for (int i = 0; i < count; i++) {
		pthread_join(pairs[i].thread, NULL);
		must(fi_close(&pairs[i].from->fid), "close of an endpoint");
		must(fi_close(&pairs[i].to->fid), "close of an endpoint");
		must(fi_close(&pairs[i].cq->fid), "close of a completion queue");
		must(fi_close(&pairs[i].av->fid), "close of an address vector");
		must(fi_close(&pairs[i].av_of_to->fid), "close of an address vector");
	}
	must(fi_close(&domain->fid), "close of the domain");
	must(fi_close(&fabric->fid), "close of the fabric");
	fi_freeinfo(info);
	return 0;
}

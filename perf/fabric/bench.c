/*
 * Messages, writes, reads and fetching atomics by a provider of libfabric, between this process and one that it forks, each
 * on a core of its own. BENCH_PROVIDER names the provider, efa without it. `perf/src/bin/ucp_bench` has the same loops with ucp.
 * Started by `versus`; by `perf/udp` as two processes on two hosts, which meet over TCP.
 * With BENCH_THREADS set the domain is opened for several threads.
 * Prints one line of JSON. Never validates: the interop matrix does.
 *
 *   bench TEST SIZE ITERS CORE CORE
 *   bench listen ADDRESS TEST SIZE ITERS CORE              tag_lat, tag_bw: the side that receives, at this address
 *   bench connect ADDRESS OWN TEST SIZE ITERS CORE         the side that sends, from an address of its own
 *   bench self TEST SIZE ITERS             tag, put, fadd: of one process with itself, for instruction counts
 *
 * tag_lat   ping-pong                                    tag_bw    windows that the receiver acknowledges
 * put_lat   one write at a time, each ends when the      put_bw    windows of such writes
 *           data are in the target's memory
 * get_lat   one read at a time                           get_bw    windows of reads
 * put_limit, get_limit: put_bw and get_bw by the system call alone with which the software device copies, at most 1 MiB at
 *           a time; pull_limit: put_bw where the target reads
 * fadd      one fetching atomic at a time, on SIZE bytes of 64-bit words
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <rdma/fabric.h>
#include <rdma/fi_atomic.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>
#include <rdma/fi_tagged.h>

enum { WINDOW = 64, BATCH = 16 };

#define MSG 0x6d736700u
#define ACK 0x61636b00u

/* TCP port at which the side that receives listens. */
enum { PORT = 47990 };

static const char *own_address; /* of this host; NULL: any */
static struct fi_info *info;
static struct fid_fabric *fabric;
static struct fid_domain *domain;
static struct fid_av *av;
static struct fid_cq *cq;
static struct fid_ep *ep;
static fi_addr_t peer;
/* Name of an endpoint; as many bytes from each provider. */
struct name { char bytes[512]; };

static struct fid_mr *send_mr, *recv_mr;
static char *send_buf, *recv_buf;
static struct { uint64_t addr, key; } theirs; /* the peer's receive buffer */
static size_t size;
static uint64_t sent, received; /* completions seen */

static void must(long err, const char *what)
{
	if (err < 0) {
		fprintf(stderr, "bench: %s: %s\n", what, fi_strerror((int)-err));
		exit(1);
	}
}

static size_t window(void) { return size < 65536 ? WINDOW : WINDOW / 4; }

/* Polls completions; at most BATCH. */
static void poll_cq(void)
{
	struct fi_cq_msg_entry entries[BATCH];
	ssize_t n = fi_cq_read(cq, entries, BATCH);
	if (n == -FI_EAVAIL) {
		struct fi_cq_err_entry e = { 0 };
		fi_cq_readerr(cq, &e, 0);
		must(-e.err, "operation");
	}
	if (n == -FI_EAGAIN)
		return;
	must(n, "fi_cq_read");
	for (ssize_t i = 0; i < n; i++) {
		if (entries[i].flags & FI_RECV)
			received++;
		else
			sent++;
	}
}

static void post_send(uint64_t tag)
{
	static struct fi_context2 context;
	ssize_t err;
	while ((err = fi_tsend(ep, send_buf, size, fi_mr_desc(send_mr), peer, tag, &context)) == -FI_EAGAIN)
		poll_cq();
	must(err, "fi_tsend");
}

static void post_recv(uint64_t tag, size_t slot)
{
	static struct fi_context2 contexts[WINDOW];
	ssize_t err;
	while ((err = fi_trecv(ep, recv_buf + slot * size, size, fi_mr_desc(recv_mr), FI_ADDR_UNSPEC, tag, 0,
			       &contexts[slot])) == -FI_EAGAIN)
		poll_cq();
	must(err, "fi_trecv");
}

static void post_put(size_t slot)
{
	static struct fi_context2 context;
	struct iovec from = { send_buf, size };
	struct fi_rma_iov to = { theirs.addr + slot * size, size, theirs.key };
	void *desc = fi_mr_desc(send_mr);
	struct fi_msg_rma msg = { .msg_iov = &from, .desc = &desc, .iov_count = 1, .addr = peer, .rma_iov = &to,
				  .rma_iov_count = 1, .context = &context };
	ssize_t err;
	while ((err = fi_writemsg(ep, &msg, FI_COMPLETION | FI_DELIVERY_COMPLETE)) == -FI_EAGAIN)
		poll_cq();
	must(err, "fi_writemsg");
}

static void post_get(size_t slot)
{
	static struct fi_context2 contexts[WINDOW];
	ssize_t err;
	while ((err = fi_read(ep, recv_buf + slot * size, size, fi_mr_desc(recv_mr), peer, theirs.addr + slot * size,
			      theirs.key, &contexts[slot])) == -FI_EAGAIN)
		poll_cq();
	must(err, "fi_read");
}

static void post_fadd(size_t slot)
{
	static struct fi_context2 context;
	ssize_t err;
	(void)slot;
	while ((err = fi_fetch_atomic(ep, send_buf, size / 8, fi_mr_desc(send_mr), recv_buf, fi_mr_desc(recv_mr), peer,
				      theirs.addr, theirs.key, FI_UINT64, FI_SUM, &context)) == -FI_EAGAIN)
		poll_cq();
	must(err, "fi_fetch_atomic");
}

/* As fi_pingpong does where it can: no completion to poll. */
static void post_short(uint64_t tag)
{
	ssize_t err;
	if (size > info->tx_attr->inject_size) {
		post_send(tag);
		return;
	}
	while ((err = fi_tinject(ep, send_buf, size, peer, tag)) == -FI_EAGAIN)
		poll_cq();
	must(err, "fi_tinject");
	sent++;
}

static void ping_pong(uint64_t iters, int first)
{
	uint64_t sends = sent, recvs = received;
	for (uint64_t i = 0; i < iters; i++) {
		if (first)
			post_short(MSG);
		post_recv(MSG, 0);
		recvs++;
		while (received < recvs)
			poll_cq();
		if (!first)
			post_short(MSG);
		sends++;
		while (sent < sends)
			poll_cq();
	}
}

static void send_all(uint64_t iters)
{
	uint64_t sends = sent, recvs = received;
	for (uint64_t left = iters; left > 0;) {
		uint64_t n = left < window() ? left : window();
		left -= n;
		for (uint64_t i = 0; i < n; i++)
			post_send(MSG);
		post_recv(ACK, 0);
		sends += n;
		recvs++;
		while (sent < sends || received < recvs)
			poll_cq();
	}
}

static void receive_all(uint64_t iters)
{
	uint64_t sends = sent, recvs = received;
	for (uint64_t left = iters; left > 0;) {
		uint64_t n = left < window() ? left : window();
		left -= n;
		for (uint64_t i = 0; i < n; i++)
			post_recv(MSG, i);
		recvs += n;
		while (received < recvs)
			poll_cq();
		post_short(ACK);
		sends++;
		while (sent < sends)
			poll_cq();
	}
}

/* The target makes progress until the other side has finished. */
static void one_sided(void (*post)(size_t slot), size_t depth, uint64_t iters)
{
	uint64_t sends = sent;
	for (uint64_t left = iters; left > 0;) {
		uint64_t n = left < depth ? left : depth;
		left -= n;
		for (uint64_t i = 0; i < n; i++)
			post(i);
		sends += n;
		while (sent < sends)
			poll_cq();
	}
	post_short(ACK);
	while (sent < sends + 1)
		poll_cq();
}

static void serve(void)
{
	uint64_t recvs = received;
	post_recv(ACK, 0);
	while (received == recvs)
		poll_cq();
}

/* Receives each message before the next is sent: the same work in every run. */
static void to_self(uint64_t iters)
{
	uint64_t sends = sent, recvs = received;
	for (uint64_t i = 0; i < iters; i++) {
		post_recv(MSG, 0);
		post_send(MSG);
		sends++;
		recvs++;
		while (sent < sends || received < recvs)
			poll_cq();
	}
}

/* Operations of a process on its own memory. */
static void on_self(void (*post)(size_t slot), uint64_t iters)
{
	uint64_t sends = sent;
	for (uint64_t i = 0; i < iters; i++) {
		post(0);
		sends++;
		while (sent < sends)
			poll_cq();
	}
}

/* Writes all buffers: to the kernel untouched memory is one page of zeros, cheap to copy. Returns the receive buffer's size. */
static size_t make_buffers(void)
{
	size_t room = window() * (size + 1);
	send_buf = memset(malloc(size + 1), 1, size + 1);
	recv_buf = memset(malloc(room), 1, room);
	return room;
}

/* Copies windows to or from the other process, as the software device does. */
static void copy_all(const char *test, pid_t other, uint64_t iters)
{
	enum { PIECE = 1 << 20 };
	int put = !strcmp(test, "put_limit"), pull = !strcmp(test, "pull_limit");
	for (uint64_t i = 0; i < iters; i++) {
		size_t slot = i % window() * size;
		for (size_t at = 0, n; at < size; at += n) {
			n = size - at < PIECE ? size - at : PIECE;
			struct iovec near = { put ? send_buf + at : recv_buf + slot + at, n };
			struct iovec far = { pull ? (char *)theirs.key + at : (char *)theirs.addr + slot + at, n };
			ssize_t done = put ? process_vm_writev(other, &near, 1, &far, 1, 0)
					   : process_vm_readv(other, &near, 1, &far, 1, 0);
			if (done != (ssize_t)n) {
				perror("bench: copy between processes");
				exit(1);
			}
		}
	}
}

static int is_limit(const char *test) { return strstr(test, "_limit") != NULL; }

static void open_all(uint64_t caps)
{
	const char *provider = getenv("BENCH_PROVIDER");
	struct fi_info *hints = fi_allocinfo();
	hints->fabric_attr->prov_name = strdup(provider ? provider : "efa");
	hints->ep_attr->type = FI_EP_RDM;
	hints->caps = caps;
	hints->mode = FI_CONTEXT | FI_CONTEXT2;
	hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_ALLOCATED | FI_MR_PROV_KEY | FI_MR_VIRT_ADDR;
	hints->domain_attr->threading = getenv("BENCH_THREADS") ? FI_THREAD_SAFE : FI_THREAD_DOMAIN;
	must(fi_getinfo(FI_VERSION(1, 17), own_address, NULL, own_address ? FI_SOURCE : 0, hints, &info), "no endpoint of the provider");
	fi_freeinfo(hints);
	struct fi_av_attr av_attr = { .type = FI_AV_TABLE };
	struct fi_cq_attr cq_attr = { .format = FI_CQ_FORMAT_MSG };
	must(fi_fabric(info->fabric_attr, &fabric, NULL), "fi_fabric");
	must(fi_domain(fabric, info, &domain, NULL), "fi_domain");
	must(fi_av_open(domain, &av_attr, &av, NULL), "fi_av_open");
	must(fi_cq_open(domain, &cq_attr, &cq, NULL), "fi_cq_open");
	must(fi_endpoint(domain, info, &ep, NULL), "fi_endpoint");
	must(fi_ep_bind(ep, &av->fid, 0), "fi_ep_bind");
	must(fi_ep_bind(ep, &cq->fid, FI_TRANSMIT | FI_RECV), "fi_ep_bind");
	must(fi_enable(ep), "fi_enable");
	size_t room = make_buffers();
	must(fi_mr_reg(domain, send_buf, size + 1, FI_SEND | FI_WRITE | FI_READ | FI_REMOTE_READ, 0, 1, 0, &send_mr, NULL), "fi_mr_reg");
	must(fi_mr_reg(domain, recv_buf, room, FI_RECV | FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE, 0, 2, 0, &recv_mr, NULL), "fi_mr_reg");
}

/* Providers remove their files in /dev/shm only when their objects are closed. */
static void close_all(void)
{
	if (!fabric)
		return;
	must(fi_close(&ep->fid), "close of the endpoint");
	must(fi_close(&send_mr->fid), "close of memory");
	must(fi_close(&recv_mr->fid), "close of memory");
	must(fi_close(&cq->fid), "close of the completion queue");
	must(fi_close(&av->fid), "close of the address vector");
	must(fi_close(&domain->fid), "close of the domain");
	must(fi_close(&fabric->fid), "close of the fabric");
	fi_freeinfo(info);
}

/* The address by which a peer names registered memory. */
static uint64_t base(const char *at)
{
	return info && !(info->domain_attr->mr_mode & FI_MR_VIRT_ADDR) ? 0 : (uintptr_t)at;
}

static void pin(int core)
{
	cpu_set_t set;
	CPU_ZERO(&set);
	CPU_SET(core, &set);
	if (sched_setaffinity(0, sizeof set, &set))
		fprintf(stderr, "bench: cannot be pinned to core %d\n", core);
}

static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void pass(const char *test, int first, pid_t child, uint64_t iters)
{
	if (is_limit(test)) {
		if (first)
			copy_all(test, child, iters);
	} else if (!strcmp(test, "tag_lat"))
		ping_pong(iters, first);
	else if (!strcmp(test, "tag_bw"))
		first ? send_all(iters) : receive_all(iters);
	else if (!first)
		serve();
	else if (!strncmp(test, "put", 3))
		one_sided(post_put, !strcmp(test, "put_bw") ? window() : 1, iters);
	else if (!strncmp(test, "get", 3))
		one_sided(post_get, !strcmp(test, "get_bw") ? window() : 1, iters);
	else
		one_sided(post_fadd, 1, iters);
}

static int known(const char *test)
{
	static const char *const tests[] = { "tag_lat", "tag_bw", "put_lat", "put_bw", "get_lat",
					   "get_bw", "put_limit", "get_limit", "pull_limit", "fadd" };
	for (size_t i = 0; i < sizeof tests / sizeof *tests; i++)
		if (!strcmp(test, tests[i]))
			return 1;
	return 0;
}

static void swap(int fd, const void *mine, void *other, size_t len)
{
	if (write(fd, mine, len) != (ssize_t)len || recv(fd, other, len, MSG_WAITALL) != (ssize_t)len) {
		fprintf(stderr, "bench: the other process is gone\n");
		exit(1);
	}
}

/* Connects the two hosts; the side that listens waits for the other. */
static int meet(const char *address, int listens)
{
	struct sockaddr_in to = { .sin_family = AF_INET, .sin_port = htons(PORT) };
	int one = 1, fd = socket(AF_INET, SOCK_STREAM, 0), tries = 100;
	if (inet_pton(AF_INET, address, &to.sin_addr) != 1) {
		fprintf(stderr, "bench: %s is no IPv4 address\n", address);
		exit(2);
	}
	if (listens) {
		int with;
		setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
		if (bind(fd, (struct sockaddr *)&to, sizeof to) || listen(fd, 1) || (with = accept(fd, NULL, NULL)) < 0) {
			perror("bench: listen");
			exit(1);
		}
		close(fd);
		fd = with;
	} else {
		while (connect(fd, (struct sockaddr *)&to, sizeof to)) {
			if (!--tries) {
				perror("bench: connect");
				exit(1);
			}
			usleep(100000);
		}
	}
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
	return fd;
}

/* The measurement between this process and the one behind fd; the first sends. */
static void measure(const char *test, int first, pid_t child, int fd, uint64_t iters)
{
	struct name mine = { 0 }, other;
	size_t room = sizeof mine;
	if (is_limit(test)) {
		make_buffers();
	} else {
		open_all(strncmp(test, "tag", 3) ? FI_TAGGED | FI_RMA | FI_ATOMIC : FI_TAGGED);
		must(fi_getname(&ep->fid, &mine, &room), "fi_getname");
		swap(fd, &mine, &other, sizeof mine);
		must(fi_av_insert(av, &other, 1, &peer, 0, NULL) - 1, "fi_av_insert");
	}
	/* Without registrations: memory that the other side reads. */
	uint64_t here[2] = { base(recv_buf), recv_mr ? fi_mr_key(recv_mr) : (uintptr_t)send_buf };
	swap(fd, here, &theirs, sizeof here);
	pass(test, first, child, iters / 10 + 10);
	double start = now();
	pass(test, first, child, iters);
	double took = now() - start;
	/* Neither ends before the other has finished. */
	char done = 1;
	if (write(fd, &done, 1) != 1)
		exit(1);
	while (recv(fd, &done, 1, MSG_DONTWAIT) != 1) {
		if (cq)
			poll_cq();
	}
	if (first) {
		/* Half a round trip of a ping-pong. */
		double each = took / (double)iters / (strcmp(test, "tag_lat") ? 1 : 2);
		printf("{\"latency_us\":{\"avg\":%.4f},\"msg_rate\":%.0f,\"bandwidth_mbs\":%.1f}\n", each * 1e6,
		       (double)iters / took, (double)iters * (double)size / took / 1048576);
	}
	close_all();
}

/* What is counted: perf/fabric/versus sets the counts to zero before. */
static __attribute__((noinline)) void counted(const char *what, uint64_t iters)
{
	if (!strcmp(what, "tag"))
		to_self(iters);
	else
		on_self(strcmp(what, "put") ? post_fadd : post_put, iters);
}

static void with_self(const char *what, uint64_t iters)
{
	struct name mine = { 0 };
	size_t room = sizeof mine;
	open_all(FI_TAGGED | FI_RMA | FI_ATOMIC);
	must(fi_getname(&ep->fid, &mine, &room), "fi_getname");
	must(fi_av_insert(av, &mine, 1, &peer, 0, NULL) - 1, "fi_av_insert");
	theirs.addr = base(recv_buf);
	theirs.key = fi_mr_key(recv_mr);
	/* The endpoint has met itself before anything is counted. */
	counted(what, WINDOW);
	counted(what, iters);
	close_all();
}

/* Forks before libfabric is initialised. */
static void with_child(const char *test, uint64_t iters, const char *const cores[2])
{
	int line[2];
	if (socketpair(AF_UNIX, SOCK_STREAM, 0, line))
		exit(1);
	pid_t child = fork();
	int first = child != 0;
	if (!first)
		prctl(PR_SET_PDEATHSIG, SIGKILL);
	close(line[!first]);
	pin(atoi(cores[first]));
	measure(test, first, child, line[first], iters);
	if (first)
		waitpid(child, NULL, 0);
}

static uint64_t number(const char *text) { return strtoull(text, NULL, 0); }

int main(int argc, char **argv)
{
	if (argc == 5 && !strcmp(argv[1], "self")) {
		size = number(argv[3]);
		with_self(argv[2], number(argv[4]));
		return 0;
	}
	int connects = argc == 8 && !strcmp(argv[1], "connect");
	if (connects || (argc == 7 && !strcmp(argv[1], "listen"))) {
		char **args = argv + 2 + connects;
		if (strncmp(args[1], "tag", 3) || !known(args[1])) {
			fprintf(stderr, "bench: two hosts measure tag_lat and tag_bw\n");
			return 2;
		}
		own_address = args[0];
		size = number(args[2]);
		pin(atoi(args[4]));
		measure(args[1], connects, 0, meet(argv[2], !connects), number(args[3]));
		return 0;
	}
	if (argc != 6 || !known(argv[1])) {
		fprintf(stderr, "usage: bench TEST SIZE ITERS CORE CORE | bench self tag|put|fadd SIZE ITERS\n"
				"       bench listen ADDRESS TEST SIZE ITERS CORE | bench connect ADDRESS OWN TEST SIZE ITERS CORE\n");
		return 2;
	}
	size = number(argv[2]);
	with_child(argv[1], number(argv[3]), (const char *const[2]){ argv[4], argv[5] });
	return 0;
}

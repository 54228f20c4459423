/*
 * Cost of UCX's endpoints and of idle progress, and its message rate over several endpoints. Peers are in a process that
 * this one forks. `perf/src/bin/scale.rs` does the same with this library. Started by `versus`; prints one line of JSON.
 *
 *   scale rate EPS ITERS CORE CORE   tagged messages of 8 bytes, windows of 64, in turn over EPS endpoints (up to 64)
 *   scale peers EPS CORE CORE        ucp: endpoints to EPS workers, twice; memory; address; idle progress
 *   scale uct_peers EPS CORE CORE    uct posix: as peers, with interfaces
 *   scale threads THREADS ITERS CORE CORE  ucp: tagged messages of 8 bytes; the threads of each side share its worker
 *   scale shared THREADS ITERS CORE CORE   uct posix: messages of 8 bytes; threads share an interface
 *   scale self WINDOW ITERS          tagged messages of 8 bytes to itself, for instruction counts
 *
 * Transports of ucp are those of UCX_TLS.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <ucp/api/ucp.h>
#include <ucs/async/async_fwd.h>
#include <uct/api/uct.h>

enum { WINDOW = 64, SIZE = 8, MOST = 4096, IDLE = 5000000, THREADS = 64, BURST = 16 };

#define MSG 0x6d736700u
#define ACK 0x61636b00u

static int line; /* to the other process */

static void die(const char *what, const char *why)
{
	fprintf(stderr, "scale: %s: %s\n", what, why);
	exit(1);
}

static void must(ucs_status_t status, const char *what)
{
	if (status != UCS_OK)
		die(what, ucs_status_string(status));
}

static void pin(const char *core)
{
	cpu_set_t set;
	CPU_ZERO(&set);
	CPU_SET(atoi(core), &set);
	if (sched_setaffinity(0, sizeof set, &set))
		die("cannot be pinned to core", core);
}

static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Resident memory, bytes. */
static double rss(void)
{
	long all, resident = 0;
	FILE *f = fopen("/proc/self/statm", "r");
	if (!f || fscanf(f, "%ld %ld", &all, &resident) != 2)
		die("/proc/self/statm", "cannot be read");
	fclose(f);
	return (double)resident * (double)sysconf(_SC_PAGESIZE);
}

static void tell(const void *bytes, size_t len)
{
	if (write(line, bytes, len) != (ssize_t)len)
		die("other process", "gone");
}

static void hear(void *bytes, size_t len)
{
	if (len > 0 && recv(line, bytes, len, MSG_WAITALL) != (ssize_t)len)
		die("other process", "gone");
}

static int told(void)
{
	char byte;
	return recv(line, &byte, 1, MSG_DONTWAIT) == 1;
}

/* ---- ucp ---- */

static ucp_context_h context;
static ucp_worker_h workers[MOST];
static ucp_ep_h eps[MOST], again[MOST];

static ucs_thread_mode_t ucp_mode = UCS_THREAD_MODE_SINGLE;

static void open_ucp(size_t count)
{
	ucp_params_t params = { .field_mask = UCP_PARAM_FIELD_FEATURES, .features = UCP_FEATURE_TAG };
	ucp_worker_params_t wp = { .field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE, .thread_mode = ucp_mode };
	must(ucp_init(&params, NULL, &context), "ucp_init");
	for (size_t i = 0; i < count; i++)
		must(ucp_worker_create(context, &wp, &workers[i]), "ucp_worker_create");
}

static void tell_address(ucp_worker_h worker)
{
	ucp_address_t *address;
	size_t len;
	must(ucp_worker_get_address(worker, &address, &len), "ucp_worker_get_address");
	tell(&len, sizeof len);
	tell(address, len);
	ucp_worker_release_address(worker, address);
}

static ucp_address_t *hear_address(size_t *len)
{
	hear(len, sizeof *len);
	ucp_address_t *address = malloc(*len);
	hear(address, *len);
	return address;
}

static ucp_ep_h connect_to(ucp_worker_h worker, const ucp_address_t *address)
{
	ucp_ep_params_t params = { .field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS, .address = address };
	ucp_ep_h ep;
	must(ucp_ep_create(worker, &params, &ep), "ucp_ep_create");
	return ep;
}

/* Waits for a request while `all` workers progress. */
static void finish(void *request, size_t all)
{
	if (UCS_PTR_IS_ERR(request))
		must(UCS_PTR_STATUS(request), "operation");
	if (request == NULL)
		return;
	ucs_status_t status;
	while ((status = ucp_request_check_status(request)) == UCS_INPROGRESS)
		for (size_t i = 0; i < all; i++)
			ucp_worker_progress(workers[i]);
	must(status, "operation");
	ucp_request_free(request);
}

static void *post_send(ucp_ep_h ep, const void *bytes, ucp_tag_t tag)
{
	ucp_request_param_t param = { 0 };
	return ucp_tag_send_nbx(ep, bytes, SIZE, tag, &param);
}

static void *post_recv(ucp_worker_h worker, void *bytes, ucp_tag_t tag)
{
	ucp_request_param_t param = { .op_attr_mask = UCP_OP_ATTR_FLAG_NO_IMM_CMPL };
	return ucp_tag_recv_nbx(worker, bytes, SIZE, tag, (ucp_tag_t)-1, &param);
}

static void send_all(size_t count, uint64_t iters)
{
	static char out[SIZE], in[SIZE];
	void *sends[WINDOW];
	size_t turn = 0;
	for (uint64_t done = 0; done < iters; done += WINDOW) {
		for (int i = 0; i < WINDOW; i++) {
			sends[i] = post_send(eps[turn], out, MSG);
			turn = turn + 1 == count ? 0 : turn + 1;
		}
		for (int i = 0; i < WINDOW; i++)
			finish(sends[i], 1);
		finish(post_recv(workers[0], in, ACK), 1);
	}
}

static void receive_all(size_t count, uint64_t iters)
{
	static char out[SIZE], in[WINDOW][SIZE];
	void *recvs[WINDOW];
	for (uint64_t done = 0; done < iters; done += WINDOW) {
		for (int i = 0; i < WINDOW; i++)
			recvs[i] = post_recv(workers[(size_t)i % count], in[i], MSG);
		for (int i = 0; i < WINDOW; i++)
			finish(recvs[i], count);
		finish(post_send(eps[0], out, ACK), count);
	}
}

static void rate(int first, size_t count, uint64_t iters)
{
	size_t len;
	open_ucp(first ? 1 : count);
	for (size_t i = 0; i < (first ? 1 : count); i++)
		tell_address(workers[i]);
	for (size_t i = 0; i < (first ? count : 1); i++)
		eps[i] = connect_to(workers[0], hear_address(&len));
	iters = (iters + WINDOW - 1) / WINDOW * WINDOW;
	uint64_t warm = (iters / 10 + WINDOW) / WINDOW * WINDOW;
	if (!first) {
		receive_all(count, warm);
		receive_all(count, iters);
		while (!told())
			for (size_t i = 0; i < count; i++)
				ucp_worker_progress(workers[i]);
		return;
	}
	send_all(count, warm);
	double start = now();
	send_all(count, iters);
	printf("{\"msg_rate\":%.0f}\n", (double)iters / (now() - start));
}

/* ---- ucp: threads that share a worker of UCS_THREAD_MODE_MULTI ---- */

static pthread_barrier_t together;
static uint64_t warm_each, iters_each;
static int sends;
static double began[THREADS], ended[THREADS];

static void windows(uint64_t thread, uint64_t iters)
{
	char out[SIZE] = { 0 }, in[WINDOW][SIZE];
	void *requests[WINDOW];
	for (uint64_t done = 0; done < iters; done += WINDOW) {
		for (int i = 0; i < WINDOW; i++)
			requests[i] = sends ? post_send(eps[0], out, MSG + thread) : post_recv(workers[0], in[i], MSG + thread);
		for (int i = 0; i < WINDOW; i++)
			finish(requests[i], 1);
		finish(sends ? post_recv(workers[0], in[0], ACK + thread) : post_send(eps[0], out, ACK + thread), 1);
	}
}

static void *one_of_threads(void *n)
{
	windows((uint64_t)n, warm_each);
	pthread_barrier_wait(&together);
	began[(size_t)n] = now();
	windows((uint64_t)n, iters_each);
	ended[(size_t)n] = now();
	return NULL;
}

static void threads(int first, size_t count, uint64_t iters)
{
	size_t len;
	pthread_t all[THREADS];
	ucp_mode = UCS_THREAD_MODE_MULTI;
	open_ucp(1);
	ucp_worker_attr_t attr = { .field_mask = UCP_WORKER_ATTR_FIELD_THREAD_MODE };
	must(ucp_worker_query(workers[0], &attr), "ucp_worker_query");
	if (attr.thread_mode != UCS_THREAD_MODE_MULTI)
		die("thread mode multi", "not there");
	tell_address(workers[0]);
	eps[0] = connect_to(workers[0], hear_address(&len));
	sends = first;
	iters_each = (iters / count + WINDOW - 1) / WINDOW * WINDOW;
	warm_each = (iters_each / 10 + WINDOW) / WINDOW * WINDOW;
	pthread_barrier_init(&together, NULL, (unsigned)count);
	for (size_t i = 0; i < count; i++)
		if (pthread_create(&all[i], NULL, one_of_threads, (void *)i))
			die("pthread_create", "failed");
	for (size_t i = 0; i < count; i++)
		pthread_join(all[i], NULL);
	if (!first) {
		while (!told())
			ucp_worker_progress(workers[0]);
		return;
	}
	double start = began[0], end = ended[0];
	for (size_t i = 1; i < count; i++) {
		start = began[i] < start ? began[i] : start;
		end = ended[i] > end ? ended[i] : end;
	}
	printf("{\"msg_rate\":%.0f}\n", (double)(iters_each * count) / (end - start));
}

/* Nanoseconds of a call that finds nothing. */
static double idle(uint64_t iters)
{
	for (uint64_t i = 0; i < iters / 10; i++)
		ucp_worker_progress(workers[0]);
	double start = now();
	for (uint64_t i = 0; i < iters; i++)
		ucp_worker_progress(workers[0]);
	return (now() - start) / (double)iters * 1e9;
}

static void peers(int first, size_t count)
{
	static char out[SIZE];
	if (!first) {
		open_ucp(count);
		for (size_t i = 0; i < count; i++)
			tell_address(workers[i]);
		while (!told())
			for (size_t i = 0; i < count; i++)
				ucp_worker_progress(workers[i]);
		return;
	}
	ucp_address_t *addresses[MOST];
	size_t len;
	open_ucp(1);
	for (size_t i = 0; i < count; i++)
		addresses[i] = hear_address(&len);
	double before = rss(), start = now();
	for (size_t i = 0; i < count; i++)
		eps[i] = connect_to(workers[0], addresses[i]);
	double create = (now() - start) / (double)count;
	start = now();
	for (size_t i = 0; i < count; i++)
		finish(post_send(eps[i], out, MSG), 1);
	double message = create + (now() - start) / (double)count;
	double each = (rss() - before) / (double)count;
	start = now();
	for (size_t i = 0; i < count; i++)
		again[i] = connect_to(workers[0], addresses[i]);
	double more = (now() - start) / (double)count;
	printf("{\"create_us\":%.3f,\"first_us\":%.3f,\"again_us\":%.3f,\"rss_bytes\":%.0f,\"address_bytes\":%zu,"
	       "\"idle_ns\":%.3f}\n", create * 1e6, message * 1e6, more * 1e6, each, len, idle(IDLE));
}

/* Posts the receives of a window, then sends. */
static void self(size_t window, uint64_t iters)
{
	static char out[SIZE], in[SIZE];
	void *recvs[WINDOW];
	ucp_address_t *address;
	size_t len;
	open_ucp(1);
	must(ucp_worker_get_address(workers[0], &address, &len), "ucp_worker_get_address");
	eps[0] = connect_to(workers[0], address);
	for (uint64_t done = 0; done < iters; done += window) {
		for (size_t i = 0; i < window; i++)
			recvs[i] = post_recv(workers[0], in, MSG);
		for (size_t i = 0; i < window; i++)
			finish(post_send(eps[0], out, MSG), 1);
		for (size_t i = 0; i < window; i++)
			finish(recvs[i], 1);
	}
	printf("{\"messages\":%llu}\n", (unsigned long long)iters);
}

/* ---- uct ---- */

static uct_md_h md;
static uct_worker_h uct_worker;
static uct_iface_h ifaces[MOST];
static uct_ep_h uct_eps[MOST];

static uct_component_h component(const char *name)
{
	uct_component_h *all;
	unsigned count;
	must(uct_query_components(&all, &count), "uct_query_components");
	for (unsigned i = 0; i < count; i++) {
		uct_component_attr_t attr = { .field_mask = UCT_COMPONENT_ATTR_FIELD_NAME };
		must(uct_component_query(all[i], &attr), "uct_component_query");
		if (!strcmp(attr.name, name))
			return all[i];
	}
	die("no such component", name);
	return NULL;
}

static void open_uct(size_t count, ucs_thread_mode_t mode)
{
	ucs_async_context_t *async;
	uct_md_config_t *md_config;
	uct_iface_config_t *config;
	uct_component_h posix = component("posix");
	must(ucs_async_context_create(UCS_ASYNC_MODE_THREAD_SPINLOCK, &async), "ucs_async_context_create");
	must(uct_worker_create(async, mode, &uct_worker), "uct_worker_create");
	must(uct_md_config_read(posix, NULL, NULL, &md_config), "uct_md_config_read");
	must(uct_md_open(posix, "posix", md_config, &md), "uct_md_open");
	must(uct_md_iface_config_read(md, "posix", NULL, NULL, &config), "uct_md_iface_config_read");
	uct_iface_params_t params = { .field_mask = UCT_IFACE_PARAM_FIELD_OPEN_MODE | UCT_IFACE_PARAM_FIELD_DEVICE,
				      .open_mode = UCT_IFACE_OPEN_MODE_DEVICE,
				      .mode.device = { .tl_name = "posix", .dev_name = "memory" } };
	for (size_t i = 0; i < count; i++) {
		must(uct_iface_open(md, uct_worker, &params, config, &ifaces[i]), "uct_iface_open");
		uct_iface_progress_enable(ifaces[i], UCT_PROGRESS_SEND | UCT_PROGRESS_RECV);
	}
}

static uct_ep_h uct_connect_to(void *device, void *iface)
{
	uct_ep_params_t params = { .field_mask = UCT_EP_PARAM_FIELD_IFACE | UCT_EP_PARAM_FIELD_DEV_ADDR |
						 UCT_EP_PARAM_FIELD_IFACE_ADDR,
				   .iface = ifaces[0], .dev_addr = device, .iface_addr = iface };
	uct_ep_h ep;
	must(uct_ep_create(&params, &ep), "uct_ep_create");
	return ep;
}

static double uct_idle(uint64_t iters)
{
	for (uint64_t i = 0; i < iters / 10; i++)
		uct_iface_progress(ifaces[0]);
	double start = now();
	for (uint64_t i = 0; i < iters; i++)
		uct_iface_progress(ifaces[0]);
	return (now() - start) / (double)iters * 1e9;
}

static void uct_peers(int first, size_t count)
{
	uct_iface_attr_t attr;
	char mine[256];
	open_uct(first ? 1 : count, UCS_THREAD_MODE_SINGLE);
	must(uct_iface_query(ifaces[0], &attr), "uct_iface_query");
	size_t dev_len = attr.device_addr_len, len = dev_len + attr.iface_addr_len;
	if (len > sizeof mine)
		die("addresses", "too long");
	if (!first) {
		for (size_t i = 0; i < count; i++) {
			must(uct_iface_get_device_address(ifaces[i], (uct_device_addr_t *)mine), "device address");
			must(uct_iface_get_address(ifaces[i], (uct_iface_addr_t *)(mine + dev_len)), "iface address");
			tell(mine, len);
		}
		hear(mine, 1);
		return;
	}
	char *theirs = malloc(count * len);
	hear(theirs, count * len);
	double before = rss(), start = now();
	for (size_t i = 0; i < count; i++)
		uct_eps[i] = uct_connect_to(theirs + i * len, theirs + i * len + dev_len);
	double create = (now() - start) / (double)count;
	start = now();
	for (size_t i = 0; i < count; i++)
		must(uct_ep_am_short(uct_eps[i], 0, MSG, NULL, 0), "uct_ep_am_short");
	double message = create + (now() - start) / (double)count;
	double each = (rss() - before) / (double)count;
	start = now();
	for (size_t i = 0; i < count; i++)
		uct_connect_to(theirs + i * len, theirs + i * len + dev_len);
	double more = (now() - start) / (double)count;
	printf("{\"create_us\":%.3f,\"first_us\":%.3f,\"again_us\":%.3f,\"rss_bytes\":%.0f,\"address_bytes\":%zu,"
	       "\"idle_ns\":%.3f}\n", create * 1e6, message * 1e6, more * 1e6, each, len, uct_idle(IDLE));
}

/* Threads share one interface: each sends to it and polls it. UCX's shared memory refuses a worker of
 * UCS_THREAD_MODE_MULTI, so a lock here is taken as uct::mt takes its own: tried before progress, waited for before a
 * message. */
static pthread_spinlock_t gate;
static pthread_barrier_t barrier;
static volatile uint64_t arrived; /* one thread at a time runs the handler */
static uint64_t thread_count, shared_iters;
static char **shared_cores;
static double starts[THREADS], ends[THREADS]; /* of each thread: a thread that only waits for them may wake late */

static ucs_status_t arrive(void *arg, void *bytes, size_t len, unsigned flags)
{
	(void)arg, (void)bytes, (void)len, (void)flags;
	arrived = arrived + 1;
	return UCS_OK;
}

static ucs_status_t shared_send(void)
{
	for (unsigned tries = 1; pthread_spin_trylock(&gate); tries++)
		if (tries % 64 == 0)
			sched_yield();
		else
			__builtin_ia32_pause();
	ucs_status_t status = uct_ep_am_short(uct_eps[0], 0, MSG, NULL, 0);
	pthread_spin_unlock(&gate);
	return status;
}

static void shared_progress(void)
{
	if (pthread_spin_trylock(&gate))
		return;
	uct_iface_progress(ifaces[0]);
	pthread_spin_unlock(&gate);
}

static void shared_pass(uint64_t share, uint64_t until)
{
	for (uint64_t sent = 0; sent < share;) {
		ucs_status_t status = shared_send();
		if (status == UCS_OK)
			sent++;
		else if (status == UCS_ERR_NO_RESOURCE)
			shared_progress();
		else
			must(status, "uct_ep_am_short");
		if (sent % BURST == 0)
			shared_progress();
	}
	while (arrived < until)
		shared_progress();
}

static void *shared_thread(void *n)
{
	uint64_t warm = shared_iters / 10 / thread_count, share = shared_iters / thread_count;
	pin(shared_cores[(size_t)n % 2]);
	shared_pass(warm, warm * thread_count);
	pthread_barrier_wait(&barrier);
	starts[(size_t)n] = now();
	shared_pass(share, (warm + share) * thread_count);
	ends[(size_t)n] = now();
	return NULL;
}

static void shared(uint64_t count, uint64_t iters, char **cores)
{
	uct_iface_attr_t attr;
	pthread_t all[THREADS];
	char mine[256];
	open_uct(1, UCS_THREAD_MODE_SERIALIZED);
	must(uct_iface_query(ifaces[0], &attr), "uct_iface_query");
	if (attr.device_addr_len + attr.iface_addr_len > sizeof mine)
		die("addresses", "too long");
	must(uct_iface_get_device_address(ifaces[0], (uct_device_addr_t *)mine), "device address");
	must(uct_iface_get_address(ifaces[0], (uct_iface_addr_t *)(mine + attr.device_addr_len)), "iface address");
	uct_eps[0] = uct_connect_to(mine, mine + attr.device_addr_len);
	must(uct_iface_set_am_handler(ifaces[0], 0, arrive, NULL, 0), "uct_iface_set_am_handler");
	thread_count = count, shared_iters = iters, shared_cores = cores;
	pthread_spin_init(&gate, PTHREAD_PROCESS_PRIVATE);
	pthread_barrier_init(&barrier, NULL, (unsigned)count);
	for (size_t i = 0; i < count; i++)
		if (pthread_create(&all[i], NULL, shared_thread, (void *)i))
			die("pthread_create", "failed");
	for (size_t i = 0; i < count; i++)
		pthread_join(all[i], NULL);
	double first = starts[0], last = ends[0];
	for (size_t i = 1; i < count; i++) {
		first = starts[i] < first ? starts[i] : first;
		last = ends[i] > last ? ends[i] : last;
	}
	printf("{\"msg_rate\":%.0f}\n", (double)(iters / count * count) / (last - first));
}

int main(int argc, char **argv)
{
	const char *what = argc > 1 ? argv[1] : "";
	if (argc < 5 && (strcmp(what, "self") || argc != 4)) {
		fprintf(stderr, "usage: scale rate EPS ITERS CORE CORE | scale peers|uct_peers EPS CORE CORE | "
				"scale shared|threads THREADS ITERS CORE CORE | scale self WINDOW ITERS\n");
		return 2;
	}
	uint64_t count = strtoull(argv[2], NULL, 0);
	int ends[2];
	if (count == 0 || count > (strstr(what, "peers") ? MOST : WINDOW))
		die("a count out of range", argv[2]);
	if (!strcmp(what, "self")) {
		self(count, strtoull(argv[3], NULL, 0));
		return 0;
	}
	if ((!strcmp(what, "rate") || !strcmp(what, "shared") || !strcmp(what, "threads")) && argc < 6)
		die(what, "COUNT ITERS CORE CORE");
	if (!strcmp(what, "shared")) {
		shared(count, strtoull(argv[3], NULL, 0), argv + 4);
		return 0;
	}
	pin(argv[argc - 1]);
	if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends))
		return 1;
	pid_t child = fork(); /* before UCX is initialised */
	int first = child != 0;
	line = ends[first];
	close(ends[!first]);
	if (!first) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		pin(argv[argc - 2]);
	}
	if (!strcmp(what, "rate"))
		rate(first, count, strtoull(argv[3], NULL, 0));
	else if (!strcmp(what, "threads"))
		threads(first, count, strtoull(argv[3], NULL, 0));
	else if (!strcmp(what, "peers"))
		peers(first, count);
	else if (!strcmp(what, "uct_peers"))
		uct_peers(first, count);
	else
		die("unknown", what);
	fflush(stdout);
	if (first)
		tell("", 1);
	/* The end of the process frees endpoints and workers, as in most programs. */
	_exit(0);
}

/*
 * One end of the interop matrix, played by libfabric's EFA provider: reads steps from standard input, answers each with
 * a line `ok ...` or `no WHY`, and prints a line for every completion. Started by `interop`; language in README.md.
 * Never decides whether a result is right: it says what it saw.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <rdma/fabric.h>
#include <rdma/fi_atomic.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>
#include <rdma/fi_tagged.h>

enum { MAX_OPS = 4096, MAX_PEERS = 64, MAX_REGIONS = 1024, GUARD = 64, GUARD_BYTE = 0xA5, MAX_WORDS = 32 };

enum verb { SEND, RECV, PEEK, WRITE, READ, ATOMIC, FETCH, COMPARE };

static const char *const verb_name[] = {
	[SEND] = "send", [RECV] = "recv", [PEEK] = "peek", [WRITE] = "write",
	[READ] = "read", [ATOMIC] = "atomic", [FETCH] = "fetch", [COMPARE] = "compare",
};

/* An operation; the context comes first, so that a completion leads back here. */
struct op {
	struct fi_context2 context;
	char id[16];
	enum verb verb;
	bool used, posted, multi;
	uint64_t flags, tag, ignore, data, addr, key;
	bool tagged, has_data, inject;
	fi_addr_t peer;
	unsigned char *buf, *result, *compare;
	size_t len, count;
	enum fi_datatype datatype;
	enum fi_op atomic;
	struct fid_mr *mr, *result_mr, *compare_mr;
};

/* Memory that the other end may write, read and change. */
struct region {
	char id[16];
	unsigned char *buf;
	size_t len;
	struct fid_mr *mr;
};

static struct fi_info *info;
static struct fid_fabric *fabric;
static struct fid_domain *domain;
static struct fid_cq *cq;
static struct fid_av *av;
static struct fid_ep *ep;
static fi_addr_t peers[MAX_PEERS];
static int n_peers;
static struct op ops[MAX_OPS];
static struct op *waiting[MAX_OPS]; /* not yet posted, in order */
static int n_waiting;
static struct region regions[MAX_REGIONS];
static int n_regions;
static uint64_t next_key = 1;
static bool stalled;

/* ---- lines ---------------------------------------------------------------------------------------------------- */

static char *words[MAX_WORDS];
static int n_words;

static void ok(void) { puts("ok"); }
static void no(const char *why) { printf("no %s\n", why); }
static void no_fi(const char *call, long err) { printf("no %s: %s\n", call, fi_strerror((int)(err < 0 ? -err : err))); }

/* The value of `name=VALUE` in the step, or NULL. A bare `name` is the empty string. */
static const char *option(const char *name)
{
	size_t n = strlen(name);
	for (int i = 1; i < n_words; i++) {
		if (strncmp(words[i], name, n) == 0 && (words[i][n] == '=' || words[i][n] == 0))
			return words[i][n] ? words[i] + n + 1 : "";
	}
	return NULL;
}

static uint64_t number(const char *name, uint64_t otherwise)
{
	const char *text = option(name);
	return text ? strtoull(text, NULL, 0) : otherwise;
}

/* ---- bytes ---------------------------------------------------------------------------------------------------- */

static uint64_t mix(uint64_t x)
{
	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
	x = (x ^ x >> 27) * 0x94d049bb133111eb;
	return x ^ x >> 31;
}

/* Byte i of the pattern of a seed; the other end has the same. */
static void fill(unsigned char *at, size_t len, uint64_t seed)
{
	for (size_t i = 0; i < len; i++)
		at[i] = (unsigned char)(mix(seed * 0x9e3779b97f4a7c15 + (i >> 3)) >> (8 * (i & 7)));
}

static const size_t type_size[] = {
	[FI_INT8] = 1, [FI_UINT8] = 1, [FI_INT16] = 2, [FI_UINT16] = 2, [FI_INT32] = 4, [FI_UINT32] = 4,
	[FI_INT64] = 8, [FI_UINT64] = 8, [FI_FLOAT] = 4, [FI_DOUBLE] = 8, [FI_FLOAT_COMPLEX] = 8,
	[FI_DOUBLE_COMPLEX] = 16,
};

/* Elements of a type with small whole values: arithmetic on them is exact. The other end has the same. */
static void fill_values(unsigned char *at, size_t len, uint64_t type, uint64_t seed)
{
	if (type > FI_DOUBLE_COMPLEX)
		return;
	for (size_t k = 0; k < len / type_size[type]; k++) {
		uint64_t v = mix(seed * 0x9e3779b97f4a7c15 + k) % 9;
		float f[2] = { (float)v, (float)(v % 4) };
		double d[2] = { (double)v, (double)(v % 4) };
		const void *from = type == FI_FLOAT || type == FI_FLOAT_COMPLEX ? (void *)f
				   : type == FI_DOUBLE || type == FI_DOUBLE_COMPLEX ? (void *)d : (void *)&v;
		memcpy(at + k * type_size[type], from, type_size[type]);
	}
}

/* FNV-1a. */
static uint64_t sum(const unsigned char *at, size_t len)
{
	uint64_t h = 0xcbf29ce484222325;
	for (size_t i = 0; i < len; i++)
		h = (h ^ at[i]) * 0x100000001b3;
	return h;
}

static unsigned char *guarded(size_t len)
{
	unsigned char *buf = malloc(len + GUARD);
	if (!buf)
		abort();
	memset(buf, GUARD_BYTE, len + GUARD);
	return buf;
}

/* Whether what lies behind the first `used` bytes of a buffer is as it was. */
static const char *guard(const unsigned char *buf, size_t used, size_t len)
{
	for (size_t i = used; i < len + GUARD; i++) {
		if (buf[i] != GUARD_BYTE)
			return "broken";
	}
	return "ok";
}

/* ---- operations ----------------------------------------------------------------------------------------------- */

static struct op *find(const char *id)
{
	for (int i = 0; i < MAX_OPS; i++) {
		if (ops[i].used && strcmp(ops[i].id, id) == 0)
			return &ops[i];
	}
	return NULL;
}

static struct op *take(enum verb verb)
{
	for (int i = 0; i < MAX_OPS; i++) {
		if (!ops[i].used) {
			struct op *op = &ops[i];
			memset(op, 0, sizeof *op);
			op->used = true;
			op->verb = verb;
			snprintf(op->id, sizeof op->id, "%s", words[1]);
			return op;
		}
	}
	fprintf(stderr, "peer: more than %d operations\n", MAX_OPS);
	exit(1);
}

static void close_mr(struct fid_mr *mr)
{
	if (mr)
		fi_close(&mr->fid);
}

static void release(struct op *op)
{
	close_mr(op->mr);
	close_mr(op->result_mr);
	close_mr(op->compare_mr);
	free(op->buf);
	free(op->result);
	free(op->compare);
	op->used = false;
}

static struct fid_mr *reg(void *buf, size_t len, uint64_t access)
{
	struct fid_mr *mr = NULL;
	int err = fi_mr_reg(domain, buf, len ? len : 1, access, 0, next_key++, 0, &mr, NULL);
	if (err)
		fprintf(stderr, "peer: fi_mr_reg: %s\n", fi_strerror(-err));
	return mr;
}

static void *desc(struct fid_mr *mr) { return mr ? fi_mr_desc(mr) : NULL; }

static ssize_t post_recv(struct op *op)
{
	struct iovec iov = { .iov_base = op->buf, .iov_len = op->len };
	void *d = desc(op->mr);
	size_t n = op->buf ? 1 : 0;
	if (op->tagged) {
		struct fi_msg_tagged msg = { .msg_iov = &iov, .desc = &d, .iov_count = n, .addr = op->peer, .tag = op->tag,
					     .ignore = op->ignore, .context = &op->context };
		return fi_trecvmsg(ep, &msg, op->flags);
	}
	struct fi_msg msg = { .msg_iov = &iov, .desc = &d, .iov_count = n, .addr = op->peer, .context = &op->context };
	return fi_recvmsg(ep, &msg, op->flags);
}

static ssize_t post_send(struct op *op)
{
	struct iovec iov = { .iov_base = op->buf, .iov_len = op->len };
	void *d = desc(op->mr);
	if (op->inject && op->tagged)
		return op->has_data ? fi_tinjectdata(ep, op->buf, op->len, op->data, op->peer, op->tag)
				    : fi_tinject(ep, op->buf, op->len, op->peer, op->tag);
	if (op->inject)
		return op->has_data ? fi_injectdata(ep, op->buf, op->len, op->data, op->peer)
				    : fi_inject(ep, op->buf, op->len, op->peer);
	if (op->tagged) {
		struct fi_msg_tagged msg = { .msg_iov = &iov, .desc = &d, .iov_count = 1, .addr = op->peer, .tag = op->tag,
					     .context = &op->context, .data = op->data };
		return fi_tsendmsg(ep, &msg, op->flags);
	}
	struct fi_msg msg = { .msg_iov = &iov, .desc = &d, .iov_count = 1, .addr = op->peer, .context = &op->context,
			      .data = op->data };
	return fi_sendmsg(ep, &msg, op->flags);
}

static ssize_t post_rma(struct op *op)
{
	struct iovec iov = { .iov_base = op->buf, .iov_len = op->len };
	void *d = desc(op->mr);
	struct fi_rma_iov rma = { .addr = op->addr, .len = op->len, .key = op->key };
	struct fi_msg_rma msg = { .msg_iov = &iov, .desc = &d, .iov_count = 1, .addr = op->peer, .rma_iov = &rma,
				  .rma_iov_count = 1, .context = &op->context, .data = op->data };
	if (op->inject)
		return op->has_data ? fi_inject_writedata(ep, op->buf, op->len, op->data, op->peer, op->addr, op->key)
				    : fi_inject_write(ep, op->buf, op->len, op->peer, op->addr, op->key);
	return op->verb == READ ? fi_readmsg(ep, &msg, op->flags) : fi_writemsg(ep, &msg, op->flags);
}

static ssize_t post_atomic(struct op *op)
{
	struct fi_ioc ioc = { .addr = op->buf, .count = op->count };
	struct fi_ioc result = { .addr = op->result, .count = op->count };
	struct fi_ioc compare = { .addr = op->compare, .count = op->count };
	void *d = desc(op->mr), *rd = desc(op->result_mr), *cd = desc(op->compare_mr);
	struct fi_rma_ioc rma = { .addr = op->addr, .count = op->count, .key = op->key };
	struct fi_msg_atomic msg = { .msg_iov = &ioc, .desc = &d, .iov_count = 1, .addr = op->peer, .rma_iov = &rma,
				     .rma_iov_count = 1, .datatype = op->datatype, .op = op->atomic,
				     .context = &op->context };
	switch (op->verb) {
	case FETCH:
		return fi_fetch_atomicmsg(ep, &msg, &result, &rd, 1, op->flags);
	case COMPARE:
		return fi_compare_atomicmsg(ep, &msg, &compare, &cd, 1, &result, &rd, 1, op->flags);
	default:
		return fi_atomicmsg(ep, &msg, op->flags);
	}
}

static ssize_t post(struct op *op)
{
	switch (op->verb) {
	case SEND:
		return post_send(op);
	case RECV:
	case PEEK:
		return post_recv(op);
	case WRITE:
	case READ:
		return post_rma(op);
	default:
		return post_atomic(op);
	}
}

/* Posts what waits, in order, until the provider has no room. */
static bool post_waiting(void)
{
	int done = 0;
	while (done < n_waiting) {
		struct op *op = waiting[done];
		ssize_t err = post(op);
		if (err == -FI_EAGAIN)
			break;
		done++;
		if (err) {
			printf("fail %s %s error=post why=\"%s\"\n", op->id, verb_name[op->verb], fi_strerror((int)-err));
			release(op);
		} else if (op->inject) {
			printf("done %s %s\n", op->id, verb_name[op->verb]);
			release(op);
		} else {
			op->posted = true;
		}
	}
	n_waiting -= done;
	memmove(waiting, waiting + done, (size_t)n_waiting * sizeof *waiting);
	return done > 0;
}

static void start(struct op *op)
{
	waiting[n_waiting++] = op;
	ok();
	post_waiting();
}

/* ---- completions ---------------------------------------------------------------------------------------------- */

static void print_source(fi_addr_t from)
{
	for (int i = 0; i < n_peers; i++) {
		if (peers[i] == from) {
			printf(" from=%d", i);
			return;
		}
	}
	printf(" from=unknown");
}

static void completed(const struct fi_cq_tagged_entry *e, fi_addr_t from)
{
	struct op *op = e->op_context;
	if (!op || (e->flags & FI_REMOTE_WRITE)) {
		printf("done - remote data=%#" PRIx64, e->data);
		print_source(from);
		puts("");
		return;
	}
	printf("done %s %s", op->id, verb_name[op->verb]);
	switch (op->verb) {
	case RECV:
	case PEEK:
		if (!(e->flags & FI_MULTI_RECV) || e->len) {
			printf(" len=%zu tag=%#" PRIx64, e->len, op->tagged ? e->tag : 0);
			if (e->flags & FI_REMOTE_CQ_DATA)
				printf(" data=%#" PRIx64, e->data);
			else
				printf(" unflagged=%#" PRIx64, e->data);
			print_source(from);
		}
		if (op->verb == RECV && op->buf) {
			const unsigned char *at = op->multi ? e->buf : op->buf;
			printf(" sum=%016" PRIx64 " guard=%s", sum(at, e->len),
			       guard(op->buf, op->multi ? op->len : e->len, op->len));
		}
		if (e->flags & FI_MULTI_RECV)
			printf(" retired");
		break;
	case READ:
		printf(" sum=%016" PRIx64 " guard=%s", sum(op->buf, op->len), guard(op->buf, op->len, op->len));
		break;
	case FETCH:
	case COMPARE:
		printf(" sum=%016" PRIx64 " guard=%s", sum(op->result, op->len), guard(op->result, op->len, op->len));
		break;
	default:
		break;
	}
	puts("");
	if (op->verb == PEEK && (op->flags & FI_CLAIM) && !(op->flags & FI_DISCARD))
		return; /* its context is needed to claim */
	if (!op->multi || (e->flags & FI_MULTI_RECV))
		release(op);
}

static const char *error_name(int err)
{
	switch (err) {
	case FI_ETRUNC:
		return "truncated";
	case FI_ECANCELED:
		return "cancelled";
	case FI_ENOMSG:
		return "nothing";
	default:
		return "other";
	}
}

static void failed(void)
{
	struct fi_cq_err_entry e = { 0 };
	if (fi_cq_readerr(cq, &e, 0) < 0)
		return;
	struct op *op = e.op_context;
	if (!op) {
		printf("trouble err=\"%s\" prov=%d\n", fi_strerror(e.err), e.prov_errno);
		return;
	}
	printf("fail %s %s error=%s", op->id, verb_name[op->verb], error_name(e.err));
	if (op->verb == RECV && op->buf)
		printf(" sum=%016" PRIx64 " guard=%s", sum(op->buf, op->len), guard(op->buf, op->len, op->len));
	printf(" why=\"%s\" prov=%d\n", fi_strerror(e.err), e.prov_errno);
	release(op);
}

static bool progress(void)
{
	struct fi_cq_tagged_entry entries[16];
	fi_addr_t from[16];
	if (!cq)
		return false;
	ssize_t n = fi_cq_readfrom(cq, entries, 16, from);
	if (n == -FI_EAVAIL) {
		failed();
		return true;
	}
	if (n < 0 && n != -FI_EAGAIN)
		printf("trouble err=\"%s\"\n", fi_strerror((int)-n));
	for (ssize_t i = 0; i < n; i++)
		completed(&entries[i], from[i]);
	return n > 0;
}

/* ---- steps ---------------------------------------------------------------------------------------------------- */

static void close_all(void)
{
	if (ep)
		fi_close(&ep->fid);
	for (int i = 0; i < MAX_OPS; i++) {
		if (ops[i].used)
			release(&ops[i]);
	}
	for (int i = 0; i < n_regions; i++) {
		close_mr(regions[i].mr);
		free(regions[i].buf);
	}
	if (cq)
		fi_close(&cq->fid);
	if (av)
		fi_close(&av->fid);
	ep = NULL, cq = NULL, av = NULL;
	n_peers = n_waiting = n_regions = 0;
}

static long open_domain(void)
{
	if (domain)
		return 0;
	struct fi_info *hints = fi_allocinfo();
	hints->fabric_attr->prov_name = strdup("efa");
	hints->ep_attr->type = FI_EP_RDM;
	hints->caps = FI_MSG | FI_TAGGED | FI_RMA | FI_ATOMIC | FI_SOURCE | FI_DIRECTED_RECV | FI_MULTI_RECV;
	hints->mode = FI_CONTEXT | FI_CONTEXT2;
	hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_ALLOCATED | FI_MR_PROV_KEY | FI_MR_VIRT_ADDR;
	hints->domain_attr->resource_mgmt = FI_RM_ENABLED;
	hints->tx_attr->msg_order = hints->rx_attr->msg_order = FI_ORDER_SAS;
	long err = fi_getinfo(FI_VERSION(1, 17), NULL, NULL, 0, hints, &info);
	fi_freeinfo(hints);
	if (!err)
		err = fi_fabric(info->fabric_attr, &fabric, NULL);
	return err ? err : fi_domain(fabric, info, &domain, NULL);
}

static void step_open(void)
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
	    (err = fi_ep_bind(ep, &cq->fid, FI_TRANSMIT | FI_RECV)) ||
	    (err = fi_enable(ep)) || (err = fi_getname(&ep->fid, name, &room))) {
		no_fi("no endpoint", err);
		return;
	}
	printf("ok ");
	for (size_t i = 0; i < 32; i++)
		printf("%02x", name[i]);
	puts("");
}

static void step_peer(void)
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

/* recv ID LEN [tag= ignore=] [from=PEER] [multi]; claim ID LEN receives what the peek of that ID claimed. */
static void step_recv(bool claim)
{
	struct op *op = claim ? find(words[1]) : take(RECV);
	if (!op || (claim && op->verb != PEEK)) {
		no("nothing of that name was claimed");
		return;
	}
	op->verb = RECV;
	op->len = strtoull(words[2], NULL, 0);
	op->buf = guarded(op->len);
	op->mr = reg(op->buf, op->len, FI_RECV | FI_READ | FI_WRITE);
	op->flags = FI_COMPLETION;
	if (claim) {
		op->flags |= FI_CLAIM;
	} else {
		op->tagged = option("tag") != NULL;
		op->tag = number("tag", 0);
		op->ignore = number("ignore", 0);
		op->peer = option("from") ? peers[number("from", 0) % MAX_PEERS] : FI_ADDR_UNSPEC;
		op->multi = option("multi") != NULL;
		if (op->multi)
			op->flags |= FI_MULTI_RECV;
	}
	start(op);
}

/* peek ID tag= [ignore=] [claim] [discard] */
static void step_peek(void)
{
	struct op *op = take(PEEK);
	op->tagged = true;
	op->tag = number("tag", 0);
	op->ignore = number("ignore", 0);
	op->peer = FI_ADDR_UNSPEC;
	op->flags = FI_COMPLETION | FI_PEEK | (option("claim") ? FI_CLAIM : 0) | (option("discard") ? FI_DISCARD : 0);
	start(op);
}

/* The bytes of a seed; values of a type if the step names one. */
static void fill_step(unsigned char *at, size_t len, const char *seed)
{
	if (option("type"))
		fill_values(at, len, number("type", 0), number(seed, 0));
	else
		fill(at, len, number(seed, 0));
}

/* What every operation towards a peer has: [to=PEER] seed= [data=] [inject] [dc]. */
static struct op *outgoing(enum verb verb)
{
	struct op *op = take(verb);
	op->len = strtoull(words[2], NULL, 0);
	op->buf = guarded(op->len);
	fill_step(op->buf, op->len, "seed");
	op->peer = peers[number("to", 0) % MAX_PEERS];
	op->inject = option("inject") != NULL;
	op->has_data = option("data") != NULL;
	op->data = number("data", 0);
	op->flags = FI_COMPLETION | (op->has_data ? FI_REMOTE_CQ_DATA : 0) |
		    (option("dc") ? FI_DELIVERY_COMPLETE : 0);
	if (!op->inject)
		op->mr = reg(op->buf, op->len, FI_SEND | FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE);
	return op;
}

static void step_send(void)
{
	struct op *op = outgoing(SEND);
	op->tagged = option("tag") != NULL;
	op->tag = number("tag", 0);
	start(op);
}

/* write|read ID LEN addr= key= ... */
static void step_rma(enum verb verb)
{
	struct op *op = outgoing(verb);
	op->addr = number("addr", 0);
	op->key = number("key", 0);
	if (verb == READ)
		memset(op->buf, 0, op->len);
	start(op);
}

/* atomic|fetch|compare ID LEN op= type= count= addr= key= [cseed=]; LEN is count times the size of the type. */
static void step_atomic(enum verb verb)
{
	struct op *op = outgoing(verb);
	op->addr = number("addr", 0);
	op->key = number("key", 0);
	op->atomic = (enum fi_op)number("op", 0);
	op->datatype = (enum fi_datatype)number("type", 0);
	op->count = number("count", 1);
	if (verb != ATOMIC) {
		op->result = guarded(op->len);
		op->result_mr = reg(op->result, op->len, FI_READ | FI_WRITE);
	}
	if (verb == COMPARE) {
		op->compare = guarded(op->len);
		fill_step(op->compare, op->len, "cseed");
		op->compare_mr = reg(op->compare, op->len, FI_READ | FI_WRITE);
	}
	start(op);
}

/* mem ID LEN seed=: registers memory for the other end; answers address and key. look ID answers its sum. */
static void step_mem(void)
{
	struct region *r = &regions[n_regions];
	if (n_regions == MAX_REGIONS) {
		no("too many regions");
		return;
	}
	snprintf(r->id, sizeof r->id, "%s", words[1]);
	r->len = strtoull(words[2], NULL, 0);
	r->buf = guarded(r->len);
	fill_step(r->buf, r->len, "seed");
	r->mr = reg(r->buf, r->len, FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE);
	if (!r->mr) {
		free(r->buf);
		no("fi_mr_reg refuses the memory");
		return;
	}
	n_regions++;
	printf("ok %#" PRIx64 " %#" PRIx64 "\n", (uint64_t)(uintptr_t)r->buf, fi_mr_key(r->mr));
}

/* can write|fetch|compare op= type= */
static void step_can(void)
{
	struct fi_atomic_attr attr;
	uint64_t flags = strcmp(words[1], "fetch") == 0 ? FI_FETCH_ATOMIC
			 : strcmp(words[1], "compare") == 0 ? FI_COMPARE_ATOMIC : 0;
	int err = fi_query_atomic(domain, (enum fi_datatype)number("type", 0), (enum fi_op)number("op", 0), &attr, flags);
	if (err)
		no_fi("fi_query_atomic", err);
	else
		printf("ok %zu\n", attr.count);
}

static void step_look(void)
{
	for (int i = 0; i < n_regions; i++) {
		if (strcmp(regions[i].id, words[1]) == 0) {
			printf("ok %016" PRIx64 " %s\n", sum(regions[i].buf, regions[i].len),
			       guard(regions[i].buf, regions[i].len, regions[i].len));
			return;
		}
	}
	no("no such memory");
}

static void step_cancel(void)
{
	struct op *op = find(words[1]);
	if (op && op->posted)
		fi_cancel(&ep->fid, &op->context);
	ok();
}

/* False at the end. */
static bool step(char *line)
{
	n_words = 0;
	for (char *word = strtok(line, " \n"); word && n_words < MAX_WORDS; word = strtok(NULL, " \n"))
		words[n_words++] = word;
	if (n_words == 0)
		return true;
	const char *name = words[0];
	bool bare = n_words < 3;
	if (strcmp(name, "quit") == 0)
		return false;
	if (strcmp(name, "open") == 0)
		step_open();
	else if (strcmp(name, "close") == 0)
		close_all(), ok();
	else if (strcmp(name, "version") == 0)
		printf("ok libfabric %u.%u\n", FI_MAJOR(fi_version()), FI_MINOR(fi_version()));
	else if (strcmp(name, "peer") == 0)
		step_peer();
	else if (strcmp(name, "stall") == 0)
		stalled = true, ok();
	else if (strcmp(name, "go") == 0)
		stalled = false, ok();
	else if (!ep)
		no("open comes first");
	else if (n_words >= 2 && strcmp(name, "look") == 0)
		step_look();
	else if (n_words >= 2 && strcmp(name, "can") == 0)
		step_can();
	else if (n_words >= 2 && strcmp(name, "cancel") == 0)
		step_cancel();
	else if (n_words >= 2 && strcmp(name, "peek") == 0)
		step_peek();
	else if (!bare && strcmp(name, "recv") == 0)
		step_recv(false);
	else if (!bare && strcmp(name, "claim") == 0)
		step_recv(true);
	else if (!bare && strcmp(name, "send") == 0)
		step_send();
	else if (!bare && strcmp(name, "write") == 0)
		step_rma(WRITE);
	else if (!bare && strcmp(name, "read") == 0)
		step_rma(READ);
	else if (!bare && strcmp(name, "atomic") == 0)
		step_atomic(ATOMIC);
	else if (!bare && strcmp(name, "fetch") == 0)
		step_atomic(FETCH);
	else if (!bare && strcmp(name, "compare") == 0)
		step_atomic(COMPARE);
	else if (!bare && strcmp(name, "mem") == 0)
		step_mem();
	else
		no("unknown step, or words are missing");
	return true;
}

/* Takes in whole lines; false at the end of the script. */
static bool read_steps(int patience_ms)
{
	static char text[65536];
	static size_t have;
	struct pollfd in = { .fd = 0, .events = POLLIN };
	if (poll(&in, 1, patience_ms) <= 0)
		return true;
	ssize_t n = read(0, text + have, sizeof text - 1 - have);
	if (n <= 0)
		return n < 0 && errno == EINTR;
	have += (size_t)n;
	text[have] = 0;
	char *line = text, *end;
	while ((end = strchr(line, '\n'))) {
		*end = 0;
		if (!step(line))
			return false;
		line = end + 1;
	}
	have -= (size_t)(line - text);
	memmove(text, line, have);
	return true;
}

int main(void)
{
	unsigned idle = 0;
	setvbuf(stdout, NULL, _IOLBF, 0);
	for (;;) {
		/* A provider that is not asked makes no progress: sleep only when nothing happens, and not for long. */
		if (!read_steps(idle > 64 ? 1 : 0))
			break;
		bool busy = !stalled && (progress() | post_waiting());
		idle = busy ? 0 : idle + 1;
	}
	close_all();
	if (domain)
		fi_close(&domain->fid);
	if (fabric)
		fi_close(&fabric->fid);
	fi_freeinfo(info);
	return 0;
}

/*
 * What the files of the C end share: its state, operations, and the words of a step. The language is in README.md.
 */
#ifndef PEER_H
#define PEER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <rdma/fabric.h>
#include <rdma/fi_atomic.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>
#include <rdma/fi_tagged.h>

enum { MAX_OPS = 4096, MAX_PEERS = 64, MAX_REGIONS = 1024, MAX_PARTS = 4, GUARD = 64, GUARD_BYTE = 0xA5 };

enum verb { SEND, RECV, PEEK, WRITE, READ, ATOMIC, FETCH, COMPARE };

/* Memory with guard bytes behind each of its parts. Part 0 comes last: bytes put one behind the other are misplaced. */
struct buf {
	unsigned char *base;
	struct iovec part[MAX_PARTS];
	size_t parts, len;
	struct fid_mr *mr;
};

/* An operation; the context comes first, so that a completion leads back here. */
struct op {
	struct fi_context2 context;
	char id[16];
	enum verb verb;
	bool used, posted, multi;
	uint64_t flags, tag, ignore, data;
	bool tagged, has_data, inject;
	fi_addr_t peer;
	struct buf buf, result, compare;
	struct fi_rma_iov far[MAX_PARTS];
	size_t n_far;
	size_t count, n_near; /* of an atomic operation: elements, and pieces of ours */
	enum fi_datatype datatype;
	enum fi_op atomic;
};

/* fabric.c: the provider's objects. */
extern struct fid_domain *domain;
extern struct fid_cq *cq;
extern struct fid_av *av;
extern struct fid_ep *ep;
extern fi_addr_t peers[MAX_PEERS];
extern int n_peers;
void step_open(void);
void step_peer(void);
void close_endpoint(void);
void close_fabric(void);

/* lines.c: the step that is being carried out, and answers to it. */
extern char *words[];
extern int n_words;
void split(char *line);
const char *option(const char *name);
uint64_t number(const char *name, uint64_t otherwise);
size_t length(void);
void ok(void);
void no(const char *why);
void no_fi(const char *call, long err);

/* bytes.c: what buffers hold, and what is said of it. */
void fill_values(unsigned char *at, size_t len, uint64_t type, uint64_t seed);
uint64_t sum(const unsigned char *at, size_t len);
void make(struct buf *buf, size_t len, size_t parts);
void unmake(struct buf *buf);
void fill(struct buf *buf, uint64_t seed);
void wipe(struct buf *buf);
uint64_t sum_of(const struct buf *buf, size_t used);
const char *guard(const struct buf *buf, size_t used);

/* ops.c: operations between their step and their completion. */
extern const char *const verb_name[];
extern struct op ops[MAX_OPS];
struct op *find(const char *id);
struct op *take(enum verb verb);
void release(struct op *op);
void reg(struct buf *buf, uint64_t access);
void start(struct op *op);
bool post_waiting(void);
void drop_ops(void);

/* ends.c: completions. */
bool progress(void);

/* memory.c: memory that the other end may write, read and change. */
void step_mem(void);
void step_look(void);
void step_forget(void);
void drop_regions(void);

/* steps.c: false at the end of the script. */
extern bool stalled;
bool step(char *line);

#endif

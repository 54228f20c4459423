/*
 * Operations: kept by name from their step to their completion, and posted in order as the provider has room. Never
 * waits: what has no room is tried again in every round of `main`.
 */
#include "peer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *const verb_name[] = {
	[SEND] = "send", [RECV] = "recv", [PEEK] = "peek", [WRITE] = "write",
	[READ] = "read", [ATOMIC] = "atomic", [FETCH] = "fetch", [COMPARE] = "compare",
};

struct op ops[MAX_OPS];
static struct op *waiting[MAX_OPS]; /* not yet posted, in order */
static int n_waiting;
static uint64_t next_key = 1;

struct op *find(const char *id)
{
	for (int i = 0; i < MAX_OPS; i++) {
		if (ops[i].used && strcmp(ops[i].id, id) == 0)
			return &ops[i];
	}
	return NULL;
}

/* A new one, with the name that the step gives it. */
struct op *take(enum verb verb)
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

void release(struct op *op)
{
	unmake(&op->buf);
	unmake(&op->result);
	unmake(&op->compare);
	op->used = false;
}

void drop_ops(void)
{
	for (int i = 0; i < MAX_OPS; i++) {
		if (ops[i].used)
			release(&ops[i]);
	}
	n_waiting = 0;
}

/* Without a registration a buffer has no descriptor, which the provider makes up for where it can. */
void reg(struct buf *buf, uint64_t access)
{
	size_t len = buf->len + buf->parts * GUARD;
	int err = fi_mr_reg(domain, buf->base, len, access, 0, next_key++, 0, &buf->mr, NULL);
	if (err) {
		buf->mr = NULL;
		fprintf(stderr, "peer: fi_mr_reg: %s\n", fi_strerror(-err));
	}
}

/* A descriptor for each part. */
struct descs {
	void *of[MAX_PARTS];
};

static struct descs descs(const struct buf *buf)
{
	struct descs all;
	for (size_t k = 0; k < MAX_PARTS; k++)
		all.of[k] = buf->mr ? fi_mr_desc(buf->mr) : NULL;
	return all;
}

static ssize_t post_recv(struct op *op)
{
	struct descs d = descs(&op->buf);
	if (op->tagged) {
		struct fi_msg_tagged msg = { .msg_iov = op->buf.part, .desc = d.of, .iov_count = op->buf.parts,
					     .addr = op->peer, .tag = op->tag, .ignore = op->ignore,
					     .context = &op->context };
		return fi_trecvmsg(ep, &msg, op->flags);
	}
	struct fi_msg msg = { .msg_iov = op->buf.part, .desc = d.of, .iov_count = op->buf.parts, .addr = op->peer,
			      .context = &op->context };
	return fi_recvmsg(ep, &msg, op->flags);
}

static ssize_t inject(struct op *op)
{
	const void *at = op->buf.part[0].iov_base;
	size_t len = op->buf.len;
	if (op->verb == WRITE)
		return op->has_data
			       ? fi_inject_writedata(ep, at, len, op->data, op->peer, op->far[0].addr, op->far[0].key)
			       : fi_inject_write(ep, at, len, op->peer, op->far[0].addr, op->far[0].key);
	if (op->tagged)
		return op->has_data ? fi_tinjectdata(ep, at, len, op->data, op->peer, op->tag)
				    : fi_tinject(ep, at, len, op->peer, op->tag);
	return op->has_data ? fi_injectdata(ep, at, len, op->data, op->peer) : fi_inject(ep, at, len, op->peer);
}

static ssize_t post_send(struct op *op)
{
	struct descs d = descs(&op->buf);
	if (op->tagged) {
		struct fi_msg_tagged msg = { .msg_iov = op->buf.part, .desc = d.of, .iov_count = op->buf.parts,
					     .addr = op->peer, .tag = op->tag, .context = &op->context,
					     .data = op->data };
		return fi_tsendmsg(ep, &msg, op->flags);
	}
	struct fi_msg msg = { .msg_iov = op->buf.part, .desc = d.of, .iov_count = op->buf.parts, .addr = op->peer,
			      .context = &op->context, .data = op->data };
	return fi_sendmsg(ep, &msg, op->flags);
}

static ssize_t post_rma(struct op *op)
{
	struct descs d = descs(&op->buf);
	struct fi_msg_rma msg = { .msg_iov = op->buf.part, .desc = d.of, .iov_count = op->buf.parts,
				  .addr = op->peer, .rma_iov = op->far, .rma_iov_count = op->n_far,
				  .context = &op->context, .data = op->data };
	return op->verb == READ ? fi_readmsg(ep, &msg, op->flags) : fi_writemsg(ep, &msg, op->flags);
}

/* The elements at `base` in as many pieces as the operation has: one element each, and the rest in the last. */
static void cut(const struct op *op, unsigned char *base, struct fi_ioc *all)
{
	size_t each = op->buf.len / op->count, done = 0;
	for (size_t k = 0; k < op->n_near; k++) {
		size_t n = k + 1 == op->n_near ? op->count - done : 1;
		all[k] = (struct fi_ioc){ .addr = base + done * each, .count = n };
		done += n;
	}
}

static ssize_t post_atomic(struct op *op)
{
	struct fi_ioc ioc[MAX_PARTS], result[MAX_PARTS], compare[MAX_PARTS];
	struct fi_rma_ioc rma[MAX_PARTS];
	size_t n = op->n_near;
	cut(op, op->buf.base, ioc);
	cut(op, op->result.base, result);
	cut(op, op->compare.base, compare);
	for (size_t k = 0; k < op->n_far; k++)
		rma[k] = (struct fi_rma_ioc){ .addr = op->far[k].addr, .key = op->far[k].key,
					      .count = op->far[k].len / (op->buf.len / op->count) };
	struct descs d = descs(&op->buf), rd = descs(&op->result), cd = descs(&op->compare);
	struct fi_msg_atomic msg = { .msg_iov = ioc, .desc = d.of, .iov_count = n, .addr = op->peer, .rma_iov = rma,
				     .rma_iov_count = op->n_far, .datatype = op->datatype, .op = op->atomic,
				     .context = &op->context };
	switch (op->verb) {
	case FETCH:
		return fi_fetch_atomicmsg(ep, &msg, result, rd.of, n, op->flags);
	case COMPARE:
		return fi_compare_atomicmsg(ep, &msg, compare, cd.of, n, result, rd.of, n, op->flags);
	default:
		return fi_atomicmsg(ep, &msg, op->flags);
	}
}

static ssize_t post(struct op *op)
{
	if (op->inject)
		return inject(op);
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
bool post_waiting(void)
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

void start(struct op *op)
{
	waiting[n_waiting++] = op;
	ok();
	post_waiting();
}

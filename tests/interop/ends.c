/*
 * Completions: a line for each. Never decides whether one is right.
 */
#include "peer.h"

#include <inttypes.h>
#include <stdio.h>

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

static void print_bytes(const struct buf *buf, size_t used)
{
	printf(" sum=%016" PRIx64 " guard=%s", sum_of(buf, used), guard(buf, used));
}

static void received(const struct op *op, const struct fi_cq_tagged_entry *e, fi_addr_t from)
{
	if (!(e->flags & FI_MULTI_RECV) || e->len) {
		printf(" len=%zu tag=%#" PRIx64, e->len, op->tagged ? e->tag : 0);
		if (e->flags & FI_REMOTE_CQ_DATA)
			printf(" data=%#" PRIx64, e->data);
		else
			printf(" unflagged=%#" PRIx64, e->data);
		print_source(from);
	}
	if (op->multi)
		printf(" sum=%016" PRIx64 " guard=%s", sum(e->buf, e->len), guard(&op->buf, op->buf.len));
	else if (op->verb == RECV)
		print_bytes(&op->buf, e->len);
	if (e->flags & FI_MULTI_RECV)
		printf(" retired");
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
		received(op, e, from);
		break;
	case READ:
		print_bytes(&op->buf, op->buf.len);
		break;
	case FETCH:
	case COMPARE:
		print_bytes(&op->result, op->result.len);
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
	if (op->verb == RECV)
		print_bytes(&op->buf, op->buf.len);
	printf(" why=\"%s\" prov=%d\n", fi_strerror(e.err), e.prov_errno);
	release(op);
}

/* Whether anything happened. */
bool progress(void)
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

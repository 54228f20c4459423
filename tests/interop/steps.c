/*
 * What each step does: it makes operations out of words. Called by `main` for every line.
 */
#include "peer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool stalled;

static size_t parts(void)
{
	size_t n = number("parts", 1);
	return n >= 1 && n <= MAX_PARTS ? n : 1;
}

/* recv ID LEN [tag= ignore=] [from=PEER] [multi] [parts=]; claim ID LEN receives what the peek of that ID claimed. */
static void receive(struct op *op)
{
	op->verb = RECV;
	make(&op->buf, length(), parts());
	reg(&op->buf, FI_RECV | FI_READ | FI_WRITE);
	start(op);
}

static void step_recv(void)
{
	struct op *op = take(RECV);
	op->tagged = option("tag") != NULL;
	op->tag = number("tag", 0);
	op->ignore = number("ignore", 0);
	op->peer = option("from") ? peers[number("from", 0) % MAX_PEERS] : FI_ADDR_UNSPEC;
	op->multi = option("multi") != NULL;
	op->flags = FI_COMPLETION | (op->multi ? FI_MULTI_RECV : 0);
	receive(op);
}

static void step_claim(void)
{
	struct op *op = find(words[1]);
	if (!op || op->verb != PEEK) {
		no("nothing of that name was claimed");
		return;
	}
	op->flags = FI_COMPLETION | FI_CLAIM;
	receive(op);
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

/* What every operation towards a peer has: [to=PEER] seed= [data=] [inject] [dc] [parts=]. */
static struct op *outgoing(enum verb verb)
{
	struct op *op = take(verb);
	make(&op->buf, length(), parts());
	fill(&op->buf, number("seed", 0));
	op->peer = peers[number("to", 0) % MAX_PEERS];
	op->inject = option("inject") != NULL;
	op->has_data = option("data") != NULL;
	op->data = number("data", 0);
	op->flags = FI_COMPLETION | (op->has_data ? FI_REMOTE_CQ_DATA : 0) |
		    (option("dc") ? FI_DELIVERY_COMPLETE : 0);
	if (!op->inject)
		reg(&op->buf, FI_SEND | FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE);
	return op;
}

static void step_send(void)
{
	struct op *op = outgoing(SEND);
	op->tagged = option("tag") != NULL;
	op->tag = number("tag", 0);
	start(op);
}

/* The peer's memory: addr= key=, or far=ADDR:LEN:KEY,... of up to four pieces. */
static void set_far(struct op *op)
{
	const char *text = option("far");
	if (!text) {
		op->far[0] = (struct fi_rma_iov){ .addr = number("addr", 0), .len = op->buf.len, .key = number("key", 0) };
		op->n_far = 1;
		return;
	}
	while (*text && op->n_far < MAX_PARTS) {
		char *end = (char *)text;
		uint64_t of[3] = { 0 };
		for (int k = 0; k < 3; k++) {
			of[k] = strtoull(end, &end, 0);
			end += *end == ':' || *end == ',';
		}
		op->far[op->n_far++] = (struct fi_rma_iov){ .addr = of[0], .len = of[1], .key = of[2] };
		text = end;
	}
}

/* write|read ID LEN addr= key= ... */
static void step_write(void)
{
	struct op *op = outgoing(WRITE);
	set_far(op);
	start(op);
}

static void step_read(void)
{
	struct op *op = outgoing(READ);
	set_far(op);
	wipe(&op->buf);
	start(op);
}

/* atomic|fetch|compare ID LEN op= type= count= addr= key= [cseed=] [near=]; LEN is count times the size of the type. Instead
 * of addr= and key= far=; near= is the number of pieces of ours. */
static void compute(enum verb verb)
{
	struct op *op = outgoing(verb);
	set_far(op);
	op->count = number("count", 1);
	op->n_near = number("near", 1);
	if (op->count == 0 || op->n_near == 0 || op->n_near > MAX_PARTS || op->n_near > op->count) {
		release(op);
		no("an atomic operation has elements, and up to four pieces");
		return;
	}
	op->atomic = (enum fi_op)number("op", 0);
	op->datatype = (enum fi_datatype)number("type", 0);
	if (verb != ATOMIC) {
		make(&op->result, op->buf.len, 1);
		reg(&op->result, FI_READ | FI_WRITE);
	}
	if (verb == COMPARE) {
		make(&op->compare, op->buf.len, 1);
		fill(&op->compare, number("cseed", 0));
		reg(&op->compare, FI_READ | FI_WRITE);
	}
	start(op);
}

static void step_atomic(void) { compute(ATOMIC); }
static void step_fetch(void) { compute(FETCH); }
static void step_compare(void) { compute(COMPARE); }

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

static void step_cancel(void)
{
	struct op *op = find(words[1]);
	if (op && op->posted)
		fi_cancel(&ep->fid, &op->context);
	ok();
}

static void step_close(void) { close_endpoint(), ok(); }
static void step_stall(void) { stalled = true, ok(); }
static void step_go(void) { stalled = false, ok(); }

static void step_version(void)
{
	printf("ok libfabric %u.%u\n", FI_MAJOR(fi_version()), FI_MINOR(fi_version()));
}

static const struct {
	const char *name;
	int words; /* at least */
	bool needs_ep;
	void (*play)(void);
} all[] = {
	{ "open", 1, false, step_open },     { "close", 1, false, step_close },   { "version", 1, false, step_version },
	{ "peer", 1, false, step_peer },     { "stall", 1, false, step_stall },   { "go", 1, false, step_go },
	{ "mem", 3, true, step_mem },        { "look", 2, true, step_look },      { "can", 2, true, step_can },
	{ "forget", 2, true, step_forget },
	{ "cancel", 2, true, step_cancel },  { "peek", 2, true, step_peek },      { "recv", 3, true, step_recv },
	{ "claim", 3, true, step_claim },    { "send", 3, true, step_send },      { "write", 3, true, step_write },
	{ "read", 3, true, step_read },      { "atomic", 3, true, step_atomic },  { "fetch", 3, true, step_fetch },
	{ "compare", 3, true, step_compare },
};

bool step(char *line)
{
	split(line);
	if (n_words == 0)
		return true;
	if (strcmp(words[0], "quit") == 0)
		return false;
	for (size_t k = 0; k < sizeof all / sizeof *all; k++) {
		if (strcmp(words[0], all[k].name) != 0)
			continue;
		if (n_words < all[k].words)
			no("words are missing");
		else if (all[k].needs_ep && !ep)
			no("open comes first");
		else
			all[k].play();
		return true;
	}
	no("unknown step");
	return true;
}

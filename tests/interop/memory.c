/*
 * Memory that the other end may write, read and change, by name.
 */
#include "peer.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

struct region {
	char id[16];
	struct buf buf;
};

static struct region regions[MAX_REGIONS];
static int n_regions;

void drop_regions(void)
{
	for (int i = 0; i < n_regions; i++)
		unmake(&regions[i].buf);
	n_regions = 0;
}

/* mem ID LEN seed= [type=]: answers address and key. */
void step_mem(void)
{
	struct region *r = &regions[n_regions];
	if (n_regions == MAX_REGIONS) {
		no("too many regions");
		return;
	}
	snprintf(r->id, sizeof r->id, "%s", words[1]);
	make(&r->buf, length(), 1);
	fill(&r->buf, number("seed", 0));
	reg(&r->buf, FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE);
	if (!r->buf.mr) {
		unmake(&r->buf);
		no("fi_mr_reg refuses the memory");
		return;
	}
	n_regions++;
	printf("ok %#" PRIx64 " %#" PRIx64 "\n", (uint64_t)(uintptr_t)r->buf.base, fi_mr_key(r->buf.mr));
}

static struct region *find_region(void)
{
	for (int i = 0; i < n_regions; i++) {
		if (strcmp(regions[i].id, words[1]) == 0)
			return &regions[i];
	}
	no("no such memory");
	return NULL;
}

/* look ID: answers the sum of its bytes, and whether those behind it are as they were. */
void step_look(void)
{
	const struct region *r = find_region();
	if (r)
		printf("ok %016" PRIx64 " %s\n", sum_of(&r->buf, r->buf.len), guard(&r->buf, r->buf.len));
}

/* forget ID: nobody may reach it any more. */
void step_forget(void)
{
	struct region *r = find_region();
	if (!r)
		return;
	unmake(&r->buf);
	*r = regions[--n_regions];
	ok();
}

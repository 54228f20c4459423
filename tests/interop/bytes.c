/*
 * The bytes both ends agree on, buffers that hold them, and the sums that are printed instead of them. The same patterns
 * are in tests/src/interop/lang.rs.
 */
#include "peer.h"

#include <stdlib.h>
#include <string.h>

static uint64_t mix(uint64_t x)
{
	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
	x = (x ^ x >> 27) * 0x94d049bb133111eb;
	return x ^ x >> 31;
}

/* Byte i of the pattern of a seed. */
static unsigned char pattern(uint64_t seed, size_t i)
{
	return (unsigned char)(mix(seed * 0x9e3779b97f4a7c15 + (i >> 3)) >> (8 * (i & 7)));
}

static const size_t type_size[] = {
	[FI_INT8] = 1, [FI_UINT8] = 1, [FI_INT16] = 2, [FI_UINT16] = 2, [FI_INT32] = 4, [FI_UINT32] = 4,
	[FI_INT64] = 8, [FI_UINT64] = 8, [FI_FLOAT] = 4, [FI_DOUBLE] = 8, [FI_FLOAT_COMPLEX] = 8,
	[FI_DOUBLE_COMPLEX] = 16, [FI_LONG_DOUBLE] = 16, [FI_LONG_DOUBLE_COMPLEX] = 32,
};

/* Elements of a type with small whole values: arithmetic on them is exact. */
void fill_values(unsigned char *at, size_t len, uint64_t type, uint64_t seed)
{
	if (type > FI_LONG_DOUBLE_COMPLEX)
		return;
	for (size_t k = 0; k < len / type_size[type]; k++) {
		uint64_t v = mix(seed * 0x9e3779b97f4a7c15 + k) % 9;
		float f[2] = { (float)v, (float)(v % 4) };
		double d[2] = { (double)v, (double)(v % 4) };
		/* Bytes that mean nothing are zero. */
		long double l[2];
		memset(l, 0, sizeof l);
		l[0] = v;
		l[1] = v % 4;
		const void *from = type == FI_FLOAT || type == FI_FLOAT_COMPLEX ? (void *)f
				   : type == FI_DOUBLE || type == FI_DOUBLE_COMPLEX ? (void *)d
				   : type == FI_LONG_DOUBLE || type == FI_LONG_DOUBLE_COMPLEX ? (void *)l : (void *)&v;
		memcpy(at + k * type_size[type], from, type_size[type]);
	}
}

static uint64_t sum_on(uint64_t h, const unsigned char *at, size_t len)
{
	for (size_t i = 0; i < len; i++)
		h = (h ^ at[i]) * 0x100000001b3;
	return h;
}

/* FNV-1a. */
uint64_t sum(const unsigned char *at, size_t len) { return sum_on(0xcbf29ce484222325, at, len); }

/* Parts differ in length, where there are bytes enough. */
void make(struct buf *buf, size_t len, size_t parts)
{
	size_t room = len + parts * GUARD, left = len;
	buf->base = malloc(room);
	if (!buf->base)
		abort();
	memset(buf->base, GUARD_BYTE, room);
	buf->parts = parts;
	buf->len = len;
	unsigned char *at = buf->base + room;
	for (size_t k = 0; k < parts; k++) {
		size_t some = k + 1 == parts ? left : len * (k + 1) / 10;
		at -= some + GUARD;
		buf->part[k] = (struct iovec){ .iov_base = at, .iov_len = some };
		left -= some;
	}
}

void unmake(struct buf *buf)
{
	if (buf->mr)
		fi_close(&buf->mr->fid);
	free(buf->base);
	memset(buf, 0, sizeof *buf);
}

/* The bytes of a seed; values of a type if the step names one. */
void fill(struct buf *buf, uint64_t seed)
{
	if (option("type")) {
		fill_values(buf->part[0].iov_base, buf->len, number("type", 0), seed);
		return;
	}
	size_t i = 0;
	for (size_t k = 0; k < buf->parts; k++) {
		unsigned char *at = buf->part[k].iov_base;
		for (size_t n = 0; n < buf->part[k].iov_len; n++)
			at[n] = pattern(seed, i++);
	}
}

void wipe(struct buf *buf)
{
	for (size_t k = 0; k < buf->parts; k++)
		memset(buf->part[k].iov_base, GUARD_BYTE, buf->part[k].iov_len);
}

/* Of the first `used` bytes. */
uint64_t sum_of(const struct buf *buf, size_t used)
{
	uint64_t h = sum(NULL, 0);
	for (size_t k = 0; k < buf->parts; k++) {
		size_t n = used < buf->part[k].iov_len ? used : buf->part[k].iov_len;
		h = sum_on(h, buf->part[k].iov_base, n);
		used -= n;
	}
	return h;
}

/* Whether what lies behind the first `used` bytes, and behind each part, is as it was. */
const char *guard(const struct buf *buf, size_t used)
{
	for (size_t k = 0; k < buf->parts; k++) {
		const unsigned char *at = buf->part[k].iov_base;
		size_t n = used < buf->part[k].iov_len ? used : buf->part[k].iov_len;
		for (size_t i = n; i < buf->part[k].iov_len + GUARD; i++) {
			if (at[i] != GUARD_BYTE)
				return "broken";
		}
		used -= n;
	}
	return "ok";
}

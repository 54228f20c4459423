/*
 * What C makes of atomic operations on long double and its complex type, as libfabric's provider writes them down: a line
 * for each, "op type old operand compare new" with values as bytes in hexadecimal. tests/tests/long_double.rs compares.
 */
#include <complex.h>
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { MIN, MAX, SUM, PROD, LOR, LAND, LXOR = 8, READ = 10, WRITE, CSWAP, NE, LE, LT, GE, GT, REAL = 12, COMPLEX };

/* The bytes that mean something: ten of each sixteen. */
static void show(const void *at, size_t len)
{
	const unsigned char *bytes = at;
	putchar(' ');
	for (size_t i = 0; i < len; i++)
		printf("%02x", i % 16 < 10 ? bytes[i] : 0);
}

static void line(int op, int type, const void *old, const void *with, const void *than, const void *new, size_t len)
{
	printf("%d %d", op, type);
	show(old, len);
	show(with, len);
	show(than, len);
	show(new, len);
	putchar('\n');
}

static long double real(int op, long double old, long double with, long double than)
{
	switch (op) {
	case MIN: return old > with ? with : old;
	case MAX: return old < with ? with : old;
	case SUM: return old + with;
	case PROD: return old * with;
	case LOR: return old || with;
	case LAND: return old && with;
	case LXOR: return (old && !with) || (!old && with);
	case WRITE: return with;
	case CSWAP: return than == old ? with : old;
	case NE: return than != old ? with : old;
	case LE: return than <= old ? with : old;
	case LT: return than < old ? with : old;
	case GE: return than >= old ? with : old;
	case GT: return than > old ? with : old;
	default: return old;
	}
}

static long double complex pair(int op, long double complex old, long double complex with, long double complex than)
{
	switch (op) {
	case SUM: return old + with;
	case PROD: return old * with;
	case LOR: return old || with;
	case LAND: return old && with;
	case LXOR: return (old && !with) || (!old && with);
	case WRITE: return with;
	case CSWAP: return than == old ? with : old;
	case NE: return than != old ? with : old;
	default: return old;
	}
}

int main(void)
{
	static const int ops[] = { MIN, MAX, SUM, PROD, LOR, LAND, LXOR, READ, WRITE, CSWAP, NE, LE, LT, GE, GT };
	const long double all[] = { 0, -0.0L, 1, -2.5L, 0.1L, 1e-18L, 3e18L, 1e4000L, -1e-4000L, LDBL_MAX, -LDBL_MIN,
				    0x1p-16445L, 0x1.8p-16440L, INFINITY, -INFINITY, NAN };
	const long double some[] = { 0, 1, -2.5L, 0.1L, 1e2000L, -1e-2000L };
	size_t n = sizeof all / sizeof *all, m = sizeof some / sizeof *some;
	for (size_t o = 0; o < sizeof ops / sizeof *ops; o++) {
		for (size_t k = 0; k < n * n; k++) {
			long double old = all[k / n], with = all[k % n], than = all[(k / n + k % 3) % n];
			long double new = real(ops[o], old, with, than);
			line(ops[o], REAL, &old, &with, &than, &new, sizeof new);
		}
		if (ops[o] == MIN || ops[o] == MAX || ops[o] >= LE)
			continue;
		for (size_t k = 0; k < m * m * m; k++) {
			long double complex old = CMPLXL(some[k % m], some[k / m % m]);
			long double complex with = CMPLXL(some[k / m / m], some[(k + 1) % m]);
			long double complex than = k % 2 ? old : CMPLXL(some[k % m], some[(k / m + 1) % m]);
			long double complex new = pair(ops[o], old, with, than);
			line(ops[o], COMPLEX, &old, &with, &than, &new, sizeof new);
		}
	}
	return 0;
}

/* An OpenSHMEM program for ucp/abi/tests/mpi.rs: puts, gets, atomics, waits, locks and collectives, with checked results. Its arguments
 * name the tests; without any all are run. */
#include <shmem.h>
#include "loaded_library.h"
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(condition) \
    do { \
        if (!(condition)) { \
            fprintf(stderr, "%s:%d: pe %d: %s\n", __FILE__, __LINE__, me, #condition); \
            shmem_global_exit(3); \
        } \
    } while (0)

#define WORDS 100000

static int me, all, next, before;
static long sync_words[SHMEM_REDUCE_SYNC_SIZE + SHMEM_BCAST_SYNC_SIZE + SHMEM_COLLECT_SYNC_SIZE];
static long work[SHMEM_REDUCE_MIN_WRKDATA_SIZE + 64];
static long turn_lock, counter, flag_word;

static void copies(void)
{
    static const int counts[] = {1, 10, 1000, 9000, WORDS};
    int64_t *target = shmem_malloc(WORDS * sizeof(*target)), *local = malloc(WORDS * sizeof(*local));
    unsigned at;
    int i, round;

    for (at = 0; at < sizeof(counts) / sizeof(counts[0]); at++) {
        for (round = 0; round < 3; round++) {
            for (i = 0; i < counts[at]; i++) {
                local[i] = me * 1000000 + i + round;
            }
            shmem_barrier_all();
            if (round == 1) {
                shmem_put64_nbi(target, local, counts[at], next);
            } else {
                shmem_put64(target, local, counts[at], next);
            }
            shmem_barrier_all();
            for (i = 0; i < counts[at]; i++) {
                CHECK(target[i] == before * 1000000 + i + round);
            }
            memset(local, 0, counts[at] * sizeof(*local));
            shmem_get64(local, target, counts[at], next);
            for (i = 0; i < counts[at]; i++) {
                CHECK(local[i] == me * 1000000 + i + round);
            }
        }
    }
    shmem_barrier_all();
    shmem_long_p(&flag_word, 7 + me, next);
    shmem_long_wait_until(&flag_word, SHMEM_CMP_EQ, 7 + before);
    CHECK(shmem_long_g(&flag_word, me) == 7 + before);
    shmem_free(target);
    free(local);
}

static void atomics(void)
{
    long seen, last = -1;
    int i;

    for (i = 0; i < 100; i++) {
        seen = shmem_long_atomic_fetch_add(&counter, 1, 0);
        CHECK(seen > last && seen < 200 * all);
        last = seen;
        shmem_long_atomic_inc(&counter, 0);
    }
    shmem_barrier_all();
    CHECK(shmem_long_atomic_fetch(&counter, 0) == 200 * all);
    shmem_barrier_all();
    if (me == 0) {
        CHECK(shmem_long_atomic_swap(&counter, 5, all - 1) == (all == 1 ? 200 : 0));
        CHECK(shmem_long_atomic_compare_swap(&counter, 4, 9, all - 1) == 5);
        CHECK(shmem_long_atomic_compare_swap(&counter, 5, 9, all - 1) == 5);
        CHECK(shmem_long_atomic_fetch(&counter, all - 1) == 9);
    }
    flag_word = 0;
    shmem_barrier_all();
    for (i = 0; i < 20; i++) {
        shmem_set_lock(&turn_lock);
        shmem_long_p(&flag_word, shmem_long_g(&flag_word, 0) + 1, 0);
        shmem_quiet();
        shmem_clear_lock(&turn_lock);
    }
    shmem_barrier_all();
    CHECK(shmem_long_g(&flag_word, 0) == 20 * all);
}

/* Words of the program's data, and of the heap. Those of the heap are wrong on x86-64 with UCX 1.13.1 and shared memory. */
static void bits(void)
{
    static unsigned long in_data;
    unsigned long *words[] = {&in_data, shmem_malloc(sizeof(long))};
    int i;

    for (i = 0; i < 2; i++) {
        shmem_ulong_atomic_set(words[i], 0xf0, next);
        shmem_barrier_all();
        CHECK(shmem_ulong_atomic_fetch_and(words[i], 0x3c, next) == 0xf0);
        CHECK(shmem_ulong_atomic_fetch_or(words[i], 0x03, next) == 0x30);
        CHECK(shmem_ulong_atomic_fetch_xor(words[i], 0xff, next) == 0x33);
        CHECK(shmem_ulong_atomic_fetch(words[i], next) == 0xcc);
        shmem_barrier_all();
    }
    shmem_free(words[1]);
}

static void collectives(void)
{
    enum { COUNT = 500 };
    long *out = shmem_malloc(COUNT * sizeof(long)), *in = shmem_malloc(COUNT * all * sizeof(long));
    unsigned i;

    for (i = 0; i < sizeof(sync_words) / sizeof(sync_words[0]); i++) {
        sync_words[i] = SHMEM_SYNC_VALUE;
    }
    for (i = 0; i < COUNT; i++) {
        out[i] = me * 1000 + i;
        in[i]  = -1;
    }
    shmem_barrier_all();
    shmem_broadcast64(in, out, COUNT, 0, 0, 0, all, sync_words);
    for (i = 0; me != 0 && i < COUNT; i++) {
        CHECK(in[i] == (long)i);
    }
    shmem_barrier_all();
    shmem_long_sum_to_all(in, out, 20, 0, 0, all, work, sync_words + SHMEM_BCAST_SYNC_SIZE);
    for (i = 0; i < 20; i++) {
        CHECK(in[i] == (long)i * all + 1000L * all * (all - 1) / 2);
    }
    shmem_barrier_all();
    shmem_fcollect64(in, out, COUNT, 0, 0, all, sync_words + SHMEM_BCAST_SYNC_SIZE + SHMEM_REDUCE_SYNC_SIZE);
    for (i = 0; i < COUNT * (unsigned)all; i++) {
        CHECK(in[i] == (long)(i / COUNT * 1000 + i % COUNT));
    }
    shmem_free(out);
    shmem_free(in);
}

/* Nothing but shmem_finalize, in which Debian's OpenSHMEM crashes with UCX 1.13.1 unless the job has `--mca osc ucx`. */
static void end(void)
{
}

static const struct {
    const char *name;
    void (*run)(void);
} tests[] = {
    {"copies", copies},
    {"atomics", atomics},
    {"bits", bits},
    {"collectives", collectives},
    {"end", end},
};

int main(int argc, char **argv)
{
    unsigned at, passed = 0;
    int pe, i;

    shmem_init();
    me     = shmem_my_pe();
    all    = shmem_n_pes();
    next   = (me + 1) % all;
    before = (me + all - 1) % all;
    CHECK(is_expected_library());
    for (at = 0; at < sizeof(tests) / sizeof(tests[0]); at++) {
        int wanted = argc == 1;
        for (i = 1; i < argc; i++) {
            wanted |= strcmp(argv[i], tests[at].name) == 0;
        }
        if (wanted) {
            tests[at].run();
            shmem_barrier_all();
            passed++;
        }
    }
    pe = me;
    shmem_finalize();
    if (pe == 0) {
        printf("all is well: %u tests on %d processes\n", passed, all);
    }
    return 0;
}

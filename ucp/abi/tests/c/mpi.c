/* An MPI program for ucp/abi/tests/mpi.rs, run on this library under MPI libraries that were built for UCX. Its arguments name the
 * tests; without any all are run. Results are checked. Rank 0 prints a line for each test that has passed on all ranks, with a number that stands
 * for the bytes that all have received: it is the same in all runs on as many ranks. */
#include <mpi.h>
#include <pthread.h>
#include "loaded_library.h"
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(condition) \
    do { \
        if (!(condition)) { \
            fprintf(stderr, "%s:%d: rank %d: %s\n", __FILE__, __LINE__, rank, #condition); \
            MPI_Abort(MPI_COMM_WORLD, 3); \
        } \
    } while (0)

#define WORLD MPI_COMM_WORLD
#define LONGEST (1 << 20)
#define THREADS 4

static int rank, size, next, before;
static uint64_t received_sum;

/* Takes received bytes into the number of the test. Their order does not matter: threads call this, too. */
static void note(const void *bytes, size_t length)
{
    uint64_t hash = 14695981039346656037u;
    size_t i;
    for (i = 0; i < length; i++) {
        hash = (hash ^ ((const unsigned char*)bytes)[i]) * 1099511628211u;
    }
    __atomic_add_fetch(&received_sum, hash, __ATOMIC_RELAXED);
}

static void loaded_library(void)
{
    CHECK(is_expected_library());
}

static unsigned char pattern(int from, int tag, int at)
{
    return (unsigned char)(from * 31 + tag * 7 + at + at / 251);
}

static void fill(unsigned char *at, int length, int tag)
{
    int i;
    for (i = 0; i < length; i++) {
        at[i] = pattern(rank, tag, i);
    }
}

static void check(const unsigned char *at, int length, int from, int tag)
{
    int i;
    for (i = 0; i < length; i++) {
        CHECK(at[i] == pattern(from, tag, i));
    }
    note(at, length);
}

/* Sixteen messages of each length to the next rank, received in the opposite order. */
static void lengths(void)
{
    static const int all[] = {0, 1, 8, 100, 4096, 9000, 65536, 300000, LONGEST};
    enum { COUNT = 16 };
    MPI_Request requests[2 * COUNT];
    MPI_Status statuses[2 * COUNT];
    unsigned i;
    int tag, received;

    for (i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
        int length         = all[i];
        unsigned char *out = malloc((size_t)COUNT * length + 1), *in = malloc((size_t)COUNT * length + 1);
        for (tag = 0; tag < COUNT; tag++) {
            fill(out + tag * length, length, tag);
            MPI_Isend(out + tag * length, length, MPI_BYTE, next, tag, WORLD, &requests[tag]);
        }
        for (tag = COUNT - 1; tag >= 0; tag--) {
            MPI_Irecv(in + tag * length, length, MPI_BYTE, before, tag, WORLD, &requests[COUNT + tag]);
        }
        MPI_Waitall(2 * COUNT, requests, statuses);
        for (tag = 0; tag < COUNT; tag++) {
            check(in + tag * length, length, before, tag);
            MPI_Get_count(&statuses[COUNT + tag], MPI_BYTE, &received);
            CHECK(received == length && statuses[COUNT + tag].MPI_SOURCE == before);
        }
        free(out);
        free(in);
    }
}

/* Synchronous, buffered and ready sends, wildcards, probes, matched probes, cancel and truncation. */
static void forms(void)
{
    unsigned char out[1000], in[1000];
    MPI_Request request, sends[3];
    MPI_Message message;
    MPI_Status status;
    int flag, count, i, room = 1000 + MPI_BSEND_OVERHEAD;
    void *buffer = malloc(room);

    fill(out, 1000, 1);
    MPI_Buffer_attach(buffer, room);
    MPI_Irecv(in, 1000, MPI_BYTE, MPI_ANY_SOURCE, MPI_ANY_TAG, WORLD, &request);
    /* With MPIR_CVAR_NOLOCAL MPICH 5 loses such a receive if its message is already there. */
    MPI_Barrier(WORLD);
    MPI_Issend(out, 1000, MPI_BYTE, next, 1, WORLD, &sends[0]);
    MPI_Wait(&request, &status);
    CHECK(status.MPI_SOURCE == before && status.MPI_TAG == 1);
    check(in, 1000, before, 1);
    MPI_Wait(&sends[0], MPI_STATUS_IGNORE);

    MPI_Bsend(out, 1000, MPI_BYTE, next, 2, WORLD);
    MPI_Probe(before, MPI_ANY_TAG, WORLD, &status);
    MPI_Get_count(&status, MPI_BYTE, &count);
    CHECK(count == 1000 && status.MPI_TAG == 2);
    MPI_Mprobe(MPI_ANY_SOURCE, 2, WORLD, &message, &status);
    MPI_Iprobe(before, 2, WORLD, &flag, &status);
    CHECK(!flag);
    memset(in, 0, 1000);
    MPI_Mrecv(in, 1000, MPI_BYTE, &message, &status);
    check(in, 1000, before, 1);
    MPI_Buffer_detach(&buffer, &room);
    free(buffer);

    MPI_Irecv(in, 1000, MPI_BYTE, before, 77, WORLD, &request);
    MPI_Cancel(&request);
    MPI_Wait(&request, &status);
    MPI_Test_cancelled(&status, &flag);
    CHECK(flag);

    MPI_Comm_set_errhandler(WORLD, MPI_ERRORS_RETURN);
    MPI_Isend(out, 1000, MPI_BYTE, next, 3, WORLD, &sends[0]);
    CHECK(MPI_Recv(in, 10, MPI_BYTE, before, 3, WORLD, &status) != MPI_SUCCESS);
    MPI_Wait(&sends[0], MPI_STATUS_IGNORE);
    MPI_Comm_set_errhandler(WORLD, MPI_ERRORS_ARE_FATAL);

    /* All receives are posted before a ready send. */
    MPI_Irecv(in, 1000, MPI_BYTE, before, 4, WORLD, &request);
    MPI_Barrier(WORLD);
    MPI_Rsend(out, 1000, MPI_BYTE, next, 4, WORLD);
    MPI_Wait(&request, &status);
    check(in, 1000, before, 1);

    /* Messages to oneself, and from nobody. */
    for (i = 0; i < 3; i++) {
        MPI_Isend(out + i, 1, MPI_BYTE, rank, 5 + i, WORLD, &sends[i]);
    }
    for (i = 2; i >= 0; i--) {
        MPI_Recv(in + i, 1, MPI_BYTE, rank, 5 + i, WORLD, MPI_STATUS_IGNORE);
    }
    MPI_Waitall(3, sends, MPI_STATUSES_IGNORE);
    check(in, 3, rank, 1);
    MPI_Recv(in, 1, MPI_BYTE, MPI_PROC_NULL, 0, WORLD, MPI_STATUS_IGNORE);
}

static void persistent(void)
{
    enum { COUNT = 4, ROUNDS = 20 };
    static const int of[COUNT] = {8, 5000, 70000, 300000};
    unsigned char *out[COUNT], *in[COUNT];
    MPI_Request all[2 * COUNT];
    int i, round;

    for (i = 0; i < COUNT; i++) {
        out[i] = malloc(of[i]);
        in[i]  = malloc(of[i]);
        MPI_Recv_init(in[i], of[i], MPI_BYTE, before, i, WORLD, &all[i]);
        MPI_Send_init(out[i], of[i], MPI_BYTE, next, i, WORLD, &all[COUNT + i]);
    }
    for (round = 0; round < ROUNDS; round++) {
        for (i = 0; i < COUNT; i++) {
            fill(out[i], of[i], round);
        }
        MPI_Startall(2 * COUNT, all);
        MPI_Waitall(2 * COUNT, all, MPI_STATUSES_IGNORE);
        for (i = 0; i < COUNT; i++) {
            check(in[i], of[i], before, round);
        }
    }
    for (i = 0; i < COUNT; i++) {
        MPI_Request_free(&all[i]);
        MPI_Request_free(&all[COUNT + i]);
        free(out[i]);
        free(in[i]);
    }
}

#if MPI_VERSION >= 4
static void partitioned(void)
{
    enum { PARTS = 8, OF = 4000 };
    unsigned char *out = malloc(PARTS * OF), *in = malloc(PARTS * OF);
    MPI_Request requests[2];
    int i, round;

    MPI_Precv_init(in, PARTS, OF, MPI_BYTE, before, 1, WORLD, MPI_INFO_NULL, &requests[0]);
    MPI_Psend_init(out, PARTS, OF, MPI_BYTE, next, 1, WORLD, MPI_INFO_NULL, &requests[1]);
    for (round = 0; round < 5; round++) {
        fill(out, PARTS * OF, round);
        MPI_Startall(2, requests);
        for (i = PARTS - 1; i >= 0; i--) {
            MPI_Pready(i, requests[1]);
        }
        MPI_Waitall(2, requests, MPI_STATUSES_IGNORE);
        check(in, PARTS * OF, before, round);
    }
    MPI_Request_free(&requests[0]);
    MPI_Request_free(&requests[1]);
    free(out);
    free(in);
}
#endif

static void *thread(void *arg)
{
    int number = (int)(intptr_t)arg, round, i;
    unsigned char *out = malloc(100000), *in = malloc(100000);
    MPI_Request requests[8];

    for (round = 0; round < 100; round++) {
        int length = round % 10 == 0 ? 100000 : 1 + round * 37;
        fill(out, length, number);
        MPI_Sendrecv(out, length, MPI_BYTE, next, number, in, length, MPI_BYTE, before, number, WORLD,
                     MPI_STATUS_IGNORE);
        check(in, length, before, number);
        /* Unexpected ones, of all threads at once. */
        for (i = 0; i < 4; i++) {
            MPI_Isend(out + i, 1, MPI_BYTE, next, 100 + number * 10 + i, WORLD, &requests[i]);
        }
        for (i = 3; i >= 0; i--) {
            MPI_Irecv(in + i, 1, MPI_BYTE, before, 100 + number * 10 + i, WORLD, &requests[4 + i]);
        }
        MPI_Waitall(8, requests, MPI_STATUSES_IGNORE);
        check(in, 4, before, number);
    }
    free(out);
    free(in);
    return NULL;
}

static void threads(void)
{
    pthread_t all[THREADS];
    int i, provided;

    MPI_Query_thread(&provided);
    CHECK(provided == MPI_THREAD_MULTIPLE);
    for (i = 0; i < THREADS; i++) {
        CHECK(pthread_create(&all[i], NULL, thread, (void*)(intptr_t)i) == 0);
    }
    for (i = 0; i < THREADS; i++) {
        pthread_join(all[i], NULL);
    }
}

#include "mpi_datatypes.h"
#include "mpi_operations.h"
#include "mpi_collectives.h"
#include "mpi_windows.h"
#include "mpi_window_forms.h"

static const struct {
    const char *name;
    void (*run)(void);
} tests[] = {
    {"library", loaded_library},
    {"lengths", lengths},
    {"forms", forms},
    {"datatypes", datatypes},
    {"basic-types", basic_types},
    {"derived-types", derived_types},
    {"reductions", reductions},
    {"operations", operations},
    {"collectives", collectives},
    {"collective-forms", collective_forms},
    {"nonblocking", nonblocking},
    {"neighbors", neighbors},
    {"persistent", persistent},
#if MPI_VERSION >= 4
    {"partitioned", partitioned},
#endif
    {"threads", threads},
    {"fence", fence},
    {"locks", locks},
    {"pscw", pscw},
    {"accumulate", accumulate},
    {"accumulate-operations", accumulate_operations},
    {"fetches", fetches},
    {"requests", window_requests},
    {"shared-locks", shared_locks},
    {"dynamic", dynamic},
};

int main(int argc, char **argv)
{
    int provided, i;
    unsigned at, passed = 0;
    uint64_t of_all = 0;

    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
    MPI_Comm_rank(WORLD, &rank);
    MPI_Comm_size(WORLD, &size);
    next   = (rank + 1) % size;
    before = (rank + size - 1) % size;
    for (at = 0; at < sizeof(tests) / sizeof(tests[0]); at++) {
        int wanted = argc == 1;
        for (i = 1; i < argc; i++) {
            wanted |= strcmp(argv[i], tests[at].name) == 0;
        }
        if (!wanted) {
            continue;
        }
        received_sum = 0;
        tests[at].run();
        MPI_Reduce(&received_sum, &of_all, 1, MPI_UINT64_T, MPI_SUM, 0, WORLD);
        passed++;
        if (rank == 0) {
            printf("passed: %s, received %016llx\n", tests[at].name, (unsigned long long)of_all);
            fflush(stdout);
        }
    }
    MPI_Finalize();
    if (rank == 0) {
        printf("all is well: %u tests on %d ranks\n", passed, size);
    }
    return 0;
}

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

/* Sends elements of one type, receives elements of another; both select the same integers. */
static void convert(MPI_Datatype from, int count, MPI_Datatype to, int to_count, const int *expected, int elements)
{
    enum { WORDS = 200000 };
    int *out = malloc(WORDS * sizeof(int)), *in = malloc(WORDS * sizeof(int)), i, got;
    MPI_Request request;
    MPI_Status status;

    for (i = 0; i < WORDS; i++) {
        out[i] = rank * 1000000 + i;
        in[i]  = -1;
    }
    MPI_Irecv(in, to_count, to, before, 9, WORLD, &request);
    MPI_Send(out, count, from, next, 9, WORLD);
    MPI_Wait(&request, &status);
    MPI_Get_elements(&status, MPI_INT, &got);
    CHECK(got == elements);
    for (i = 0; i < elements; i++) {
        CHECK(in[expected == NULL ? i : expected[2 * i + 1]] ==
              before * 1000000 + (expected == NULL ? 2 * i : expected[2 * i]));
    }
    note(in, WORDS * sizeof(int));
    free(out);
    free(in);
}

static void datatypes(void)
{
    struct {
        char letter;
        double number;
        int words[3];
    } out = {(char)('a' + rank), rank + 0.5, {rank, rank + 1, rank + 2}}, in;
    int blocks[] = {1, 1, 3}, lens[] = {2, 1, 3}, places[] = {5, 0, 10};
    /* Element by element: word sent, word received. */
    static const int pairs[] = {5, 0, 6, 1, 0, 2, 10, 3, 11, 4, 12, 5};
    MPI_Aint offsets[]       = {0, (char*)&out.number - (char*)&out, (char*)out.words - (char*)&out};
    MPI_Datatype kinds[] = {MPI_CHAR, MPI_DOUBLE, MPI_INT}, record, exact, strided, indexed, resized;
    int elements, subsizes[] = {3, 4}, sizes[] = {8, 10}, starts[] = {2, 3}, i, j, grid[80], part[12];
    MPI_Datatype sub;

    MPI_Type_create_struct(3, blocks, offsets, kinds, &record);
    MPI_Type_create_resized(record, 0, sizeof(out), &exact);
    MPI_Type_commit(&exact);
    MPI_Sendrecv(&out, 1, exact, next, 8, &in, 1, exact, before, 8, WORLD, MPI_STATUS_IGNORE);
    CHECK(in.letter == 'a' + before && in.number == before + 0.5 && in.words[2] == before + 2);
    MPI_Type_free(&record);
    MPI_Type_free(&exact);

    /* Every second word, few and many of them, into dense memory. */
    for (elements = 10; elements <= 80000; elements *= 20) {
        MPI_Type_vector(elements, 1, 2, MPI_INT, &strided);
        MPI_Type_commit(&strided);
        convert(strided, 1, MPI_INT, elements, NULL, elements);
        MPI_Type_free(&strided);
    }
    MPI_Type_indexed(3, lens, places, MPI_INT, &indexed);
    MPI_Type_commit(&indexed);
    convert(indexed, 1, MPI_INT, 6, pairs, 6);
    MPI_Type_free(&indexed);
    MPI_Type_create_resized(MPI_INT, 0, 2 * sizeof(int), &resized);
    MPI_Type_commit(&resized);
    convert(resized, 1000, MPI_INT, 1000, NULL, 1000);
    MPI_Type_free(&resized);

    MPI_Type_create_subarray(2, sizes, subsizes, starts, MPI_ORDER_C, MPI_INT, &sub);
    MPI_Type_commit(&sub);
    for (i = 0; i < 80; i++) {
        grid[i] = rank * 100 + i;
    }
    MPI_Sendrecv(grid, 1, sub, next, 8, part, 12, MPI_INT, before, 8, WORLD, MPI_STATUS_IGNORE);
    for (i = 0; i < 3; i++) {
        for (j = 0; j < 4; j++) {
            CHECK(part[i * 4 + j] == before * 100 + (2 + i) * 10 + 3 + j);
        }
    }
    note(part, sizeof(part));
    MPI_Type_free(&sub);
}

static void multiply(void *in, void *inout, int *count, MPI_Datatype *type)
{
    int i;
    (void)type;
    for (i = 0; i < *count; i++) {
        ((int64_t*)inout)[i] *= ((int64_t*)in)[i];
    }
}

static void reductions(void)
{
    enum { COUNT = 50000 };
    double *out = malloc(COUNT * sizeof(double)), *in = malloc(COUNT * sizeof(double));
    int sum, mine = rank + 1, i, part, *parts = malloc(size * sizeof(int));
    int64_t factor = rank + 1, product, expected = 1;
    struct {
        double value;
        int at;
    } place = {size - rank, rank}, least;
    MPI_Request request;
    MPI_Op op;

    MPI_Allreduce(&mine, &sum, 1, MPI_INT, MPI_SUM, WORLD);
    CHECK(sum == size * (size + 1) / 2);
    for (i = 0; i < COUNT; i++) {
        out[i] = rank + i;
    }
    MPI_Allreduce(out, in, COUNT, MPI_DOUBLE, MPI_SUM, WORLD);
    for (i = 0; i < COUNT; i++) {
        CHECK(in[i] == (double)size * i + size * (size - 1) / 2);
    }
    MPI_Iallreduce(out, in, COUNT, MPI_DOUBLE, MPI_MAX, WORLD, &request);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    CHECK(in[COUNT - 1] == size - 1 + COUNT - 1);
    note(in, COUNT * sizeof(double));
    MPI_Allreduce(&place, &least, 1, MPI_DOUBLE_INT, MPI_MINLOC, WORLD);
    CHECK(least.value == 1 && least.at == size - 1);
    MPI_Scan(&mine, &sum, 1, MPI_INT, MPI_SUM, WORLD);
    CHECK(sum == (rank + 1) * (rank + 2) / 2);
    for (i = 0; i < size; i++) {
        parts[i] = rank + i;
        expected *= i + 1;
    }
    MPI_Reduce_scatter_block(parts, &part, 1, MPI_INT, MPI_SUM, WORLD);
    CHECK(part == size * rank + size * (size - 1) / 2);
    note(&part, sizeof(part));
    MPI_Op_create(multiply, 1, &op);
    for (i = 0; i < size; i++) {
        MPI_Reduce(&factor, &product, 1, MPI_INT64_T, op, i, WORLD);
        CHECK(rank != i || product == expected);
        note(&product, rank == i ? sizeof(product) : 0);
    }
    MPI_Op_free(&op);
    free(out);
    free(in);
    free(parts);
}

static void collectives(void)
{
    enum { COUNT = 3000 };
    int *out = malloc(sizeof(int) * COUNT * size), *in = malloc(sizeof(int) * COUNT * size), root, i, j, half;
    int *counts = malloc(sizeof(int) * size), *places = malloc(sizeof(int) * size);
    unsigned char *block = malloc(LONGEST);
    MPI_Comm part;

    MPI_Barrier(WORLD);
    for (root = 0; root < size; root++) {
        if (rank == root) {
            fill(block, LONGEST, 1);
        }
        MPI_Bcast(block, LONGEST, MPI_BYTE, root, WORLD);
        check(block, LONGEST, root, 1);
        for (i = 0; i < COUNT * size; i++) {
            out[i] = rank * 100000 + i;
        }
        MPI_Gather(out, COUNT, MPI_INT, in, COUNT, MPI_INT, root, WORLD);
        for (i = 0; rank == root && i < COUNT * size; i++) {
            CHECK(in[i] == i / COUNT * 100000 + i % COUNT);
        }
        MPI_Scatter(out, COUNT, MPI_INT, in, COUNT, MPI_INT, root, WORLD);
        for (i = 0; i < COUNT; i++) {
            CHECK(in[i] == root * 100000 + rank * COUNT + i);
        }
        note(in, COUNT * sizeof(int));
    }
    MPI_Allgather(out, COUNT, MPI_INT, in, COUNT, MPI_INT, WORLD);
    for (i = 0; i < COUNT * size; i++) {
        CHECK(in[i] == i / COUNT * 100000 + i % COUNT);
    }
    MPI_Alltoall(out, COUNT, MPI_INT, in, COUNT, MPI_INT, WORLD);
    for (i = 0; i < COUNT * size; i++) {
        CHECK(in[i] == i / COUNT * 100000 + rank * COUNT + i % COUNT);
    }
    note(in, sizeof(int) * COUNT * size);
    for (i = 0; i < size; i++) {
        counts[i] = 10 * (i + 1);
        places[i] = i * COUNT;
    }
    MPI_Allgatherv(out, counts[rank], MPI_INT, in, counts, places, MPI_INT, WORLD);
    for (i = 0; i < size; i++) {
        for (j = 0; j < counts[i]; j++) {
            CHECK(in[places[i] + j] == i * 100000 + j);
        }
    }
    /* Traffic of two communicators at a time. */
    MPI_Comm_split(WORLD, rank % 2, -rank, &part);
    MPI_Comm_size(part, &half);
    MPI_Allreduce(&rank, &j, 1, MPI_INT, MPI_SUM, part);
    for (i = rank % 2, root = 0; i < size; i += 2) {
        root += i;
    }
    CHECK(j == root && half == (size + 1 - rank % 2) / 2);
    MPI_Comm_free(&part);
    free(out);
    free(in);
    free(counts);
    free(places);
    free(block);
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

#include "mpi_windows.h"

static const struct {
    const char *name;
    void (*run)(void);
} tests[] = {
    {"library", loaded_library},
    {"lengths", lengths},
    {"forms", forms},
    {"datatypes", datatypes},
    {"reductions", reductions},
    {"collectives", collectives},
    {"persistent", persistent},
#if MPI_VERSION >= 4
    {"partitioned", partitioned},
#endif
    {"threads", threads},
    {"fence", fence},
    {"locks", locks},
    {"pscw", pscw},
    {"accumulate", accumulate},
    {"shared-locks", shared_locks},
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

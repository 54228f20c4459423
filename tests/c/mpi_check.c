/* An MPI program for the tests of softefa (tests/tests/softefa/mpi.rs): point-to-point messages of every kind of length, out of
 * order and unexpected, collectives with known results, and one-sided operations. Ends with a line on success. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(what)                                                                                         \
    do {                                                                                                    \
        if (!(what)) {                                                                                      \
            fprintf(stderr, "rank %d, line %d: %s\n", rank, __LINE__, #what);                                \
            MPI_Abort(MPI_COMM_WORLD, 3);                                                                   \
        }                                                                                                   \
    } while (0)

enum { LONGEST = 1 << 20, COUNT = 16 };

static int rank, size;

static unsigned char pattern(int from, int tag, int at) {
    return (unsigned char)(from * 31 + tag * 7 + at + at / 251);
}

/* Messages of one length to the next rank, received in the opposite order. */
static void exchange(int len) {
    int next = (rank + 1) % size, before = (rank + size - 1) % size;
    unsigned char *out = malloc(COUNT * (len + 1)), *in = malloc(COUNT * (len + 1));
    MPI_Request all[2 * COUNT];
    for (int tag = 0; tag < COUNT; tag++) {
        for (int i = 0; i < len; i++)
            out[tag * len + i] = pattern(rank, tag, i);
        MPI_Isend(out + tag * len, len, MPI_BYTE, next, tag, MPI_COMM_WORLD, &all[tag]);
    }
    for (int tag = COUNT - 1; tag >= 0; tag--)
        MPI_Irecv(in + tag * len, len, MPI_BYTE, before, tag, MPI_COMM_WORLD, &all[COUNT + tag]);
    MPI_Waitall(2 * COUNT, all, MPI_STATUSES_IGNORE);
    for (int tag = 0; tag < COUNT; tag++)
        for (int i = 0; i < len; i++)
            CHECK(in[tag * len + i] == pattern(before, tag, i));
    free(out), free(in);
}

static void collect(void) {
    int sum = 0, mine = rank + 1, *all = malloc(size * sizeof(int));
    MPI_Allreduce(&mine, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    CHECK(sum == size * (size + 1) / 2);
    MPI_Allgather(&mine, 1, MPI_INT, all, 1, MPI_INT, MPI_COMM_WORLD);
    for (int i = 0; i < size; i++)
        CHECK(all[i] == i + 1);
    unsigned char *block = malloc(LONGEST);
    for (int root = 0; root < size; root++) {
        for (int i = 0; i < LONGEST; i++)
            block[i] = rank == root ? pattern(root, 1, i) : 0;
        MPI_Bcast(block, LONGEST, MPI_BYTE, root, MPI_COMM_WORLD);
        for (int i = 0; i < LONGEST; i++)
            CHECK(block[i] == pattern(root, 1, i));
    }
    free(block), free(all);
}

static void one_sided(void) {
    enum { WORDS = 4096 };
    int *window, next = (rank + 1) % size, before = (rank + size - 1) % size, counter = 0, one = 1;
    MPI_Win win;
    MPI_Win_allocate((WORDS + 1) * sizeof(int), sizeof(int), MPI_INFO_NULL, MPI_COMM_WORLD, &window, &win);
    int *out = malloc(WORDS * sizeof(int)), *in = malloc(WORDS * sizeof(int));
    memset(window, 0, (WORDS + 1) * sizeof(int));
    for (int i = 0; i < WORDS; i++)
        out[i] = rank * WORDS + i;
    MPI_Win_fence(0, win);
    MPI_Put(out, WORDS, MPI_INT, next, 0, WORDS, MPI_INT, win);
    MPI_Accumulate(&one, 1, MPI_INT, 0, WORDS, 1, MPI_INT, MPI_SUM, win);
    MPI_Win_fence(0, win);
    for (int i = 0; i < WORDS; i++)
        CHECK(window[i] == before * WORDS + i);
    MPI_Get(in, WORDS, MPI_INT, next, 0, WORDS, MPI_INT, win);
    MPI_Get(&counter, 1, MPI_INT, 0, WORDS, 1, MPI_INT, win);
    MPI_Win_fence(0, win);
    CHECK(!memcmp(in, out, WORDS * sizeof(int)) && counter == size);
    MPI_Win_free(&win);
    free(out), free(in);
}

int main(int argc, char **argv) {
    static const int lengths[] = {0, 1, 8, 33, 1000, 8192, 9000, 65536, LONGEST};
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    for (unsigned i = 0; i < sizeof(lengths) / sizeof(*lengths); i++)
        exchange(lengths[i]);
    collect();
    one_sided();
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0)
        printf("all is well on %d ranks\n", size);
    MPI_Finalize();
    return 0;
}

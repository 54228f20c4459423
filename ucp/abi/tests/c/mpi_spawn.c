/* An MPI program that starts as many processes again, for ucp/abi/tests/mpi.rs. Parents and children exchange messages of several lengths
 * and a sum, and part. Rank 0 of the parents says that all is well. */
#include <mpi.h>
#include "loaded_library.h"
#include <stdio.h>
#include <stdlib.h>

#define CHECK(condition) \
    do { \
        if (!(condition)) { \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition); \
            MPI_Abort(MPI_COMM_WORLD, 3); \
        } \
    } while (0)

/* Sends each length to the rank opposite, and receives it from there. */
static void exchange(MPI_Comm all)
{
    static const int lengths[] = {1, 1000, 100000, 1 << 20};
    int rank, size, other, sum, i;
    unsigned at;

    MPI_Comm_rank(all, &rank);
    MPI_Comm_size(all, &size);
    other = size - 1 - rank;
    for (at = 0; at < sizeof(lengths) / sizeof(lengths[0]); at++) {
        int length = lengths[at];
        unsigned char *out = malloc(length), *in = malloc(length);
        for (i = 0; i < length; i++) {
            out[i] = (unsigned char)(rank * 31 + i + i / 251);
        }
        MPI_Sendrecv(out, length, MPI_BYTE, other, at, in, length, MPI_BYTE, other, at, all, MPI_STATUS_IGNORE);
        for (i = 0; i < length; i++) {
            CHECK(in[i] == (unsigned char)(other * 31 + i + i / 251));
        }
        free(out);
        free(in);
    }
    MPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, all);
    CHECK(sum == size * (size - 1) / 2);
}

int main(int argc, char **argv)
{
    MPI_Comm parent, other, all;
    int rank, size, is_child;

    MPI_Init(&argc, &argv);
    CHECK(is_expected_library());
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Comm_get_parent(&parent);
    is_child = parent != MPI_COMM_NULL;
    other    = parent;
    if (!is_child) {
        MPI_Comm_spawn(argv[0], MPI_ARGV_NULL, size, MPI_INFO_NULL, 0, MPI_COMM_WORLD, &other, MPI_ERRCODES_IGNORE);
    }
    MPI_Intercomm_merge(other, is_child, &all);
    exchange(all);
    MPI_Comm_free(&all);
    MPI_Comm_disconnect(&other);
    MPI_Finalize();
    if (!is_child && rank == 0) {
        printf("all is well: %d processes, and as many that they started\n", size);
    }
    return 0;
}

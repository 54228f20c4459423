/* What MPI over the C interface of UCX costs, between two processes. Each line of output is a name, a figure and its unit.
 *
 *   mpirun -n 2 bench            latency and bandwidth of four sizes, message rate of four threads, time of MPI_Init
 *   mpirun -n 1 bench self N     N messages of 8 bytes from a process to itself, for instruction counts
 */
#include <mpi.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { WINDOW = 64, THREADS = 4, THREAD_WINDOWS = 100, MOST = 1 << 20 };

static char *out, *in;
static int rank;

static double now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + 1e-9 * t.tv_nsec;
}

static void tell(const char *what, int size, double figure, const char *unit)
{
    if (rank == 0 && size > 0) {
        printf("%s_%d %.4g %s\n", what, size, figure, unit);
    } else if (rank == 0) {
        printf("%s %.4g %s\n", what, figure, unit);
    }
}

static void round_trips(int size, int times)
{
    for (int i = 0; i < times; i++) {
        if (rank == 0) {
            MPI_Send(out, size, MPI_BYTE, 1, 1, MPI_COMM_WORLD);
            MPI_Recv(in, size, MPI_BYTE, 1, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        } else {
            MPI_Recv(in, size, MPI_BYTE, 0, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            MPI_Send(out, size, MPI_BYTE, 0, 1, MPI_COMM_WORLD);
        }
    }
}

/* Windows of messages from rank 0, with one answer each. */
static void windows(int size, int times, int tag)
{
    MPI_Request all[WINDOW];
    char answer = 0;

    for (int i = 0; i < times; i++) {
        for (int k = 0; k < WINDOW; k++) {
            if (rank == 0) {
                MPI_Isend(out, size, MPI_BYTE, 1, tag, MPI_COMM_WORLD, &all[k]);
            } else {
                MPI_Irecv(in, size, MPI_BYTE, 0, tag, MPI_COMM_WORLD, &all[k]);
            }
        }
        MPI_Waitall(WINDOW, all, MPI_STATUSES_IGNORE);
        if (rank == 0) {
            MPI_Recv(&answer, 1, MPI_BYTE, 1, tag, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        } else {
            MPI_Send(&answer, 1, MPI_BYTE, 0, tag, MPI_COMM_WORLD);
        }
    }
}

static void *one_thread(void *arg)
{
    windows(8, THREAD_WINDOWS, 100 + (int)(long)arg);
    return NULL;
}

static void of_threads(void)
{
    pthread_t threads[THREADS];
    double began;

    MPI_Barrier(MPI_COMM_WORLD);
    began = now();
    for (long i = 0; i < THREADS; i++) {
        pthread_create(&threads[i], NULL, one_thread, (void *)i);
    }
    for (int i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
    }
    tell("rate_of_4_threads_8", 0, (double)THREADS * THREAD_WINDOWS * WINDOW / (now() - began) / 1e6, "M/s");
}

/* 8 bytes to itself: a receive that is posted, a send, and the end of the receive. */
static void self(long times)
{
    MPI_Request receive;

    for (long i = 0; i < times; i++) {
        MPI_Irecv(in, 8, MPI_BYTE, 0, 1, MPI_COMM_WORLD, &receive);
        MPI_Send(out, 8, MPI_BYTE, 0, 1, MPI_COMM_WORLD);
        MPI_Wait(&receive, MPI_STATUS_IGNORE);
    }
}

int main(int argc, char **argv)
{
    static const int sizes[] = {8, 4096, 65536, 1 << 20}, times[] = {20000, 10000, 2000, 200};
    double began = now(), init;
    int has, is_self = argc > 2 && !strcmp(argv[1], "self");

    if (MPI_Init_thread(&argc, &argv, is_self ? MPI_THREAD_SINGLE : MPI_THREAD_MULTIPLE, &has) != MPI_SUCCESS) {
        return 1;
    }
    init = now() - began;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    out = calloc(2, MOST);
    in = out + MOST;
    if (is_self) {
        self(atol(argv[2]));
        MPI_Finalize();
        return 0;
    }
    tell("init", 0, init * 1e3, "ms");
    for (int i = 0; i < 4; i++) {
        round_trips(sizes[i], times[i] / 10);
        MPI_Barrier(MPI_COMM_WORLD);
        began = now();
        round_trips(sizes[i], times[i]);
        tell("latency", sizes[i], (now() - began) / times[i] / 2 * 1e6, "us");
    }
    for (int i = 0; i < 4; i++) {
        int many = times[i] / 20;

        windows(sizes[i], many / 10 + 1, 1);
        MPI_Barrier(MPI_COMM_WORLD);
        began = now();
        windows(sizes[i], many, 1);
        tell("bandwidth", sizes[i], (double)many * WINDOW * sizes[i] / (now() - began) / (1 << 20), "MB/s");
    }
    if (has == MPI_THREAD_MULTIPLE) {
        of_threads();
    }
    MPI_Finalize();
    return 0;
}

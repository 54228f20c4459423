/* Collective operations of mpi.c: each one, blocking and not, with results that tell who sent what to whom. */

/* The blocking or the nonblocking form of an operation. */
#define COLLECTIVE(blocking, nonblocking, ...) \
    do { \
        if (!is_nonblocking) { \
            blocking(__VA_ARGS__); \
        } else { \
            MPI_Request request_; \
            nonblocking(__VA_ARGS__, &request_); \
            MPI_Wait(&request_, MPI_STATUS_IGNORE); \
        } \
    } while (0)

/* Word `at` of what a process sends to another. */
static int word(int from, int to, int at)
{
    return from * 10000000 + to * 1000000 + at;
}

static int *new_words(int count)
{
    int *at = malloc((count + 1) * sizeof(int));
    memset(at, 0xff, (count + 1) * sizeof(int));
    return at;
}

static void expect(const int *at, int from, int to, int count)
{
    int i;
    for (i = 0; i < count; i++) {
        CHECK(at[i] == word(from, to, i));
    }
    note(at, count * sizeof(int));
}

/* `count` words to each process. */
static void fill_words(int *at, int count)
{
    int i;
    for (i = 0; i < size * count; i++) {
        at[i] = word(rank, i / count, i % count);
    }
}

/* Broadcasts, gathers and scatters with each root; equal parts, and parts of different lengths with gaps between them. */
static void rooted(int is_nonblocking, int count)
{
    int *out = new_words(size * count), *in = new_words(2 * size * count), lengths[size], places[size], root, i;

    for (i = 0; i < size; i++) {
        lengths[i] = count / (i + 1);
        places[i]  = 2 * i * count;
    }
    COLLECTIVE(MPI_Barrier, MPI_Ibarrier, WORLD);
    for (root = 0; root < size; root++) {
        fill_words(out, count);
        for (i = 0; rank == root && i < count; i++) {
            in[i] = word(root, 0, i);
        }
        COLLECTIVE(MPI_Bcast, MPI_Ibcast, in, count, MPI_INT, root, WORLD);
        expect(in, root, 0, count);
        COLLECTIVE(MPI_Gather, MPI_Igather, out + root * count, count, MPI_INT, in, count, MPI_INT, root, WORLD);
        for (i = 0; rank == root && i < size; i++) {
            expect(in + i * count, i, root, count);
        }
        COLLECTIVE(MPI_Scatter, MPI_Iscatter, out, count, MPI_INT, in, count, MPI_INT, root, WORLD);
        expect(in, root, rank, count);
        COLLECTIVE(MPI_Gatherv, MPI_Igatherv, out + root * count, lengths[rank], MPI_INT, in, lengths, places, MPI_INT,
                   root, WORLD);
        for (i = 0; rank == root && i < size; i++) {
            expect(in + places[i], i, root, lengths[i]);
        }
        for (i = 0; i < size; i++) {
            places[i] = i * count;
        }
        COLLECTIVE(MPI_Scatterv, MPI_Iscatterv, out, lengths, places, MPI_INT, in, lengths[rank], MPI_INT, root, WORLD);
        expect(in, root, rank, lengths[rank]);
        for (i = 0; i < size; i++) {
            places[i] = 2 * i * count;
        }
        /* The root's own part is in its place. */
        memcpy(in + root * count, out + root * count, count * sizeof(int));
        COLLECTIVE(MPI_Gather, MPI_Igather, rank == root ? MPI_IN_PLACE : out + root * count, count, MPI_INT, in, count,
                   MPI_INT, root, WORLD);
        for (i = 0; rank == root && i < size; i++) {
            expect(in + i * count, i, root, count);
        }
    }
    free(out);
    free(in);
}

/* From all to all. */
static void all_to_all(int is_nonblocking, int count)
{
    int *out = new_words(size * count), *in = new_words(2 * size * count), lengths[size], places[size], from[size], i;
    int bytes_out[size], bytes_in[size], mine[size];
    MPI_Datatype types[size];

    /* The parts that a process sends are as long as it says to all, those that it receives as each sender says. */
    for (i = 0; i < size; i++) {
        lengths[i]   = count / (i + 1);
        mine[i]      = count / (rank + 1);
        places[i]    = 2 * i * count;
        from[i]      = i * count;
        bytes_out[i] = from[i] * sizeof(int);
        bytes_in[i]  = places[i] * sizeof(int);
        types[i]     = MPI_INT;
    }
    fill_words(out, count);
    COLLECTIVE(MPI_Allgather, MPI_Iallgather, out, count, MPI_INT, in, count, MPI_INT, WORLD);
    for (i = 0; i < size; i++) {
        expect(in + i * count, i, 0, count);
    }
    COLLECTIVE(MPI_Allgatherv, MPI_Iallgatherv, out, mine[0], MPI_INT, in, lengths, places, MPI_INT, WORLD);
    for (i = 0; i < size; i++) {
        expect(in + places[i], i, 0, lengths[i]);
    }
    COLLECTIVE(MPI_Alltoall, MPI_Ialltoall, out, count, MPI_INT, in, count, MPI_INT, WORLD);
    for (i = 0; i < size; i++) {
        expect(in + i * count, i, rank, count);
    }
    COLLECTIVE(MPI_Alltoallv, MPI_Ialltoallv, out, mine, from, MPI_INT, in, lengths, places, MPI_INT, WORLD);
    for (i = 0; i < size; i++) {
        expect(in + places[i], i, rank, lengths[i]);
    }
    memset(in, 0xff, 2 * size * count * sizeof(int));
    COLLECTIVE(MPI_Alltoallw, MPI_Ialltoallw, out, mine, bytes_out, types, in, lengths, bytes_in, types, WORLD);
    for (i = 0; i < size; i++) {
        expect(in + places[i], i, rank, lengths[i]);
    }
    memcpy(in, out, size * count * sizeof(int));
    COLLECTIVE(MPI_Alltoall, MPI_Ialltoall, MPI_IN_PLACE, 0, MPI_INT, in, count, MPI_INT, WORLD);
    for (i = 0; i < size; i++) {
        expect(in + i * count, i, rank, count);
    }
    memcpy(in + rank * count, out, count * sizeof(int));
    COLLECTIVE(MPI_Allgather, MPI_Iallgather, MPI_IN_PLACE, 0, MPI_INT, in, count, MPI_INT, WORLD);
    for (i = 0; i < size; i++) {
        expect(in + i * count, i, 0, count);
    }
    free(out);
    free(in);
}

/* Sums of `ranks` processes' words: each adds its rank and the place. */
static void expect_sums(const int *at, int ranks, int first, int count)
{
    int i;
    for (i = 0; i < count; i++) {
        CHECK(at[i] == ranks * (first + i) + ranks * (ranks - 1) / 2);
    }
    note(at, count * sizeof(int));
}

static void sums(int is_nonblocking, int count)
{
    int *out = new_words(size * count), *in = new_words(size * count), lengths[size], root, i, before_mine = 0;

    for (i = 0; i < size * count; i++) {
        out[i] = rank + i;
    }
    for (i = 0; i < size; i++) {
        lengths[i] = count / (i + 1);
        before_mine += i < rank ? lengths[i] : 0;
    }
    for (root = 0; root < size; root++) {
        COLLECTIVE(MPI_Reduce, MPI_Ireduce, out, in, count, MPI_INT, MPI_SUM, root, WORLD);
        if (rank == root) {
            expect_sums(in, size, 0, count);
        }
    }
    COLLECTIVE(MPI_Allreduce, MPI_Iallreduce, out, in, count, MPI_INT, MPI_SUM, WORLD);
    expect_sums(in, size, 0, count);
    COLLECTIVE(MPI_Reduce_scatter_block, MPI_Ireduce_scatter_block, out, in, count, MPI_INT, MPI_SUM, WORLD);
    expect_sums(in, size, rank * count, count);
    COLLECTIVE(MPI_Reduce_scatter, MPI_Ireduce_scatter, out, in, lengths, MPI_INT, MPI_SUM, WORLD);
    expect_sums(in, size, before_mine, lengths[rank]);
    COLLECTIVE(MPI_Scan, MPI_Iscan, out, in, count, MPI_INT, MPI_SUM, WORLD);
    expect_sums(in, rank + 1, 0, count);
    COLLECTIVE(MPI_Exscan, MPI_Iexscan, out, in, count, MPI_INT, MPI_SUM, WORLD);
    if (rank > 0) {
        expect_sums(in, rank, 0, count);
    }
    memcpy(in, out, count * sizeof(int));
    COLLECTIVE(MPI_Allreduce, MPI_Iallreduce, MPI_IN_PLACE, in, count, MPI_INT, MPI_SUM, WORLD);
    expect_sums(in, size, 0, count);
    memcpy(in, out, count * sizeof(int));
    COLLECTIVE(MPI_Scan, MPI_Iscan, MPI_IN_PLACE, in, count, MPI_INT, MPI_SUM, WORLD);
    expect_sums(in, rank + 1, 0, count);
    free(out);
    free(in);
}

/* Collectives of a ring, in which each process has two neighbors, and of a graph. */
static void of_neighbors(int is_nonblocking, int count)
{
    int *out = new_words(2 * count), *in = new_words(4 * count), dims[] = {size}, periods[] = {1}, i, k;
    int from[2], to[] = {next, rank}, counts[] = {count, count}, back[] = {count, count}, places[] = {0, 2 * count};
    int parts[] = {0, count}, lower, upper;
    MPI_Aint bytes_out[] = {0, count * sizeof(int)}, bytes_in[] = {0, 2 * count * sizeof(int)};
    MPI_Datatype types[] = {MPI_INT, MPI_INT};
    MPI_Comm ring, graph;

    MPI_Cart_create(WORLD, 1, dims, periods, 0, &ring);
    MPI_Cart_shift(ring, 0, 1, &lower, &upper);
    CHECK(lower == before && upper == next);
    from[0] = lower;
    from[1] = upper;
    for (k = 0; k < 2; k++) {
        for (i = 0; i < count; i++) {
            out[k * count + i] = word(rank, k, i);
        }
    }
    COLLECTIVE(MPI_Neighbor_allgather, MPI_Ineighbor_allgather, out, count, MPI_INT, in, count, MPI_INT, ring);
    for (k = 0; k < 2; k++) {
        expect(in + k * count, from[k], 0, count);
    }
    COLLECTIVE(MPI_Neighbor_allgatherv, MPI_Ineighbor_allgatherv, out, count, MPI_INT, in, counts, places, MPI_INT,
               ring);
    for (k = 0; k < 2; k++) {
        expect(in + places[k], from[k], 0, count);
    }
    MPI_Comm_free(&ring);

    /* Each gets part 0 from below, and part 1, which is shorter, from itself. */
    counts[1] = back[1] = count / 2;
    from[0]   = before;
    from[1]   = rank;
    MPI_Dist_graph_create_adjacent(WORLD, 2, from, MPI_UNWEIGHTED, 2, to, MPI_UNWEIGHTED, MPI_INFO_NULL, 0, &graph);
    COLLECTIVE(MPI_Neighbor_alltoall, MPI_Ineighbor_alltoall, out, count, MPI_INT, in, count, MPI_INT, graph);
    for (k = 0; k < 2; k++) {
        expect(in + k * count, from[k], k, count);
    }
    COLLECTIVE(MPI_Neighbor_alltoallv, MPI_Ineighbor_alltoallv, out, counts, parts, MPI_INT, in, back, places, MPI_INT,
               graph);
    for (k = 0; k < 2; k++) {
        expect(in + places[k], from[k], k, back[k]);
    }
    memset(in, 0xff, 4 * count * sizeof(int));
    COLLECTIVE(MPI_Neighbor_alltoallw, MPI_Ineighbor_alltoallw, out, counts, bytes_out, types, in, back, bytes_in, types,
               graph);
    for (k = 0; k < 2; k++) {
        expect(in + places[k], from[k], k, back[k]);
    }
    MPI_Comm_free(&graph);
    free(out);
    free(in);
}

static const int part_counts[] = {12, 30000};

static void all_collectives(int is_nonblocking)
{
    int i;
    for (i = 0; i < 2; i++) {
        rooted(is_nonblocking, part_counts[i]);
        all_to_all(is_nonblocking, part_counts[i]);
        sums(is_nonblocking, part_counts[i]);
    }
}

static void collective_forms(void)
{
    all_collectives(0);
}

static void nonblocking(void)
{
    enum { COUNT = 3000 };
    MPI_Request all[6];
    int *out = new_words(size * COUNT), *in[6], i, round, root;

    all_collectives(1);
    /* Six at a time, which end in any order. */
    for (i = 0; i < 6; i++) {
        in[i] = new_words(size * COUNT);
    }
    fill_words(out, COUNT);
    for (round = 0; round < 10; round++) {
        root = round % size;
        for (i = 0; i < COUNT; i++) {
            in[0][i] = rank == root ? word(root, 0, i) : -1;
            in[5][i] = rank + i;
        }
        MPI_Ibcast(in[0], COUNT, MPI_INT, root, WORLD, &all[0]);
        MPI_Ialltoall(out, COUNT, MPI_INT, in[1], COUNT, MPI_INT, WORLD, &all[1]);
        MPI_Iallgather(out, COUNT, MPI_INT, in[2], COUNT, MPI_INT, WORLD, &all[2]);
        MPI_Iscatter(out, COUNT, MPI_INT, in[3], COUNT, MPI_INT, root, WORLD, &all[3]);
        MPI_Igather(out + root * COUNT, COUNT, MPI_INT, in[4], COUNT, MPI_INT, root, WORLD, &all[4]);
        MPI_Iallreduce(MPI_IN_PLACE, in[5], COUNT, MPI_INT, MPI_SUM, WORLD, &all[5]);
        MPI_Waitall(6, all, MPI_STATUSES_IGNORE);
        expect(in[0], root, 0, COUNT);
        expect(in[3], root, rank, COUNT);
        expect_sums(in[5], size, 0, COUNT);
        for (i = 0; i < size; i++) {
            expect(in[1] + i * COUNT, i, rank, COUNT);
            expect(in[2] + i * COUNT, i, 0, COUNT);
            if (rank == root) {
                expect(in[4] + i * COUNT, i, root, COUNT);
            }
        }
    }
    for (i = 0; i < 6; i++) {
        free(in[i]);
    }
    free(out);
}

static void neighbors(void)
{
    int i;
    for (i = 0; i < 2; i++) {
        of_neighbors(0, part_counts[i]);
        of_neighbors(1, part_counts[i]);
    }
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

/* More one-sided tests of mpi.c: operations of accumulate, operations with requests, flushes, and windows of changing memory. */

/* All ranks work on the words of rank 0 by each operation. The term of a rank at a place is that of reductions. */
static void accumulate_operations(void)
{
    enum { COUNT = 500 };
    MPI_Op ops[] = {MPI_MAX, MPI_MIN, MPI_SUM, MPI_PROD, MPI_LAND, MPI_LOR, MPI_LXOR, MPI_BAND, MPI_BOR, MPI_BXOR};
    int64_t *out = malloc(COUNT * sizeof(*out)), *memory;
    MPI_Win window;
    int i, op;

    memory = make_window(1, COUNT, &window);
    for (i = 0; i < COUNT; i++) {
        out[i] = term(rank, i);
    }
    for (op = 0; op < 10; op++) {
        /* The first rank's words are there before. */
        MPI_Win_fence(0, window);
        if (rank == 0) {
            MPI_Put(out, COUNT, MPI_INT64_T, 0, 0, COUNT, MPI_INT64_T, window);
        }
        MPI_Win_fence(0, window);
        if (rank > 0) {
            MPI_Accumulate(out, COUNT, MPI_INT64_T, 0, 0, COUNT, MPI_INT64_T, ops[op], window);
        }
        MPI_Win_fence(0, window);
        for (i = 0; rank == 0 && i < COUNT; i++) {
            CHECK(memory[i] == folded(ops[op], size, i));
        }
        note(memory, rank == 0 ? COUNT * sizeof(*memory) : 0);
    }
    /* The first rank has looked at the last words. */
    MPI_Barrier(WORLD);
    /* The words are replaced, in an exclusive lock, and fetched. */
    for (i = 0; i < COUNT; i++) {
        out[i] = before * 1000 + i;
    }
    MPI_Win_lock(MPI_LOCK_EXCLUSIVE, next, 0, window);
    MPI_Accumulate(out, COUNT, MPI_INT64_T, next, 0, COUNT, MPI_INT64_T, MPI_REPLACE, window);
    MPI_Win_unlock(next, window);
    MPI_Barrier(WORLD);
    MPI_Win_lock(MPI_LOCK_SHARED, next, 0, window);
    memset(out, 0, COUNT * sizeof(*out));
    MPI_Get_accumulate(NULL, 0, MPI_INT64_T, out, COUNT, MPI_INT64_T, next, 0, COUNT, MPI_INT64_T, MPI_NO_OP, window);
    MPI_Win_unlock(next, window);
    for (i = 0; i < COUNT; i++) {
        CHECK(out[i] == before * 1000 + i);
    }
    MPI_Barrier(WORLD);
    MPI_Win_free(&window);
    free(out);
}

/* Words of 4 and of 8 bytes at rank 0, fetched and changed by all. */
static void fetches(void)
{
    enum { TURNS = 20 };
    int64_t *longs, one = 1, old, bit = (int64_t)1 << rank, all = ((int64_t)1 << size) - 1, mine, zero = 0;
    int *ints, small = 1, was, i;
    MPI_Win window, of_ints;

    longs = make_window(1, 16, &window);
    MPI_Win_allocate(16 * sizeof(int), sizeof(int), MPI_INFO_NULL, WORLD, &ints, &of_ints);
    MPI_Win_lock(MPI_LOCK_EXCLUSIVE, rank, 0, of_ints);
    memset(ints, 0, 16 * sizeof(int));
    MPI_Win_unlock(rank, of_ints);
    MPI_Barrier(WORLD);
    MPI_Win_lock_all(0, window);
    MPI_Win_lock_all(0, of_ints);
    for (i = 0; i < TURNS; i++) {
        MPI_Fetch_and_op(&one, &old, MPI_INT64_T, 0, 1, MPI_SUM, window);
        MPI_Fetch_and_op(&small, &was, MPI_INT, 0, 1, MPI_SUM, of_ints);
        MPI_Win_flush(0, window);
        MPI_Win_flush(0, of_ints);
        CHECK(old >= i && old < TURNS * size && was >= i && was < TURNS * size);
    }
    /* Each rank sets its bit and takes it away, then all set theirs. */
    for (i = 0; i < TURNS; i++) {
        MPI_Fetch_and_op(&bit, &old, MPI_INT64_T, 0, 2, MPI_BOR, window);
        MPI_Win_flush(0, window);
        CHECK((old & bit) == 0 && (old & ~all) == 0);
        MPI_Fetch_and_op(&bit, &old, MPI_INT64_T, 0, 2, MPI_BXOR, window);
        MPI_Win_flush(0, window);
        CHECK((old & bit) == bit && (old & ~all) == 0);
    }
    MPI_Fetch_and_op(&bit, &old, MPI_INT64_T, 0, 2, MPI_BOR, window);
    MPI_Win_flush(0, window);
    mine = 100 + rank;
    MPI_Fetch_and_op(&mine, &old, MPI_INT64_T, 0, 3, MPI_MAX, window);
    MPI_Win_flush_all(window);
    MPI_Barrier(WORLD);
    mine = ~bit;
    MPI_Fetch_and_op(&mine, &old, MPI_INT64_T, 0, 2, MPI_BAND, window);
    MPI_Win_flush(0, window);
    CHECK((old & bit) == bit);
    MPI_Barrier(WORLD);
    /* The values that all ranks have swapped in, but one, have come out again, or are there. */
    mine = rank + 1;
    MPI_Fetch_and_op(&mine, &old, MPI_INT64_T, 0, 4, MPI_REPLACE, window);
    MPI_Win_flush(0, window);
    MPI_Fetch_and_op(&old, &one, MPI_INT64_T, 0, 5, MPI_SUM, window);
    MPI_Win_flush(0, window);
    MPI_Barrier(WORLD);
    /* One rank changes 0 to its number. */
    mine = rank + 1;
    MPI_Compare_and_swap(&mine, &zero, &old, MPI_INT64_T, 0, 6, window);
    small = rank + 1;
    i     = 0;
    MPI_Compare_and_swap(&small, &i, &was, MPI_INT, 0, 6, of_ints);
    MPI_Win_flush(0, window);
    MPI_Win_flush(0, of_ints);
    CHECK(old >= 0 && old <= size && was >= 0 && was <= size);
    MPI_Barrier(WORLD);
    MPI_Win_unlock_all(window);
    MPI_Win_unlock_all(of_ints);
    if (rank == 0) {
        MPI_Win_lock(MPI_LOCK_SHARED, 0, 0, window);
        MPI_Win_lock(MPI_LOCK_SHARED, 0, 0, of_ints);
        CHECK(longs[1] == TURNS * size && ints[1] == TURNS * size && longs[2] == 0 && longs[3] == 99 + size);
        CHECK(longs[4] + longs[5] == size * (size + 1) / 2);
        CHECK(longs[6] > 0 && longs[6] <= size && ints[6] > 0 && ints[6] <= size);
        note(longs, 4 * sizeof(*longs));
        MPI_Win_unlock(0, window);
        MPI_Win_unlock(0, of_ints);
    }
    MPI_Barrier(WORLD);
    MPI_Win_free(&window);
    MPI_Win_free(&of_ints);
}

/* Operations that end by their requests, in any order. */
static void window_requests(void)
{
    enum { COUNT = 9000 };
    int64_t *out = malloc(COUNT * sizeof(*out)), *in = malloc(2 * COUNT * sizeof(*in)), *memory;
    MPI_Request requests[2];
    MPI_Win window;
    int i, round;

    memory = make_window(1, 2 * COUNT, &window);
    MPI_Win_lock_all(0, window);
    for (round = 0; round < 5; round++) {
        for (i = 0; i < COUNT; i++) {
            out[i] = rank * 1000000 + round * 10000 + i;
        }
        MPI_Rput(out, COUNT, MPI_INT64_T, next, 0, COUNT, MPI_INT64_T, window, &requests[0]);
        MPI_Raccumulate(out, COUNT, MPI_INT64_T, next, COUNT, COUNT, MPI_INT64_T, MPI_REPLACE, window, &requests[1]);
        MPI_Waitall(2, requests, MPI_STATUSES_IGNORE);
        MPI_Win_flush_all(window);
        MPI_Win_sync(window);
        MPI_Barrier(WORLD);
        MPI_Rget(in, COUNT, MPI_INT64_T, next, 0, COUNT, MPI_INT64_T, window, &requests[0]);
        MPI_Rget_accumulate(NULL, 0, MPI_INT64_T, in + COUNT, COUNT, MPI_INT64_T, next, COUNT, COUNT, MPI_INT64_T,
                            MPI_NO_OP, window, &requests[1]);
        MPI_Waitall(2, requests, MPI_STATUSES_IGNORE);
        MPI_Win_flush_local_all(window);
        for (i = 0; i < 2 * COUNT; i++) {
            CHECK(in[i] == out[i % COUNT]);
        }
        for (i = 0; i < 2 * COUNT; i++) {
            CHECK(memory[i] == before * 1000000 + round * 10000 + i % COUNT);
        }
        note(in, 2 * COUNT * sizeof(*in));
        MPI_Barrier(WORLD);
    }
    MPI_Win_unlock_all(window);
    MPI_Win_free(&window);
    free(out);
    free(in);
}

/* Memory that comes into a window and leaves it. Displacements are addresses. One piece at a time: of several, Open MPI 4.1 misses
 * some, and unpacks what lies before its buffer as a key. */
static void dynamic(void)
{
    enum { COUNT = 5000 };
    int64_t *out = malloc(COUNT * sizeof(*out)), *in = malloc(COUNT * sizeof(*in)), *memory;
    MPI_Aint mine, theirs;
    MPI_Win window;
    int i, round;

    MPI_Win_create_dynamic(MPI_INFO_NULL, WORLD, &window);
    for (round = 0; round < 5; round++) {
        memory = calloc(COUNT, sizeof(*memory));
        MPI_Win_attach(window, memory, COUNT * sizeof(*memory));
        MPI_Get_address(memory, &mine);
        MPI_Sendrecv(&mine, 1, MPI_AINT, before, 1, &theirs, 1, MPI_AINT, next, 1, WORLD, MPI_STATUS_IGNORE);
        for (i = 0; i < COUNT; i++) {
            out[i] = rank * 1000000 + i + round;
        }
        MPI_Win_lock(MPI_LOCK_SHARED, next, 0, window);
        MPI_Put(out, COUNT, MPI_INT64_T, next, theirs, COUNT, MPI_INT64_T, window);
        MPI_Win_flush_local(next, window);
        MPI_Win_flush(next, window);
        MPI_Get(in, COUNT / 2, MPI_INT64_T, next, MPI_Aint_add(theirs, 8), COUNT / 2, MPI_INT64_T, window);
        MPI_Win_unlock(next, window);
        for (i = 0; i < COUNT / 2; i++) {
            CHECK(in[i] == out[i + 1]);
        }
        MPI_Barrier(WORLD);
        for (i = 0; i < COUNT; i++) {
            CHECK(memory[i] == before * 1000000 + i + round);
        }
        note(memory, COUNT * sizeof(*memory));
        MPI_Win_detach(window, memory);
        MPI_Barrier(WORLD);
        free(memory);
    }
    MPI_Win_free(&window);
    free(out);
    free(in);
}

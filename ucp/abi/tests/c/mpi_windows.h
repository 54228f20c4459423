/* One-sided tests of mpi.c. */

enum { WINDOW_WORDS = 70000 };

/* A window of words that begin as 0: of memory that MPI allocates, or of the program's. */
static int64_t *make_window(int is_allocated, int words, MPI_Win *window)
{
    int64_t *memory;
    if (is_allocated) {
        MPI_Win_allocate(words * sizeof(*memory), sizeof(*memory), MPI_INFO_NULL, WORLD, &memory, window);
    } else {
        memory = malloc(words * sizeof(*memory));
        MPI_Win_create(memory, words * sizeof(*memory), sizeof(*memory), MPI_INFO_NULL, WORLD, window);
    }
    /* Nobody writes before all have cleared their memory. */
    MPI_Win_lock(MPI_LOCK_EXCLUSIVE, rank, 0, *window);
    memset(memory, 0, words * sizeof(*memory));
    MPI_Win_unlock(rank, *window);
    MPI_Barrier(WORLD);
    return memory;
}

static void free_window(int is_allocated, int64_t *memory, MPI_Win *window)
{
    MPI_Win_free(window);
    if (!is_allocated) {
        free(memory);
    }
}

static void fence(void)
{
    static const int counts[] = {1, 100, 9000, WINDOW_WORDS};
    int64_t *out = malloc(WINDOW_WORDS * sizeof(*out)), *in = malloc(WINDOW_WORDS * sizeof(*in)), *memory;
    int kind, i;
    unsigned at;

    for (kind = 0; kind < 2; kind++) {
        MPI_Win window;
        MPI_Datatype strided;

        memory = make_window(kind, WINDOW_WORDS, &window);
        for (at = 0; at < sizeof(counts) / sizeof(counts[0]); at++) {
            int count = counts[at];
            for (i = 0; i < count; i++) {
                out[i] = rank * 1000000 + i + (int)at;
                in[i]  = -1;
            }
            MPI_Win_fence(0, window);
            MPI_Put(out, count, MPI_INT64_T, next, 0, count, MPI_INT64_T, window);
            MPI_Win_fence(0, window);
            for (i = 0; i < count; i++) {
                CHECK(memory[i] == before * 1000000 + i + (int)at);
            }
            MPI_Win_fence(0, window);
            MPI_Get(in, count, MPI_INT64_T, next, 0, count, MPI_INT64_T, window);
            MPI_Win_fence(0, window);
            for (i = 0; i < count; i++) {
                CHECK(in[i] == out[i]);
            }
            note(in, count * sizeof(*in));
        }
        /* Dense words into every third one. */
        MPI_Type_vector(200, 1, 3, MPI_INT64_T, &strided);
        MPI_Type_commit(&strided);
        MPI_Win_fence(0, window);
        MPI_Put(out, 200, MPI_INT64_T, next, 1000, 1, strided, window);
        MPI_Win_fence(0, window);
        for (i = 0; i < 200; i++) {
            CHECK(memory[1000 + 3 * i] == before * 1000000 + i + 3);
            CHECK(memory[1001 + 3 * i] == before * 1000000 + 1001 + 3 * i + 3);
        }
        note(memory, WINDOW_WORDS * sizeof(*memory));
        MPI_Type_free(&strided);
        free_window(kind, memory, &window);
    }
    free(out);
    free(in);
}

/* Every rank adds to a word of rank 0 in an exclusive lock, without atomic operations. */
static void locks(void)
{
    int kind, i;

    for (kind = 0; kind < 2; kind++) {
        MPI_Win window;
        int64_t *memory = make_window(kind, 1000, &window), value;

        for (i = 0; i < 50; i++) {
            MPI_Win_lock(MPI_LOCK_EXCLUSIVE, 0, 0, window);
            MPI_Get(&value, 1, MPI_INT64_T, 0, 5, 1, MPI_INT64_T, window);
            MPI_Win_flush(0, window);
            value++;
            MPI_Put(&value, 1, MPI_INT64_T, 0, 5, 1, MPI_INT64_T, window);
            MPI_Win_unlock(0, window);
        }
        MPI_Barrier(WORLD);
        MPI_Win_lock(MPI_LOCK_SHARED, 0, 0, window);
        MPI_Get(&value, 1, MPI_INT64_T, 0, 5, 1, MPI_INT64_T, window);
        MPI_Win_unlock(0, window);
        CHECK(value == 50 * size);
        note(&value, sizeof(value));
        MPI_Barrier(WORLD);
        free_window(kind, memory, &window);
    }
}

static void pscw(void)
{
    int64_t *out = malloc(5000 * sizeof(*out)), *memory;
    MPI_Group world, to, from;
    MPI_Win window;
    int round, i;

    memory = make_window(1, 5000, &window);
    MPI_Comm_group(WORLD, &world);
    MPI_Group_incl(world, 1, &next, &to);
    MPI_Group_incl(world, 1, &before, &from);
    for (round = 0; round < 10; round++) {
        for (i = 0; i < 5000; i++) {
            out[i] = rank * 1000000 + round * 10000 + i;
        }
        MPI_Win_post(from, 0, window);
        MPI_Win_start(to, 0, window);
        MPI_Put(out, 5000, MPI_INT64_T, next, 0, 5000, MPI_INT64_T, window);
        MPI_Win_complete(window);
        MPI_Win_wait(window);
        for (i = 0; i < 5000; i++) {
            CHECK(memory[i] == before * 1000000 + round * 10000 + i);
        }
        note(memory, 5000 * sizeof(*memory));
    }
    MPI_Group_free(&world);
    MPI_Group_free(&to);
    MPI_Group_free(&from);
    MPI_Win_free(&window);
    free(out);
}

/* Operations on the words of rank 0, of all ranks at once. */
static void accumulate(void)
{
    enum { COUNT = 2000, ROUNDS = 20 };
    int64_t *out = malloc(COUNT * sizeof(*out)), *memory, old, one = 1, last = -1;
    double *numbers, add = 0.5;
    MPI_Win window, doubles;
    int i, round;

    memory = make_window(1, COUNT, &window);
    MPI_Win_allocate(sizeof(double), sizeof(double), MPI_INFO_NULL, WORLD, &numbers, &doubles);
    *numbers = 0;
    MPI_Barrier(WORLD);
    for (i = 0; i < COUNT; i++) {
        out[i] = i;
    }
    for (round = 0; round < ROUNDS; round++) {
        MPI_Win_fence(0, window);
        MPI_Accumulate(out, COUNT, MPI_INT64_T, 0, 0, COUNT, MPI_INT64_T, MPI_SUM, window);
        MPI_Win_fence(0, window);
        MPI_Win_fence(0, doubles);
        MPI_Accumulate(&add, 1, MPI_DOUBLE, 0, 0, 1, MPI_DOUBLE, MPI_SUM, doubles);
        MPI_Win_fence(0, doubles);
    }
    if (rank == 0) {
        CHECK(*numbers == 0.5 * size * ROUNDS);
        for (i = 0; i < COUNT; i++) {
            CHECK(memory[i] == (int64_t)i * size * ROUNDS);
        }
        note(memory, COUNT * sizeof(*memory));
    }
    MPI_Barrier(WORLD);
    /* Word 0 is still 0. Each fetch sees more than the one before. */
    MPI_Win_lock_all(0, window);
    for (i = 0; i < 200; i++) {
        MPI_Fetch_and_op(&one, &old, MPI_INT64_T, 0, 0, MPI_SUM, window);
        MPI_Win_flush(0, window);
        CHECK(old > last && old < 200 * size);
        last = old;
    }
    MPI_Barrier(WORLD);
    MPI_Fetch_and_op(NULL, &old, MPI_INT64_T, 0, 0, MPI_NO_OP, window);
    MPI_Win_flush(0, window);
    CHECK(old == 200 * size);
    MPI_Barrier(WORLD);
    /* A turn for each rank, by compare and swap of word 0. */
    for (i = 0; i < 10; i++) {
        int64_t mine = 200 * size + i * size + rank, then = mine + 1;
        do {
            MPI_Compare_and_swap(&then, &mine, &old, MPI_INT64_T, 0, 0, window);
            MPI_Win_flush(0, window);
        } while (old != mine);
    }
    MPI_Barrier(WORLD);
    MPI_Get_accumulate(out, 2, MPI_INT64_T, &out[4], 2, MPI_INT64_T, 0, 0, 2, MPI_INT64_T, MPI_NO_OP, window);
    MPI_Win_flush(0, window);
    CHECK(out[4] == 210 * size && out[5] == (int64_t)size * ROUNDS);
    note(&out[4], 2 * sizeof(*out));
    MPI_Win_unlock_all(window);
    MPI_Win_free(&window);
    MPI_Win_free(&doubles);
    free(out);
}

/* Puts of all ranks into words of their own, at every rank, in one passive epoch. */
static void shared_locks(void)
{
    int64_t *memory, *seen = malloc(size * sizeof(*seen)), mine;
    MPI_Win window;
    MPI_Request request;
    int i, round;

    memory = make_window(1, size, &window);
    MPI_Win_lock_all(0, window);
    for (round = 1; round <= 20; round++) {
        mine = round * 1000 + rank;
        for (i = 0; i < size; i++) {
            MPI_Rput(&mine, 1, MPI_INT64_T, i, rank, 1, MPI_INT64_T, window, &request);
            MPI_Wait(&request, MPI_STATUS_IGNORE);
        }
        MPI_Win_flush_all(window);
        MPI_Barrier(WORLD);
        MPI_Get(seen, size, MPI_INT64_T, next, 0, size, MPI_INT64_T, window);
        MPI_Win_flush(next, window);
        for (i = 0; i < size; i++) {
            CHECK(seen[i] == round * 1000 + i);
        }
        note(seen, size * sizeof(*seen));
        MPI_Barrier(WORLD);
    }
    MPI_Win_unlock_all(window);
    MPI_Win_free(&window);
    free(seen);
    (void)memory;
}

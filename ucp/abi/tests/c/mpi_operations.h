/* Operations of reductions of mpi.c: every predefined one on each kind of type, places of extremes, and the program's own. */

/* What a rank contributes at a place: small, so that products fit each type and are exact in floating point. */
static int term(int of, int at)
{
    return (of * 3 + at) % 4;
}

/* The result of the first ranks, by hand. */
static long folded(MPI_Op op, int ranks, int at)
{
    long all = term(0, at);
    int i;
    for (i = 1; i < ranks; i++) {
        long one = term(i, at);
        all = op == MPI_MAX    ? (one > all ? one : all)
              : op == MPI_MIN  ? (one < all ? one : all)
              : op == MPI_SUM  ? all + one
              : op == MPI_PROD ? all * one
              : op == MPI_LAND ? all && one
              : op == MPI_LOR  ? all || one
              : op == MPI_LXOR ? !all != !one
              : op == MPI_BAND ? (all & one)
              : op == MPI_BOR  ? (all | one)
                               : (all ^ one);
    }
    return all;
}

/* Operations on a type of C. */
#define OPERATIONS(type, c, count_of_ops) \
    do { \
        c out_[COUNT], in_[COUNT]; \
        int op_, at_; \
        for (at_ = 0; at_ < COUNT; at_++) { \
            out_[at_] = (c)term(rank, at_); \
        } \
        for (op_ = 0; op_ < (count_of_ops); op_++) { \
            MPI_Allreduce(out_, in_, COUNT, type, ops[op_], WORLD); \
            for (at_ = 0; at_ < COUNT; at_++) { \
                CHECK(in_[at_] == (c)folded(ops[op_], size, at_)); \
                sum += (uint64_t)in_[at_]; \
            } \
        } \
    } while (0)

/* The least and the greatest value of a place, and the first rank that has it. */
#define PLACES(type, c) \
    do { \
        struct { \
            c value; \
            int at; \
        } out_[COUNT], in_[COUNT]; \
        int greatest_, at_, i_; \
        for (at_ = 0; at_ < COUNT; at_++) { \
            out_[at_].value = (c)term(rank, at_); \
            out_[at_].at    = rank; \
        } \
        for (greatest_ = 0; greatest_ < 2; greatest_++) { \
            MPI_Op op_ = greatest_ ? MPI_MAX : MPI_MIN; \
            MPI_Allreduce(out_, in_, COUNT, type, greatest_ ? MPI_MAXLOC : MPI_MINLOC, WORLD); \
            for (at_ = 0; at_ < COUNT; at_++) { \
                long best_ = folded(op_, size, at_); \
                for (i_ = 0; term(i_, at_) != best_; i_++) { \
                } \
                CHECK(in_[at_].value == (c)best_ && in_[at_].at == i_); \
                sum += (uint64_t)best_ * 100 + i_; \
            } \
        } \
    } while (0)

typedef struct {
    int64_t scale, shift;
} affine_t;

/* One function after another, which depends on their order: scale * x + shift. */
static void compose(void *in, void *inout, int *count, MPI_Datatype *type)
{
    affine_t *first = in, *second = inout;
    int i;
    (void)type;
    for (i = 0; i < *count; i++) {
        second[i].shift += second[i].scale * first[i].shift;
        second[i].scale *= first[i].scale;
    }
}

static affine_t function_of(int of, int at)
{
    affine_t function = {2 + (of + at) % 3, 1 + of * 10 + at % 7};
    return function;
}

/* An operation of the program that must be applied in the order of ranks, on a type of the program. */
static void composed(void)
{
    enum { COUNT = 2000 };
    affine_t *out = malloc(COUNT * sizeof(*out)), *in = malloc(COUNT * sizeof(*in)), *expected = malloc(COUNT * sizeof(*in));
    MPI_Datatype type;
    int i, of, one = 1;
    MPI_Op op;

    MPI_Type_contiguous(2, MPI_INT64_T, &type);
    MPI_Type_commit(&type);
    MPI_Op_create(compose, 0, &op);
    for (i = 0; i < COUNT; i++) {
        out[i] = function_of(rank, i);
    }
    for (of = 0; of < size; of++) {
        for (i = 0; i < COUNT; i++) {
            affine_t next_one = function_of(of, i);
            if (of > 0) {
                compose(&expected[i], &next_one, &one, NULL);
            }
            expected[i] = next_one;
        }
        if (of == rank) {
            MPI_Scan(out, in, COUNT, type, op, WORLD);
            CHECK(memcmp(in, expected, COUNT * sizeof(*in)) == 0);
        }
    }
    note(in, COUNT * sizeof(*in));
    MPI_Allreduce(out, in, COUNT, type, op, WORLD);
    CHECK(memcmp(in, expected, COUNT * sizeof(*in)) == 0);
    for (of = 0; of < size; of++) {
        memset(in, 0, COUNT * sizeof(*in));
        MPI_Reduce(out, in, COUNT, type, op, of, WORLD);
        CHECK(rank != of || memcmp(in, expected, COUNT * sizeof(*in)) == 0);
    }
    note(expected, COUNT * sizeof(*in));
    MPI_Op_free(&op);
    MPI_Type_free(&type);
    free(out);
    free(in);
    free(expected);
}

static void operations(void)
{
    enum { COUNT = 100 };
    /* Floating-point types have the first four. */
    MPI_Op ops[] = {MPI_MAX, MPI_MIN, MPI_SUM, MPI_PROD, MPI_LAND, MPI_LOR, MPI_LXOR, MPI_BAND, MPI_BOR, MPI_BXOR};
    uint64_t sum = 0;

    OPERATIONS(MPI_SIGNED_CHAR, signed char, 10);
    OPERATIONS(MPI_UNSIGNED_CHAR, unsigned char, 10);
    OPERATIONS(MPI_SHORT, short, 10);
    OPERATIONS(MPI_UNSIGNED_SHORT, unsigned short, 10);
    OPERATIONS(MPI_INT, int, 10);
    OPERATIONS(MPI_UNSIGNED, unsigned, 10);
    OPERATIONS(MPI_LONG, long, 10);
    OPERATIONS(MPI_UNSIGNED_LONG, unsigned long, 10);
    OPERATIONS(MPI_LONG_LONG, long long, 10);
    OPERATIONS(MPI_UNSIGNED_LONG_LONG, unsigned long long, 10);
    OPERATIONS(MPI_INT8_T, int8_t, 10);
    OPERATIONS(MPI_INT16_T, int16_t, 10);
    OPERATIONS(MPI_INT32_T, int32_t, 10);
    OPERATIONS(MPI_INT64_T, int64_t, 10);
    OPERATIONS(MPI_UINT8_T, uint8_t, 10);
    OPERATIONS(MPI_UINT16_T, uint16_t, 10);
    OPERATIONS(MPI_UINT32_T, uint32_t, 10);
    OPERATIONS(MPI_UINT64_T, uint64_t, 10);
    OPERATIONS(MPI_FLOAT, float, 4);
    OPERATIONS(MPI_DOUBLE, double, 4);
    OPERATIONS(MPI_LONG_DOUBLE, long double, 4);
    PLACES(MPI_SHORT_INT, short);
    PLACES(MPI_2INT, int);
    PLACES(MPI_LONG_INT, long);
    PLACES(MPI_FLOAT_INT, float);
    PLACES(MPI_DOUBLE_INT, double);
    PLACES(MPI_LONG_DOUBLE_INT, long double);
    note(&sum, sizeof(sum));
    composed();
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

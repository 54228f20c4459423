/* Datatypes of mpi.c: every predefined one, and each way to derive one. */

#define BASIC(type, c) {type, sizeof(c)}

/* Bytes of each predefined type pass unchanged. The size is 0 where the MPI library chooses it. */
static void basic_types(void)
{
    struct {
        MPI_Datatype type;
        size_t bytes;
    } all[] = {
        BASIC(MPI_CHAR, char), BASIC(MPI_SIGNED_CHAR, char), BASIC(MPI_UNSIGNED_CHAR, char), BASIC(MPI_BYTE, char),
        BASIC(MPI_WCHAR, wchar_t), BASIC(MPI_SHORT, short), BASIC(MPI_UNSIGNED_SHORT, short), BASIC(MPI_INT, int),
        BASIC(MPI_UNSIGNED, int), BASIC(MPI_LONG, long), BASIC(MPI_UNSIGNED_LONG, long),
        BASIC(MPI_LONG_LONG, long long), BASIC(MPI_UNSIGNED_LONG_LONG, long long), BASIC(MPI_FLOAT, float),
        BASIC(MPI_DOUBLE, double), BASIC(MPI_LONG_DOUBLE, long double), BASIC(MPI_C_BOOL, char),
        BASIC(MPI_INT8_T, int8_t), BASIC(MPI_INT16_T, int16_t), BASIC(MPI_INT32_T, int32_t),
        BASIC(MPI_INT64_T, int64_t), BASIC(MPI_UINT8_T, int8_t), BASIC(MPI_UINT16_T, int16_t),
        BASIC(MPI_UINT32_T, int32_t), BASIC(MPI_UINT64_T, int64_t), BASIC(MPI_AINT, MPI_Aint),
        BASIC(MPI_COUNT, MPI_Count), BASIC(MPI_OFFSET, MPI_Offset), BASIC(MPI_C_FLOAT_COMPLEX, float _Complex),
        BASIC(MPI_C_DOUBLE_COMPLEX, double _Complex), BASIC(MPI_C_LONG_DOUBLE_COMPLEX, long double _Complex),
        BASIC(MPI_PACKED, char),
        /* Of C++ and Fortran: not every MPI library has them. */
        {MPI_CXX_BOOL, 0}, {MPI_CXX_FLOAT_COMPLEX, 0},
        {MPI_CXX_DOUBLE_COMPLEX, 0}, {MPI_CXX_LONG_DOUBLE_COMPLEX, 0},
        {MPI_CHARACTER, 0}, {MPI_LOGICAL, 0}, {MPI_INTEGER, 0},
        {MPI_REAL, 0}, {MPI_DOUBLE_PRECISION, 0}, {MPI_COMPLEX, 0},
        {MPI_DOUBLE_COMPLEX, 0}, {MPI_INTEGER1, 0}, {MPI_INTEGER2, 0},
        {MPI_INTEGER4, 0}, {MPI_INTEGER8, 0}, {MPI_REAL4, 0},
        {MPI_REAL8, 0},
    };
    static const int counts[] = {1, 7, 20000};
    unsigned char *out = malloc(20000 * 32), *in = malloc(20000 * 32);
    unsigned i, j;
    int bytes, got;
    MPI_Status status;

    for (i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
        if (all[i].type == MPI_DATATYPE_NULL) {
            continue;
        }
        MPI_Type_size(all[i].type, &bytes);
        CHECK(bytes <= 32 && (all[i].bytes == 0 || bytes == (int)all[i].bytes));
        for (j = 0; j < sizeof(counts) / sizeof(counts[0]); j++) {
            int length = counts[j] * bytes;
            fill(out, length, i);
            memset(in, 0, length);
            MPI_Sendrecv(out, counts[j], all[i].type, next, 1, in, counts[j], all[i].type, before, 1, WORLD, &status);
            MPI_Get_count(&status, all[i].type, &got);
            CHECK(got == counts[j]);
            check(in, length, before, i);
        }
    }
    free(out);
    free(in);
}

enum { TYPE_WORDS = 60000 };

static int word_of(int from, int at)
{
    return from * 1000000 + at;
}

/* A type and the words that it selects, in order. It is sent to dense memory, and received from there. */
static void exchange_type(MPI_Datatype type, int count, const int *places, int words)
{
    int *spread = malloc(TYPE_WORDS * sizeof(int)), *dense = malloc(TYPE_WORDS * sizeof(int)), i, size, room = 0;
    char *packed;
    MPI_Request request;

    MPI_Type_commit(&type);
    MPI_Type_size(type, &size);
    CHECK(size * count == words * (int)sizeof(int));
    for (i = 0; i < TYPE_WORDS; i++) {
        spread[i] = word_of(rank, i);
        dense[i]  = -1;
    }
    MPI_Irecv(dense, words, MPI_INT, before, 3, WORLD, &request);
    MPI_Send(spread, count, type, next, 3, WORLD);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    for (i = 0; i < words; i++) {
        CHECK(dense[i] == word_of(before, places[i]));
    }
    for (i = 0; i < TYPE_WORDS; i++) {
        dense[i]  = word_of(rank, i);
        spread[i] = -1;
    }
    MPI_Irecv(spread, count, type, before, 4, WORLD, &request);
    MPI_Send(dense, words, MPI_INT, next, 4, WORLD);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    for (i = 0; i < words; i++) {
        CHECK(spread[places[i]] == word_of(before, i));
        spread[places[i]] = -1;
    }
    /* Nothing else was written. */
    for (i = 0; i < TYPE_WORDS; i++) {
        CHECK(spread[i] == -1);
        spread[i] = word_of(rank, i);
    }
    /* Packed by the sender, unpacked by the receiver. */
    MPI_Pack_size(count, type, WORLD, &size);
    packed = malloc(size);
    MPI_Pack(spread, count, type, packed, size, &room, WORLD);
    MPI_Sendrecv_replace(packed, room, MPI_PACKED, next, 5, before, 5, WORLD, MPI_STATUS_IGNORE);
    memset(spread, 0, TYPE_WORDS * sizeof(int));
    i = 0;
    MPI_Unpack(packed, room, &i, spread, count, type, WORLD);
    for (i = 0; i < words; i++) {
        CHECK(spread[places[i]] == word_of(before, places[i]));
    }
    note(spread, TYPE_WORDS * sizeof(int));
    MPI_Type_free(&type);
    free(packed);
    free(spread);
    free(dense);
}

/* Types of blocks at places: `scale` makes few of them or many. */
static void block_types(int scale)
{
    enum { MOST = 2000 };
    static int places[TYPE_WORDS], lengths[MOST], words[MOST], same[MOST];
    MPI_Aint bytes[MOST];
    MPI_Datatype type, inner, kinds[MOST];
    int i, j, at, one;

    MPI_Type_contiguous(10 * scale, MPI_INT, &type);
    for (i = 0; i < 20 * scale; i++) {
        places[i] = i;
    }
    exchange_type(type, 2, places, 20 * scale);
    for (i = 0; i < 3 * scale; i++) {
        places[i] = i / 3 * 5 + i % 3;
    }
    MPI_Type_vector(scale, 3, 5, MPI_INT, &type);
    exchange_type(type, 1, places, 3 * scale);
    MPI_Type_create_hvector(scale, 3, 5 * sizeof(int), MPI_INT, &type);
    exchange_type(type, 1, places, 3 * scale);

    /* Blocks of one to four words, the last first. */
    for (at = 0, i = 0; i < scale; i++) {
        lengths[i] = 1 + i % 4;
        words[i]   = (scale - 1 - i) * 6;
        same[i]    = 2;
        bytes[i]   = words[i] * sizeof(int);
        kinds[i]   = MPI_INT;
        for (j = 0; j < lengths[i]; j++) {
            places[at++] = words[i] + j;
        }
    }
    MPI_Type_indexed(scale, lengths, words, MPI_INT, &type);
    exchange_type(type, 1, places, at);
    MPI_Type_create_hindexed(scale, lengths, bytes, MPI_INT, &type);
    exchange_type(type, 1, places, at);
    MPI_Type_create_struct(scale, lengths, bytes, kinds, &type);
    exchange_type(type, 1, places, at);
    for (i = 0; i < 2 * scale; i++) {
        places[i] = words[i / 2] + i % 2;
    }
    MPI_Type_create_indexed_block(scale, 2, words, MPI_INT, &type);
    exchange_type(type, 1, places, 2 * scale);
    MPI_Type_create_hindexed_block(scale, 2, bytes, MPI_INT, &type);
    exchange_type(type, 1, places, 2 * scale);
    /* A type of a type, and a copy of one. */
    one      = 1;
    bytes[0] = 0;
    MPI_Type_indexed(scale, same, words, MPI_INT, &inner);
    MPI_Type_create_struct(1, &one, bytes, &inner, &type);
    exchange_type(type, 1, places, 2 * scale);
    MPI_Type_dup(inner, &type);
    exchange_type(type, 1, places, 2 * scale);
    MPI_Type_free(&inner);
    /* Every fourth word. */
    for (i = 0; i < 5 * scale; i++) {
        places[i] = 4 * i;
    }
    MPI_Type_create_resized(MPI_INT, 0, 4 * sizeof(int), &type);
    exchange_type(type, 5 * scale, places, 5 * scale);
}

/* Parts of arrays, in the orders of C and of Fortran, and of an array that is dealt out to two processes. */
static void array_types(int edge)
{
    int sizes[] = {edge, 12, 6}, parts[] = {edge / 2, 5, 3}, starts[] = {edge / 4, 4, 2}, places[TYPE_WORDS / 4];
    int deal[] = {MPI_DISTRIBUTE_BLOCK, MPI_DISTRIBUTE_CYCLIC, MPI_DISTRIBUTE_NONE}, grid[] = {2, 1, 1};
    int by[] = {MPI_DISTRIBUTE_DFLT_DARG, 3, MPI_DISTRIBUTE_DFLT_DARG}, at, i, j, k;
    MPI_Datatype type;

    for (at = i = 0; i < parts[0]; i++) {
        for (j = 0; j < parts[1]; j++) {
            for (k = 0; k < parts[2]; k++) {
                places[at++] = ((starts[0] + i) * 12 + starts[1] + j) * 6 + starts[2] + k;
            }
        }
    }
    MPI_Type_create_subarray(3, sizes, parts, starts, MPI_ORDER_C, MPI_INT, &type);
    exchange_type(type, 1, places, at);
    /* The first index is the one that runs. */
    for (at = k = 0; k < parts[2]; k++) {
        for (j = 0; j < parts[1]; j++) {
            for (i = 0; i < parts[0]; i++) {
                places[at++] = ((starts[2] + k) * 12 + starts[1] + j) * edge + starts[0] + i;
            }
        }
    }
    MPI_Type_create_subarray(3, sizes, parts, starts, MPI_ORDER_FORTRAN, MPI_INT, &type);
    exchange_type(type, 1, places, at);
    /* Process 1 of 2 by 1 by 1 has the second half, all of the rest. */
    for (at = 0, i = edge / 2; i < edge; i++) {
        for (j = 0; j < 72; j++) {
            places[at++] = i * 72 + j;
        }
    }
    MPI_Type_create_darray(2, 1, 3, sizes, deal, by, grid, MPI_ORDER_C, MPI_INT, &type);
    exchange_type(type, 1, places, at);
    /* Of 1 by 2 by 1 it has three of six columns, again and again. */
    grid[0] = 1;
    grid[1] = 2;
    for (at = i = 0; i < edge; i++) {
        for (j = 0; j < 12; j++) {
            for (k = 0; j % 6 >= 3 && k < 6; k++) {
                places[at++] = (i * 12 + j) * 6 + k;
            }
        }
    }
    MPI_Type_create_darray(2, 1, 3, sizes, deal, by, grid, MPI_ORDER_C, MPI_INT, &type);
    exchange_type(type, 1, places, at);
}

/* Few words and many, which are sent in other ways. */
static void derived_types(void)
{
    block_types(8);
    block_types(2000);
    array_types(4);
    array_types(400);
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

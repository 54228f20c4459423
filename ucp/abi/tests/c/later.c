/*
 * Tables of options and pools in the form of UCX after 1.13: each parser has a function for documentation, entries of
 * lists stand for tables, a structure makes a pool, and a bit tells whose memory a text has. Neither header here has
 * that form.
 */
#include "check_macro.h"
#include <limits.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

typedef struct {
    void       *read, *write, *clone, *release, *help, *doc;
    const void *arg;
} parser_t;

typedef struct {
    const char *name, *value, *doc;
    size_t     offset;
    parser_t   parser;
} field_t;

typedef struct link {
    struct link *prev, *next;
} link_t;

typedef struct {
    const char *name, *prefix;
    field_t    *table;
    size_t     size;
    link_t     list;
    uint8_t    flags;
} entry_t;

typedef struct {
    size_t   elem_size;
    parser_t parser;
} array_t;

typedef struct {
    void *alloc, *release, *init, *cleanup, *text;
} ops_t;

typedef struct {
    size_t      priv_size, elem_size, align_offset, alignment;
    int         malloc_safe;
    unsigned    elems_per_chunk;
    size_t      max_chunk_size;
    unsigned    max_elems;
    double      grow_factor;
    const ops_t *ops;
    const char  *name;
} params_t;

typedef struct {
    size_t      elem_size, alignment, align_offset;
    double      grow_factor;
    size_t      max_chunk_size;
    unsigned    elems_per_chunk, quota;
    int         malloc_safe;
    void        *tail, *chunks;
    const ops_t *ops;
    char        *name;
} data_t;

typedef struct {
    void   *free;
    data_t *data;
} pool_t;

typedef struct {
    char    *buffer;
    size_t  length;
    size_t  capacity : 63;
    uint8_t is_fixed : 1;
} text_t;

typedef signed char status_t;

int ucs_config_sscanf_int(const char *, void *, const void *);
int ucs_config_sprintf_int(char *, size_t, const void *, const void *);
status_t ucs_config_clone_int(const void *, void *, const void *);
void ucs_config_release_nop(void *, const void *);
void ucs_config_help_generic(char *, size_t, const void *);
void ucs_config_doc_nop(void *, const void *);
int ucs_config_sscanf_string(const char *, void *, const void *);
int ucs_config_sprintf_string(char *, size_t, const void *, const void *);
status_t ucs_config_clone_string(const void *, void *, const void *);
void ucs_config_release_string(void *, const void *);
int ucs_config_sscanf_array(const char *, void *, const void *);
int ucs_config_sprintf_array(char *, size_t, const void *, const void *);
status_t ucs_config_clone_array(const void *, void *, const void *);
void ucs_config_release_array(void *, const void *);
void ucs_config_help_array(char *, size_t, const void *);
int ucs_config_sscanf_bitmap(const char *, void *, const void *);
int ucs_config_sprintf_bitmap(char *, size_t, const void *, const void *);
status_t ucs_config_clone_uint(const void *, void *, const void *);
void ucs_config_help_bitmap(char *, size_t, const void *);
int ucs_config_sscanf_table(const char *, void *, const void *);
status_t ucs_config_clone_table(const void *, void *, const void *);
void ucs_config_release_table(void *, const void *);
void ucs_config_help_table(char *, size_t, const void *);
status_t ucs_config_parser_fill_opts(void *, entry_t *, const char *, int);
status_t ucs_config_parser_set_value(void *, field_t *, const char *, const char *, const char *);
status_t ucs_config_parser_get_value(void *, field_t *, const char *, char *, size_t);
status_t ucs_config_parser_clone_opts(const void *, void *, field_t *);
void ucs_config_parser_release_opts(void *, field_t *);
void ucs_config_parser_print_opts(FILE *, const char *, const void *, field_t *, const char *, const char *, int,
                                  const char *);
void ucs_config_parser_print_all_opts(FILE *, const char *, int, link_t *, const char *);
void ucs_mpool_params_reset(params_t *);
status_t ucs_mpool_init(const params_t *, pool_t *);
void ucs_mpool_cleanup(pool_t *, int);
void *ucs_mpool_priv(pool_t *);
void *ucs_mpool_get(pool_t *);
void ucs_mpool_grow(pool_t *, unsigned);
unsigned ucs_mpool_num_elems_per_chunk(pool_t *, void *, size_t);
void ucs_mpool_put(void *);
status_t ucs_mpool_chunk_malloc(void *, size_t *, void **);
void ucs_mpool_chunk_free(void *, void *);
void ucs_string_buffer_appendf(text_t *, const char *, ...);
void ucs_string_buffer_rtrim(text_t *, const char *);
const char *ucs_string_buffer_cstr(const text_t *);

#define INT {ucs_config_sscanf_int, ucs_config_sprintf_int, ucs_config_clone_int, ucs_config_release_nop, \
             ucs_config_help_generic, ucs_config_doc_nop, "integer"}
#define BITMAP(_names) {ucs_config_sscanf_bitmap, ucs_config_sprintf_bitmap, ucs_config_clone_uint, ucs_config_release_nop, \
                        ucs_config_help_bitmap, ucs_config_doc_nop, _names}
#define ARRAY(_elements) {ucs_config_sscanf_array, ucs_config_sprintf_array, ucs_config_clone_array, \
                          ucs_config_release_array, ucs_config_help_array, ucs_config_doc_nop, _elements}
#define STRING {ucs_config_sscanf_string, ucs_config_sprintf_string, ucs_config_clone_string, \
                ucs_config_release_string, ucs_config_help_generic, ucs_config_doc_nop, "string"}

typedef struct {
    int  number;
    char *text;
} inner_t;

typedef struct {
    int     number;
    inner_t inner;
    struct {
        int      *elements;
        unsigned count, truncated;
    } list;
} options_t;

static array_t numbers = {sizeof(int), INT};

static field_t inner_fields[] = {{"NUMBER", "5", "A number.", offsetof(inner_t, number), INT},
                                 {"TEXT", "in", "A text.", offsetof(inner_t, text), STRING},
                                 {NULL}};

static field_t fields[] = {
    {"COUNT", "3", "A count.", offsetof(options_t, number), INT},
    {"INNER_", "TEXT=changed", "", offsetof(options_t, inner),
     {ucs_config_sscanf_table, NULL, ucs_config_clone_table, ucs_config_release_table, ucs_config_help_table,
      ucs_config_doc_nop, inner_fields}},
    {"LIST", "7,8", "A list.", offsetof(options_t, list), ARRAY(&numbers)},
    {NULL}};

static field_t no_fields[] = {{NULL}};

static char text[4096];

static char *printed(FILE *file)
{
    rewind(file);
    text[fread(text, 1, sizeof(text) - 1, file)] = 0;
    fclose(file);
    return text;
}

static void options(void)
{
    static link_t list = {&list, &list};
    entry_t entry      = {"The table", "TAB_", fields, sizeof(options_t), {NULL, NULL}, 0};
    entry_t empty      = {"Nothing", "NO_", no_fields, 0, {NULL, NULL}, 0};
    options_t all, copy;
    char value[64];
    FILE *file;

    setenv("TESTL_TAB_COUNT", "4", 1);
    setenv("TESTL_INNER_NUMBER", "6", 1);
    memset(&all, 0xee, sizeof(all));
    CHECK(ucs_config_parser_fill_opts(&all, &entry, "TESTL_", 0) == 0);
    CHECK(all.number == 4 && all.inner.number == 6 && strcmp(all.inner.text, "changed") == 0);
    CHECK(all.list.count == 2 && all.list.elements[1] == 8);
    CHECK(ucs_config_parser_fill_opts(&copy, &empty, "TESTL_", 0) == 0);
    empty.list.prev = empty.list.next = &list;
    list.prev = list.next = &empty.list;
    CHECK(ucs_config_parser_fill_opts(&copy, &empty, "TESTL_", 0) == 0);

    CHECK(ucs_config_parser_set_value(&all, fields, NULL, "COUNT", "10") == 0 && all.number == 10);
    CHECK(ucs_config_parser_set_value(&all, fields, NULL, "INNER_NUMBER", "11") == 0 && all.inner.number == 11);
    CHECK(ucs_config_parser_set_value(&all, fields, "TAB_", "TAB_COUNT", "12") == 0 && all.number == 12);
    CHECK(ucs_config_parser_set_value(&all, fields, "TAB_", "COUNT", "13") == -12);
    CHECK(ucs_config_parser_set_value(&all, fields, NULL, "COUNT", "x") == -5 && all.number == 12);
    CHECK(ucs_config_parser_get_value(&all, fields, "LIST", value, sizeof(value)) == 0);
    CHECK(strcmp(value, "7,8") == 0);
    CHECK(ucs_config_parser_clone_opts(&all, &copy, fields) == 0);
    ucs_config_parser_release_opts(&all, fields);
    CHECK(copy.number == 12 && strcmp(copy.inner.text, "changed") == 0 && copy.list.elements[0] == 7);

    file = tmpfile();
    ucs_config_parser_print_opts(file, "Title", &copy, fields, "TAB_", "TESTL_", 1, NULL);
    CHECK(strcmp(printed(file), "TESTL_TAB_COUNT=12\nTESTL_TAB_NUMBER=11\nTESTL_TAB_TEXT=changed\nTESTL_TAB_LIST=7,8\n") ==
          0);
    file = tmpfile();
    ucs_config_parser_print_opts(file, "Title", &copy, fields, "TAB_", "TESTL_", 1, "LIST");
    CHECK(strcmp(printed(file), "TESTL_TAB_LIST=7,8\n") == 0);
    ucs_config_parser_release_opts(&copy, fields);

    entry.list.prev = &empty.list;
    entry.list.next = &list;
    empty.list.next = list.prev = &entry.list;
    file = tmpfile();
    ucs_config_parser_print_all_opts(file, "TESTL_", 1, &list, "COUNT");
    CHECK(strcmp(printed(file), "TESTL_TAB_COUNT=4\n") == 0);
}

/* Since UCX 1.18 a set of names has 64 bits. In the same form of tables UCX 1.17 has 32. */
typedef struct {
    uint64_t before, set, few;
    uint32_t short_set, behind;
    int      odd;
    uint32_t odd_set;
    struct {
        uint64_t *elements;
        unsigned count, truncated;
    } list;
} sets_t;

static char names[41][8];
static const char *name_list[41];
static array_t set_elements    = {sizeof(uint64_t), BITMAP(name_list)};
static field_t fields_of_sets[] = {
    {"SET", "n39,n0", "A set.", offsetof(sets_t, set), BITMAP(name_list)},
    {"FEW", "n1", "A set.", offsetof(sets_t, few), BITMAP(name_list)},
    {"SHORT_SET", "n2", "A set of 32 names.", offsetof(sets_t, short_set), BITMAP(name_list)},
    {"BEHIND", "77", "A number.", offsetof(sets_t, behind), INT},
    {"ODD_SET", "n3", "A set of 32 names.", offsetof(sets_t, odd_set), BITMAP(name_list)},
    {"LIST", "n1,n35,n36", "Sets.", offsetof(sets_t, list), ARRAY(&set_elements)},
    {NULL}};

static void sets(void)
{
    entry_t entry = {"Sets", "", fields_of_sets, sizeof(sets_t), {NULL, NULL}, 0};
    sets_t sets, copy;
    char value[64];
    int i;

    for (i = 0; i < 40; i++) {
        snprintf(names[i], sizeof(names[i]), "n%d", i);
        name_list[i] = names[i];
    }
    memset(&sets, 0xee, sizeof(sets));
    memset(&copy, 0xee, sizeof(copy));
    CHECK(ucs_config_parser_fill_opts(&sets, &entry, "TESTS_", 0) == 0);
    CHECK(sets.set == (1ul << 39) + 1 && sets.few == 2 && sets.before == 0xeeeeeeeeeeeeeeeeul);
    CHECK(sets.short_set == 4 && sets.behind == 77 && sets.odd_set == 8);
    CHECK(sets.list.count == 3 && sets.list.elements[1] == 1ul << 35);
    CHECK(ucs_config_parser_get_value(&sets, fields_of_sets, "SET", value, sizeof(value)) == 0);
    CHECK(strcmp(value, "n0,n39") == 0);
    CHECK(ucs_config_parser_get_value(&sets, fields_of_sets, "LIST", value, sizeof(value)) == 0);
    CHECK(strcmp(value, "n1,n35,n36") == 0);
    CHECK(ucs_config_parser_clone_opts(&sets, &copy, fields_of_sets) == 0);
    CHECK(copy.set == sets.set && copy.few == 2 && copy.short_set == 4 && copy.behind == 77 && copy.odd_set == 8);
    CHECK(copy.list.elements[2] == 1ul << 36);
    ucs_config_parser_release_opts(&copy, fields_of_sets);
    CHECK(ucs_config_parser_set_value(&sets, fields_of_sets, NULL, "SHORT_SET", "n35") == -5 && sets.short_set == 4);
    CHECK(ucs_config_parser_set_value(&sets, fields_of_sets, NULL, "SET", "n35,x") == -5 && sets.set == (1ul << 39) + 1);
    CHECK(ucs_config_parser_set_value(&sets, fields_of_sets, NULL, "SET", "n35") == 0 && sets.set == 1ul << 35);
    ucs_config_parser_release_opts(&sets, fields_of_sets);
}

/* A list tells whether all of its text has counted. */
static void lists_are_cut(void)
{
    entry_t entry = {"The table", "", fields, sizeof(options_t), {NULL, NULL}, 0};
    char text[600]  = "";
    options_t all, copy;
    int i;

    CHECK(ucs_config_parser_fill_opts(&all, &entry, "TESTT_", 0) == 0 && !all.list.truncated);
    for (i = 0; i < 128; i++) {
        strcat(text, ",1");
    }
    CHECK(ucs_config_parser_set_value(&all, fields, NULL, "LIST", text) == 0);
    CHECK(all.list.count == 128 && !all.list.truncated);
    strcat(text, ",2,3");
    CHECK(ucs_config_parser_set_value(&all, fields, NULL, "LIST", text) == 0);
    CHECK(all.list.count == 128 && all.list.truncated == 1 && all.list.elements[127] == 1);
    CHECK(ucs_config_parser_clone_opts(&all, &copy, fields) == 0);
    CHECK(copy.list.count == 128 && copy.list.truncated == 1);
    ucs_config_parser_release_opts(&all, fields);
    ucs_config_parser_release_opts(&copy, fields);
}

static void pools(void)
{
    ops_t ops = {ucs_mpool_chunk_malloc, ucs_mpool_chunk_free, NULL, NULL, NULL};
    params_t params;
    pool_t pool;
    void *all[50];
    int i;

    memset(&params, 0xee, sizeof(params));
    ucs_mpool_params_reset(&params);
    CHECK(params.max_elems == UINT_MAX && params.grow_factor == 1.0 && params.priv_size == 0);
    params.priv_size       = 24;
    params.elem_size       = 40;
    params.elems_per_chunk = 4;
    params.grow_factor     = 2.0;
    params.ops             = &ops;
    params.name            = "later";
    CHECK(ucs_mpool_init(&params, &pool) == 0);
    CHECK(pool.data->ops == &ops && strcmp(pool.data->name, "later") == 0);
    memset(ucs_mpool_priv(&pool), 0x77, 24);
    for (i = 0; i < 50; i++) {
        CHECK((all[i] = ucs_mpool_get(&pool)) != NULL && (uintptr_t)all[i] % 64 == 0);
        memset(all[i], i, 40);
    }
    CHECK(pool.data->ops == &ops && ((char*)ucs_mpool_priv(&pool))[23] == 0x77);
    for (i = 0; i < 50; i++) {
        CHECK(((char*)all[i])[39] == i);
        ucs_mpool_put(all[i]);
    }
    ucs_mpool_cleanup(&pool, 1);
    params.grow_factor = 0.5;
    CHECK(ucs_mpool_init(&params, &pool) == -5);
}

static size_t largest;
static int chunks;

static status_t limited_chunk(void *pool, size_t *size, void **chunk)
{
    largest = (*size > largest) ? *size : largest;
    chunks++;
    return ucs_mpool_chunk_malloc(pool, size, chunk);
}

static void chunks_have_a_limit(void)
{
    ops_t ops = {limited_chunk, ucs_mpool_chunk_free, NULL, NULL, NULL};
    params_t params;
    pool_t pool;
    void *one;

    ucs_mpool_params_reset(&params);
    CHECK(params.max_chunk_size == 128ul << 20);
    params.elem_size       = 1000;
    params.elems_per_chunk = 1000;
    params.max_chunk_size  = 65536;
    params.grow_factor     = 4.0;
    params.ops             = &ops;
    params.name            = "a limit \xe4";
    CHECK(ucs_mpool_init(&params, &pool) == 0 && strcmp(pool.data->name, params.name) == 0);
    one = ucs_mpool_get(&pool);
    CHECK(one != NULL && chunks == 1 && largest > 60000 && largest <= 65536);
    ucs_mpool_put(one);
    ucs_mpool_grow(&pool, 1000);
    ucs_mpool_grow(&pool, UINT_MAX);
    CHECK(chunks == 3 && largest <= 65536);
    ucs_mpool_cleanup(&pool, 1);
    /* A chunk has room for more elements than the pool may have. */
    params.elems_per_chunk = params.max_elems = 3;
    CHECK(ucs_mpool_init(&params, &pool) == 0);
    CHECK(ucs_mpool_num_elems_per_chunk(&pool, &pool, 60000) == 3 && ucs_mpool_num_elems_per_chunk(&pool, &pool, 2500) == 2);
    one = ucs_mpool_get(&pool);
    CHECK(one != NULL && ucs_mpool_num_elems_per_chunk(&pool, &pool, 60000) == 0);
    ucs_mpool_put(one);
    ucs_mpool_cleanup(&pool, 1);
    params.max_chunk_size = 1000;
    CHECK(ucs_mpool_init(&params, &pool) == -5);
}

static void texts(void)
{
    char memory[16], guard[] = "################";
    text_t text = {memory, 0, 0, 1}, grows = {NULL, 0, 0, 0};
    unsigned size, i;

    for (size = 1; size <= 12; size++) {
        memcpy(memory, guard, sizeof(memory));
        text.length   = 0;
        text.capacity = size;
        for (i = 0; i < 8; i++) {
            ucs_string_buffer_appendf(&text, "%u%c", i, 'a' + i);
        }
        CHECK(strlen(memory) == size - 1 && strncmp(memory, "0a1b2c3d4e5f", size - 1) == 0);
        CHECK(memcmp(memory + size, guard, sizeof(memory) - size) == 0);
        CHECK(text.buffer == memory && text.length == size - 1 && text.capacity == size && text.is_fixed);
        CHECK(strcmp(ucs_string_buffer_cstr(&text), memory) == 0);
    }
    ucs_string_buffer_rtrim(&text, "5e");
    CHECK(strcmp(memory, "0a1b2c3d4") == 0 && text.length == 9);
    for (i = 0; i < 100; i++) {
        ucs_string_buffer_appendf(&grows, "%u", i % 10);
    }
    CHECK(grows.length == 100 && grows.capacity > 100 && !grows.is_fixed && strlen(grows.buffer) == 100);
    free(grows.buffer);
}

int main(void)
{
    options();
    sets();
    lists_are_cut();
    pools();
    chunks_have_a_limit();
    texts();
    return 0;
}

/*
 * Pools of objects: growth, limits, alignment, what is given back, and what is not; and numbers of bytes, texts and
 * other small functions. With an argument it runs on UCX.
 */
#include "check_macro.h"
#include <limits.h>
#include <stdint.h>
#include <string.h>
#include <ucs/datastruct/mpool.h>
#include <ucs/sys/string.h>
#include <ucs/sys/uid.h>
#include <ucs/type/spinlock.h>

static int is_ucx;
static unsigned chunks, objects, cleaned, refuses;

static ucs_status_t alloc(ucs_mpool_t *pool, size_t *size, void **chunk)
{
    if (refuses) {
        return UCS_ERR_NO_MEMORY;
    }
    chunks++;
    *size += 1000; /* more than asked for */
    *chunk = malloc(*size);
    memset(*chunk, 0xee, *size);
    return UCS_OK;
}

static void release(ucs_mpool_t *pool, void *chunk)
{
    chunks--;
    free(chunk);
}

static void init(ucs_mpool_t *pool, void *object, void *chunk)
{
    CHECK((char*)object > (char*)chunk);
    *(unsigned*)object = 0xabcd;
    objects++;
}

static void cleanup(ucs_mpool_t *pool, void *object)
{
    CHECK(*(unsigned*)object == 0xabcd);
    cleaned++;
}

static ucs_mpool_ops_t operations = {alloc, release, init, cleanup, NULL};

static void grows(size_t size, size_t alignment, size_t offset)
{
    ucs_mpool_t pool;
    void *all[100], *again;
    unsigned i, first;

    chunks = objects = cleaned = 0;
    CHECK(ucs_mpool_init(&pool, 40, size, offset, alignment, 8, UINT_MAX, &operations, "a pool") == UCS_OK);
    CHECK(strcmp(ucs_mpool_name(&pool), "a pool") == 0 && chunks == 0 && !ucs_mpool_is_empty(&pool));
    memset(ucs_mpool_priv(&pool), 0x77, 40);
    for (i = 0; i < 100; i++) {
        all[i] = ucs_mpool_get(&pool);
        CHECK(all[i] != NULL && ((uintptr_t)all[i] + offset) % alignment == 0);
        CHECK(((ucs_mpool_elem_t*)all[i] - 1)->mpool == &pool);
        CHECK(*(unsigned*)all[i] == 0xabcd);
        memset((char*)all[i] + sizeof(unsigned), (int)i, size - sizeof(unsigned));
    }
    CHECK(objects >= 100 && chunks <= 13);
    for (i = 0; i < 100; i++) {
        CHECK(size == sizeof(unsigned) || ((unsigned char*)all[i])[size - 1] == i);
    }
    /* What was given back last comes first, without a new chunk. */
    first = chunks;
    ucs_mpool_put(all[7]);
    ucs_mpool_put(all[3]);
    again = ucs_mpool_get(&pool);
    CHECK(again == all[3] && ucs_mpool_get(&pool) == all[7] && chunks == first);
    for (i = 0; i < 100; i++) {
        ucs_mpool_put(all[i]);
    }
    first = objects;
    ucs_mpool_grow(&pool, 500);
    CHECK(objects >= first + 500);
    CHECK(((unsigned char*)ucs_mpool_priv(&pool))[39] == 0x77);
    ucs_mpool_cleanup(&pool, 1);
    CHECK(chunks == 0 && cleaned == objects);
}

static void limits(void)
{
    ucs_mpool_t pool;
    void *all[5];
    int i;

    chunks = objects = cleaned = 0;
    CHECK(ucs_mpool_init(&pool, 0, 16, 0, 8, 3, 5, &operations, "limited") == UCS_OK);
    for (i = 0; i < 5; i++) {
        CHECK((all[i] = ucs_mpool_get(&pool)) != NULL);
    }
    CHECK(ucs_mpool_is_empty(&pool) && ucs_mpool_get(&pool) == NULL && objects == 5);
    ucs_mpool_put(all[4]);
    CHECK(!ucs_mpool_is_empty(&pool));
    /* Four objects are in use: with a leak check each has a line of the log. */
    ucs_mpool_cleanup(&pool, is_ucx ? 0 : 1);
    CHECK(chunks == 0 && cleaned == 1);

    refuses = 1;
    CHECK(ucs_mpool_init(&pool, 0, 16, 0, 8, 3, UINT_MAX, &operations, "refused") == UCS_OK);
    CHECK(ucs_mpool_get(&pool) == NULL);
    refuses = 0;
    CHECK((all[0] = ucs_mpool_get(&pool)) != NULL);
    ucs_mpool_put(all[0]);
    ucs_mpool_cleanup(&pool, 1);
}

static void bad_input(void)
{
    ucs_mpool_ops_t none = {NULL, NULL, NULL, NULL, NULL};
    ucs_mpool_t pool;

    CHECK(ucs_mpool_init(&pool, 0, 0, 0, 8, 8, 8, &operations, "x") == UCS_ERR_INVALID_PARAM);
    CHECK(ucs_mpool_init(&pool, 0, 16, 17, 8, 8, 8, &operations, "x") == UCS_ERR_INVALID_PARAM);
    CHECK(ucs_mpool_init(&pool, 0, 16, 0, 0, 8, 8, &operations, "x") == UCS_ERR_INVALID_PARAM);
    CHECK(ucs_mpool_init(&pool, 0, 16, 0, 24, 8, 8, &operations, "x") == UCS_ERR_INVALID_PARAM);
    CHECK(ucs_mpool_init(&pool, 0, 16, 0, 8, 0, 8, &operations, "x") == UCS_ERR_INVALID_PARAM);
    CHECK(ucs_mpool_init(&pool, 0, 16, 0, 8, 8, 7, &operations, "x") == UCS_ERR_INVALID_PARAM);
    if (!is_ucx) {
        CHECK(ucs_mpool_init(&pool, 0, 16, 0, 8, 8, 8, &none, "x") == UCS_ERR_INVALID_PARAM);
        CHECK(ucs_mpool_init(&pool, 0, SIZE_MAX, 0, 8, 8, 8, &operations, "x") == UCS_ERR_INVALID_PARAM);
        CHECK(ucs_mpool_init(NULL, 0, 16, 0, 8, 8, 8, &operations, "x") == UCS_ERR_INVALID_PARAM);
        CHECK(ucs_mpool_init(&pool, 0, 16, 0, 8, 8, 8, NULL, "x") == UCS_ERR_INVALID_PARAM);
        ucs_mpool_cleanup(NULL, 1);
    }
}

/* Memory of malloc, which a function of the library frees. */
static ucs_status_t take(ucs_mpool_t *pool, size_t *size, void **chunk)
{
    *chunk = malloc(*size);
    return *chunk == NULL ? UCS_ERR_NO_MEMORY : UCS_OK;
}

/* Less memory than asked for, behind a header. */
static ucs_status_t take_less(ucs_mpool_t *pool, size_t *size, void **chunk)
{
    char *at = malloc(*size);

    *size -= 64;
    *chunk = at + 64;
    return UCS_OK;
}

static void give_less(ucs_mpool_t *pool, void *chunk)
{
    free((char*)chunk - 64);
}

/* Each object is within the memory of its chunk. */
static void careless_allocators(void)
{
    ucs_mpool_ops_t all[2] = {{take, ucs_mpool_chunk_free, NULL, NULL, NULL},
                              {take_less, give_less, NULL, NULL, NULL}};
    ucs_mpool_t pool;
    void *object[50];
    int i, k;

    for (i = 0; i < 2; i++) {
        CHECK(ucs_mpool_init(&pool, 0, 100, 0, 16, 10, UINT_MAX, &all[i], "careless") == UCS_OK);
        for (k = 0; k < 50; k++) {
            object[k] = ucs_mpool_get(&pool);
            CHECK(object[k] != NULL);
            memset(object[k], k, 100);
        }
        while (k-- > 0) {
            CHECK(((unsigned char*)object[k])[99] == k);
            ucs_mpool_put(object[k]);
        }
        ucs_mpool_cleanup(&pool, 1);
    }
}

static void allocators(void)
{
    ucs_mpool_ops_t all[3] = {{ucs_mpool_chunk_malloc, ucs_mpool_chunk_free, init, cleanup, NULL},
                              {ucs_mpool_chunk_mmap, ucs_mpool_chunk_munmap, init, cleanup, NULL},
                              {ucs_mpool_hugetlb_malloc, ucs_mpool_hugetlb_free, init, cleanup, NULL}};
    ucs_mpool_t pool;
    void *object;
    int i;

    for (i = 0; i < 3; i++) {
        objects = cleaned = 0;
        CHECK(ucs_mpool_init(&pool, 0, 5000, 0, 64, 1000, UINT_MAX, &all[i], "memory") == UCS_OK);
        object = ucs_mpool_get(&pool);
        CHECK(object != NULL && (uintptr_t)object % 64 == 0 && objects >= 1000);
        memset((char*)object + sizeof(unsigned), 1, 5000 - sizeof(unsigned));
        ucs_mpool_put(object);
        ucs_mpool_cleanup(&pool, 1);
        CHECK(cleaned == objects);
    }
}

static void texts(void)
{
    const char *list[] = {"first", "second", NULL};
    char buffer[32], parts[] = "a:b:c:d", *one, *two, *rest;
    size_t size = 7;

    CHECK(ucs_str_to_memunits("64k", &size) == UCS_OK && size == 65536);
    CHECK(ucs_str_to_memunits("INF", &size) == UCS_OK && size == UCS_MEMUNITS_INF);
    CHECK(ucs_str_to_memunits("auto", &size) == UCS_OK && size == UCS_MEMUNITS_AUTO);
    size = 7;
    CHECK(ucs_str_to_memunits("k", &size) == UCS_ERR_INVALID_PARAM && size == 7);
    CHECK(ucs_str_to_memunits("", &size) == UCS_ERR_INVALID_PARAM);
    CHECK(strcmp(ucs_memunits_range_str(1024, 3 << 20, buffer, sizeof(buffer)), "1K..3M") == 0);
    CHECK(strcmp(ucs_memunits_range_str(0, UCS_MEMUNITS_INF, buffer, sizeof(buffer)), "0..inf") == 0);
    CHECK(strcmp(ucs_memunits_to_str(1500, buffer, 3), "15") == 0);
    CHECK(strcmp(ucs_memunits_suffixes[3], "G") == 0 && ucs_memunits_suffixes[7] == NULL);
    CHECK(ucs_string_quantity_prefix_value('M') == 1 << 20 && ucs_string_quantity_prefix_value('x') == 0);
    memset(buffer, 'q', sizeof(buffer));
    CHECK(ucs_strncpy_safe(buffer, "hello", 4) == buffer && strcmp(buffer, "hel") == 0 && buffer[4] == 'q');
    CHECK(ucs_string_find_in_list("SECOND", list, 0) == 1 && ucs_string_find_in_list("SECOND", list, 1) == -1);
    rest = ucs_string_split(parts, ":", 2, &one, &two);
    CHECK(strcmp(one, "a") == 0 && strcmp(two, "b") == 0 && strcmp(rest, "c:d") == 0);
    rest = ucs_string_split(rest, ":", 3, &one, &two, &rest);
    CHECK(strcmp(one, "c") == 0 && strcmp(two, "d") == 0 && rest == NULL);
    CHECK(ucs_get_system_id() != 0 && ucs_get_system_id() == ucs_get_system_id());
}

static void locks(void)
{
    ucs_spinlock_t lock;
    ucs_recursive_spinlock_t recursive;

    CHECK(ucs_spinlock_init(&lock, 0) == UCS_OK);
    ucs_spin_lock(&lock);
    CHECK(!ucs_spin_try_lock(&lock));
    ucs_spin_unlock(&lock);
    ucs_spinlock_destroy(&lock);
    CHECK(ucs_recursive_spinlock_init(&recursive, UCS_SPINLOCK_FLAG_SHARED) == UCS_OK);
    ucs_recursive_spin_lock(&recursive);
    CHECK(ucs_recursive_spin_trylock(&recursive));
    ucs_recursive_spin_unlock(&recursive);
    ucs_recursive_spin_unlock(&recursive);
    ucs_recursive_spinlock_destroy(&recursive);
}

int main(int argc, char **argv)
{
    is_ucx = argc > 1;
    grows(sizeof(unsigned), 8, 0);
    grows(100, 64, 0);
    grows(100, 64, 36);
    grows(4096, 4096, 4096);
    limits();
    bad_input();
    allocators();
    careless_allocators();
    texts();
    locks();
    return 0;
}

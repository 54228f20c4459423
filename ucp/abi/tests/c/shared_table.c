/*
 * Tables that two files work on, one of them with the other kind of headers: `helpers.rs` compiles this file twice, with
 * PART as `one` and as `other`. Each part has the same functions, and `one` has the program.
 */
#include "check_macro.h"
#include <stdint.h>
#include <string.h>
#include <ucs/datastruct/khash.h>

KHASH_MAP_INIT_INT(ints, unsigned)
KHASH_MAP_INIT_INT64(longs, unsigned)
KHASH_SET_INIT_STR(words)
KHASH_INIT(mixed, uint32_t, unsigned, 1, kh_int_hash_func2, kh_int_hash_equal)

enum {
    COUNT = 3000
};

/* Keys that crowd in few buckets, and keys that do not. */
#define LONG_KEY(_n) ((khint64_t)(_n) * 0x1234567890123ul + (khint64_t)(_n))
#define INT_KEY(_n) ((khint32_t)((_n) % 2 ? (_n) : (_n) * 4096u))

typedef struct {
    khash_t(ints)  ints;
    khash_t(longs) longs;
    khash_t(words) words;
    khash_t(mixed) mixed;
} tables_t;

typedef struct {
    void (*put)(tables_t *all, unsigned n, int is_new);
    void (*find)(tables_t *all, unsigned n, int is_there);
    void (*remove)(tables_t *all, unsigned n);
    void (*clear)(tables_t *all);
    void (*resize)(tables_t *all, unsigned buckets);
    unsigned (*count)(tables_t *all);
} part_t;

extern const part_t one, other;

static char words_of_all[COUNT][24];

static const char *word(unsigned n)
{
    snprintf(words_of_all[n], sizeof(words_of_all[n]), "w%c%u\xe4%u", (char)('a' + (n % 26)), n, n * n);
    return words_of_all[n];
}

static void put(tables_t *all, unsigned n, int is_new)
{
    int found;
    khint_t at;

    at = kh_put(ints, &all->ints, INT_KEY(n), &found);
    CHECK((found > 0) == is_new && at != kh_end(&all->ints));
    kh_val(&all->ints, at) = n;
    at = kh_put(longs, &all->longs, LONG_KEY(n), &found);
    CHECK((found > 0) == is_new && at != kh_end(&all->longs));
    kh_val(&all->longs, at) = n;
    at = kh_put(mixed, &all->mixed, n, &found);
    CHECK((found > 0) == is_new && at != kh_end(&all->mixed));
    kh_val(&all->mixed, at) = n;
    (void)kh_put(words, &all->words, word(n), &found);
    CHECK((found > 0) == is_new);
}

static void find(tables_t *all, unsigned n, int is_there)
{
    khint_t at;

    at = kh_get(ints, &all->ints, INT_KEY(n));
    CHECK((at != kh_end(&all->ints)) == is_there && (!is_there || kh_val(&all->ints, at) == n));
    at = kh_get(longs, &all->longs, LONG_KEY(n));
    CHECK((at != kh_end(&all->longs)) == is_there && (!is_there || kh_val(&all->longs, at) == n));
    at = kh_get(mixed, &all->mixed, n);
    CHECK((at != kh_end(&all->mixed)) == is_there && (!is_there || kh_val(&all->mixed, at) == n));
    CHECK((kh_get(words, &all->words, word(n)) != kh_end(&all->words)) == is_there);
}

static void remove_key(tables_t *all, unsigned n)
{
    kh_del(ints, &all->ints, kh_get(ints, &all->ints, INT_KEY(n)));
    kh_del(longs, &all->longs, kh_get(longs, &all->longs, LONG_KEY(n)));
    kh_del(mixed, &all->mixed, kh_get(mixed, &all->mixed, n));
    kh_del(words, &all->words, kh_get(words, &all->words, word(n)));
}

static void clear(tables_t *all)
{
    kh_clear(ints, &all->ints);
    kh_clear(longs, &all->longs);
    kh_clear(mixed, &all->mixed);
    kh_clear(words, &all->words);
}

static void resize(tables_t *all, unsigned buckets)
{
    CHECK(kh_resize(ints, &all->ints, buckets) == 0 && kh_resize(longs, &all->longs, buckets) == 0);
    CHECK(kh_resize(mixed, &all->mixed, buckets) == 0 && kh_resize(words, &all->words, buckets) == 0);
}

static unsigned count(tables_t *all)
{
    unsigned seen = 0, value, sum = 0;
    khint32_t key;
    khint_t at;

    kh_foreach(&all->ints, key, value, { CHECK(INT_KEY(value) == key); sum++; });
    for (at = kh_begin(&all->words); at != kh_end(&all->words); at++) {
        seen += kh_exist(&all->words, at);
    }
    CHECK(seen == sum && seen == kh_size(&all->ints) && seen == kh_size(&all->longs) && seen == kh_size(&all->mixed));
    return seen;
}

const part_t PART = {put, find, remove_key, clear, resize, count};

#ifdef HAS_MAIN
int main(void)
{
    const part_t *parts[] = {&one, &other};
    tables_t all;
    unsigned n, turn;

    memset(&all, 0, sizeof(all));
    for (turn = 0; turn < 2; turn++) {
        const part_t *a = parts[turn], *b = parts[!turn];

        for (n = 0; n < COUNT; n++) {
            /* Both make the tables larger. */
            (n % 3 ? a : b)->put(&all, n, 1);
            (n % 3 ? b : a)->put(&all, n, 0);
        }
        CHECK(a->count(&all) == COUNT && b->count(&all) == COUNT);
        for (n = 0; n < COUNT; n++) {
            a->find(&all, n, 1);
            b->find(&all, n, 1);
        }
        for (n = 0; n < COUNT; n += 2) {
            a->remove(&all, n);
            b->find(&all, n, 0);
        }
        CHECK(b->count(&all) == COUNT / 2);
        b->resize(&all, COUNT);
        for (n = 0; n < COUNT; n++) {
            a->find(&all, n, n % 2);
            b->put(&all, n, !(n % 2));
        }
        a->clear(&all);
        CHECK(b->count(&all) == 0);
        b->find(&all, 7, 0);
        b->put(&all, 7, 1);
        a->find(&all, 7, 1);
        b->clear(&all);
        a->find(&all, 7, 0);
    }
    kh_destroy_inplace(ints, &all.ints);
    kh_destroy_inplace(longs, &all.longs);
    kh_destroy_inplace(mixed, &all.mixed);
    kh_destroy_inplace(words, &all.words);
    return 0;
}
#endif

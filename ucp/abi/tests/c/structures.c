/*
 * Macros and inline functions of headers of ucs: hash tables, lists, tables of regions, atomics, bits, numbers, and the
 * preprocessor. They give the same with this project's headers and with UCX's, on this library and on UCX.
 */
#ifndef ucs_assert
#define ucs_assert(_condition) CHECK(_condition) /* UCX's headers use it without its header */
#endif
#include "check_macro.h"
#include <stdint.h>
#include <string.h>
#include <ucs/arch/atomic.h>
#include <ucs/arch/bitops.h>
#include <ucs/datastruct/hlist.h>
#include <ucs/datastruct/khash.h>
#include <ucs/datastruct/pgtable.h>
#include <ucs/datastruct/queue_types.h>
#include <ucs/sys/math.h>
#include <ucs/sys/preprocessor.h>
#include <ucs/type/param.h>

KHASH_MAP_INIT_INT64(squares, uint64_t)
KHASH_MAP_INIT_INT(small, char)
KHASH_SET_INIT_STR(words)
#define hash_of_one(_key) ((void)(_key), 7u)
KHASH_INIT(crowded, unsigned, int, 1, hash_of_one, kh_int_hash_equal)
KHASH_TYPE(apart, khint32_t, char)
KHASH_IMPL(apart, khint32_t, char, 0, kh_int_hash_func2, kh_int_hash_equal)

static void tables_hold_what_is_put(void)
{
    khash_t(squares) *table = kh_init(squares);
    khash_t(squares) clean  = KHASH_STATIC_INITIALIZER;
    uint64_t i, key, value, sum = 0;
    khiter_t at;
    int was;

    CHECK(kh_size(table) == 0 && kh_get(squares, table, 1) == kh_end(table) && kh_begin(table) == 0);
    for (i = 0; i < 10000; i++) {
        at = kh_put(squares, table, i << 32, &was);
        CHECK(was == UCS_KH_PUT_BUCKET_EMPTY && at != kh_end(table) && kh_exist(table, at));
        kh_val(table, at) = i * i;
    }
    CHECK(kh_size(table) == 10000 && kh_n_buckets(table) >= 10000);
    at = kh_put(squares, table, 99ul << 32, &was);
    CHECK(was == UCS_KH_PUT_KEY_PRESENT && kh_value(table, at) == 99 * 99 && kh_key(table, at) == 99ul << 32);
    for (i = 0; i < 10000; i += 2) {
        kh_del(squares, table, kh_get(squares, table, i << 32));
    }
    CHECK(kh_size(table) == 5000 && kh_get(squares, table, 98ul << 32) == kh_end(table));
    kh_del(squares, table, kh_end(table));
    kh_foreach(table, key, value, sum += value; CHECK(value == (key >> 32) * (key >> 32)));
    for (i = 1; i < 10000; i += 2) {
        sum -= i * i;
    }
    CHECK(sum == 0 && kh_size(table) == 5000);
    /* A key that comes and goes does not fill the table. */
    at = kh_n_buckets(table);
    for (i = 0; i < 100000; i++) {
        key = kh_put(squares, table, (1ul << 60) + i, &was);
        CHECK(was == UCS_KH_PUT_BUCKET_EMPTY || was == UCS_KH_PUT_BUCKET_CLEAR);
        kh_del(squares, table, (khint_t)key);
    }
    CHECK(kh_n_buckets(table) <= 2 * at && kh_size(table) == 5000);
    CHECK(kh_resize(squares, table, 1) == 0 && kh_n_buckets(table) >= 5000);
    CHECK(kh_resize(squares, table, 100000) == 0 && kh_n_buckets(table) >= 100000 && kh_size(table) == 5000);
    for (i = 0; i < 10000; i++) {
        at = kh_get(squares, table, i << 32);
        CHECK((at != kh_end(table)) == (i % 2) && (at == kh_end(table) || kh_val(table, at) == i * i));
    }
    kh_foreach_key(table, key, kh_del(squares, table, kh_get(squares, table, key)));
    CHECK(kh_size(table) == 0);
    (void)kh_put(squares, table, 5, &was);
    kh_clear(squares, table);
    CHECK(kh_size(table) == 0 && kh_get(squares, table, 5) == kh_end(table));
    kh_destroy(squares, table);

    kh_init_inplace(squares, &clean);
    at                 = kh_put(squares, &clean, 3, &was);
    kh_val(&clean, at) = 33;
    sum                = 0;
    kh_foreach_value(&clean, value, sum += value);
    CHECK(sum == 33);
    kh_destroy_inplace(squares, &clean);
}

static void tables_take_any_keys(void)
{
    const char *texts[] = {"", "a", "b", "ab", "ba", "a longer text"};
    khash_t(words) *words = kh_init(words);
    khash_t(crowded) *crowded = kh_init(crowded);
    khash_t(small) *small = kh_init(small);
    khash_t(apart) *apart = kh_init(apart);
    char copy[16];
    unsigned i;
    khiter_t at;
    int was;

    for (i = 0; i < ucs_static_array_size(texts); i++) {
        (void)kh_put(words, words, texts[i], &was);
        CHECK(was == UCS_KH_PUT_BUCKET_EMPTY);
    }
    for (i = 0; i < ucs_static_array_size(texts); i++) {
        strcpy(copy, texts[i]);
        CHECK(kh_key(words, kh_get(words, words, copy)) == texts[i]);
    }
    CHECK(kh_get(words, words, "c") == kh_end(words));
    kh_destroy(words, words);
    /* All in one bucket. */
    for (i = 0; i < 1000; i++) {
        at                  = kh_put(crowded, crowded, i, &was);
        kh_val(crowded, at) = (int)i;
    }
    for (i = 0; i < 1000; i += 3) {
        kh_del(crowded, crowded, kh_get(crowded, crowded, i));
    }
    for (i = 0; i < 1000; i++) {
        at = kh_get(crowded, crowded, i);
        CHECK((i % 3 == 0) == (at == kh_end(crowded)));
        CHECK(at == kh_end(crowded) || kh_val(crowded, at) == (int)i);
    }
    (void)kh_put(crowded, crowded, 3, &was);
    CHECK(was == UCS_KH_PUT_BUCKET_CLEAR);
    kh_destroy(crowded, crowded);
    at                = kh_put(small, small, (khint32_t)-1, &was);
    kh_val(small, at) = 'x';
    CHECK(kh_val(small, kh_get(small, small, 0xffffffffu)) == 'x');
    kh_destroy(small, small);
    (void)kh_put(apart, apart, 4, &was);
    CHECK(kh_get(apart, apart, 4) != kh_end(apart) && kh_get(apart, apart, 5) == kh_end(apart));
    kh_destroy(apart, apart);
    kh_destroy(apart, NULL);
}

struct item {
    int              before;
    ucs_hlist_link_t link;
};

static int numbers_of(ucs_hlist_head_t *head)
{
    struct item *item;
    int all = 0;

    ucs_hlist_for_each(item, head, link) {
        all = all * 10 + item->before;
    }
    return all;
}

static void lists_have_their_order(void)
{
    struct item items[5] = {{1, {{NULL, NULL}}}, {2, {{NULL, NULL}}}, {3, {{NULL, NULL}}},
                            {4, {{NULL, NULL}}}, {5, {{NULL, NULL}}}}, *item;
    ucs_hlist_head_t head, moved;
    int i, taken = 0;

    ucs_hlist_head_init(&head);
    CHECK(ucs_hlist_is_empty(&head) && numbers_of(&head) == 0 && ucs_hlist_extract_head(&head) == NULL);
    ucs_hlist_add_tail(&head, &items[2].link);
    CHECK(numbers_of(&head) == 3);
    ucs_hlist_add_head(&head, &items[1].link);
    ucs_hlist_add_tail(&head, &items[3].link);
    ucs_hlist_add_head(&head, &items[0].link);
    ucs_hlist_add_tail(&head, &items[4].link);
    CHECK(numbers_of(&head) == 12345 && ucs_hlist_head_elem(&head, struct item, link) == &items[0]);
    CHECK(ucs_hlist_next_elem(&items[0], link) == &items[1]);
    ucs_hlist_del(&head, &items[2].link);
    CHECK(numbers_of(&head) == 1245);
    ucs_hlist_del(&head, &items[0].link);
    CHECK(numbers_of(&head) == 245);
    moved = head;
    CHECK(ucs_hlist_extract_head(&moved) == &items[1].link && numbers_of(&moved) == 45);
    ucs_hlist_for_each_extract_if(item, &moved, link, item->before < 5) {
        taken = taken * 10 + item->before;
    }
    CHECK(taken == 4 && numbers_of(&moved) == 5);
    ucs_hlist_add_tail(&moved, &items[0].link);
    ucs_hlist_for_each_extract(item, &moved, link) {
        taken = taken * 10 + item->before;
    }
    CHECK(taken == 451 && ucs_hlist_is_empty(&moved));
    for (i = 0; i < 5; i++) {
        ucs_hlist_add_tail(&moved, &items[i].link);
    }
    CHECK(numbers_of(&moved) == 12345);
#ifdef ucs_hlist_for_each_safe
    for (i = 0; i < 32; i++) {
        ucs_hlist_head_t old;
        struct item *next;
        int kept = 0, k, seen = 0;

        ucs_hlist_head_init(&moved);
        for (k = 0; k < 5; k++) {
            ucs_hlist_add_tail(&moved, &items[k].link);
        }
        ucs_hlist_for_each_safe(item, next, &moved, &old, link) {
            seen = seen * 10 + item->before;
            if (i & (1 << (item->before - 1))) {
                ucs_hlist_del(&moved, &item->link);
            }
        }
        for (k = 0; k < 5; k++) {
            kept = (i & (1 << k)) ? kept : (kept * 10 + k + 1);
        }
        CHECK(seen == 12345 && numbers_of(&moved) == kept);
        CHECK((int)ucs_hlist_length(&moved) == 5 - (int)ucs_popcount(i));
    }
#endif
}

static ucs_pgt_dir_t *directory(const ucs_pgtable_t *table)
{
    void *memory = NULL;

    (void)table;
    return posix_memalign(&memory, 64, sizeof(ucs_pgt_dir_t)) == 0 ? (ucs_pgt_dir_t*)memory : NULL;
}

static void free_directory(const ucs_pgtable_t *table, ucs_pgt_dir_t *memory)
{
    (void)table;
    free(memory);
}

static unsigned long sum_of_starts;

static void found(const ucs_pgtable_t *table, ucs_pgt_region_t *region, void *arg)
{
    (void)table;
    sum_of_starts += region->start;
    ++*(int*)arg;
}

static int found_within(const ucs_pgtable_t *table, unsigned long from, unsigned long to)
{
    int count = 0;

    sum_of_starts = 0;
    ucs_pgtable_search_range(table, from, to, found, &count);
    return count;
}

static void regions_are_found(void)
{
    ucs_pgt_region_t regions[] = {{0x1000, 0x2000}, {0x2000, 0x2010}, {0x7f0000000000, 0x7f0000123450}}, wrong;
    ucs_pgtable_t table;
    int i, count = 0;

    CHECK(ucs_pgtable_init(&table, directory, free_directory) == UCS_OK && ucs_pgtable_num_regions(&table) == 0);
    CHECK(ucs_pgtable_lookup(&table, 0x1000) == NULL && found_within(&table, 0, 0x10000) == 0);
    for (i = 0; i < 3; i++) {
        CHECK(ucs_pgtable_insert(&table, &regions[i]) == UCS_OK);
        CHECK(ucs_pgtable_insert(&table, &regions[i]) == UCS_ERR_ALREADY_EXISTS);
    }
    CHECK(ucs_pgtable_num_regions(&table) == 3);
    for (i = 0; i < 3; i++) {
        CHECK(ucs_pgtable_lookup(&table, regions[i].start) == &regions[i]);
        CHECK(ucs_pgtable_lookup(&table, regions[i].end - 1) == &regions[i]);
    }
    CHECK(ucs_pgtable_lookup(&table, 0xfff) == NULL && ucs_pgtable_lookup(&table, 0x2010) == NULL);
    CHECK(found_within(&table, 0x1fff, 0x2000) == 2 && sum_of_starts == 0x3000);
    CHECK(found_within(&table, 0x2010, 0x7efffffffff0) == 0);
    CHECK(found_within(&table, 0x7f0000000100, 0x7f0000000200) == 1);
    wrong.start = 0x1800;
    wrong.end   = 0x3000;
    CHECK(ucs_pgtable_insert(&table, &wrong) == UCS_ERR_ALREADY_EXISTS);
    wrong.start = 0x3008;
    CHECK(ucs_pgtable_insert(&table, &wrong) == UCS_ERR_INVALID_PARAM);
    wrong.end = wrong.start = 0x3000;
    CHECK(ucs_pgtable_insert(&table, &wrong) == UCS_ERR_INVALID_PARAM);
    wrong = regions[0];
    CHECK(ucs_pgtable_remove(&table, &wrong) == UCS_ERR_NO_ELEM);
    CHECK(ucs_pgtable_remove(&table, &regions[0]) == UCS_OK && ucs_pgtable_lookup(&table, 0x1000) == NULL);
    CHECK(ucs_pgtable_remove(&table, &regions[0]) == UCS_ERR_NO_ELEM && ucs_pgtable_num_regions(&table) == 2);
    sum_of_starts = 0;
    ucs_pgtable_purge(&table, found, &count);
    CHECK(count == 2 && sum_of_starts == 0x2000 + 0x7f0000000000 && ucs_pgtable_num_regions(&table) == 0);
    CHECK(ucs_pgtable_lookup(&table, 0x2000) == NULL);
    ucs_pgtable_cleanup(&table);
}

#define ATOMICS(_bits) \
    do { \
        volatile uint##_bits##_t word = 10; \
        uint##_bits##_t most = (uint##_bits##_t)-1; \
        ucs_atomic_add##_bits(&word, 5); \
        CHECK(word == 15 && ucs_atomic_fadd##_bits(&word, 1) == 15 && word == 16); \
        ucs_atomic_sub##_bits(&word, 6); \
        CHECK(word == 10 && ucs_atomic_fsub##_bits(&word, 11) == 10 && word == most); \
        ucs_atomic_and##_bits(&word, 0x3c); \
        CHECK(word == 0x3c && ucs_atomic_fand##_bits(&word, 0xc) == 0x3c && word == 0xc); \
        ucs_atomic_or##_bits(&word, 1); \
        CHECK(word == 0xd && ucs_atomic_for##_bits(&word, 2) == 0xd && word == 0xf); \
        ucs_atomic_xor##_bits(&word, 3); \
        CHECK(word == 0xc && ucs_atomic_fxor##_bits(&word, 4) == 0xc && word == 8); \
        CHECK(ucs_atomic_swap##_bits(&word, 100) == 8 && word == 100); \
        CHECK(ucs_atomic_cswap##_bits(&word, 99, 1) == 100 && word == 100); \
        CHECK(ucs_atomic_cswap##_bits(&word, 100, most) == 100 && word == most); \
        CHECK(!ucs_atomic_bool_cswap##_bits(&word, 0, 1) && ucs_atomic_bool_cswap##_bits(&word, most, 1)); \
        CHECK(word == 1); \
    } while (0)

static void bits_and_numbers(void)
{
    unsigned char bytes[4] = {0x80, 0, 0, 0}, other[4] = {0x80, 0, 0x10, 0};
    volatile uint64_t one  = 1;
    uint64_t mask          = (1ul << 63) | 0x12, sum = 0;
    unsigned place, sub, count;
    char memory[64];
    int calls = 0;

    ATOMICS(8);
    ATOMICS(16);
    ATOMICS(32);
    ATOMICS(64);
    for (place = 0; place < 64; place++) {
        CHECK(ucs_ffs64(one << place) == place && ucs_ilog2(one << place) == (int)place);
        CHECK(place > 31 || (ucs_ffs32((uint32_t)one << place) == place && ucs_ilog2((uint32_t)one << place) == (int)place));
    }
    CHECK(ucs_ilog2(1000) == 9 && ucs_ilog2(one * 1000) == 9 && ucs_ilog2_or0(one - 1) == 0 && ucs_ffs64_safe(0) == 64);
    CHECK(ucs_popcount(mask) == 3 && ucs_popcount(0xffu) == 8 && ucs_popcount(-1) == 32);
    CHECK(ucs_count_trailing_zero_bits(mask) == 1 && ucs_count_leading_zero_bits(one) == 63);
    CHECK(ucs_count_leading_zero_bits((uint32_t)one) == 31 && ucs_bitmap2idx(mask, 4) == 1 && ucs_bitmap2idx(mask, 63) == 2);
    CHECK(ucs_count_ptr_trailing_zero_bits(bytes, 32) == 31 && ucs_count_ptr_trailing_zero_bits(bytes, 8) == 7);
    CHECK(ucs_count_ptr_trailing_zero_bits(bytes, 0) == 0 && ucs_count_ptr_trailing_zero_bits(bytes + 1, 10) == 10);
    CHECK(ucs_bitwise_is_equal(bytes, other, 19) && !ucs_bitwise_is_equal(bytes, other, 20));
    CHECK(ucs_bitwise_is_equal(bytes, other, 0) && !ucs_bitwise_is_equal(bytes, other, 32));
    ucs_for_each_bit(place, mask) {
        sum = sum * 100 + place;
    }
    CHECK(sum == 10463);
    count = 0;
    sum   = 0;
    ucs_for_each_submask(sub, 0x15u) {
        CHECK((sub & ~0x15u) == 0);
        count++;
        sum += sub;
    }
    CHECK(count == 8 && sum == 4 * 0x15);

    CHECK(ucs_min(3, 4) == 3 && ucs_max(3, 4) == 4 && ucs_min(-1.5, 2) == -1.5 && ucs_max(calls++, -1) == 0 && calls == 1);
    CHECK(ucs_is_pow2(64) && !ucs_is_pow2(65) && !ucs_is_pow2(0) && ucs_is_pow2_or_zero(0));
    CHECK(ucs_roundup_pow2(65) == 128 && ucs_roundup_pow2(64) == 64 && ucs_rounddown_pow2(65) == 64);
    CHECK(ucs_rounddown_pow2(64) == 64 && ucs_roundup_pow2_or0(0) == 0 && ucs_roundup_pow2_or0(3) == 4);
    CHECK(ucs_padding(10, 7) == 4 && ucs_padding(14, 7) == 0 && ucs_align_up(10, 7) == 14 && ucs_align_down(10, 7) == 7);
    CHECK(ucs_align_up_pow2(17, 16) == 32 && ucs_align_up_pow2(16, 16) == 16 && ucs_align_down_pow2(31, 16) == 16);
    CHECK(((uintptr_t)ucs_align_up_pow2_ptr(memory + 1, 16) % 16) == 0 && ucs_align_up_pow2_ptr(memory + 1, 16) > memory);
    CHECK(ucs_align_down_pow2_ptr(memory + 17, 16) <= memory + 17 && ucs_padding_pow2(17, 16) == 1);
    CHECK(ucs_check_if_align_pow2(32, 16) == 0 && ucs_div_round_up(10, 3) == 4 && ucs_div_round_up(9, 3) == 3);
    CHECK(UCS_MASK_SAFE(64) == UINT64_MAX && UCS_MASK_SAFE(3) == 7 && UCS_KBYTE == 1024 && UCS_PBYTE == 1ull << 50);
    CHECK(ucs_signum(-4) == -1 && ucs_signum(0) == 0 && ucs_signum(0.5) == 1);
    CHECK(ucs_convert_flag(calls, 1, 8) == 8 && ucs_convert_flag(calls, 2, 8) == 0);
    CHECK(ucs_test_flags(0x10, 1, 2, 0x10) && !ucs_test_flags(0x10, 1, 2) && ucs_test_all_flags(7, 5) && !ucs_test_all_flags(4, 5));
    CHECK(UCS_CIRCULAR_COMPARE8((uint8_t)2, >, (uint8_t)250) && UCS_CIRCULAR_COMPARE16((uint16_t)65000, <, (uint16_t)9));
    CHECK(UCS_CIRCULAR_COMPARE32(1u, >, UINT32_MAX) && UCS_CIRCULAR_COMPARE64(one, >=, one));
    CHECK(ucs_log2(8) > 2.999 && ucs_log2(8) < 3.001);
    CHECK(ucs_double_to_sizet(2.5, 100) == 3 && ucs_double_to_sizet(1e30, 100) == 100 && ucs_double_to_sizet(0.4, 9) == 0);
}

#define PLUS(_with, _one) +((_with) * (_one))
#define PAIR(_with, _one) {_with, _one}
#define NUMBER 12

struct parameters {
    uint64_t field_mask;
    int      count;
};
enum {
    A_PARAM_COUNT = 1 << 3
};

static void text_is_made_by_the_preprocessor(void)
{
    int pairs[][2]        = {UCS_PP_FOREACH_SEP(PAIR, 7, 1, 2, 3)};
    int numbers[]         = {UCS_PP_SEQ(20)};
    struct parameters all = {A_PARAM_COUNT, 5};
    int UCS_PP_TOKENPASTE(num, NUMBER) = 1, UCS_PP_TOKENPASTE3(a, NUMBER, b) = 2;

    CHECK(UCS_PP_NUM_ARGS() == 0 && UCS_PP_NUM_ARGS(a) == 1 && UCS_PP_NUM_ARGS(a, (b, c), d) == 3);
    CHECK((0 UCS_PP_FOREACH(PLUS, 2, 1, 2, 3, 4)) == 20 && (5 UCS_PP_FOREACH(PLUS, 2)) == 5);
    CHECK(ucs_static_array_size(pairs) == 3 && pairs[2][0] == 7 && pairs[2][1] == 3);
    CHECK(ucs_static_array_size(numbers) == 20 && numbers[0] == 0 && numbers[19] == 19);
    CHECK(strcmp(UCS_PP_QUOTE(NUMBER), "NUMBER") == 0 && strcmp(UCS_PP_MAKE_STRING(NUMBER), "12") == 0);
    CHECK(num12 == 1 && a12b == 2 && UCS_PP_TUPLE_1(3, 4, 5) == 4 && UCS_PP_EXPAND(NUMBER) == 12);
    CHECK(UCS_PARAM_VALUE(A_PARAM, &all, count, COUNT, 9) == 5);
    all.field_mask = 0;
    CHECK(UCS_PARAM_VALUE(A_PARAM, &all, count, COUNT, 9) == 9);
}

int main(void)
{
    tables_hold_what_is_put();
    tables_take_any_keys();
    lists_have_their_order();
    regions_are_found();
    bits_and_numbers();
    text_is_made_by_the_preprocessor();
    return 0;
}

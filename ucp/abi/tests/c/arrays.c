/* Arrays in the form of UCX 1.23, objects in parts, sets of texts, and what UCX 1.13 has not: this project's headers. */
#include "check_macro.h"
#include <stdint.h>
#include <string.h>
#include <ucs/datastruct/array.h>
#include <ucs/datastruct/list.h>
#include <ucs/datastruct/strided_alloc.h>
#include <ucs/datastruct/string_set.h>

UCS_ARRAY_DECLARE_TYPE(numbers_t, unsigned, long);
UCS_ARRAY_DECLARE_TYPE(few_t, uint8_t, char);

static void arrays_grow(void)
{
    numbers_t array = UCS_ARRAY_DYNAMIC_INITIALIZER;
    long *item, *old, sum = 0;
    unsigned i;

    CHECK(ucs_array_is_empty(&array) && !ucs_array_is_fixed(&array) && ucs_array_capacity(&array) == 0);
    for (i = 0; i < 1000; i++) {
        item = ucs_array_append(&array, exit(1));
        CHECK(item == ucs_array_last(&array));
        *item = i;
    }
    CHECK(ucs_array_length(&array) == 1000 && ucs_array_capacity(&array) >= 1000 && ucs_array_elem(&array, 77) == 77);
    ucs_array_for_each(item, &array) {
        sum += *item;
    }
    CHECK(sum == 499500);
    i = ucs_array_capacity(&array);
    CHECK(ucs_array_reserve(&array, i) == UCS_OK && ucs_array_capacity(&array) == i);
    CHECK(ucs_array_reserve_safe(&array, i, &old) == UCS_OK && old == NULL);
    item = ucs_array_begin(&array);
    CHECK(ucs_array_reserve_safe(&array, i + 1, &old) == UCS_OK && old == item && old[999] == 999);
    CHECK(ucs_array_begin(&array) != item && ucs_array_elem(&array, 999) == 999 && ucs_array_capacity(&array) > i);
    ucs_array_buffer_free(old);
    ucs_array_resize(&array, 1002, -5, exit(1));
    CHECK(ucs_array_length(&array) == 1002 && ucs_array_elem(&array, 1001) == -5 && ucs_array_elem(&array, 999) == 999);
    CHECK(ucs_array_pop_back(&array) == 1001 && ucs_array_end(&array) - ucs_array_begin(&array) == 1001);
    ucs_array_set_length(&array, 3);
    CHECK(*ucs_array_last(&array) == 2 && (size_t)ucs_array_available_length(&array) + 3 == (size_t)ucs_array_capacity(&array));
    CHECK(ucs_array_reserve(&array, 1u << 31) == UCS_ERR_NO_MEMORY && ucs_array_length(&array) == 3);
    ucs_array_clear(&array);
    item = ucs_array_extract_buffer(&array);
    CHECK(item != NULL && item[500] == 500 && ucs_array_begin(&array) == NULL && ucs_array_capacity(&array) == 0);
    free(item);
    ucs_array_init_dynamic(&array);
    ucs_array_cleanup_dynamic(&array);
}

static void arrays_in_memory_of_the_program_do_not_grow(void)
{
    char memory[4];
    few_t fixed = UCS_ARRAY_FIXED_INITIALIZER(memory, sizeof(memory)), grows = UCS_ARRAY_DYNAMIC_INITIALIZER;
    int i, failed = 0;
    UCS_ARRAY_DEFINE_ONSTACK(numbers_t, stack, 10);

    CHECK(ucs_array_is_fixed(&fixed) && ucs_array_capacity(&fixed) == 4 && ucs_array_max_capacity(&fixed) == 127);
    for (i = 0; i < 4; i++) {
        *ucs_array_append_fixed(&fixed) = (char)('a' + i);
    }
    CHECK(memcmp(memory, "abcd", 4) == 0 && ucs_array_append(&fixed, failed = 1) == NULL && failed);
    CHECK(ucs_array_length(&fixed) == 4);
    ucs_array_init_fixed(&fixed, memory + 1, 2);
    *ucs_array_append(&fixed, exit(1)) = 'z';
    CHECK(memory[1] == 'z' && ucs_array_available_length(&fixed) == 1);
    for (i = 0; i < 127; i++) {
        *ucs_array_append(&grows, exit(1)) = 1;
    }
    failed = 0;
    CHECK(ucs_array_append(&grows, failed = 1) == NULL && failed && ucs_array_length(&grows) == 127);
    ucs_array_cleanup_dynamic(&grows);
    *ucs_array_append(&stack, exit(1)) = 5;
    CHECK(ucs_array_elem(&stack, 0) == 5 && ucs_array_is_fixed(&stack));
}

/* The body of a loop makes the array shorter. */
static void loops_end_where_the_array_does(void)
{
    numbers_t array = UCS_ARRAY_DYNAMIC_INITIALIZER;
    long *item, carray[5] = {1, 2, 3, 4, 5};
    int seen = 0, length = 5;

    for (seen = 0; seen < 5; seen++) {
        *ucs_array_append(&array, exit(1)) = seen;
    }
    seen = 0;
    ucs_array_for_each(item, &array) {
        CHECK(seen < 3 && *item == seen++);
        ucs_array_pop_back(&array);
    }
    CHECK(seen == 3 && ucs_array_length(&array) == 2);
    ucs_array_cleanup_dynamic(&array);
    seen = 0;
    ucs_carray_for_each(item, carray, length) {
        CHECK(seen < 2 && *item == ++seen);
        length -= 3;
    }
    CHECK(seen == 2);
}

static void numbers_have_limits(void)
{
    volatile unsigned bits = 64;
    volatile double value  = NAN;

    CHECK(UCS_MASK(64) == ~0ul && UCS_MASK(bits) == ~0ul && UCS_MASK(63) == ~0ul >> 1 && UCS_MASK(0) == 0);
    CHECK(ucs_bitmap2idx(~0ul, bits) == 64 && ucs_bitmap2idx(0x12, bits) == 2);
    CHECK(ucs_double_to_sizet(value, 77) == 77 && ucs_double_to_sizet(-0.5, 77) == 0);
}

static int is_empty(const ucs_list_link_t *head)
{
    return ucs_list_is_empty(head) && !ucs_list_is_only(head, head + 1);
}

static void objects_have_parts(void)
{
    enum {
        COUNT = 5000,
        PARTS = 3
    };
    static unsigned *objects[COUNT];
    ucs_strided_alloc_t pool;
    unsigned i, part, *at;

    ucs_strided_alloc_init(&pool, 3 * sizeof(unsigned), PARTS);
    for (i = 0; i < COUNT; i++) {
        objects[i] = (unsigned*)ucs_strided_alloc_get(&pool, "object");
        CHECK(objects[i] != NULL && ((uintptr_t)objects[i] % sizeof(void*)) == 0);
        for (part = 0; part < PARTS; part++) {
            at    = (unsigned*)ucs_strided_elem_get(objects[i], 0, part);
            at[0] = at[1] = at[2] = i * PARTS + part;
        }
    }
    CHECK(ucs_strided_alloc_inuse_count(&pool) == COUNT);
    for (i = 0; i < COUNT; i++) {
        at = (unsigned*)ucs_strided_elem_get(objects[i], 0, 2);
        CHECK(at[0] == i * PARTS + 2 && at[2] == at[0] && ucs_strided_elem_get(at, 2, 0) == (void*)objects[i]);
        ucs_strided_alloc_put(&pool, objects[i]);
    }
    CHECK(ucs_strided_alloc_inuse_count(&pool) == 0 && ucs_strided_alloc_get(&pool, "again") == objects[COUNT - 1]);
    ucs_strided_alloc_cleanup(&pool);
    ucs_strided_alloc_init(&pool, 64, 2);
    for (i = 0; i < 3; i++) {
        CHECK((uintptr_t)ucs_strided_alloc_get(&pool, "aligned") % 64 == 0);
    }
    ucs_strided_alloc_cleanup(&pool);
    /* Parts that fill the distance from one to the next. */
    for (i = 0; i < 3; i++) {
        size_t size = UCS_STRIDED_ALLOC_STRIDE - (i * 8) - 8;

        ucs_strided_alloc_init(&pool, size, PARTS);
        for (part = 0; part < 2 * PARTS; part++) {
            objects[part / PARTS] = part % PARTS ? objects[part / PARTS] : (unsigned*)ucs_strided_alloc_get(&pool, "large");
            CHECK(objects[part / PARTS] != NULL);
            memset(ucs_strided_elem_get(objects[part / PARTS], 0, part % PARTS), 1 + part, size);
        }
        CHECK(((char*)objects[0])[size - 1] == 1 && ucs_strided_alloc_inuse_count(&pool) == 2);
        ucs_strided_alloc_cleanup(&pool);
    }
    ucs_strided_alloc_init(&pool, 2 * UCS_STRIDED_ALLOC_STRIDE, 1);
    CHECK(ucs_strided_alloc_get(&pool, "too large") == NULL);
    ucs_strided_alloc_cleanup(&pool);
}

static void sets_of_texts_are_sorted(void)
{
    ucs_string_buffer_t text = UCS_STRING_BUFFER_INITIALIZER;
    char copy[] = "pear";
    ucs_string_set_t set;
    int i;

    ucs_string_set_init(&set);
    CHECK(ucs_string_set_is_empty(&set));
    CHECK(ucs_string_set_print_sorted(&set, &text, ",") == UCS_OK);
    CHECK(ucs_string_set_add(&set, copy) == UCS_OK && ucs_string_set_add(&set, "apple") == UCS_OK);
    strcpy(copy, "x");
    CHECK(ucs_string_set_add(&set, "apple") == UCS_OK && kh_size(&set) == 2);
    CHECK(ucs_string_set_addf(&set, "fig%d-%s", 3, "a") == UCS_OK && ucs_string_set_addf(&set, "fig3-a") == UCS_OK);
    CHECK(ucs_string_set_contains(&set, "pear") && ucs_string_set_contains(&set, "fig3-a"));
    CHECK(!ucs_string_set_contains(&set, "x") && !ucs_string_set_contains(&set, ""));
    CHECK(ucs_string_set_print_sorted(&set, &text, ", ") == UCS_OK);
    CHECK(strcmp(ucs_string_buffer_cstr(&text), "apple, fig3-a, pear") == 0);
    for (i = 0; i < 1000; i++) {
        CHECK(ucs_string_set_addf(&set, "%d", i / 2) == UCS_OK);
    }
    CHECK(kh_size(&set) == 503 && !ucs_string_set_is_empty(&set));
    ucs_string_set_cleanup(&set);
    free(text.str.buffer);
}

int main(void)
{
    ucs_list_link_t list[2];

    ucs_list_head_init(list);
    CHECK(is_empty(list));
    arrays_grow();
    arrays_in_memory_of_the_program_do_not_grow();
    loops_end_where_the_array_does();
    numbers_have_limits();
    objects_have_parts();
    sets_of_texts_are_sorted();
    return 0;
}

/*
 * Prints what macros and inline functions of the public headers make of values. Built with the headers of this project and with those
 * of UCX, it prints the same.
 */
#include <ucp/api/ucp.h>
#include <uct/api/uct.h>

#include <ucs/datastruct/list.h>

#include <stdio.h>

typedef struct {
    int             number;
    ucs_list_link_t link;
} item_t;

typedef struct {
    item_t super;
    char   more;
} UCS_S_PACKED derived_t;

static int started;

UCS_STATIC_INIT
{
    started = 1;
}

UCS_STATIC_CLEANUP
{
    printf("end %d\n", started);
    fflush(stdout);
}

static UCS_F_NOINLINE int UCS_F_PURE twice(int n)
{
    return 2 * n;
}

static UCS_F_ALWAYS_INLINE int thrice(int n)
{
    return 3 * n;
}

static void print(const char *what, ucs_list_link_t *list)
{
    item_t *item, *next;

    printf("%s (%lu, %d):", what, ucs_list_length(list), ucs_list_is_empty(list));
    ucs_list_for_each(item, list, link) {
        printf(" %d", item->number);
    }
    ucs_list_for_each_safe(item, next, list, link) {
        printf(" [%d]", item->number);
    }
    printf("\n");
}

static void lists(void)
{
    UCS_LIST_HEAD(list);
    ucs_list_link_t others;
    item_t items[6];
    int n;

    ucs_list_head_init(&others);
    print("empty", &list);
    for (n = 0; n < 6; n++) {
        items[n].number = n;
    }
    ucs_list_add_tail(&list, &items[0].link);
    printf("only %d %d\n", ucs_list_is_only(&list, &items[0].link), ucs_list_is_only(&list, &items[1].link));
    ucs_list_add_head(&list, &items[1].link);
    ucs_list_insert_after(&items[1].link, &items[2].link);
    ucs_list_insert_before(&items[1].link, &items[3].link);
    print("four", &list);
    ucs_list_replace(&items[2].link, &items[4].link);
    ucs_list_add_tail(&others, &items[2].link);
    ucs_list_add_tail(&others, &items[5].link);
    ucs_list_splice_tail(&list, &others);
    print("spliced", &list);
    printf("head %d tail %d next %d prev %d\n", ucs_list_head(&list, item_t, link)->number, ucs_list_tail(&list, item_t, link)->number,
           ucs_list_next(&items[4].link, item_t, link)->number, ucs_list_prev(&items[4].link, item_t, link)->number);
    printf("taken %d\n", ucs_list_extract_head(&list, item_t, link)->number);
    ucs_list_del(&items[5].link);
    print("left", &list);
}

static void sets(void)
{
    ucs_cpu_set_t set;

    UCS_CPU_ZERO(&set);
    printf("first of none %d\n", ucs_cpu_set_find_lcs(&set));
    UCS_CPU_SET(70, &set);
    UCS_CPU_SET(900, &set);
    UCS_CPU_SET(5, &set);
    UCS_CPU_CLR(5, &set);
    printf("cpus %d %d %d %d first %d\n", ucs_cpu_is_set(5, &set), ucs_cpu_is_set(70, &set), ucs_cpu_is_set(900, &set),
           ucs_cpu_is_set(901, &set), ucs_cpu_set_find_lcs(&set));
}

int main(void)
{
    UCS_V_UNUSED int unused;
    int numbers[7] = {0, 1, 2, 3, 4, 5, 6};
    derived_t derived;
    ucs_memory_type_t type;
    int types = 0, value, status;

    UCS_STATIC_ASSERT(sizeof(derived_t) == sizeof(item_t) + 1);
    UCS_V_INITIALIZED(value);
    value = ucs_likely(numbers[1]) + ucs_unlikely(numbers[2]);
    ucs_prefetch(numbers);
    ucs_compiler_fence();
    enum { BIT = UCS_BIT(5), MASK = UCS_MASK(5) };
    printf("bits %d %d %lu %lu %d\n", BIT, MASK, (unsigned long)UCS_BIT(40), (unsigned long)UCS_MASK(40), value);
    printf("functions %d %d\n", twice(4), thrice(4));
    printf("pointers %d %d %ld\n", *(int*)UCS_PTR_BYTE_OFFSET(numbers, 12), *(int*)UCS_PTR_TYPE_OFFSET(numbers, int),
           (long)UCS_PTR_BYTE_DIFF(numbers, &numbers[3]));
    printf("types %d %d %d %lu %lu\n", ucs_container_of(&derived.super.link, item_t, link) == &derived.super,
           ucs_derived_of(&derived.super, derived_t) == &derived, (int)ucs_same_type(ucs_field_type(item_t, number), int),
           (unsigned long)ucs_field_sizeof(item_t, link), (unsigned long)ucs_offsetof(item_t, link));
    printf("array %lu constant %d\n", (unsigned long)ucs_static_array_size(numbers), !!ucs_is_constant(7));
    for (status = 0; status > -100; status--) {
        if (UCS_IS_ENDPOINT_ERROR(status) || UCS_IS_LINK_ERROR(status)) {
            printf("%d ", status);
        }
    }
    ucs_memory_type_for_each(type) {
        types++;
    }
    printf("\nmemory %d %lu\n", types >= 5, (unsigned long)(UCS_MEMORY_TYPES_CPU_ACCESSIBLE & UCS_BIT(UCS_MEMORY_TYPE_HOST)));
    printf("versions %d %d\n", UCT_API >= UCT_VERSION(1, 13), UCP_API_VERSION >= UCP_VERSION(1, 13));
    printf("lengths %d %d %d\n", UCT_TAG_PRIV_LEN, UCS_SYS_BDF_NAME_MAX, UCS_SYS_DEVICE_ID_UNKNOWN);
    lists();
    sets();
    return 0;
}

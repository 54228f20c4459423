/* Part of the C interface of this project (docs/abi.md). Source compatible with programs written for UCX 1.13 to 1.23. */
#ifndef UCS_DATASTRUCT_STRING_SET_H_
#define UCS_DATASTRUCT_STRING_SET_H_

#include <ucs/datastruct/khash.h>
#include <ucs/datastruct/string_buffer.h>
#include <ucs/sys/compiler_def.h>
#include <ucs/type/status.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Sets of texts, which are copied. */
KHASH_INIT(ucs_string_set, char*, char, 0, kh_str_hash_func, kh_str_hash_equal)
typedef khash_t(ucs_string_set) ucs_string_set_t;

static inline void ucs_string_set_init(ucs_string_set_t *sset)
{
    kh_init_inplace(ucs_string_set, sset);
}

static inline void ucs_string_set_cleanup(ucs_string_set_t *sset)
{
    char *text;

    kh_foreach_key(sset, text, free(text));
    kh_destroy_inplace(ucs_string_set, sset);
}

/* Adds memory of the heap, or frees it. */
static inline ucs_status_t ucs_string_set_take_(ucs_string_set_t *sset, char *text)
{
    int found = UCS_KH_PUT_FAILED;

    if (text == NULL) {
        return UCS_ERR_NO_MEMORY;
    }
    (void)kh_put(ucs_string_set, sset, text, &found);
    if ((found == UCS_KH_PUT_FAILED) || (found == UCS_KH_PUT_KEY_PRESENT)) {
        free(text);
    }
    return (found == UCS_KH_PUT_FAILED) ? UCS_ERR_NO_MEMORY : UCS_OK;
}

static inline ucs_status_t ucs_string_set_add(ucs_string_set_t *sset, const char *str)
{
    size_t size = strlen(str) + 1;
    char *text  = (char*)malloc(size);

    if (text != NULL) {
        memcpy(text, str, size);
    }
    return ucs_string_set_take_(sset, text);
}

static inline ucs_status_t ucs_string_set_addf(ucs_string_set_t *sset, const char *fmt, ...) UCS_F_PRINTF(2, 3);
static inline ucs_status_t ucs_string_set_addf(ucs_string_set_t *sset, const char *fmt, ...)
{
    char *text = NULL;
    va_list args;
    int length;

    va_start(args, fmt);
    length = vsnprintf(NULL, 0, fmt, args);
    va_end(args);
    if (length < 0) {
        return UCS_ERR_INVALID_PARAM;
    }
    text = (char*)malloc((size_t)length + 1);
    if (text != NULL) {
        va_start(args, fmt);
        (void)vsnprintf(text, (size_t)length + 1, fmt, args);
        va_end(args);
    }
    return ucs_string_set_take_(sset, text);
}

static inline int ucs_string_set_contains(const ucs_string_set_t *sset, const char *str)
{
    return kh_get(ucs_string_set, sset, (char*)(size_t)str) != kh_end(sset);
}

static inline int ucs_string_set_is_empty(const ucs_string_set_t *sset)
{
    return kh_size(sset) == 0;
}

static inline int ucs_string_set_compare_(const void *one, const void *other)
{
    return strcmp(*(char *const*)one, *(char *const*)other);
}

/* Appends all, in the order of their bytes. */
static inline ucs_status_t
ucs_string_set_print_sorted(const ucs_string_set_t *sset, ucs_string_buffer_t *strb, const char *sep)
{
    size_t count = 0, at;
    char **all, *text;

    if (kh_size(sset) == 0) {
        return UCS_OK;
    }
    all = (char**)malloc(kh_size(sset) * sizeof(*all));
    if (all == NULL) {
        return UCS_ERR_NO_MEMORY;
    }
    kh_foreach_key(sset, text, all[count++] = text);
    qsort(all, count, sizeof(*all), ucs_string_set_compare_);
    for (at = 0; at < count; at++) {
        ucs_string_buffer_appendf(strb, "%s%s", (at == 0) ? "" : sep, all[at]);
    }
    free(all);
    return UCS_OK;
}

#endif

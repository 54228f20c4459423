/* Part of the C interface of this project (docs/abi.md). Source compatible with programs for UCX 1.13. */
#ifndef UCS_SYS_STRING_H_
#define UCS_SYS_STRING_H_

#include <ucs/sys/compiler_def.h>
#include <ucs/type/status.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/types.h>

#define UCS_NUMERIC_INF_STR "inf"
#define UCS_VALUE_AUTO_STR "auto"

#define UCS_MEMUNITS_INF ((size_t)-1)
#define UCS_ULUNITS_INF ((unsigned long)-1)
#define UCS_MEMUNITS_AUTO ((size_t)-2)
#define UCS_ULUNITS_AUTO ((unsigned long)-2)
#define UCS_HEXUNITS_AUTO ((uint16_t)-2)

#ifdef __cplusplus
extern "C" {
#endif

extern const char *ucs_memunits_suffixes[];

void ucs_snprintf_zero(char *buf, size_t size, const char *fmt, ...) UCS_F_PRINTF(3, 4);
void ucs_snprintf_safe(char *buf, size_t size, const char *fmt, ...) UCS_F_PRINTF(3, 4);
void ucs_strncpy_zero(char *dest, const char *src, size_t max);
char *ucs_strncpy_safe(char *dst, const char *src, size_t len);

/* Numbers of bytes with their units. */
char *ucs_memunits_to_str(size_t value, char *buf, size_t max);
const char *ucs_memunits_range_str(size_t range_start, size_t range_end, char *buf, size_t max);
ucs_status_t ucs_str_to_memunits(const char *buf, void *dest);
size_t ucs_string_quantity_prefix_value(char prefix);

/* Place of a string in a list that a null ends, or -1. */
ssize_t ucs_string_find_in_list(const char *str, const char **string_list, int case_sensitive);
/* Cuts a string at the characters of a set, into `count` parts: an address for each follows. Returns the rest. */
char *ucs_string_split(char *str, const char *delim, int count, ...);

#ifdef __cplusplus
}
#endif

#endif

/* Part of the C interface of this project (docs/abi.md). Source compatible with programs for UCX 1.13. */
#ifndef UCS_DATASTRUCT_STRING_BUFFER_H_
#define UCS_DATASTRUCT_STRING_BUFFER_H_

#include <ucs/sys/compiler_def.h>
#include <ucs/type/status.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* Text that grows. The lowest bit of the capacity is set if the memory is the program's, which cannot grow. */
typedef struct ucs_string_buffer {
    struct {
        char   *buffer;
        size_t length;
        size_t capacity;
    } str;
} ucs_string_buffer_t;

#define UCS_STRING_BUFFER_INITIALIZER \
    { \
        { \
            NULL, 0, 0 \
        } \
    }

#ifdef __cplusplus
extern "C" {
#endif

void ucs_string_buffer_appendf(ucs_string_buffer_t *strb, const char *fmt, ...) UCS_F_PRINTF(2, 3);
void ucs_string_buffer_rtrim(ucs_string_buffer_t *strb, const char *charset);
const char *ucs_string_buffer_cstr(const ucs_string_buffer_t *strb);

#ifdef __cplusplus
}
#endif

#endif

/* Part of the C interface of this project (docs/abi.md). Source compatible with programs written for UCX 1.13 to 1.23. */
#ifndef UCS_DEBUG_MEMTRACK_H_
#define UCS_DEBUG_MEMTRACK_H_

#include <ucs/sys/compiler_def.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Tell of memory that a program has got, and of memory that it gives back. Nothing is tracked, as in UCX's releases. */
void ucs_memtrack_allocated(void *ptr, size_t size, const char *name);
void ucs_memtrack_releasing(void *ptr);

#ifdef __cplusplus
}
#endif

#endif

/* Part of the C interface of this project (docs/abi.md). Source compatible with programs written for UCX 1.13 to 1.23. */
#ifndef UCS_ARCH_GLOBAL_OPTS_H_
#define UCS_ARCH_GLOBAL_OPTS_H_

#include <ucs/config/parser.h>
#include <ucs/sys/compiler_def.h>
#include <ucs/sys/string.h>
#include <stddef.h>

/* Lengths between which UCX copies memory by its own means. */
typedef struct ucs_arch_global_opts {
    size_t builtin_memcpy_min;
    size_t builtin_memcpy_max;
} ucs_arch_global_opts_t;

#define UCS_ARCH_GLOBAL_OPTS_INITALIZER \
    { \
        UCS_MEMUNITS_AUTO, UCS_MEMUNITS_AUTO \
    }

#endif

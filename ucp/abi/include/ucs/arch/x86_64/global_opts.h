/* Part of the C interface of this project (docs/abi.md). Source compatible with programs written for UCX 1.13 to 1.23. */
#ifndef UCS_ARCH_X86_64_GLOBAL_OPTS_H_
#define UCS_ARCH_X86_64_GLOBAL_OPTS_H_

#include <ucs/arch/global_opts.h>

#endif

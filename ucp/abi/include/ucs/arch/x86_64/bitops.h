/* Part of the C interface of this project (docs/abi.md). Source compatible with programs written for UCX 1.13 to 1.23. */
#ifndef UCS_ARCH_X86_64_BITOPS_H_
#define UCS_ARCH_X86_64_BITOPS_H_

/* All is by functions of the compiler, which are the same on each processor. */
#include <ucs/arch/bitops.h>

#endif

/* Part of the C interface of this project (docs/abi.md). Source compatible with programs written for UCX 1.13 to 1.23. */
#ifndef UCS_ARCH_GENERIC_ATOMIC_H_
#define UCS_ARCH_GENERIC_ATOMIC_H_

/* All is by functions of the compiler, which are the same on each processor. */
#include <ucs/arch/atomic.h>

#endif

/* Part of the C interface of this project (docs/abi.md). Source compatible with programs written for UCX 1.13 to 1.23. */
#ifndef UCS_ARCH_ATOMIC_H_
#define UCS_ARCH_ATOMIC_H_

#include <stdint.h>

/*
 * Atomic operations on words of 8 to 64 bits, by the compiler's functions, in sequential order. `ucs_atomic_add32` and so
 * on return nothing, those with an `f` the value before: `fadd`, `fsub`, `fand`, `for`, `fxor`. `swap` and `cswap` return
 * the value before, `bool_cswap` whether the value was stored.
 */
#define UCS_ATOMIC_OPERATION_(_bits, _name, _builtin) \
    static inline void ucs_atomic_##_name##_bits(volatile uint##_bits##_t *ptr, uint##_bits##_t value) \
    { \
        (void)_builtin(ptr, value, __ATOMIC_SEQ_CST); \
    } \
    static inline uint##_bits##_t ucs_atomic_f##_name##_bits(volatile uint##_bits##_t *ptr, uint##_bits##_t value) \
    { \
        return _builtin(ptr, value, __ATOMIC_SEQ_CST); \
    }

#define UCS_ATOMIC_SWAPS_(_bits) \
    static inline uint##_bits##_t ucs_atomic_swap##_bits(volatile uint##_bits##_t *ptr, uint##_bits##_t value) \
    { \
        return __atomic_exchange_n(ptr, value, __ATOMIC_SEQ_CST); \
    } \
    static inline uint##_bits##_t ucs_atomic_cswap##_bits(volatile uint##_bits##_t *ptr, uint##_bits##_t compare, \
                                                         uint##_bits##_t swap) \
    { \
        __atomic_compare_exchange_n(ptr, &compare, swap, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST); \
        return compare; \
    } \
    static inline uint##_bits##_t ucs_atomic_bool_cswap##_bits(volatile uint##_bits##_t *ptr, \
                                                              uint##_bits##_t compare, uint##_bits##_t swap) \
    { \
        return __atomic_compare_exchange_n(ptr, &compare, swap, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST); \
    }

#define UCS_ATOMIC_WORD_(_bits) \
    UCS_ATOMIC_OPERATION_(_bits, add, __atomic_fetch_add) \
    UCS_ATOMIC_OPERATION_(_bits, sub, __atomic_fetch_sub) \
    UCS_ATOMIC_OPERATION_(_bits, and, __atomic_fetch_and) \
    UCS_ATOMIC_OPERATION_(_bits, or, __atomic_fetch_or) \
    UCS_ATOMIC_OPERATION_(_bits, xor, __atomic_fetch_xor) \
    UCS_ATOMIC_SWAPS_(_bits)

UCS_ATOMIC_WORD_(8)
UCS_ATOMIC_WORD_(16)
UCS_ATOMIC_WORD_(32)
UCS_ATOMIC_WORD_(64)

#endif

/* Part of the C interface of this project (docs/abi.md). Source compatible with programs written for UCX 1.13 to 1.23. */
#ifndef UCS_ARCH_BITOPS_H_
#define UCS_ARCH_BITOPS_H_

#include <ucs/sys/compiler_def.h>
#include <stdint.h>
#include <string.h>

/* Place of the lowest bit that is set. Not of 0. */
static UCS_F_ALWAYS_INLINE unsigned ucs_ffs32(uint32_t n)
{
    return (unsigned)__builtin_ctz(n);
}

static UCS_F_ALWAYS_INLINE unsigned ucs_ffs64(uint64_t n)
{
    return (unsigned)__builtin_ctzll(n);
}

/* The same, and 64 of 0. */
#define ucs_ffs64_safe(_val) ((_val) ? ucs_ffs64(_val) : 64)

/* Place of the highest bit that is set. Not of 0. */
static UCS_F_ALWAYS_INLINE unsigned __ucs_ilog2_u32(uint32_t n)
{
    return 31 - (unsigned)__builtin_clz(n);
}

static UCS_F_ALWAYS_INLINE unsigned __ucs_ilog2_u64(uint64_t n)
{
    return 63 - (unsigned)__builtin_clzll(n);
}

/* The logarithm to the base of 2, downwards. It is a constant if its argument is one; of a constant below 1 it is 0. */
#define ucs_ilog2(_n) \
    (__builtin_constant_p(_n) ? (((_n) < 1) ? 0 : 63 - __builtin_clzll((uint64_t)(_n) | (uint64_t)((_n) < 1))) : \
     (sizeof(_n) <= 4)        ? (int)__ucs_ilog2_u32((uint32_t)(_n)) : \
                                (int)__ucs_ilog2_u64((uint64_t)(_n)))
#define ucs_ilog2_or0(_n) (((_n) == 0) ? 0 : ucs_ilog2(_n))

/* Bits of a value of 32 bits, or of one of 64. */
#define ucs_popcount(_n) \
    ((sizeof(_n) <= 4) ? __builtin_popcount((uint32_t)(_n)) : __builtin_popcountll((unsigned long long)(_n)))
#define ucs_count_trailing_zero_bits(_n) \
    ((sizeof(_n) <= 4) ? __builtin_ctz((uint32_t)(_n)) : __builtin_ctzll((unsigned long long)(_n)))
/* Of 0 it is the number of bits of the type. */
#define ucs_count_leading_zero_bits(_n) \
    (((_n) == 0) ? (int)(8 * sizeof(_n)) : \
     (sizeof(_n) <= 4) ? __builtin_clz((uint32_t)(_n)) : __builtin_clzll((unsigned long long)(_n)))

/* How many bits below a place are set. */
static inline unsigned ucs_bitmap2idx(uint64_t mask, unsigned bit_index)
{
    return (unsigned)__builtin_popcountll(mask & UCS_MASK(bit_index));
}

/* Place of a bit by its number among those that are set. Of the last one, if there are not so many. */
static inline unsigned ucs_idx2bitmap(uint64_t mask, int idx)
{
    unsigned place = 0;

    for (; (mask != 0) && (idx >= 0); idx--) {
        place = ucs_ffs64(mask);
        mask &= mask - 1;
    }
    return place;
}

/* How many bits are 0 at the end of a buffer. Bits of a byte count from the highest one. */
static inline unsigned ucs_count_ptr_trailing_zero_bits(const void *ptr, uint64_t bit_length)
{
    const uint8_t *bytes = (const uint8_t*)ptr;
    uint64_t at;

    for (at = bit_length; at > 0; at--) {
        if (((at % 8) == 0) && (bytes[(at / 8) - 1] == 0)) {
            at -= 7;
        } else if ((bytes[(at - 1) / 8] >> (7 - ((at - 1) % 8))) & 1) {
            break;
        }
    }
    return (unsigned)(bit_length - at);
}

/* Whether the first bits of two buffers are equal, counted as above. */
static inline int ucs_bitwise_is_equal(const void *ptr1, const void *ptr2, uint64_t bit_length)
{
    size_t bytes  = (size_t)(bit_length / 8);
    unsigned rest = (unsigned)(bit_length % 8);

    if (memcmp(ptr1, ptr2, bytes) != 0) {
        return 0;
    }
    return (rest == 0) || (((((const uint8_t*)ptr1)[bytes] ^ ((const uint8_t*)ptr2)[bytes]) >> (8 - rest)) == 0);
}

#endif

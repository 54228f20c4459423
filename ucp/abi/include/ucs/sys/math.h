/* Part of the C interface of this project (docs/abi.md). Source compatible with programs written for UCX 1.13 to 1.23. */
#ifndef UCS_SYS_MATH_H_
#define UCS_SYS_MATH_H_

#include <ucs/arch/bitops.h>
#include <ucs/sys/compiler_def.h>
#include <ucs/type/status.h>
#include <float.h>
#include <math.h>
#include <stddef.h>
#include <stdint.h>

#define UCS_KBYTE (1ull << 10)
#define UCS_MBYTE (1ull << 20)
#define UCS_GBYTE (1ull << 30)
#define UCS_TBYTE (1ull << 40)
#define UCS_PBYTE (1ull << 50)

#if defined(__FINITE_MATH_ONLY__) && __FINITE_MATH_ONLY__
#define UCS_INFINITY DBL_MAX
#else
#define UCS_INFINITY INFINITY
#endif

/* The lesser and the greater one. Arguments are looked at once. */
#define ucs_min(_a, _b) \
    __extension__({ \
        ucs_typeof(_a) _least = (_a); \
        ucs_typeof(_b) _or_least = (_b); \
        (_or_least > _least) ? _least : _or_least; \
    })
#define ucs_max(_a, _b) \
    __extension__({ \
        ucs_typeof(_a) _most = (_a); \
        ucs_typeof(_b) _or_most = (_b); \
        (_or_most < _most) ? _most : _or_most; \
    })

/* -1, 0 or 1. */
#define ucs_signum(_n) (((_n) > (ucs_typeof(_n))0) - ((_n) < (ucs_typeof(_n))0))

/* Powers of 2. */
#define ucs_is_pow2_or_zero(_n) (((_n) & ((_n) - 1)) == 0)
#define ucs_is_pow2(_n) (((_n) > 0) && ucs_is_pow2_or_zero(_n))
/* The next one from a number of at least 1 on, and the last one up to it. */
#define ucs_roundup_pow2(_n) \
    __extension__({ \
        ucs_typeof((_n) + 0) _power = 1; \
        while (_power < (_n)) { \
            _power = (ucs_typeof(_power))(_power * 2); \
        } \
        _power; \
    })
#define ucs_rounddown_pow2(_n) (ucs_roundup_pow2((_n) + 1) / 2)
#define ucs_roundup_pow2_or0(_n) (((_n) == 0) ? 0 : ucs_roundup_pow2(_n))

/* What is missing to a multiple, the multiple below, and the one above. */
#define ucs_padding(_n, _alignment) (((_alignment) - ((_n) % (_alignment))) % (_alignment))
#define ucs_align_down(_n, _alignment) ((_n) - ((_n) % (_alignment)))
#define ucs_align_up(_n, _alignment) ((_n) + ucs_padding(_n, _alignment))

/* The same of powers of 2, and of pointers. `ucs_padding_pow2` is the distance from the multiple below. */
#define ucs_align_down_pow2(_n, _alignment) ((_n) & ~((_alignment) - 1))
#define ucs_align_up_pow2(_n, _alignment) ucs_align_down_pow2((_n) + (_alignment) - 1, _alignment)
#define ucs_align_down_pow2_ptr(_ptr, _alignment) \
    ((ucs_typeof(_ptr))ucs_align_down_pow2((uintptr_t)(_ptr), (_alignment)))
#define ucs_align_up_pow2_ptr(_ptr, _alignment) ((ucs_typeof(_ptr))ucs_align_up_pow2((uintptr_t)(_ptr), (_alignment)))
#define ucs_check_if_align_pow2(_n, _p) ((_n) & ((_p) - 1))
#define ucs_padding_pow2(_n, _p) ucs_check_if_align_pow2(_n, _p)

#define ucs_div_round_up(_n, _d) (((_n) + (_d) - 1) / (_d))

/* A mask of the lowest bits, up to 64. */
#define UCS_MASK_SAFE(_count) (((_count) >= 64) ? ~(uint64_t)0 : UCS_MASK(_count))

/* A flag for another one: both are constants. */
#define ucs_convert_flag(_value, _oldflag, _newflag) \
    __extension__({ \
        UCS_STATIC_ASSERT(ucs_is_constant(_oldflag) && ucs_is_pow2(_oldflag)) \
        UCS_STATIC_ASSERT(ucs_is_constant(_newflag) && ucs_is_pow2(_newflag)) \
        ((_value) & (_oldflag)) ? (_newflag) : 0; \
    })

/* Whether one of up to nine flags is set, and whether all are. */
#define ucs_test_flags(_value, ...) UCS_TEST_FLAGS_(_value, __VA_ARGS__, 0, 0, 0, 0, 0, 0, 0, 0, 0, )
#define UCS_TEST_FLAGS_(_value, _1, _2, _3, _4, _5, _6, _7, _8, _9, ...) \
    ((_value) & ((_1) | (_2) | (_3) | (_4) | (_5) | (_6) | (_7) | (_8) | (_9)))
#define ucs_test_all_flags(_value, _mask) (((_value) & (_mask)) == (_mask))

/* Compares numbers that start again at 0 behind their largest one, and are less than half of all apart. */
#define UCS_CIRCULAR_COMPARE(_a, _op, _b, _signed_type) ((_signed_type)((_a) - (_b)) _op 0)
#define UCS_CIRCULAR_COMPARE8(_a, _op, _b) UCS_CIRCULAR_COMPARE(_a, _op, _b, int8_t)
#define UCS_CIRCULAR_COMPARE16(_a, _op, _b) UCS_CIRCULAR_COMPARE(_a, _op, _b, int16_t)
#define UCS_CIRCULAR_COMPARE32(_a, _op, _b) UCS_CIRCULAR_COMPARE(_a, _op, _b, int32_t)
#define UCS_CIRCULAR_COMPARE64(_a, _op, _b) UCS_CIRCULAR_COMPARE(_a, _op, _b, int64_t)

/* The places of bits that are set, from the lowest one on. */
#define ucs_for_each_bit(_index, _map) \
    for ((_index) = ucs_ffs64_safe((uint64_t)(_map)); (_index) < 64; \
         (_index) = ((_index) >= 63) ? 64 : ucs_ffs64_safe((uint64_t)(_map) & (~(uint64_t)1 << (_index))))

/* Masks of some bits of a mask, from 0 to all. The variable ends above the mask, unless the mask has all bits. */
#define ucs_for_each_submask(_submask, _mask) \
    for ((_submask) = 0; (_submask) <= (_mask); \
         (_submask) = ((_submask) == (_mask)) ? (_mask) + 1 : (((_submask) - (_mask)) & (_mask)))

static inline double ucs_log2(double x)
{
    return log2(x);
}

static UCS_F_ALWAYS_INLINE double ucs_fp_compare_thresh(double val1, double val2)
{
    return 1e-6 * (val1 + val2);
}

/* -1, 0 or 1. Numbers that differ by less than a millionth of their sum count as equal. */
static UCS_F_ALWAYS_INLINE int ucs_fp_compare(double val1, double val2)
{
    double difference = val1 - val2;

    return (fabs(difference) < ucs_fp_compare_thresh(val1, val2)) ? 0 : ucs_signum(difference);
}

/* The nearest whole number, up to a limit, which NaN is, too. */
static UCS_F_ALWAYS_INLINE size_t ucs_double_to_sizet(double value, size_t max)
{
    value += 0.5;
    return (value < (double)max) ? (size_t)value : max;
}

#endif

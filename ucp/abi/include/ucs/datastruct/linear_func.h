/* Part of the C interface of this project (docs/abi.md). Source compatible with programs written for UCX 1.13 to 1.23. */
#ifndef UCS_DATASTRUCT_LINEAR_FUNC_H_
#define UCS_DATASTRUCT_LINEAR_FUNC_H_

#include <ucs/sys/compiler_def.h>
#include <ucs/type/status.h>

/* c + m * x */
typedef struct {
    double c;
    double m;
} ucs_linear_func_t;

#define UCS_LINEAR_FUNC_ZERO ucs_linear_func_make(0, 0)

static inline ucs_linear_func_t ucs_linear_func_make(double c, double m)
{
    ucs_linear_func_t func;

    func.c = c;
    func.m = m;
    return func;
}

static inline double ucs_linear_func_apply(ucs_linear_func_t func, double x)
{
    return func.m * x + func.c;
}

static inline ucs_linear_func_t ucs_linear_func_add(ucs_linear_func_t one, ucs_linear_func_t other)
{
    return ucs_linear_func_make(one.c + other.c, one.m + other.m);
}

static inline ucs_linear_func_t
ucs_linear_func_add3(ucs_linear_func_t first, ucs_linear_func_t second, ucs_linear_func_t third)
{
    return ucs_linear_func_make(first.c + second.c + third.c, first.m + second.m + third.m);
}

static inline ucs_linear_func_t ucs_linear_func_sub(ucs_linear_func_t from, ucs_linear_func_t func)
{
    return ucs_linear_func_make(from.c - func.c, from.m - func.m);
}

static inline void ucs_linear_func_add_inplace(ucs_linear_func_t *to, ucs_linear_func_t func)
{
    *to = ucs_linear_func_add(*to, func);
}

/* outer(inner(x)) */
static inline ucs_linear_func_t ucs_linear_func_compose(ucs_linear_func_t outer, ucs_linear_func_t inner)
{
    return ucs_linear_func_make(ucs_linear_func_apply(outer, inner.c), outer.m * inner.m);
}

/* Where two functions have the same value. UCS_ERR_INVALID_PARAM: nowhere, or not at one finite place. */
static inline ucs_status_t
ucs_linear_func_intersect(ucs_linear_func_t one, ucs_linear_func_t other, double *x_intersect)
{
    double slope = one.m - other.m, x;

    if (slope == 0) {
        return UCS_ERR_INVALID_PARAM;
    }
    x = (other.c - one.c) / slope;
    if (!__builtin_isfinite(x)) {
        return UCS_ERR_INVALID_PARAM;
    }
    *x_intersect = x;
    return UCS_OK;
}

/* Adds the value that another function has at a place. */
static inline void ucs_linear_func_add_value_at(ucs_linear_func_t *to, ucs_linear_func_t func, double x)
{
    to->c += ucs_linear_func_apply(func, x);
}

static inline int ucs_linear_func_is_equal(ucs_linear_func_t one, ucs_linear_func_t other, double epsilon)
{
    return __builtin_fabs(one.c - other.c) <= epsilon && __builtin_fabs(one.m - other.m) <= epsilon;
}

static inline int ucs_linear_func_is_zero(ucs_linear_func_t func, double epsilon)
{
    return ucs_linear_func_is_equal(func, UCS_LINEAR_FUNC_ZERO, epsilon);
}

#endif

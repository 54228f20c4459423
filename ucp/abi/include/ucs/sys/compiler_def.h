/* Part of the C interface of this project (docs/abi.md). Source compatible with programs written for UCX 1.13 to 1.23. */
#ifndef UCS_SYS_COMPILER_DEF_H_
#define UCS_SYS_COMPILER_DEF_H_

#include <stddef.h>

#ifndef BEGIN_C_DECLS
#ifdef __cplusplus
#define BEGIN_C_DECLS extern "C" {
#define END_C_DECLS }
#else
#define BEGIN_C_DECLS
#define END_C_DECLS
#endif
#endif

/* Integer constants. */
#define UCS_BIT(_number) (1ul << (_number))
#define UCS_MASK(_count) (((_count) >= 64) ? ~0ul : (UCS_BIT(_count) - 1))

#define UCS_BIT_GET(_value, _number) (((_value) & UCS_BIT(_number)) != 0)

#define UCS_ALLOCA_MAX_SIZE 1200
#define UCS_EMPTY_STATEMENT \
    { \
    }

/* Fails to compile if the condition, an integer constant, is false. Inside of a function. */
#define UCS_STATIC_ASSERT(_condition) \
    switch (0) { \
    case 0: \
    case (_condition): \
        break; \
    }

/* Attributes of functions, types and variables. */
#define UCS_F_ALWAYS_INLINE inline __attribute__((always_inline))
#define UCS_F_CTOR __attribute__((constructor))
#define UCS_F_DTOR __attribute__((destructor))
#define UCS_F_MAYBE_UNUSED __attribute__((used))
#define UCS_F_NOINLINE __attribute__((noinline))
#define UCS_F_NON_NULL __attribute__((nonnull))
#define UCS_F_NORETURN __attribute__((noreturn))
#ifdef __SANITIZE_ADDRESS__
#define UCS_F_NO_SANITIZE_ADDRESS __attribute__((no_sanitize_address))
#else
#define UCS_F_NO_SANITIZE_ADDRESS
#endif
#define UCS_F_PRINTF(_format, _first) __attribute__((format(printf, _format, _first)))
#define UCS_F_PURE __attribute__((pure))
#define UCS_S_MAY_ALIAS __attribute__((may_alias))
#define UCS_S_PACKED __attribute__((packed))
#define UCS_V_ALIGNED(_bytes) __attribute__((aligned(_bytes)))
#define UCS_V_UNUSED __attribute__((unused))
#ifdef __OPTIMIZE__
#define UCS_V_INITIALIZED(_variable) ((void)0)
#else
#define UCS_V_INITIALIZED(_variable) ((_variable) = (ucs_typeof(_variable))0)
#endif

/* Before the body of a function that runs as the library or program is loaded, or as it ends. */
#define UCS_STATIC_INIT UCS_STATIC_FUNCTION_(constructor, ucs_at_load_)
#define UCS_STATIC_CLEANUP UCS_STATIC_FUNCTION_(destructor, ucs_at_end_)
#define UCS_STATIC_FUNCTION_(_attribute, _prefix) UCS_STATIC_NAMED_(_attribute, _prefix, __COUNTER__)
#define UCS_STATIC_NAMED_(_attribute, _prefix, _number) UCS_STATIC_NUMBER_(_attribute, _prefix, _number)
#define UCS_STATIC_NUMBER_(_attribute, _prefix, _number) \
    static void __attribute__((_attribute)) _prefix##_number(void)

/* Addresses. */
#define UCS_PTR_BYTE_OFFSET(_ptr, _offset) ((void*)((char*)(_ptr) + (ptrdiff_t)(_offset)))
#define UCS_PTR_TYPE_OFFSET(_ptr, _type) ((void*)((ucs_typeof(_type)*)(_ptr) + 1))
#define UCS_PTR_BYTE_DIFF(_start, _end) ((ptrdiff_t)((char*)(_end) - (char*)(_start)))

/* Types and members. */
#define ucs_typeof(_type) __typeof__(_type)
#define ucs_same_type(_one, _other) __builtin_types_compatible_p(_one, _other)
#ifdef __cplusplus
/* C++ compilers warn of offsetof in types that C does not have. */
#define ucs_offsetof(_type, _member) ((unsigned long)&(((_type*)0)->_member))
#else
#define ucs_offsetof(_type, _member) ((size_t)__builtin_offsetof(_type, _member))
#endif
#define ucs_container_of(_ptr, _type, _member) ((_type*)((char*)(void*)(_ptr) - ucs_offsetof(_type, _member)))
/* A type whose first member, `super`, is what the pointer points to. */
#define ucs_derived_of(_ptr, _type) ((_type*)ucs_container_of(_ptr, ucs_typeof(_type), super))
#define ucs_field_sizeof(_type, _member) sizeof(((_type*)0)->_member)
#define ucs_field_type(_type, _member) ucs_typeof(((_type*)0)->_member)
#define ucs_static_array_size(_array) (sizeof(_array) / sizeof((_array)[0]))
#define ucs_is_unsigned_type(_type) ((_type)0 < (_type)-1)
/* A pointer without its qualifiers. */
#define ucs_const_cast(_type, _ptr) ((_type)(size_t)(const void*)(_ptr))

/* `_elem` points to each element of an array in turn. The body may make the array shorter. */
#define ucs_carray_for_each(_elem, _array, _length) \
    for ((_elem) = (_array); (_elem) < (_array) + (_length); (_elem)++)

/* Exchanges what two pointers of one type point to. */
#define ucs_swap(_one, _other) \
    { \
        ucs_typeof(*(_one)) _was = *(_one); \
        UCS_STATIC_ASSERT(ucs_same_type(ucs_typeof(*(_one)), ucs_typeof(*(_other)))) \
        *(_one) = *(_other); \
        *(_other) = _was; \
    }

/* What the compiler is told. */
#define ucs_compiler_fence() __asm__ volatile("" ::: "memory")
#define ucs_is_constant(_value) __builtin_constant_p(_value)
#define ucs_likely(_condition) __builtin_expect(_condition, 1)
#define ucs_unlikely(_condition) __builtin_expect(_condition, 0)
#define ucs_prefetch(_ptr) __builtin_prefetch(_ptr)
#define ucs_read_prefetch(_ptr) __builtin_prefetch(_ptr, 0, 3)
#define ucs_write_prefetch(_ptr) __builtin_prefetch(_ptr, 1, 3)
#define ucs_nt_read_prefetch(_ptr) __builtin_prefetch(_ptr, 0, 0)
#define ucs_nt_write_prefetch(_ptr) __builtin_prefetch(_ptr, 1, 0)

#endif

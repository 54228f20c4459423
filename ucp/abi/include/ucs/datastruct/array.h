/* Part of the C interface of this project (docs/abi.md). Source compatible with programs written for UCX 1.13 to 1.23. */
#ifndef UCS_DATASTRUCT_ARRAY_H_
#define UCS_DATASTRUCT_ARRAY_H_

#include <ucs/sys/compiler_def.h>
#include <ucs/sys/math.h>
#include <ucs/sys/preprocessor.h>
#include <ucs/type/status.h>
#include <alloca.h>
#include <limits.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/*
 * Arrays that know their length, in the form of UCX 1.23: `_array` is the address of one. An array in memory of the
 * program does not grow; another one does, and its memory is freed by ucs_array_cleanup_dynamic. The type of the length
 * has no sign.
 */
#define ucs_array_s(_index_type, _value_type) \
    struct { \
        _value_type *buffer; \
        _index_type length; \
        _index_type capacity : (CHAR_BIT * sizeof(_index_type)) - 1; \
        uint8_t     is_fixed : 1; \
    }
#define UCS_ARRAY_DECLARE_TYPE(_array_type, _index_type, _value_type) \
    typedef ucs_array_s(_index_type, _value_type) _array_type

#define UCS_ARRAY_DYNAMIC_INITIALIZER \
    { \
        NULL, 0, 0, 0 \
    }
#define UCS_ARRAY_FIXED_INITIALIZER(_buffer, _capacity) \
    { \
        (_buffer), 0, (_capacity), 1 \
    }

/* Memory of the calling function: `_capacity` is a constant. */
#define UCS_ARRAY_ALLOC_ONSTACK(_array_type, _capacity) \
    ((ucs_typeof(((_array_type*)NULL)->buffer))alloca((_capacity) * sizeof(*((_array_type*)NULL)->buffer)))
#define UCS_ARRAY_DEFINE_ONSTACK(_array_type, _var, _capacity) \
    _array_type _var = UCS_ARRAY_FIXED_INITIALIZER(UCS_ARRAY_ALLOC_ONSTACK(_array_type, _capacity), (_capacity))

#define ucs_array_init_dynamic(_array) \
    { \
        (_array)->buffer   = NULL; \
        (_array)->length   = 0; \
        (_array)->capacity = 0; \
        (_array)->is_fixed = 0; \
    }
#define ucs_array_init_fixed(_array, _buffer, _capacity) \
    { \
        (_array)->buffer   = (_buffer); \
        (_array)->length   = 0; \
        (_array)->capacity = (_capacity); \
        (_array)->is_fixed = 1; \
    }
#define ucs_array_cleanup_dynamic(_array) free((void*)(_array)->buffer)

#define ucs_array_length(_array) ((_array)->length)
#define ucs_array_capacity(_array) ((_array)->capacity)
#define ucs_array_max_capacity(_array) UCS_MASK((CHAR_BIT * sizeof((_array)->length)) - 1)
#define ucs_array_is_fixed(_array) ((_array)->is_fixed)
#define ucs_array_is_empty(_array) (ucs_array_length(_array) == 0)
#define ucs_array_available_length(_array) (ucs_array_capacity(_array) - ucs_array_length(_array))

#define ucs_array_elem(_array, _index) ((_array)->buffer[_index])
#define ucs_array_begin(_array) ((_array)->buffer)
#define ucs_array_end(_array) ((_array)->buffer + ucs_array_length(_array))
#define ucs_array_last(_array) (ucs_array_end(_array) - 1)
#define ucs_array_for_each(_elem, _array) \
    ucs_carray_for_each(_elem, ucs_array_begin(_array), ucs_array_length(_array))

#define ucs_array_set_length(_array, _new_length) \
    { \
        (_array)->length = (_new_length); \
    }
#define ucs_array_clear(_array) ucs_array_set_length(_array, 0)
#define ucs_array_pop_back(_array) (--(_array)->length)

/* Gives the memory away, which the caller frees. */
#define ucs_array_extract_buffer(_array) \
    __extension__({ \
        ucs_typeof((_array)->buffer) _taken = (_array)->buffer; \
        ucs_array_init_dynamic(_array) \
        _taken; \
    })

/* Memory for more elements: at least twice as many. The old memory is freed, or its address is written. */
static inline ucs_status_t ucs_array_grow(void **buffer_p, size_t *capacity_p, size_t min_capacity, size_t max_capacity,
                                          size_t value_size, void **old_buffer_p, const char *array_name)
{
    size_t capacity = (*capacity_p > (max_capacity / 2)) ? max_capacity : (*capacity_p * 2);
    void *buffer    = NULL;

    (void)array_name;
    capacity = (capacity < min_capacity) ? min_capacity : capacity;
    if ((capacity > max_capacity) || (capacity > (SIZE_MAX / value_size))) {
        return UCS_ERR_NO_MEMORY;
    }
    buffer = (old_buffer_p == NULL) ? realloc(*buffer_p, capacity * value_size) : malloc(capacity * value_size);
    if (buffer == NULL) {
        return UCS_ERR_NO_MEMORY;
    }
    if (old_buffer_p != NULL) {
        if (*buffer_p != NULL) {
            memcpy(buffer, *buffer_p, *capacity_p * value_size);
        }
        *old_buffer_p = *buffer_p;
    }
    *buffer_p   = buffer;
    *capacity_p = capacity;
    return UCS_OK;
}

static inline void ucs_array_buffer_free(void *buffer)
{
    free(buffer);
}

/* Room for so many elements. The safe form keeps memory that others may read: its address is written, or null. */
#define ucs_array_reserve_safe(_array, _min_capacity, _old_buffer_p) \
    __extension__({ \
        ucs_status_t _reserved = UCS_OK; \
        void **_old_p = (void**)(_old_buffer_p); \
        size_t _wanted = (_min_capacity); \
        size_t _room = (_array)->capacity; \
        void *_elements = (void*)(_array)->buffer; \
        \
        if (_old_p != NULL) { \
            *_old_p = NULL; \
        } \
        if (ucs_unlikely(_wanted > _room)) { \
            _reserved = (_array)->is_fixed ? UCS_ERR_NO_MEMORY : \
                                             ucs_array_grow(&_elements, &_room, _wanted, \
                                                            ucs_array_max_capacity(_array), \
                                                            sizeof(*(_array)->buffer), _old_p, #_array); \
            if (_reserved == UCS_OK) { \
                (_array)->buffer   = (ucs_typeof((_array)->buffer))_elements; \
                (_array)->capacity = (ucs_typeof((_array)->length))_room; \
            } \
        } \
        _reserved; \
    })
#define ucs_array_reserve(_array, _min_capacity) ucs_array_reserve_safe(_array, _min_capacity, NULL)

/* One element more: its address. Without memory the actions run, and the address is null. */
#define ucs_array_append_safe(_array, _old_buffer_p, _failed_actions) \
    __extension__({ \
        ucs_typeof((_array)->buffer) _appended = NULL; \
        \
        if (ucs_array_reserve_safe(_array, (size_t)(_array)->length + 1, _old_buffer_p) == UCS_OK) { \
            _appended = (_array)->buffer + (_array)->length++; \
        } else { \
            _failed_actions; \
        } \
        _appended; \
    })
#define ucs_array_append(_array, _failed_actions) ucs_array_append_safe(_array, NULL, _failed_actions)
/* Of an array that has room. */
#define ucs_array_append_fixed(_array) ucs_array_append(_array, abort())

/* Another length: elements that are new get a value. */
#define ucs_array_resize(_array, _new_length, _init_value, _failed_actions) \
    { \
        if (ucs_array_reserve(_array, _new_length) == UCS_OK) { \
            ucs_typeof((_array)->length) _new_one = (_array)->length; \
            for (; _new_one < (_new_length); ++_new_one) { \
                (_array)->buffer[_new_one] = (_init_value); \
            } \
            (_array)->length = (_new_length); \
        } else { \
            _failed_actions; \
        } \
    }

#endif

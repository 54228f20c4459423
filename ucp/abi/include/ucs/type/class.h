/* Part of the C interface of this project (docs/abi.md). Source compatible with programs written for UCX 1.13 to 1.23. */
#ifndef UCS_TYPE_CLASS_H_
#define UCS_TYPE_CLASS_H_

#include <ucs/sys/compiler_def.h>
#include <ucs/sys/preprocessor.h>
#include <ucs/type/status.h>
#include <stddef.h>

/*
 * Types of objects with parents. A type T has the variable T_class and two functions: T_init makes an object's part of
 * T in memory that is there, T_cleanup undoes it. A type without a parent has the parent `void`; all others have their
 * parent's object as the first member, `super`.
 */
typedef struct ucs_class ucs_class_t;

typedef ucs_status_t (*ucs_class_init_func_t)(void *self, ...);
typedef void (*ucs_class_cleanup_func_t)(void *self);

struct ucs_class {
    const char               *name;
    size_t                   size;
    ucs_class_t              *superclass;
    ucs_class_init_func_t    init;
    ucs_class_cleanup_func_t cleanup;
};

#ifdef __cplusplus
extern "C" {
#endif

extern ucs_class_t void_class;
ucs_status_t void_init(void *self, ucs_class_t *_myclass, int *_init_count);

/* Calls T_cleanup of the type, then of its parents. With a limit of 0 and more, of so many of the last parents only. */
void ucs_class_call_cleanup_chain(ucs_class_t *cls, void *obj, int limit);

void *ucs_class_malloc(ucs_class_t *cls);
void ucs_class_free(void *obj);
void ucs_class_check_new_func_result(ucs_status_t status, void *obj);

#ifdef __cplusplus
}
#endif

/* Names of what belongs to a type. */
#define UCS_CLASS_NAME(_type) UCS_PP_TOKENPASTE(_type, _class)
#define UCS_CLASS_DECL_NAME(_type) UCS_PP_TOKENPASTE(_type, _class)
#define UCS_CLASS_NEW_FUNC_NAME(_type) UCS_PP_TOKENPASTE(_type, _new)
#define UCS_CLASS_DELETE_FUNC_NAME(_type) UCS_PP_TOKENPASTE(_type, _delete)
#define _UCS_CLASS_DECL_NAME(_type) UCS_PP_TOKENPASTE(_type, _class)
#define _UCS_CLASS_INIT_NAME(_type) UCS_PP_TOKENPASTE(_type, _init)
#define _UCS_CLASS_CLEANUP_NAME(_type) UCS_PP_TOKENPASTE(_type, _cleanup)

/* Heads of the two functions. The first one returns a status, and has the arguments that follow the type. */
#define UCS_CLASS_INIT_FUNC(_type, ...) \
    ucs_status_t _UCS_CLASS_INIT_NAME(_type)(_type * self, UCS_V_UNUSED ucs_class_t * _myclass, \
                                             UCS_V_UNUSED int *_init_count, ##__VA_ARGS__)
#define UCS_CLASS_CLEANUP_FUNC(_type) void _UCS_CLASS_CLEANUP_NAME(_type)(_type * self)

#define UCS_CLASS_DECLARE(_type, ...) \
    extern ucs_class_t UCS_CLASS_NAME(_type); \
    UCS_CLASS_INIT_FUNC(_type, ##__VA_ARGS__);

/* The variable of a type. Its two functions have been defined, or are declared. */
#define UCS_CLASS_DEFINE(_type, _super) \
    extern ucs_class_t UCS_CLASS_NAME(_super); \
    ucs_class_t UCS_CLASS_NAME(_type) = { \
        UCS_PP_QUOTE(_type), \
        sizeof(_type), \
        &UCS_CLASS_NAME(_super), \
        (ucs_class_init_func_t)(void (*)(void))_UCS_CLASS_INIT_NAME(_type), \
        (ucs_class_cleanup_func_t)(void (*)(void))_UCS_CLASS_CLEANUP_NAME(_type), \
    };

/* Makes an object where there is memory. If this fails, what its parents have made is undone. */
#define UCS_CLASS_INIT(_type, _obj, ...) \
    __extension__({ \
        ucs_class_t *_of = &UCS_CLASS_NAME(_type); \
        void *_object = (_obj); \
        int _made = 1; \
        ucs_status_t _result = _UCS_CLASS_INIT_NAME(_type)((_type*)_object, _of, &_made, ##__VA_ARGS__); \
        \
        if (_result != UCS_OK) { \
            ucs_class_call_cleanup_chain(_of, _object, _made); \
        } \
        _result; \
    })

/* Undoes an object of a type, or of one that is known as the program runs. */
#define UCS_CLASS_CLEANUP_CALL(_class, _obj) ucs_class_call_cleanup_chain(_class, _obj, -1)
#define UCS_CLASS_CLEANUP(_type, _obj) \
    { \
        UCS_CLASS_CLEANUP_CALL(&UCS_CLASS_NAME(_type), _obj); \
    }

/* In the first function of a type: makes the parent's part. Returns from it, if this fails. */
#define UCS_CLASS_CALL_SUPER_INIT(_super, ...) \
    { \
        ucs_status_t _of_super = \
            _UCS_CLASS_INIT_NAME(_super)(&self->super, _myclass->superclass, _init_count, ##__VA_ARGS__); \
        if (_of_super != UCS_OK) { \
            return _of_super; \
        } \
        *_init_count += (_myclass->superclass != &void_class); \
    }

/* An object in new memory: its address is written to `*_obj`, or null. Arguments may be behind `_obj` in a macro. */
#define UCS_CLASS_NEW(_type, _obj, ...) UCS_CLASS_NEW_(_type, _obj, ##__VA_ARGS__)
#define UCS_CLASS_NEW_(_type, _obj, ...) \
    __extension__({ \
        void *_memory = ucs_class_malloc(&UCS_CLASS_NAME(_type)); \
        ucs_status_t _made_new = UCS_ERR_NO_MEMORY; \
        \
        if (_memory != NULL) { \
            _made_new = UCS_CLASS_INIT(_type, _memory, ##__VA_ARGS__); \
            if (_made_new != UCS_OK) { \
                ucs_class_free(_memory); \
                _memory = NULL; \
            } \
        } \
        *(_obj) = (ucs_typeof(*(_obj)))_memory; \
        _made_new; \
    })

#define UCS_CLASS_DELETE(_type, _obj) \
    { \
        UCS_CLASS_CLEANUP(_type, _obj); \
        ucs_class_free(_obj); \
    }

/* A function that makes objects: it takes arguments of the types that follow, and the address for the object. */
#define UCS_CLASS_DECLARE_NAMED_NEW_FUNC(_name, _argtype, ...) \
    ucs_status_t _name( \
        UCS_PP_FOREACH(_UCS_CLASS_INIT_ARG_DEFINE, _, \
                       UCS_PP_ZIP((UCS_PP_SEQ(UCS_PP_NUM_ARGS(__VA_ARGS__))), (__VA_ARGS__))) _argtype **obj_p)
#define UCS_CLASS_DEFINE_NAMED_NEW_FUNC(_name, _type, _argtype, ...) \
    UCS_CLASS_DECLARE_NAMED_NEW_FUNC(_name, _argtype, ##__VA_ARGS__) \
    { \
        ucs_status_t status = UCS_CLASS_NEW( \
            _type, obj_p UCS_PP_FOREACH(_UCS_CLASS_INIT_ARG_PASS, _, UCS_PP_SEQ(UCS_PP_NUM_ARGS(__VA_ARGS__)))); \
        ucs_class_check_new_func_result(status, *obj_p); \
        return status; \
    }
#define UCS_CLASS_DECLARE_NEW_FUNC(_type, _argtype, ...) \
    UCS_CLASS_DECLARE_NAMED_NEW_FUNC(UCS_CLASS_NEW_FUNC_NAME(_type), _argtype, ##__VA_ARGS__)
#define UCS_CLASS_DEFINE_NEW_FUNC(_type, _argtype, ...) \
    UCS_CLASS_DEFINE_NAMED_NEW_FUNC(UCS_CLASS_NEW_FUNC_NAME(_type), _type, _argtype, ##__VA_ARGS__)

/* A pair of a number and a type as an argument with a comma behind, and the number as one with a comma before. */
#define _UCS_CLASS_INIT_ARG_DEFINE(_none, _pair) UCS_CLASS_ARG_OF_ _pair
#define UCS_CLASS_ARG_OF_(_index, _type) _type _UCS_CLASS_INIT_ARG_NAME(_, _index),
#define _UCS_CLASS_INIT_ARG_PASS(_none, _index) , _UCS_CLASS_INIT_ARG_NAME(_, _index)
#define _UCS_CLASS_INIT_ARG_NAME(_none, _index) UCS_PP_TOKENPASTE(arg, _index)

/* A function that undoes objects and frees their memory. */
#define UCS_CLASS_DECLARE_NAMED_DELETE_FUNC(_name, _argtype) void _name(_argtype * self)
#define UCS_CLASS_DEFINE_NAMED_DELETE_FUNC(_name, _type, _argtype) \
    UCS_CLASS_DECLARE_NAMED_DELETE_FUNC(_name, _argtype) \
    { \
        UCS_CLASS_DELETE(_type, self); \
    }
#define UCS_CLASS_DECLARE_DELETE_FUNC(_type, _argtype) \
    UCS_CLASS_DECLARE_NAMED_DELETE_FUNC(UCS_CLASS_DELETE_FUNC_NAME(_type), _argtype)
#define UCS_CLASS_DEFINE_DELETE_FUNC(_type, _argtype) \
    UCS_CLASS_DEFINE_NAMED_DELETE_FUNC(UCS_CLASS_DELETE_FUNC_NAME(_type), _type, _argtype)

#endif

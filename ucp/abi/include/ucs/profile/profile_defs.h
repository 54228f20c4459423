/* Part of the C interface of this project (docs/abi.md). Source compatible with programs written for UCX 1.13 to 1.23. */
#ifndef UCS_PROFILE_PROFILE_DEFS_H_
#define UCS_PROFILE_PROFILE_DEFS_H_

#include <ucs/config/global_opts.h>
#include <ucs/sys/compiler_def.h>
#include <ucs/sys/preprocessor.h>
#include <ucs/time/time_def.h>
#include <ucs/type/status.h>
#include <limits.h>
#include <stddef.h>
#include <stdint.h>

/* Profiles are not recorded: a program with UCX's macros compiles and runs, and has no file at its end. */
typedef struct ucs_profile_context ucs_profile_context_t;

/* Number of a place in the program: one that has none yet, and one of which nothing is recorded. */
typedef short ucs_profile_loc_id_t;
#define UCS_PROFILE_LOC_ID_UNKNOWN (-1)
#define UCS_PROFILE_LOC_ID_DISABLED 0

#define UCS_PROFILE_STACK_MAX 64

enum {
    UCS_PROFILE_MODE_ACCUM = 0,
    UCS_PROFILE_MODE_LOG = 1,
    UCS_PROFILE_MODE_LAST
};

typedef enum {
    UCS_PROFILE_TYPE_SAMPLE = 0,
    UCS_PROFILE_TYPE_SCOPE_BEGIN = 1,
    UCS_PROFILE_TYPE_SCOPE_END = 2,
    UCS_PROFILE_TYPE_REQUEST_NEW = 3,
    UCS_PROFILE_TYPE_REQUEST_EVENT = 4,
    UCS_PROFILE_TYPE_REQUEST_FREE = 5,
    UCS_PROFILE_TYPE_LAST
} ucs_profile_type_t;

#ifdef __cplusplus
extern "C" {
#endif

extern const char *ucs_profile_mode_names[];
extern ucs_profile_context_t *ucs_profile_default_ctx;

/* Without a mode it succeeds, and writes null. Modes are refused. */
ucs_status_t ucs_profile_init(unsigned profile_mode, const char *file_name, size_t max_file_size,
                              ucs_profile_context_t **ctx_p);
void ucs_profile_cleanup(ucs_profile_context_t *ctx);
void ucs_profile_dump(ucs_profile_context_t *ctx);

/* Says that nothing is recorded of this place. */
void ucs_profile_record(ucs_profile_context_t *ctx, ucs_profile_type_t type, const char *name, uint32_t param32,
                        uint64_t param64, const char *file, int line, const char *function,
                        volatile ucs_profile_loc_id_t *loc_id_p);

#ifdef __cplusplus
}
#endif

/* An event at a place. */
#define UCS_PROFILE_CTX_RECORD_ALWAYS(_ctx, _type, _name, _param32, _param64) \
    { \
        static ucs_profile_loc_id_t ucs_profile_place_ = UCS_PROFILE_LOC_ID_UNKNOWN; \
        if (ucs_profile_place_ != UCS_PROFILE_LOC_ID_DISABLED) { \
            ucs_profile_record(_ctx, _type, _name, _param32, _param64, __FILE__, __LINE__, __func__, \
                               &ucs_profile_place_); \
        } \
    }
#define UCS_PROFILE_CTX_SCOPE_BEGIN(_ctx) \
    { \
        UCS_PROFILE_CTX_RECORD_ALWAYS(_ctx, UCS_PROFILE_TYPE_SCOPE_BEGIN, "", 0, 0) \
        ucs_compiler_fence(); \
    }
#define UCS_PROFILE_CTX_SCOPE_END(_ctx, _name) \
    { \
        ucs_compiler_fence(); \
        UCS_PROFILE_CTX_RECORD_ALWAYS(_ctx, UCS_PROFILE_TYPE_SCOPE_END, _name, 0, 0) \
    }

/* Code between two events. */
#define UCS_PROFILE_CTX_CODE_ALWAYS(_ctx, _name, ...) \
    { \
        UCS_PROFILE_CTX_SCOPE_BEGIN(_ctx) \
        __VA_ARGS__; \
        UCS_PROFILE_CTX_SCOPE_END(_ctx, _name) \
    }

/* The head of a function, of which each call is code between two events. `_arglist` names its arguments. */
#define UCS_PROFILE_CTX_FUNC_ALWAYS(_ctx, _ret_type, _name, _arglist, ...) \
    static UCS_F_ALWAYS_INLINE _ret_type _name##_inner(__VA_ARGS__); \
    _ret_type _name(__VA_ARGS__) \
    { \
        _ret_type ucs_profile_result_; \
        UCS_PROFILE_CTX_CODE_ALWAYS(_ctx, #_name, ucs_profile_result_ = _name##_inner _arglist) \
        return ucs_profile_result_; \
    } \
    static UCS_F_ALWAYS_INLINE _ret_type _name##_inner(__VA_ARGS__)
#define UCS_PROFILE_CTX_FUNC_VOID_ALWAYS(_ctx, _name, _arglist, ...) \
    static UCS_F_ALWAYS_INLINE void _name##_inner(__VA_ARGS__); \
    void _name(__VA_ARGS__) \
    { \
        UCS_PROFILE_CTX_CODE_ALWAYS(_ctx, #_name, _name##_inner _arglist) \
    } \
    static UCS_F_ALWAYS_INLINE void _name##_inner(__VA_ARGS__)

/* A call of a function. */
#define UCS_PROFILE_CTX_NAMED_CALL_ALWAYS(_ctx, _name, _func, ...) \
    __extension__({ \
        ucs_typeof(_func(__VA_ARGS__)) ucs_profile_result_; \
        UCS_PROFILE_CTX_CODE_ALWAYS(_ctx, _name, ucs_profile_result_ = _func(__VA_ARGS__)) \
        ucs_profile_result_; \
    })

/* The same with the library's own profile. */
#define UCS_PROFILE_SAMPLE_ALWAYS(_name) \
    UCS_PROFILE_CTX_RECORD_ALWAYS(ucs_profile_default_ctx, UCS_PROFILE_TYPE_SAMPLE, (_name), 0, 0)
#define UCS_PROFILE_CODE_ALWAYS(_name, ...) UCS_PROFILE_CTX_CODE_ALWAYS(ucs_profile_default_ctx, _name, __VA_ARGS__)
#define UCS_PROFILE_FUNC_ALWAYS(_ret_type, _name, _arglist, ...) \
    UCS_PROFILE_CTX_FUNC_ALWAYS(ucs_profile_default_ctx, _ret_type, _name, _arglist, ##__VA_ARGS__)
#define UCS_PROFILE_FUNC_VOID_ALWAYS(_name, _arglist, ...) \
    UCS_PROFILE_CTX_FUNC_VOID_ALWAYS(ucs_profile_default_ctx, _name, _arglist, ##__VA_ARGS__)
#define UCS_PROFILE_NAMED_CALL_ALWAYS(_name, _func, ...) \
    UCS_PROFILE_CTX_NAMED_CALL_ALWAYS(ucs_profile_default_ctx, _name, _func, ##__VA_ARGS__)
#define UCS_PROFILE_CALL_ALWAYS(_func, ...) UCS_PROFILE_NAMED_CALL_ALWAYS(#_func, _func, ##__VA_ARGS__)
#define UCS_PROFILE_NAMED_CALL_VOID_ALWAYS(_name, _func, ...) UCS_PROFILE_CODE_ALWAYS(_name, _func(__VA_ARGS__))
#define UCS_PROFILE_CALL_VOID_ALWAYS(_func, ...) UCS_PROFILE_NAMED_CALL_VOID_ALWAYS(#_func, _func, ##__VA_ARGS__)
#define UCS_PROFILE_REQUEST_EVENT_ALWAYS(_req, _name, _param32) \
    UCS_PROFILE_CTX_RECORD_ALWAYS(ucs_profile_default_ctx, UCS_PROFILE_TYPE_REQUEST_EVENT, (_name), (_param32), \
                                  (uintptr_t)(_req))

#endif

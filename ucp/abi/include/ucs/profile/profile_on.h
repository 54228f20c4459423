/* Part of the C interface of this project (docs/abi.md). Source compatible with programs written for UCX 1.13 to 1.23. */
#ifndef UCS_PROFILE_PROFILE_ON_H_
#define UCS_PROFILE_PROFILE_ON_H_

#include <ucs/profile/profile_defs.h>

#define UCS_PROFILE_SAMPLE UCS_PROFILE_SAMPLE_ALWAYS
#define UCS_PROFILE_FUNC UCS_PROFILE_FUNC_ALWAYS
#define UCS_PROFILE_FUNC_VOID UCS_PROFILE_FUNC_VOID_ALWAYS
#define UCS_PROFILE_NAMED_CALL UCS_PROFILE_NAMED_CALL_ALWAYS
#define UCS_PROFILE_CALL UCS_PROFILE_CALL_ALWAYS
#define UCS_PROFILE_NAMED_CALL_VOID UCS_PROFILE_NAMED_CALL_VOID_ALWAYS
#define UCS_PROFILE_CALL_VOID UCS_PROFILE_CALL_VOID_ALWAYS
#define UCS_PROFILE_REQUEST_EVENT UCS_PROFILE_REQUEST_EVENT_ALWAYS

#define UCS_PROFILE_REQUEST_NEW(_req, _name, _param32) \
    UCS_PROFILE_CTX_RECORD_ALWAYS(ucs_profile_default_ctx, UCS_PROFILE_TYPE_REQUEST_NEW, (_name), (_param32), \
                                  (uintptr_t)(_req))
#define UCS_PROFILE_REQUEST_FREE(_req) \
    UCS_PROFILE_CTX_RECORD_ALWAYS(ucs_profile_default_ctx, UCS_PROFILE_TYPE_REQUEST_FREE, "", 0, (uintptr_t)(_req))
#define UCS_PROFILE_REQUEST_EVENT_CHECK_STATUS(_req, _name, _param32, _status) \
    { \
        if (!UCS_STATUS_IS_ERR(_status)) { \
            UCS_PROFILE_REQUEST_EVENT(_req, _name, _param32) \
        } \
    }

/* Code between two events: an argument, or what follows a macro with one argument, as in UCX 1.13. */
#define UCS_PROFILE_CODE(...) \
    UCS_PROFILE_CODE_FORM_(__VA_ARGS__, UCS_PROFILE_CODE_ALWAYS, UCS_PROFILE_CODE_BEHIND_, )(__VA_ARGS__)
#define UCS_PROFILE_CODE_FORM_(_name, _code, _form, ...) _form
#define UCS_PROFILE_CODE_BEHIND_(_name) UCS_PROFILE_CODE_LOOP_(_name, UCS_PP_APPEND_UNIQUE_ID(ucs_profile_turn_))
#define UCS_PROFILE_CODE_LOOP_(_name, _turn) \
    int _turn; \
    for (_turn = (__extension__({ UCS_PROFILE_CTX_SCOPE_BEGIN(ucs_profile_default_ctx) }), 1); _turn != 0; \
         _turn = (__extension__({ UCS_PROFILE_CTX_SCOPE_END(ucs_profile_default_ctx, _name) }), 0))

/* Names of UCX 1.13. */
#define UCS_PROFILE_CTX_RECORD UCS_PROFILE_CTX_RECORD_ALWAYS
#define _UCS_PROFILE_CTX_FUNC UCS_PROFILE_CTX_FUNC_ALWAYS
#define _UCS_PROFILE_CTX_FUNC_VOID UCS_PROFILE_CTX_FUNC_VOID_ALWAYS
#define _UCS_PROFILE_CTX_NAMED_CALL UCS_PROFILE_CTX_NAMED_CALL_ALWAYS
#define _UCS_PROFILE_CTX_NAMED_CALL_VOID(_ctx, _name, _func, ...) \
    UCS_PROFILE_CTX_CODE_ALWAYS(_ctx, _name, _func(__VA_ARGS__))

#endif

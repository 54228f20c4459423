/* Part of the C interface of this project (docs/abi.md). Source compatible with programs written for UCX 1.13 to 1.23. */
#ifndef UCS_PROFILE_PROFILE_OFF_H_
#define UCS_PROFILE_PROFILE_OFF_H_

#include <ucs/profile/profile_defs.h>
#include <ucs/sys/compiler_def.h>

/* Code, functions and calls without events. */
#define UCS_PROFILE(...) UCS_EMPTY_STATEMENT
#define UCS_PROFILE_SAMPLE(...) UCS_EMPTY_STATEMENT
#define UCS_PROFILE_SCOPE_BEGIN() UCS_EMPTY_STATEMENT
#define UCS_PROFILE_SCOPE_END(_name) UCS_EMPTY_STATEMENT
#define UCS_PROFILE_CODE(...) UCS_PROFILE_CODE_OF_(__VA_ARGS__, )
#define UCS_PROFILE_CODE_OF_(_name, _code, ...) _code
#define UCS_PROFILE_FUNC(_ret_type, _name, _arglist, ...) _ret_type _name(__VA_ARGS__)
#define UCS_PROFILE_FUNC_VOID(_name, _arglist, ...) void _name(__VA_ARGS__)
#define UCS_PROFILE_NAMED_CALL(_name, _func, ...) _func(__VA_ARGS__)
#define UCS_PROFILE_CALL(_func, ...) _func(__VA_ARGS__)
#define UCS_PROFILE_NAMED_CALL_VOID UCS_PROFILE_NAMED_CALL
#define UCS_PROFILE_CALL_VOID UCS_PROFILE_CALL
#define UCS_PROFILE_REQUEST_NEW(...) UCS_EMPTY_STATEMENT
#define UCS_PROFILE_REQUEST_EVENT(...) UCS_EMPTY_STATEMENT
#define UCS_PROFILE_REQUEST_EVENT_CHECK_STATUS(...) UCS_EMPTY_STATEMENT
#define UCS_PROFILE_REQUEST_FREE(...) UCS_EMPTY_STATEMENT

#endif

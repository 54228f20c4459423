/* Part of the C interface of this project (docs/abi.md). Source compatible with programs written for UCX 1.13 to 1.23. */
#ifndef UCS_CONFIG_TYPES_H_
#define UCS_CONFIG_TYPES_H_

#include <ucs/sys/compiler_def.h>
#include <ucs/sys/sock.h>

typedef enum {
    UCS_LOG_LEVEL_FATAL,
    UCS_LOG_LEVEL_ERROR,
    UCS_LOG_LEVEL_WARN,
    UCS_LOG_LEVEL_DIAG,
    UCS_LOG_LEVEL_INFO,
    UCS_LOG_LEVEL_DEBUG,
    UCS_LOG_LEVEL_TRACE,
    UCS_LOG_LEVEL_TRACE_REQ,
    UCS_LOG_LEVEL_TRACE_DATA,
    UCS_LOG_LEVEL_TRACE_ASYNC,
    UCS_LOG_LEVEL_TRACE_FUNC,
    UCS_LOG_LEVEL_TRACE_POLL,
    UCS_LOG_LEVEL_LAST,
    UCS_LOG_LEVEL_PRINT
} ucs_log_level_t;

typedef enum {
    UCS_ASYNC_MODE_SIGNAL,
    UCS_ASYNC_MODE_THREAD,
    UCS_ASYNC_MODE_THREAD_SPINLOCK = UCS_ASYNC_MODE_THREAD,
    UCS_ASYNC_MODE_THREAD_MUTEX,
    UCS_ASYNC_MODE_POLL,
    UCS_ASYNC_MODE_LAST
} ucs_async_mode_t;

#ifdef __cplusplus
extern "C" {
#endif

extern const char *ucs_async_mode_names[];

#ifdef __cplusplus
}
#endif

typedef enum ucs_ternary_auto_value {
    UCS_NO = 0,
    UCS_YES = 1,
    UCS_TRY = 2,
    UCS_AUTO = 3,
    UCS_TERNARY_LAST
} ucs_ternary_auto_value_t;

typedef enum ucs_on_off_auto_value {
    UCS_CONFIG_OFF = 0,
    UCS_CONFIG_ON = 1,
    UCS_CONFIG_AUTO = 2,
    UCS_CONFIG_ON_OFF_LAST
} ucs_on_off_auto_value_t;

typedef enum {
    UCS_HANDLE_ERROR_BACKTRACE,
    UCS_HANDLE_ERROR_FREEZE,
    UCS_HANDLE_ERROR_DEBUG,
    UCS_HANDLE_ERROR_NONE,
    UCS_HANDLE_ERROR_LAST
} ucs_handle_error_t;

typedef enum {
    UCS_CONFIG_ALLOW_LIST_ALLOW_ALL,
    UCS_CONFIG_ALLOW_LIST_ALLOW,
    UCS_CONFIG_ALLOW_LIST_NEGATE
} ucs_config_allow_list_mode_t;

typedef enum {
    UCS_CONFIG_PRINT_CONFIG = 1ul << 0,
    UCS_CONFIG_PRINT_HEADER = 1ul << 1,
    UCS_CONFIG_PRINT_DOC = 1ul << 2,
    UCS_CONFIG_PRINT_HIDDEN = 1ul << 3,
    UCS_CONFIG_PRINT_COMMENT_DEFAULT = 1ul << 4
} ucs_config_print_flags_t;

/* An array in a structure of settings. */
#define UCS_CONFIG_ARRAY_FIELD(_type, _name) \
    struct { \
        _type    *_name; \
        unsigned count; \
        unsigned truncated; \
    }
#define UCS_CONFIG_STRING_ARRAY_FIELD(_name) UCS_CONFIG_ARRAY_FIELD(char*, _name)

typedef UCS_CONFIG_STRING_ARRAY_FIELD(names) ucs_config_names_array_t;

typedef struct {
    ucs_config_names_array_t     array;
    ucs_config_allow_list_mode_t mode;
} ucs_config_allow_list_t;

typedef struct ucs_log_component_config {
    ucs_log_level_t log_level;
    char            name[16];
    const char      *file_filter;
} ucs_log_component_config_t;

static inline int ucs_ternary_auto_value_is_yes_or_try(ucs_ternary_auto_value_t value)
{
    return value == UCS_TRY || value == UCS_YES;
}

static inline int ucs_ternary_auto_value_is_yes_or_no(ucs_ternary_auto_value_t value)
{
    return value == UCS_NO || value == UCS_YES;
}

#endif

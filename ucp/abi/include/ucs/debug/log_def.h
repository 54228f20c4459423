/* Part of the C interface of this project (docs/abi.md). Source compatible with programs written for UCX 1.13 to 1.23. */
#ifndef UCS_DEBUG_LOG_DEF_H_
#define UCS_DEBUG_LOG_DEF_H_

/* The highest level that is compiled. */
#ifndef UCS_MAX_LOG_LEVEL
#define UCS_MAX_LOG_LEVEL UCS_LOG_LEVEL_LAST
#endif

#include <ucs/config/global_opts.h>
#include <ucs/sys/compiler_def.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Names of the levels. */
extern const char *ucs_log_level_names[];

/*
 * Logs a message at a level, which the caller has compared. Messages of the component `UCX` go to the log of this library;
 * those of another one to standard error, up to the level of the component.
 */
void ucs_log_dispatch(const char *file, unsigned line, const char *function, ucs_log_level_t level,
                      ucs_log_component_config_t *comp_conf, const char *format, ...) UCS_F_PRINTF(6, 7);

/* Prints what is the last message of a program. */
void ucs_log_fatal_error(const char *format, ...) UCS_F_PRINTF(1, 2);

/* Each message is written at once. */
void ucs_log_flush(void);

/* Bytes that a message may have. */
size_t ucs_log_get_buffer_size(void);

#ifdef __cplusplus
}
#endif

/* Whether messages of a level are wanted: of a component, and of the default one. */
#define ucs_log_component_is_enabled(_level, _comp_log_config) \
    ucs_unlikely(((_level) <= UCS_MAX_LOG_LEVEL) && \
                 ((_level) <= ((ucs_log_component_config_t*)(_comp_log_config))->log_level))
#define ucs_log_is_enabled(_level) ucs_log_component_is_enabled(_level, &ucs_global_opts.log_component)

/* Formats a message only if it is wanted. */
#define ucs_log_component(_level, _comp_log_config, _fmt, ...) \
    do { \
        if (ucs_log_component_is_enabled(_level, _comp_log_config)) { \
            ucs_log_dispatch(__FILE__, __LINE__, __func__, (ucs_log_level_t)(_level), _comp_log_config, _fmt, \
                             ##__VA_ARGS__); \
        } \
    } while (0)
#define ucs_log(_level, _fmt, ...) ucs_log_component(_level, &ucs_global_opts.log_component, _fmt, ##__VA_ARGS__)

#define ucs_error(_fmt, ...) ucs_log(UCS_LOG_LEVEL_ERROR, _fmt, ##__VA_ARGS__)
#define ucs_warn(_fmt, ...) ucs_log(UCS_LOG_LEVEL_WARN, _fmt, ##__VA_ARGS__)
#define ucs_diag(_fmt, ...) ucs_log(UCS_LOG_LEVEL_DIAG, _fmt, ##__VA_ARGS__)
#define ucs_info(_fmt, ...) ucs_log(UCS_LOG_LEVEL_INFO, _fmt, ##__VA_ARGS__)
#define ucs_debug(_fmt, ...) ucs_log(UCS_LOG_LEVEL_DEBUG, _fmt, ##__VA_ARGS__)
#define ucs_trace(_fmt, ...) ucs_log(UCS_LOG_LEVEL_TRACE, _fmt, ##__VA_ARGS__)
#define ucs_trace_req(_fmt, ...) ucs_log(UCS_LOG_LEVEL_TRACE_REQ, _fmt, ##__VA_ARGS__)
#define ucs_trace_data(_fmt, ...) ucs_log(UCS_LOG_LEVEL_TRACE_DATA, _fmt, ##__VA_ARGS__)
#define ucs_trace_async(_fmt, ...) ucs_log(UCS_LOG_LEVEL_TRACE_ASYNC, _fmt, ##__VA_ARGS__)
/* With the name of the function. */
#define ucs_trace_func(_fmt, ...) ucs_log(UCS_LOG_LEVEL_TRACE_FUNC, "%s(" _fmt ")", __func__, ##__VA_ARGS__)
#define ucs_trace_poll(_fmt, ...) ucs_log(UCS_LOG_LEVEL_TRACE_POLL, _fmt, ##__VA_ARGS__)

/* A message that no level hides, if the program has set `log_print_enable`. */
#define ucs_print(_fmt, ...) \
    do { \
        if (ucs_global_opts.log_print_enable != 0) { \
            ucs_log_dispatch(__FILE__, __LINE__, __func__, UCS_LOG_LEVEL_PRINT, &ucs_global_opts.log_component, _fmt, \
                             ##__VA_ARGS__); \
        } \
    } while (0)

#endif

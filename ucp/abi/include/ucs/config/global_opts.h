/* Part of the C interface of this project (docs/abi.md). Source compatible with programs written for UCX 1.13 to 1.23. */
#ifndef UCS_CONFIG_GLOBAL_OPTS_H_
#define UCS_CONFIG_GLOBAL_OPTS_H_

#include <ucs/arch/global_opts.h>
#include <ucs/config/types.h>
#include <ucs/stats/stats_fwd.h>
#include <ucs/sys/compiler_def.h>
#include <ucs/type/status.h>
#include <stddef.h>
#include <stdio.h>

#define UCS_GLOBAL_OPTS_WARN_UNUSED_CONFIG "WARN_UNUSED_ENV_VARS"

/*
 * Options of UCX's libraries, in the form of 1.13. This library uses the levels of the log, `log_component` and
 * `log_level_trigger`. The others have UCX's defaults, or say that there is no such thing.
 */
typedef struct {
    ucs_log_component_config_t log_component;
    char                       *log_file;
    size_t                     log_file_size;
    unsigned                   log_file_rotate;
    size_t                     log_buffer_size;
    size_t                     log_data_size;
    int                        log_print_enable;
    int                        mpool_fifo;
    unsigned                   handle_errors;
    UCS_CONFIG_ARRAY_FIELD(int, signals) error_signals;
    char                       *error_mail_to;
    char                       *error_mail_footer;
    char                       *gdb_command;
    unsigned                   debug_signo;
    ucs_log_level_t            log_level_trigger;
    int                        warn_unused_env_vars;
    unsigned                   async_max_events;
    ucs_ternary_auto_value_t   enable_memtype_cache;
    char                       *stats_dest;
    char                       *stats_trigger;
    char                       *tuning_path;
    size_t                     perf_stall_loops;
    unsigned                   async_signo;
    char                       *memtrack_dest;
    size_t                     memtrack_limit;
    unsigned                   profile_mode;
    char                       *profile_file;
    size_t                     profile_log_size;
    ucs_config_names_array_t   stats_filter;
    ucs_stats_formats_t        stats_format;
    ucs_config_names_array_t   topo_prio;
    int                        vfs_enable;
    unsigned                   rcache_check_pfn;
    char                       *module_dir;
    ucs_log_level_t            module_log_level;
    ucs_config_allow_list_t    modules;
    ucs_arch_global_opts_t     arch;
    int                        vfs_thread_affinity;
    size_t                     rcache_stat_min;
    size_t                     rcache_stat_max;
} ucs_global_opts_t;

#ifdef __cplusplus
extern "C" {
#endif

extern ucs_global_opts_t ucs_global_opts;

/*
 * Sets an option by its name, without a prefix. LOG_LEVEL sets the level of the macros of ucs/debug/log_def.h; the other
 * options of UCX are taken and change nothing. UCS_ERR_NO_ELEM: there is no such option.
 */
ucs_status_t ucs_global_opts_set_value(const char *name, const char *value);

#ifdef __cplusplus
}
#endif

#endif

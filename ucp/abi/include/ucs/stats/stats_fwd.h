/* Part of the C interface of this project (docs/abi.md). Source compatible with programs written for UCX 1.13 to 1.23. */
#ifndef UCS_STATS_STATS_FWD_H_
#define UCS_STATS_STATS_FWD_H_

#include <ucs/sys/compiler_def.h>
#include <stdint.h>

/* Statistics of UCX's builds that have them. This library has none. */
typedef uint64_t ucs_stats_counter_t;
typedef struct ucs_stats_class ucs_stats_class_t;
typedef struct ucs_stats_node ucs_stats_node_t;
typedef struct ucs_stats_filter_node ucs_stats_filter_node_t;

typedef enum {
    UCS_STATS_FULL = 0,
    UCS_STATS_FULL_AGG = 1,
    UCS_STATS_SUMMARY = 2,
    UCS_STATS_LAST
} ucs_stats_formats_t;

#ifdef __cplusplus
extern "C" {
#endif

extern const char *ucs_stats_formats_names[];

/* Null. */
ucs_stats_node_t *ucs_stats_get_root(void);

#ifdef __cplusplus
}
#endif

#endif

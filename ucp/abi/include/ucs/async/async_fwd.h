/* Part of the C interface of this project (docs/abi.md). Source compatible with programs for UCX 1.13. */
#ifndef UCS_ASYNC_ASYNC_FWD_H_
#define UCS_ASYNC_ASYNC_FWD_H_

#include <ucs/config/types.h>
#include <ucs/sys/event_set.h>
#include <ucs/time/time_def.h>
#include <ucs/type/status.h>

#include <pthread.h>

#define UCS_ASYNC_PTHREAD_ID_NULL ((pthread_t)-1)

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ucs_async_context ucs_async_context_t;

ucs_status_t ucs_async_context_create(ucs_async_mode_t mode, ucs_async_context_t **async_p);
void ucs_async_context_destroy(ucs_async_context_t *async);
void ucs_async_poll(ucs_async_context_t *async);

/* Handlers of file descriptors and timers: refused. */
typedef void (*ucs_async_event_cb_t)(int id, ucs_event_set_types_t events, void *arg);

ucs_status_t ucs_async_set_event_handler(ucs_async_mode_t mode, int event_fd, ucs_event_set_types_t events,
                                         ucs_async_event_cb_t cb, void *arg, ucs_async_context_t *async);
ucs_status_t ucs_async_add_timer(ucs_async_mode_t mode, ucs_time_t interval, ucs_async_event_cb_t cb, void *arg,
                                 ucs_async_context_t *async, int *timer_id_p);
ucs_status_t ucs_async_remove_handler(int id, int sync);
ucs_status_t ucs_async_modify_handler(int fd, ucs_event_set_types_t events);

#ifdef __cplusplus
}
#endif

#endif

/* Part of the C interface of this project (docs/abi.md). Source compatible with programs for UCX 1.13. */
#ifndef UCS_ASYNC_ASYNC_FWD_H_
#define UCS_ASYNC_ASYNC_FWD_H_

#include <ucs/type/status.h>

#include <pthread.h>

#define UCS_ASYNC_PTHREAD_ID_NULL ((pthread_t)-1)

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ucs_async_context ucs_async_context_t;

typedef enum {
    UCS_ASYNC_MODE_SIGNAL,
    UCS_ASYNC_MODE_THREAD,
    UCS_ASYNC_MODE_THREAD_SPINLOCK = UCS_ASYNC_MODE_THREAD,
    UCS_ASYNC_MODE_THREAD_MUTEX,
    UCS_ASYNC_MODE_POLL,
    UCS_ASYNC_MODE_LAST
} ucs_async_mode_t;

ucs_status_t ucs_async_context_create(ucs_async_mode_t mode, ucs_async_context_t **async_p);
void ucs_async_context_destroy(ucs_async_context_t *async);
void ucs_async_poll(ucs_async_context_t *async);

#ifdef __cplusplus
}
#endif

#endif

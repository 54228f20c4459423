/* Part of the C interface of this project (docs/abi.md). Source compatible with programs for UCX 1.13. */
#ifndef UCS_DATASTRUCT_CALLBACKQ_H_
#define UCS_DATASTRUCT_CALLBACKQ_H_

#include <ucs/type/status.h>
#include <stddef.h>
#include <stdint.h>

typedef unsigned (*ucs_callback_t)(void *arg);

typedef struct {
    ucs_callback_t cb;
    void           *arg;
    unsigned       flags;
    int            id;
} ucs_callbackq_elem_t;

enum ucs_callbackq_flags {
    UCS_CALLBACKQ_FLAG_FAST = 1 << 0,
    UCS_CALLBACKQ_FLAG_ONESHOT = 1 << 1
};

#define UCS_CALLBACKQ_FAST_COUNT 7
#define UCS_CALLBACKQ_ID_NULL (-1)

/* Callbacks up to the first that is null. */
typedef struct {
    ucs_callbackq_elem_t fast_elems[8];
    char                 priv[72];
} ucs_callbackq_t;

static inline unsigned ucs_callbackq_dispatch(ucs_callbackq_t *queue)
{
    const ucs_callbackq_elem_t *elem = queue->fast_elems;
    unsigned events = 0;

    while (elem->cb != 0) {
        events += elem->cb(elem->arg);
        elem++;
    }
    return events;
}

#endif

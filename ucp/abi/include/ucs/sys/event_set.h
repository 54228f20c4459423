/* Part of the C interface of this project (docs/abi.md). Source compatible with programs written for UCX 1.13 to 1.23. */
#ifndef UCS_SYS_EVENT_SET_H_
#define UCS_SYS_EVENT_SET_H_

#include <ucs/type/status.h>

typedef enum {
    UCS_EVENT_SET_EVREAD = 1ul << 0,
    UCS_EVENT_SET_EVWRITE = 1ul << 1,
    UCS_EVENT_SET_EVERR = 1ul << 2,
    UCS_EVENT_SET_EDGE_TRIGGERED = 1ul << 3
} ucs_event_set_types_t;

#endif

/* Part of the C interface of this project (docs/abi.md). Source compatible with programs written for UCX 1.13 to 1.23. */
#ifndef UCS_DATASTRUCT_QUEUE_TYPES_H_
#define UCS_DATASTRUCT_QUEUE_TYPES_H_

/* Queues of elements with one link each. The queue has the place of the last link, which is its own if it is empty. */
typedef struct ucs_queue_elem ucs_queue_elem_t;
typedef struct ucs_queue_head ucs_queue_head_t;
typedef ucs_queue_elem_t **ucs_queue_iter_t;

struct ucs_queue_elem {
    ucs_queue_elem_t *next;
};

struct ucs_queue_head {
    ucs_queue_elem_t *head;
    ucs_queue_elem_t **ptail;
};

#endif

/* Part of the C interface of this project (docs/abi.md). Source compatible with programs written for UCX 1.13 to 1.23. */
#ifndef UCS_DATASTRUCT_HLIST_H_
#define UCS_DATASTRUCT_HLIST_H_

#include <ucs/datastruct/list.h>
#include <ucs/sys/compiler_def.h>
#include <stddef.h>

/* A ring of links, and a head beside it that points to the first one, or to none. Heads may be copied and moved. */
typedef struct ucs_hlist_link {
    ucs_list_link_t list;
} ucs_hlist_link_t;

typedef struct ucs_hlist_head {
    ucs_hlist_link_t *ptr;
} ucs_hlist_head_t;

static UCS_F_ALWAYS_INLINE void ucs_hlist_head_init(ucs_hlist_head_t *head)
{
    head->ptr = NULL;
}

static UCS_F_ALWAYS_INLINE int ucs_hlist_is_empty(const ucs_hlist_head_t *head)
{
    return head->ptr == NULL;
}

static UCS_F_ALWAYS_INLINE unsigned long ucs_hlist_length(ucs_hlist_head_t *head)
{
    return (head->ptr == NULL) ? 0 : 1 + ucs_list_length(&head->ptr->list);
}

static UCS_F_ALWAYS_INLINE void ucs_hlist_add_tail(ucs_hlist_head_t *head, ucs_hlist_link_t *elem)
{
    if (head->ptr != NULL) {
        ucs_list_insert_before(&head->ptr->list, &elem->list);
    } else {
        ucs_list_head_init(&elem->list);
        head->ptr = elem;
    }
}

/* In a ring the place before the first is the one behind the last. */
static UCS_F_ALWAYS_INLINE void ucs_hlist_add_head(ucs_hlist_head_t *head, ucs_hlist_link_t *elem)
{
    ucs_hlist_add_tail(head, elem);
    head->ptr = elem;
}

static UCS_F_ALWAYS_INLINE void ucs_hlist_del(ucs_hlist_head_t *head, ucs_hlist_link_t *elem)
{
    ucs_hlist_link_t *next = ucs_list_next(&elem->list, ucs_hlist_link_t, list);

    if (head->ptr == elem) {
        head->ptr = (next == elem) ? NULL : next;
    }
    ucs_list_del(&elem->list);
}

/* Takes the first one out. Null, if there is none. */
static UCS_F_ALWAYS_INLINE ucs_hlist_link_t *ucs_hlist_extract_head(ucs_hlist_head_t *head)
{
    ucs_hlist_link_t *first = head->ptr;

    if (first != NULL) {
        ucs_hlist_del(head, first);
    }
    return first;
}

/* The first one, the one behind, and the first one taken out, by the type whose member the link is. Not of an empty list. */
#define ucs_hlist_head_elem(_head, _type, _member) ucs_container_of((_head)->ptr, _type, _member)
#define ucs_hlist_next_elem(_elem, _member) \
    ucs_container_of(ucs_list_next(&(_elem)->_member.list, ucs_hlist_link_t, list), ucs_typeof(*(_elem)), _member)
#define ucs_hlist_extract_head_elem(_head, _type, _member) \
    ucs_container_of(ucs_hlist_extract_head(_head), _type, _member)

#define ucs_hlist_for_each(_elem, _head, _member) \
    for (_elem = NULL; \
         !ucs_hlist_is_empty(_head) && \
         (((_elem) == NULL) ? ((_elem = ucs_hlist_head_elem(_head, ucs_typeof(*(_elem)), _member)) != NULL) : \
                              ((_elem = ucs_hlist_next_elem(_elem, _member)) != \
                               ucs_hlist_head_elem(_head, ucs_typeof(*(_elem)), _member)));)

/* The body may take `_elem` out. `_thead` is a head for the loop, which keeps what was the first one there. */
#define ucs_hlist_for_each_safe(_elem, _next, _head, _thead, _member) \
    for (ucs_hlist_head_init(_thead); \
         !ucs_hlist_is_empty(_head) && \
         (ucs_hlist_is_empty(_thead) ? (_elem = ucs_hlist_head_elem(_head, ucs_typeof(*(_elem)), _member), 1) : \
                                       (&(_elem)->_member != (_thead)->ptr)) && \
         (_next = ucs_hlist_next_elem(_elem, _member), *(_thead) = *(_head), 1); \
         _elem = _next)

/* Takes each one out, up to the end, or as long as the condition on the first one holds. */
#define ucs_hlist_for_each_extract(_elem, _head, _member) \
    for (; !ucs_hlist_is_empty(_head) && \
           (_elem = ucs_hlist_extract_head_elem(_head, ucs_typeof(*(_elem)), _member), 1);)
#define ucs_hlist_for_each_extract_if(_elem, _head, _member, _cond) \
    for (; !ucs_hlist_is_empty(_head) && \
           (_elem = ucs_hlist_head_elem(_head, ucs_typeof(*(_elem)), _member), (_cond)) && \
           (ucs_hlist_extract_head(_head) != NULL);)

#endif

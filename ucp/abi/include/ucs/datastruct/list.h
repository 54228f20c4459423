/* Part of the C interface of this project (docs/abi.md). Source compatible with programs written for UCX 1.13 to 1.23. */
#ifndef UCS_DATASTRUCT_LIST_H_
#define UCS_DATASTRUCT_LIST_H_

#include <ucs/sys/compiler_def.h>

/* A link of a ring that its head is part of. */
typedef struct ucs_list_link {
    struct ucs_list_link *prev;
    struct ucs_list_link *next;
} ucs_list_link_t;

#define UCS_LIST_INITIALIZER(_prev, _next) \
    { \
        (_prev), (_next) \
    }

/* Defines an empty list. */
#define UCS_LIST_HEAD(_name) ucs_list_link_t _name = UCS_LIST_INITIALIZER(&(_name), &(_name))

static inline void ucs_list_head_init(ucs_list_link_t *head)
{
    head->next = head;
    head->prev = head;
}

/* Puts `item` between two neighbours. */
static inline void ucs_list_insert_replace(ucs_list_link_t *prev, ucs_list_link_t *next, ucs_list_link_t *item)
{
    item->next = next;
    item->prev = prev;
    next->prev = item;
    prev->next = item;
}

/* Puts `item` where `old` was. */
static inline void ucs_list_replace(ucs_list_link_t *old, ucs_list_link_t *item)
{
    ucs_list_insert_replace(old->prev, old->next, item);
}

static inline void ucs_list_insert_after(ucs_list_link_t *at, ucs_list_link_t *item)
{
    ucs_list_insert_replace(at, at->next, item);
}

static inline void ucs_list_insert_before(ucs_list_link_t *at, ucs_list_link_t *item)
{
    ucs_list_insert_replace(at->prev, at, item);
}

static inline void ucs_list_del(ucs_list_link_t *item)
{
    item->next->prev = item->prev;
    item->prev->next = item->next;
}

static inline int ucs_list_is_empty(const ucs_list_link_t *head)
{
    return head == head->next;
}

static inline int ucs_list_is_first(const ucs_list_link_t *head, const ucs_list_link_t *item)
{
    return item->prev == head;
}

static inline int ucs_list_is_last(const ucs_list_link_t *head, const ucs_list_link_t *item)
{
    return item->next == head;
}

/* Whether `item` is all that is in the list. */
static inline int ucs_list_is_only(const ucs_list_link_t *head, const ucs_list_link_t *item)
{
    return (head->next == item) && (head->prev == item);
}

/* Appends what is in the list `others`, whose head is no longer valid. */
static inline void ucs_list_splice_tail(ucs_list_link_t *head, ucs_list_link_t *others)
{
    if (ucs_list_is_empty(others)) {
        return;
    }
    others->next->prev = head->prev;
    head->prev->next = others->next;
    others->prev->next = head;
    head->prev = others->prev;
}

static inline unsigned long ucs_list_length(ucs_list_link_t *head)
{
    unsigned long count = 0;
    ucs_list_link_t *at;

    for (at = head->next; at != head; at = at->next) {
        ++count;
    }
    return count;
}

#define ucs_list_add_head(_head, _item) ucs_list_insert_after(_head, _item)
#define ucs_list_add_tail(_head, _item) ucs_list_insert_before(_head, _item)

/* Neighbours, and the first and last one, by the type whose member the link is. */
#define ucs_list_next(_link, _type, _member) ucs_container_of((_link)->next, _type, _member)
#define ucs_list_prev(_link, _type, _member) ucs_container_of((_link)->prev, _type, _member)
#define ucs_list_head ucs_list_next
#define ucs_list_tail ucs_list_prev

#define ucs_list_for_each(_item, _head, _member) \
    for (_item = ucs_container_of((_head)->next, ucs_typeof(*(_item)), _member); &(_item)->_member != (_head); \
         _item = ucs_container_of((_item)->_member.next, ucs_typeof(*(_item)), _member))

/* The body may take `_item` out. */
#define ucs_list_for_each_safe(_item, _next, _head, _member) \
    for (_item = ucs_container_of((_head)->next, ucs_typeof(*(_item)), _member), \
        _next = ucs_container_of((_item)->_member.next, ucs_typeof(*(_next)), _member); \
         &(_item)->_member != (_head); \
         _item = _next, _next = ucs_container_of((_next)->_member.next, ucs_typeof(*(_next)), _member))

static inline ucs_list_link_t *ucs_list_extract_first_(ucs_list_link_t *head)
{
    ucs_list_link_t *first = head->next;

    ucs_list_del(first);
    return first;
}

/* Takes the first one out of a list that is not empty. */
#define ucs_list_extract_head(_head, _type, _member) \
    ucs_container_of(ucs_list_extract_first_(_head), _type, _member)

#endif

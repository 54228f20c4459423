/* Part of the C interface of this project (docs/abi.md). Source compatible with programs written for UCX 1.13 to 1.23. */
#ifndef UCS_DATASTRUCT_STRIDED_ALLOC_H_
#define UCS_DATASTRUCT_STRIDED_ALLOC_H_

#include <ucs/datastruct/queue_types.h>
#include <ucs/sys/compiler_def.h>
#include <ucs/sys/math.h>
#include <ucs/type/status.h>
#include <stddef.h>
#include <stdlib.h>

/* Objects in parts, which lie at this distance: the first parts of all objects are close together. */
#define UCS_STRIDED_ALLOC_STRIDE (128 * UCS_KBYTE)

/* Address of a part, from that of another one. */
#define ucs_strided_elem_get(_elem, _stride_idx, _wanted_idx) \
    UCS_PTR_BYTE_OFFSET(_elem, ((ptrdiff_t)(_wanted_idx) - (ptrdiff_t)(_stride_idx)) * \
                                   (ptrdiff_t)UCS_STRIDED_ALLOC_STRIDE)

typedef struct ucs_strided_alloc_elem ucs_strided_alloc_elem_t;

typedef struct ucs_strided_alloc {
    ucs_strided_alloc_elem_t *freelist;
    ucs_queue_head_t         chunks;
    size_t                   elem_size;
    unsigned                 stride_count;
    unsigned                 inuse_count;
} ucs_strided_alloc_t;

/* Objects whose size is a multiple of it are aligned to it. */
#define UCS_STRIDED_ALLOC_ALIGN_ 64

/* Stands behind the last parts of a chunk. */
typedef struct ucs_strided_alloc_chunk_ {
    ucs_queue_elem_t link;
    void             *memory;
} ucs_strided_alloc_chunk_t_;

/* A free object. */
struct ucs_strided_alloc_elem {
    ucs_strided_alloc_elem_t *next;
};

/* `elem_size` is the size of one part. A part holds a link as long as its object is free. */
static inline void ucs_strided_alloc_init(ucs_strided_alloc_t *sa, size_t elem_size, unsigned stride_count)
{
    sa->freelist     = NULL;
    sa->chunks.head  = NULL;
    sa->chunks.ptail = &sa->chunks.head;
    sa->elem_size    = (elem_size == 0) ? sizeof(void*) : ucs_align_up(elem_size, sizeof(void*));
    sa->stride_count = stride_count;
    sa->inuse_count  = 0;
}

static inline void ucs_strided_alloc_cleanup(ucs_strided_alloc_t *sa)
{
    ucs_queue_elem_t *link;

    while ((link = sa->chunks.head) != NULL) {
        sa->chunks.head = link->next;
        free(((ucs_strided_alloc_chunk_t_*)link)->memory);
    }
    ucs_strided_alloc_init(sa, sa->elem_size, sa->stride_count);
}

/* An object: the address of its first part. Null without memory. */
static inline void *ucs_strided_alloc_get(ucs_strided_alloc_t *sa, const char *alloc_name)
{
    ucs_strided_alloc_elem_t *elem;
    ucs_strided_alloc_chunk_t_ *chunk;
    size_t size = UCS_STRIDED_ALLOC_STRIDE * sa->stride_count;
    void *memory, *parts;
    size_t at;

    (void)alloc_name;
    if ((sa->freelist == NULL) && (sa->elem_size <= UCS_STRIDED_ALLOC_STRIDE)) {
        memory = malloc(size + UCS_STRIDED_ALLOC_ALIGN_ + sizeof(*chunk));
        if (memory == NULL) {
            return NULL;
        }
        parts = UCS_PTR_BYTE_OFFSET(memory, ucs_padding((size_t)memory, UCS_STRIDED_ALLOC_ALIGN_));
        chunk = (ucs_strided_alloc_chunk_t_*)UCS_PTR_BYTE_OFFSET(parts, size);
        chunk->memory     = memory;
        chunk->link.next  = NULL;
        *sa->chunks.ptail = &chunk->link;
        sa->chunks.ptail  = &chunk->link.next;
        for (at = 0; (at + sa->elem_size) <= UCS_STRIDED_ALLOC_STRIDE; at += sa->elem_size) {
            elem         = (ucs_strided_alloc_elem_t*)UCS_PTR_BYTE_OFFSET(parts, at);
            elem->next   = sa->freelist;
            sa->freelist = elem;
        }
    }
    elem = sa->freelist;
    if (elem != NULL) {
        sa->freelist = elem->next;
        sa->inuse_count++;
    }
    return elem;
}

static inline void ucs_strided_alloc_put(ucs_strided_alloc_t *sa, void *base)
{
    ucs_strided_alloc_elem_t *elem = (ucs_strided_alloc_elem_t*)base;

    elem->next   = sa->freelist;
    sa->freelist = elem;
    sa->inuse_count--;
}

static inline unsigned ucs_strided_alloc_inuse_count(ucs_strided_alloc_t *sa)
{
    return sa->inuse_count;
}

#endif

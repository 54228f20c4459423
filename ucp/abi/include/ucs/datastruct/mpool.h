/* Part of the C interface of this project (docs/abi.md). Source compatible with programs for UCX 1.13. */
#ifndef UCS_DATASTRUCT_MPOOL_H_
#define UCS_DATASTRUCT_MPOOL_H_

#include <ucs/datastruct/string_buffer.h>
#include <ucs/sys/compiler_def.h>
#include <ucs/type/status.h>
#include <stddef.h>

/* Pools of objects of one size. A pool has no lock. */
typedef struct ucs_mpool_chunk ucs_mpool_chunk_t;
typedef union ucs_mpool_elem ucs_mpool_elem_t;
typedef struct ucs_mpool ucs_mpool_t;
typedef struct ucs_mpool_data ucs_mpool_data_t;
typedef struct ucs_mpool_ops ucs_mpool_ops_t;

/* In front of each object: the next free one, or the pool of one in use. */
union ucs_mpool_elem {
    ucs_mpool_elem_t *next;
    ucs_mpool_t      *mpool;
};

struct ucs_mpool_chunk {
    ucs_mpool_chunk_t *next;
    void              *elems;
    unsigned          num_elems;
};

struct ucs_mpool {
    ucs_mpool_elem_t *freelist;
    ucs_mpool_data_t *data;
};

struct ucs_mpool_data {
    size_t            elem_size;
    size_t            alignment;
    size_t            align_offset;
    unsigned          elems_per_chunk;
    unsigned          quota;
    ucs_mpool_elem_t  *tail;
    ucs_mpool_chunk_t *chunks;
    ucs_mpool_ops_t   *ops;
    char              *name;
};

/* Functions of a pool. The last three may be null. `chunk_alloc` may give more than `*size_p` and says so there. */
struct ucs_mpool_ops {
    ucs_status_t (*chunk_alloc)(ucs_mpool_t *mp, size_t *size_p, void **chunk_p);
    void (*chunk_release)(ucs_mpool_t *mp, void *chunk);
    void (*obj_init)(ucs_mpool_t *mp, void *obj, void *chunk);
    void (*obj_cleanup)(ucs_mpool_t *mp, void *obj);
    void (*obj_str)(ucs_mpool_t *mp, void *obj, ucs_string_buffer_t *strb);
};

#ifdef __cplusplus
extern "C" {
#endif

/* `align_offset` is the place in an object that is aligned. `max_elems` of UINT_MAX is no limit. */
ucs_status_t ucs_mpool_init(ucs_mpool_t *mp, size_t priv_size, size_t elem_size, size_t align_offset, size_t alignment,
                            unsigned elems_per_chunk, unsigned max_elems, ucs_mpool_ops_t *ops, const char *name);
void ucs_mpool_cleanup(ucs_mpool_t *mp, int leak_check);

const char *ucs_mpool_name(ucs_mpool_t *mp);
/* The `priv_size` bytes of the pool. */
void *ucs_mpool_priv(ucs_mpool_t *mp);
int ucs_mpool_is_empty(ucs_mpool_t *mp);

void *ucs_mpool_get(ucs_mpool_t *mp);
void ucs_mpool_put(void *obj);
void ucs_mpool_grow(ucs_mpool_t *mp, unsigned num_elems);
void *ucs_mpool_get_grow(ucs_mpool_t *mp);
unsigned ucs_mpool_num_elems_per_chunk(ucs_mpool_t *mp, ucs_mpool_chunk_t *chunk, size_t chunk_size);

/* Memory of chunks: of malloc, of whole pages, of huge pages where there are any. */
ucs_status_t ucs_mpool_chunk_malloc(ucs_mpool_t *mp, size_t *size_p, void **chunk_p);
void ucs_mpool_chunk_free(ucs_mpool_t *mp, void *chunk);
ucs_status_t ucs_mpool_chunk_mmap(ucs_mpool_t *mp, size_t *size_p, void **chunk_p);
void ucs_mpool_chunk_munmap(ucs_mpool_t *mp, void *chunk);
ucs_status_t ucs_mpool_hugetlb_malloc(ucs_mpool_t *mp, size_t *size_p, void **chunk_p);
void ucs_mpool_hugetlb_free(ucs_mpool_t *mp, void *chunk);

#ifdef __cplusplus
}
#endif

#endif

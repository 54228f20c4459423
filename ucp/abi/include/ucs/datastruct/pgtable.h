/* Part of the C interface of this project (docs/abi.md). Source compatible with programs written for UCX 1.13 to 1.23. */
#ifndef UCS_DATASTRUCT_PGTABLE_H_
#define UCS_DATASTRUCT_PGTABLE_H_

#include <ucs/config/types.h>
#include <ucs/sys/compiler_def.h>
#include <ucs/type/status.h>

/*
 * Tables of regions of memory that do not overlap, found by any address in them. The fields of a table and its directories
 * are UCX's own, but for the number of regions. A table has no lock.
 */
typedef unsigned long ucs_pgt_addr_t;

/* Regions begin and end at multiples of UCS_PGT_ADDR_ALIGN. */
#define UCS_PGT_ADDR_SHIFT 4
#define UCS_PGT_ADDR_ALIGN (1ul << UCS_PGT_ADDR_SHIFT)
#define UCS_PGT_ADDR_ORDER (8 * sizeof(ucs_pgt_addr_t))
#define UCS_PGT_ADDR_MAX ((ucs_pgt_addr_t)-1)

/* Entries: two bits say what the pointer is one to. */
#define UCS_PGT_ENTRY_SHIFT 4
#define UCS_PGT_ENTRIES_PER_DIR (1ul << UCS_PGT_ENTRY_SHIFT)
#define UCS_PGT_ENTRY_MASK (UCS_PGT_ENTRIES_PER_DIR - 1)
#define UCS_PGT_ENTRY_FLAG_REGION UCS_BIT(0)
#define UCS_PGT_ENTRY_FLAG_DIR UCS_BIT(1)
#define UCS_PGT_ENTRY_FLAGS_MASK (UCS_PGT_ENTRY_FLAG_REGION | UCS_PGT_ENTRY_FLAG_DIR)
#define UCS_PGT_ENTRY_PTR_MASK (~UCS_PGT_ENTRY_FLAGS_MASK)
#define UCS_PGT_ENTRY_MIN_ALIGN (UCS_PGT_ENTRY_FLAGS_MASK + 1)
#define UCS_PGT_ENTRY_V_ALIGNED \
    UCS_V_ALIGNED(sizeof(long) > UCS_PGT_ENTRY_MIN_ALIGN ? sizeof(long) : UCS_PGT_ENTRY_MIN_ALIGN)

/* A region in a message. */
#define UCS_PGT_REGION_FMT "%p [0x%lx..0x%lx]"
#define UCS_PGT_REGION_ARG(_region) (void*)(_region), (_region)->start, (_region)->end

typedef struct ucs_pgtable ucs_pgtable_t;
typedef struct ucs_pgt_region ucs_pgt_region_t;
typedef struct ucs_pgt_entry ucs_pgt_entry_t;
typedef struct ucs_pgt_dir ucs_pgt_dir_t;

typedef ucs_pgt_dir_t *(*ucs_pgt_dir_alloc_callback_t)(const ucs_pgtable_t *pgtable);
typedef void (*ucs_pgt_dir_release_callback_t)(const ucs_pgtable_t *pgtable, ucs_pgt_dir_t *pgdir);
typedef void (*ucs_pgt_search_callback_t)(const ucs_pgtable_t *pgtable, ucs_pgt_region_t *region, void *arg);

/* The first address, and the one behind the last. A region is the program's, and not changed while it is in a table. */
struct ucs_pgt_region {
    ucs_pgt_addr_t start;
    ucs_pgt_addr_t end;
} UCS_PGT_ENTRY_V_ALIGNED;

struct ucs_pgt_entry {
    ucs_pgt_addr_t value;
};

struct ucs_pgt_dir {
    ucs_pgt_entry_t entries[UCS_PGT_ENTRIES_PER_DIR];
    unsigned        count;
};

struct ucs_pgtable {
    ucs_pgt_entry_t                root;
    ucs_pgt_addr_t                 base;
    ucs_pgt_addr_t                 mask;
    unsigned                       shift;
    unsigned                       num_regions;
    ucs_pgt_dir_alloc_callback_t   pgd_alloc_cb;
    ucs_pgt_dir_release_callback_t pgd_release_cb;
};

#ifdef __cplusplus
extern "C" {
#endif

/* The callbacks are taken, and not called: memory for a table comes from the heap. */
ucs_status_t ucs_pgtable_init(ucs_pgtable_t *pgtable, ucs_pgt_dir_alloc_callback_t alloc_cb,
                              ucs_pgt_dir_release_callback_t release_cb);
void ucs_pgtable_cleanup(ucs_pgtable_t *pgtable);

/* UCS_ERR_INVALID_PARAM: the region is empty or not aligned. UCS_ERR_ALREADY_EXISTS: it overlaps another one. */
ucs_status_t ucs_pgtable_insert(ucs_pgtable_t *pgtable, ucs_pgt_region_t *region);
/* UCS_ERR_NO_ELEM: this very region is not in the table. */
ucs_status_t ucs_pgtable_remove(ucs_pgtable_t *pgtable, ucs_pgt_region_t *region);

/* The region that has an address, or null. */
ucs_pgt_region_t *ucs_pgtable_lookup(const ucs_pgtable_t *pgtable, ucs_pgt_addr_t address);
/* Calls a function for each region that has an address from `from` to `to`, both included. */
void ucs_pgtable_search_range(const ucs_pgtable_t *pgtable, ucs_pgt_addr_t from, ucs_pgt_addr_t to,
                              ucs_pgt_search_callback_t cb, void *arg);
/* Takes all regions out, and then calls a function for each. */
void ucs_pgtable_purge(ucs_pgtable_t *pgtable, ucs_pgt_search_callback_t cb, void *arg);

#ifdef __cplusplus
}
#endif

static inline unsigned ucs_pgtable_num_regions(const ucs_pgtable_t *pgtable)
{
    return pgtable->num_regions;
}

#endif

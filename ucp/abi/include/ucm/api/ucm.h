/* Part of the C interface of this project (docs/abi.md). Source compatible with programs written for UCX 1.13 to 1.23. */
#ifndef UCM_API_UCM_H_
#define UCM_API_UCM_H_

#include <ucs/config/types.h>
#include <ucs/memory/memory_type.h>
#include <ucs/sys/compiler_def.h>
#include <ucs/sys/topo/base/topo.h>
#include <ucs/type/status.h>

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/types.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum ucm_event_type {
    UCM_EVENT_NONE = 0,
    UCM_EVENT_MMAP = 1ul << 0,
    UCM_EVENT_MUNMAP = 1ul << 1,
    UCM_EVENT_MREMAP = 1ul << 2,
    UCM_EVENT_SHMAT = 1ul << 3,
    UCM_EVENT_SHMDT = 1ul << 4,
    UCM_EVENT_SBRK = 1ul << 5,
    UCM_EVENT_MADVISE = 1ul << 6,
    UCM_EVENT_BRK = 1ul << 7,
    UCM_EVENT_VM_MAPPED = 1ul << 16,
    UCM_EVENT_VM_UNMAPPED = 1ul << 17,
    UCM_EVENT_MEM_TYPE_ALLOC = 1ul << 20,
    UCM_EVENT_MEM_TYPE_FREE = 1ul << 21,
    UCM_EVENT_FLAG_NO_INSTALL = 1ul << 24,
    UCM_EVENT_FLAG_EXISTING_ALLOC = 1ul << 25
} ucm_event_type_t;

typedef enum ucm_mmap_hook_mode {
    UCM_MMAP_HOOK_NONE,
    UCM_MMAP_HOOK_RELOC,
    UCM_MMAP_HOOK_BISTRO,
    UCM_MMAP_HOOK_LAST
} ucm_mmap_hook_mode_t;

typedef enum ucm_module_unload_prevent_mode {
    UCM_UNLOAD_PREVENT_MODE_LAZY,
    UCM_UNLOAD_PREVENT_MODE_NOW,
    UCM_UNLOAD_PREVENT_MODE_NONE,
    UCM_UNLOAD_PREVENT_MODE_LAST
} ucm_module_unload_prevent_mode_t;

/* Arguments and result of a call, by its event. */
typedef union ucm_event {
    struct {
        void   *result;
        void   *address;
        size_t size;
        int    prot;
        int    flags;
        int    fd;
        off_t  offset;
    } mmap;
    struct {
        int    result;
        void   *address;
        size_t size;
    } munmap;
    struct {
        void   *result;
        void   *address;
        size_t old_size;
        size_t new_size;
        int    flags;
        void   *new_address;
    } mremap;
    struct {
        void       *result;
        int        shmid;
        const void *shmaddr;
        int        shmflg;
    } shmat;
    struct {
        int        result;
        const void *shmaddr;
    } shmdt;
    struct {
        void     *result;
        intptr_t increment;
    } sbrk;
    struct {
        int    result;
        void   *addr;
        size_t length;
        int    advice;
    } madvise;
    struct {
        int  result;
        void *addr;
    } brk;
    struct {
        void   *address;
        size_t size;
    } vm_mapped, vm_unmapped;
    struct {
        void              *address;
        size_t            size;
        ucs_memory_type_t mem_type;
        ucs_sys_device_t  sys_dev;
        uint8_t           mem_flags;
    } mem_type;
} ucm_event_t;

typedef void (*ucm_event_callback_t)(ucm_event_type_t event_type, ucm_event_t *event, void *arg);

typedef struct ucm_global_config {
    ucs_log_level_t      log_level;
    int                  enable_events;
    ucm_mmap_hook_mode_t mmap_hook_mode;
    int                  enable_malloc_hooks;
    int                  enable_malloc_reloc;
    uint64_t             cuda_hook_modes;
    int                  enable_dynamic_mmap_thresh;
    size_t               alloc_alignment;
    int                  dlopen_process_rpath;
    int                  module_unload_prevent_mode;
    int                  bistro_force_far_jump;
    double               bistro_grace_duration;
} ucm_global_config_t;

/* Takes options of UCX's hooks. There are no hooks: nothing changes. */
void ucm_set_global_opts(const ucm_global_config_t *opts);

/* Refused: no function is patched, so that nobody is told of a call. */
ucs_status_t ucm_set_event_handler(int events, int priority, ucm_event_callback_t cb, void *arg);
void ucm_unset_event_handler(int events, ucm_event_callback_t cb, void *arg);

/* Events that the program reports. The kernel tells this library of unmapped memory: none is needed. */
void ucm_set_external_event(int events);
void ucm_unset_external_event(int events);
ucs_status_t ucm_test_events(int events);
ucs_status_t ucm_test_external_events(int events);
void ucm_vm_mmap(void *addr, size_t length);
void ucm_vm_munmap(void *addr, size_t length);

/* Calls of the C library. */
void *ucm_orig_mmap(void *addr, size_t length, int prot, int flags, int fd, off_t offset);
int ucm_orig_munmap(void *addr, size_t length);
void *ucm_orig_mremap(void *addr, size_t old_size, size_t new_size, int flags, void *new_addr);
void *ucm_orig_shmat(int shmid, const void *shmaddr, int shmflg);
int ucm_orig_shmdt(const void *shmaddr);
void *ucm_orig_sbrk(intptr_t increment);
int ucm_orig_brk(void *addr);
int ucm_orig_madvise(void *addr, size_t length, int advice);
void *ucm_mmap(void *addr, size_t length, int prot, int flags, int fd, off_t offset);
int ucm_munmap(void *addr, size_t length);
void *ucm_mremap(void *addr, size_t old_size, size_t new_size, int flags, ...);
void *ucm_shmat(int shmid, const void *shmaddr, int shmflg);
int ucm_shmdt(const void *shmaddr);
void *ucm_sbrk(intptr_t increment);
int ucm_brk(void *addr);
int ucm_madvise(void *addr, size_t length, int advice);
void *ucm_dlopen(const char *name, int flags);

#ifdef __cplusplus
}
#endif

#endif

/* Part of the C interface of this project (docs/abi.md). Source compatible with programs written for UCX 1.13 to 1.23. */
#ifndef UCS_MEMORY_MEMORY_TYPE_H_
#define UCS_MEMORY_MEMORY_TYPE_H_

#include <ucs/sys/compiler_def.h>

typedef enum ucs_memory_type {
    UCS_MEMORY_TYPE_HOST,
    UCS_MEMORY_TYPE_CUDA,
    UCS_MEMORY_TYPE_CUDA_MANAGED,
    UCS_MEMORY_TYPE_ROCM,
    UCS_MEMORY_TYPE_ROCM_MANAGED,
    UCS_MEMORY_TYPE_RDMA,
    UCS_MEMORY_TYPE_ZE_HOST,
    UCS_MEMORY_TYPE_ZE_DEVICE,
    UCS_MEMORY_TYPE_ZE_MANAGED,
    UCS_MEMORY_TYPE_GAUDI,
    UCS_MEMORY_TYPE_LAST,
    UCS_MEMORY_TYPE_UNKNOWN = UCS_MEMORY_TYPE_LAST
} ucs_memory_type_t;

typedef enum ucs_mem_flags {
    UCS_MEM_FLAG_REGISTRABLE = 1ul << 0
} ucs_mem_flags_t;

#define UCS_MEMORY_TYPES_CPU_ACCESSIBLE \
    (UCS_BIT(UCS_MEMORY_TYPE_HOST) | UCS_BIT(UCS_MEMORY_TYPE_ROCM_MANAGED) | UCS_BIT(UCS_MEMORY_TYPE_ZE_HOST) | \
     UCS_BIT(UCS_MEMORY_TYPE_ZE_MANAGED))

#define ucs_memory_type_for_each(_type) \
    for ((_type) = UCS_MEMORY_TYPE_HOST; (_type) < UCS_MEMORY_TYPE_LAST; (_type)++)

#ifdef __cplusplus
extern "C" {
#endif

/* The symbols of UCX's names have only the types of UCX 1.13. */
extern const char *ucs_memory_type_names[] __asm__("ucx4efa_memory_type_names");
extern const char *ucs_memory_type_descs[] __asm__("ucx4efa_memory_type_descs");

#ifdef __cplusplus
}
#endif

#endif

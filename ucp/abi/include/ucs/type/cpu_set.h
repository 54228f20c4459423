/* Part of the C interface of this project (docs/abi.md). Source compatible with programs written for UCX 1.13 to 1.23. */
#ifndef UCS_TYPE_CPU_SET_H_
#define UCS_TYPE_CPU_SET_H_

#define UCS_CPU_SETSIZE 1024

typedef unsigned long int ucs_cpu_mask_t;

#define UCS_NCPUBITS (8 * sizeof(ucs_cpu_mask_t))

typedef struct {
    ucs_cpu_mask_t ucs_bits[UCS_CPU_SETSIZE / (8 * sizeof(ucs_cpu_mask_t))];
} ucs_cpu_set_t;

#define UCS_CPU_ZERO(_set) \
    do { \
        unsigned _word; \
        for (_word = 0; _word < sizeof((_set)->ucs_bits) / sizeof((_set)->ucs_bits[0]); _word++) { \
            (_set)->ucs_bits[_word] = 0; \
        } \
    } while (0)

#endif

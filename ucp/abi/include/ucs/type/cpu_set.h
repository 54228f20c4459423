/* Part of the C interface of this project (docs/abi.md). Source compatible with programs written for UCX 1.13 to 1.23. */
#ifndef UCS_TYPE_CPU_SET_H_
#define UCS_TYPE_CPU_SET_H_

#include <stddef.h>
#include <stdint.h>

#define UCS_CPU_SETSIZE 1024

typedef unsigned long int ucs_cpu_mask_t;

#define UCS_NCPUBITS (8 * sizeof(ucs_cpu_mask_t))

typedef struct {
    ucs_cpu_mask_t ucs_bits[UCS_CPU_SETSIZE / (8 * sizeof(ucs_cpu_mask_t))];
} ucs_cpu_set_t;

#define UCS_CPUELT(_cpu) ((size_t)(_cpu) / UCS_NCPUBITS)
#define UCS_CPUMASK(_cpu) ((ucs_cpu_mask_t)1 << ((size_t)(_cpu) % UCS_NCPUBITS))

#define UCS_CPU_ZERO(_set) \
    do { \
        unsigned _word; \
        for (_word = 0; _word < sizeof((_set)->ucs_bits) / sizeof((_set)->ucs_bits[0]); _word++) { \
            (_set)->ucs_bits[_word] = 0; \
        } \
    } while (0)

/* Numbers that no set has room for change nothing. */
#define UCS_CPU_SET(_cpu, _set) \
    do { \
        size_t _number = (size_t)(_cpu); \
        if (_number < UCS_CPU_SETSIZE) { \
            (_set)->ucs_bits[UCS_CPUELT(_number)] |= UCS_CPUMASK(_number); \
        } \
    } while (0)

#define UCS_CPU_CLR(_cpu, _set) \
    do { \
        size_t _number = (size_t)(_cpu); \
        if (_number < UCS_CPU_SETSIZE) { \
            (_set)->ucs_bits[UCS_CPUELT(_number)] &= ~UCS_CPUMASK(_number); \
        } \
    } while (0)

static inline int ucs_cpu_is_set(int cpu, const ucs_cpu_set_t *set)
{
    return (cpu >= 0) && (cpu < UCS_CPU_SETSIZE) && ((set->ucs_bits[UCS_CPUELT(cpu)] & UCS_CPUMASK(cpu)) != 0);
}

static inline int ucs_cpu_set_is_empty(const ucs_cpu_set_t *set)
{
    ucs_cpu_mask_t all = 0;
    size_t word;

    for (word = 0; word < sizeof(set->ucs_bits) / sizeof(set->ucs_bits[0]); word++) {
        all |= set->ucs_bits[word];
    }
    return all == 0;
}

/* The first processor of the set, 0 if it is empty. */
static inline int ucs_cpu_set_find_lcs(const ucs_cpu_set_t *set)
{
    int cpu = 0;

    while ((cpu < UCS_CPU_SETSIZE) && !ucs_cpu_is_set(cpu, set)) {
        ++cpu;
    }
    return (cpu < UCS_CPU_SETSIZE) ? cpu : 0;
}

#endif

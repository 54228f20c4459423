/* Part of the C interface of this project (docs/abi.md). Source compatible with programs for UCX 1.13. */
#ifndef UCS_SYS_UID_H_
#define UCS_SYS_UID_H_

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A number that processes of one boot of a machine have in common. */
uint64_t ucs_get_system_id(void);

#ifdef __cplusplus
}
#endif

#endif

/* Part of the C interface of this project (docs/abi.md). Source compatible with programs written for UCX 1.13 to 1.23. */
#ifndef UCS_SYS_TOPO_BASE_TOPO_H_
#define UCS_SYS_TOPO_BASE_TOPO_H_

#include <ucs/type/status.h>
#include <stddef.h>
#include <stdint.h>

/* Number of a device of the system. */
typedef uint8_t ucs_sys_device_t;

#define UCS_SYS_DEVICE_ID_MAX     UINT8_MAX
#define UCS_SYS_DEVICE_ID_UNKNOWN UINT8_MAX
#define UCS_SYS_BDF_NAME_MAX      16

#endif

/* Part of the C interface of this project (docs/abi.md). Source compatible with programs written for UCX 1.13 to 1.23. */
#ifndef UCP_API_UCP_VERSION_H_
#define UCP_API_UCP_VERSION_H_

#define UCP_VERSION_MAJOR_SHIFT 24
#define UCP_VERSION_MINOR_SHIFT 16
#define UCP_VERSION(_major, _minor) (((_major) << UCP_VERSION_MAJOR_SHIFT) | ((_minor) << UCP_VERSION_MINOR_SHIFT))
#define UCP_API_MAJOR   1
#define UCP_API_MINOR   23
#define UCP_API_VERSION UCP_VERSION(UCP_API_MAJOR, UCP_API_MINOR)

#endif

/* Part of the C interface of this project (docs/abi.md). Source compatible with programs written for UCX 1.13 to 1.23. */
/* All of it is in ucp.h. */
#include <ucp/api/ucp.h>

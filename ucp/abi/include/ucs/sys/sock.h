/* Part of the C interface of this project (docs/abi.md). Source compatible with programs written for UCX 1.13 to 1.23. */
#ifndef UCS_SYS_SOCK_H_
#define UCS_SYS_SOCK_H_

#include <ucs/type/status.h>
#include <sys/socket.h>

typedef struct ucs_sock_addr {
    const struct sockaddr *addr;
    socklen_t             addrlen;
} ucs_sock_addr_t;

#endif

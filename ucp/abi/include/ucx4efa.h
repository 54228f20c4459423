/* What this library has beyond UCX: worker addresses and raw addresses of libfabric's EFA provider. */
#ifndef UCX4EFA_H
#define UCX4EFA_H

#include <ucp/api/ucp_def.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Bytes of a raw address, as fi_getname() and fi_av_insert() of libfabric's EFA provider have it. */
#define UCX4EFA_RAW_ADDRESS_LENGTH 32

/*
 * Stores the raw address in a worker's address, for fi_av_insert(). UCS_ERR_UNREACHABLE: the worker has no `efa`.
 *
 * The other direction needs no function: ucp_ep_create() takes a raw address in place of a worker's address. Messages
 * to and from a libfabric endpoint are tagged ones.
 */
ucs_status_t ucx4efa_efa_raw_address(const ucp_address_t *address, void *raw);

#ifdef __cplusplus
}
#endif

#endif

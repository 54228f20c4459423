/* Part of the C interface of this project (docs/abi.md). Source compatible with programs for UCX 1.13. */
#ifndef UCS_SYS_STUBS_H_
#define UCS_SYS_STUBS_H_

#include <ucs/type/status.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/types.h>

/* Functions without an effect, for tables of functions. */

#ifdef __cplusplus
extern "C" {
#endif

void ucs_empty_function();
unsigned ucs_empty_function_return_zero();
unsigned ucs_empty_function_return_one();
int ucs_empty_function_return_one_int();
int ucs_empty_function_return_zero_int();
int64_t ucs_empty_function_return_zero_int64();
size_t ucs_empty_function_return_zero_size_t();
ucs_status_t ucs_empty_function_return_success();
ucs_status_t ucs_empty_function_return_unsupported();
ucs_status_t ucs_empty_function_return_inprogress();
ucs_status_t ucs_empty_function_return_no_resource();
ucs_status_t ucs_empty_function_return_invalid_param();
ucs_status_t ucs_empty_function_return_busy();
ucs_status_t ucs_empty_function_return_ep_timeout();
ssize_t ucs_empty_function_return_bc_ep_timeout();
ucs_status_ptr_t ucs_empty_function_return_ptr_no_resource();
int ucs_empty_function_do_assert();
void ucs_empty_function_do_assert_void();

#ifdef __cplusplus
}
#endif

#endif

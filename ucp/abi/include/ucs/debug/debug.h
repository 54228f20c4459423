/* Part of the C interface of this project (docs/abi.md). Source compatible with programs written for UCX 1.13 to 1.23. */
#ifndef UCS_DEBUG_DEBUG_H_
#define UCS_DEBUG_DEBUG_H_

#ifdef __cplusplus
extern "C" {
#endif

/* Takes the library's handler of a signal away. It has none. */
void ucs_debug_disable_signal(int signum);

#ifdef __cplusplus
}
#endif

#endif

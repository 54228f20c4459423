/* Part of the C interface of this project (docs/abi.md). Source compatible with programs written for UCX 1.13 to 1.23. */
#ifndef UCS_TIME_TIME_DEF_H_
#define UCS_TIME_TIME_DEF_H_

typedef unsigned long ucs_time_t;

#endif

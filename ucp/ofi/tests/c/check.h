/* Checks of the test programs: a failed one prints where and what, and ends the program. */
#ifndef CHECK_H
#define CHECK_H

#include <stdio.h>
#include <stdlib.h>
#include <rdma/fi_errno.h>

#define CHECK(condition) do { \
    if (!(condition)) { \
        fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition); \
        exit(1); \
    } \
} while (0)
#define IS(call, expected) do { \
    long status_ = (long)(call), expected_ = (long)(expected); \
    if (status_ != expected_) { \
        fprintf(stderr, "%s:%d: %s: %ld (%s), not %ld\n", __FILE__, __LINE__, #call, status_, \
                fi_strerror((int)-status_), expected_); \
        exit(1); \
    } \
} while (0)
#define OK(call) IS(call, 0)

#endif

/* Part of the C interface of this project (docs/abi.md). Source compatible with programs written for UCX 1.13 to 1.23. */
#ifndef UCS_TYPE_PARAM_H_
#define UCS_TYPE_PARAM_H_

#include <ucs/sys/compiler_def.h>
#include <ucs/sys/preprocessor.h>

/* The field of a structure of parameters if the bit `_prefix`_`_flag` is set in its mask, or another value. */
#define UCS_PARAM_VALUE(_prefix, _params, _name, _flag, _default) \
    ((UCS_PP_TOKENPASTE3(_prefix, _, _flag) & (_params)->field_mask) != 0 ? (_params)->_name : (_default))

#endif

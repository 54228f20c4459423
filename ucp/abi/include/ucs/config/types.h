/* Part of the C interface of this project (docs/abi.md). Source compatible with programs written for UCX 1.13 to 1.23. */
#ifndef UCS_CONFIG_TYPES_H_
#define UCS_CONFIG_TYPES_H_

typedef enum {
    UCS_CONFIG_PRINT_CONFIG = 1ul << 0,
    UCS_CONFIG_PRINT_HEADER = 1ul << 1,
    UCS_CONFIG_PRINT_DOC = 1ul << 2,
    UCS_CONFIG_PRINT_HIDDEN = 1ul << 3,
    UCS_CONFIG_PRINT_COMMENT_DEFAULT = 1ul << 4
} ucs_config_print_flags_t;

/* An array in a structure of settings. */
#define UCS_CONFIG_ARRAY_FIELD(_type, _name) \
    struct { \
        _type    *_name; \
        unsigned count; \
        unsigned pad; \
    }
#define UCS_CONFIG_STRING_ARRAY_FIELD(_name) UCS_CONFIG_ARRAY_FIELD(char*, _name)

#endif

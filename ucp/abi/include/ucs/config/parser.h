/* Part of the C interface of this project (docs/abi.md). Source compatible with programs for UCX 1.13. */
#ifndef UCS_CONFIG_PARSER_H_
#define UCS_CONFIG_PARSER_H_

#include <ucs/config/types.h>
#include <ucs/datastruct/list.h>
#include <ucs/sys/compiler_def.h>
#include <ucs/sys/stubs.h>
#include <ucs/type/status.h>
#include <stdint.h>
#include <stdio.h>

/* Name of a variable of the environment: prefix of the program, prefix of the table, name of the option. */
#define UCS_DEFAULT_ENV_PREFIX "UCX_"
#define UCS_CONFIG_ARRAY_MAX 128

/* How the values of an option are read, printed, copied, released and explained. `read` returns 1 if the text is a value. */
typedef struct ucs_config_parser {
    int (*read)(const char *buf, void *dest, const void *arg);
    int (*write)(char *buf, size_t max, const void *src, const void *arg);
    ucs_status_t (*clone)(const void *src, void *dest, const void *arg);
    void (*release)(void *ptr, const void *arg);
    void (*help)(char *buf, size_t max, const void *arg);
    const void *arg;
} ucs_config_parser_t;

/* Elements of an array. */
typedef struct ucs_config_array {
    size_t              elem_size;
    ucs_config_parser_t parser;
} ucs_config_array_t;

/* An option. A table of them ends with one without a name. Without a default it is another name of the option at the
 * same offset. A table in a table has the prefix that its name is; without a name it has the outer one's. */
typedef struct ucs_config_field {
    const char          *name;
    const char          *dfl_value;
    const char          *doc;
    size_t              offset;
    ucs_config_parser_t parser;
} ucs_config_field_t;

/* The offset of an option that is no longer there. */
#define UCS_CONFIG_DEPRECATED_FIELD_OFFSET SIZE_MAX

typedef struct ucs_range_spec {
    unsigned first;
    unsigned last;
} ucs_range_spec_t;

typedef struct ucs_config_bw_spec {
    char   *name;
    double bw;
} ucs_config_bw_spec_t;

#define UCS_CONFIG_BW_AUTO ((double)-2)
#define UCS_CONFIG_BW_IS_AUTO(_value) ((ssize_t)(_value) == UCS_CONFIG_BW_AUTO)

/* A table in a list of tables. */
typedef struct ucs_config_global_list_entry {
    const char         *name;
    const char         *prefix;
    ucs_config_field_t *table;
    size_t             size;
    ucs_list_link_t    list;
} ucs_config_global_list_entry_t;

#define UCS_CONFIG_EMPTY_GLOBAL_LIST_ENTRY \
    { \
        .name = "", .prefix = "", .table = NULL, .size = 0, \
    }
#define UCS_CONFIG_DECLARE_TABLE(_table, _name, _prefix, _type) \
    static ucs_config_global_list_entry_t _table##_config_entry = { \
        .name = _name, .prefix = _prefix, .table = _table, .size = sizeof(_type)};
#define UCS_CONFIG_ADD_TABLE(_table, _list) ucs_list_add_tail(_list, &(_table##_config_entry).list)
#define UCS_CONFIG_REMOVE_TABLE(_table) ucs_list_del(&(_table##_config_entry).list)
#define UCS_CONFIG_REGISTER_TABLE_ENTRY(_entry, _list) \
    UCS_STATIC_INIT \
    { \
        ucs_list_add_tail(_list, &(_entry)->list); \
    } \
    UCS_STATIC_CLEANUP \
    { \
        ucs_list_del(&(_entry)->list); \
    }
#define UCS_CONFIG_REGISTER_TABLE(_table, _name, _prefix, _type, _list) \
    UCS_CONFIG_DECLARE_TABLE(_table, _name, _prefix, _type) \
    UCS_CONFIG_REGISTER_TABLE_ENTRY(&_table##_config_entry, _list)

#define UCS_CONFIG_DECLARE_ARRAY(_name) extern ucs_config_array_t ucs_config_array_##_name;
#define UCS_CONFIG_DEFINE_ARRAY(_name, _elem_size, ...) \
    ucs_config_array_t ucs_config_array_##_name = {_elem_size, __VA_ARGS__};

/* Types of options. */
#define UCS_CONFIG_TYPE_STRING \
    { \
        ucs_config_sscanf_string, ucs_config_sprintf_string, ucs_config_clone_string, \
            ucs_config_release_string, ucs_config_help_generic, "string" \
    }
#define UCS_CONFIG_TYPE_INT \
    { \
        ucs_config_sscanf_int, ucs_config_sprintf_int, ucs_config_clone_int, \
            ucs_config_release_nop, ucs_config_help_generic, "integer" \
    }
#define UCS_CONFIG_TYPE_UINT \
    { \
        ucs_config_sscanf_uint, ucs_config_sprintf_uint, ucs_config_clone_uint, \
            ucs_config_release_nop, ucs_config_help_generic, "unsigned integer" \
    }
#define UCS_CONFIG_TYPE_ULONG \
    { \
        ucs_config_sscanf_ulong, ucs_config_sprintf_ulong, ucs_config_clone_ulong, \
            ucs_config_release_nop, ucs_config_help_generic, "unsigned long" \
    }
#define UCS_CONFIG_TYPE_ULUNITS \
    { \
        ucs_config_sscanf_ulunits, ucs_config_sprintf_ulunits, ucs_config_clone_ulong, \
            ucs_config_release_nop, ucs_config_help_generic, "unsigned long: <number>, \"inf\", or \"auto\"" \
    }
#define UCS_CONFIG_TYPE_DOUBLE \
    { \
        ucs_config_sscanf_double, ucs_config_sprintf_double, ucs_config_clone_double, \
            ucs_config_release_nop, ucs_config_help_generic, "floating point number" \
    }
#define UCS_CONFIG_TYPE_HEX \
    { \
        ucs_config_sscanf_hex, ucs_config_sprintf_hex, ucs_config_clone_uint, \
            ucs_config_release_nop, ucs_config_help_generic, "hex representation of a number or \"auto\"" \
    }
#define UCS_CONFIG_TYPE_BOOL \
    { \
        ucs_config_sscanf_bool, ucs_config_sprintf_bool, ucs_config_clone_int, \
            ucs_config_release_nop, ucs_config_help_generic, "<y|n>" \
    }
#define UCS_CONFIG_TYPE_TERNARY \
    { \
        ucs_config_sscanf_ternary, ucs_config_sprintf_ternary_auto, ucs_config_clone_int, \
            ucs_config_release_nop, ucs_config_help_generic, "<yes|no|try>" \
    }
#define UCS_CONFIG_TYPE_TERNARY_AUTO \
    { \
        ucs_config_sscanf_ternary_auto, ucs_config_sprintf_ternary_auto, ucs_config_clone_int, \
            ucs_config_release_nop, ucs_config_help_generic, "<yes|no|try|auto>" \
    }
#define UCS_CONFIG_TYPE_ON_OFF \
    { \
        ucs_config_sscanf_on_off, ucs_config_sprintf_on_off_auto, ucs_config_clone_int, \
            ucs_config_release_nop, ucs_config_help_generic, "<on|off>" \
    }
#define UCS_CONFIG_TYPE_ON_OFF_AUTO \
    { \
        ucs_config_sscanf_on_off_auto, ucs_config_sprintf_on_off_auto, ucs_config_clone_int, \
            ucs_config_release_nop, ucs_config_help_generic, "<on|off|auto>" \
    }
#define UCS_CONFIG_TYPE_BITMASK \
    { \
        ucs_config_sscanf_bitmask, ucs_config_sprintf_bitmask, ucs_config_clone_uint, \
            ucs_config_release_nop, ucs_config_help_generic, "bit count" \
    }
#define UCS_CONFIG_TYPE_TIME \
    { \
        ucs_config_sscanf_time, ucs_config_sprintf_time, ucs_config_clone_double, \
            ucs_config_release_nop, ucs_config_help_generic, "time value: <number>[s|us|ms|ns]" \
    }
#define UCS_CONFIG_TYPE_TIME_UNITS \
    { \
        ucs_config_sscanf_time_units, ucs_config_sprintf_time_units, ucs_config_clone_ulong, \
            ucs_config_release_nop, ucs_config_help_generic, "time value: <number>[s|us|ms|ns], \"inf\", or \"auto\"" \
    }
#define UCS_CONFIG_TYPE_BW \
    { \
        ucs_config_sscanf_bw, ucs_config_sprintf_bw, ucs_config_clone_double, \
            ucs_config_release_nop, ucs_config_help_generic, "bandwidth value: <number>[T|G|M|K]B|b[[p|/]s] or \"auto\"" \
    }
#define UCS_CONFIG_TYPE_BW_SPEC \
    { \
        ucs_config_sscanf_bw_spec, ucs_config_sprintf_bw_spec, ucs_config_clone_bw_spec, \
            ucs_config_release_bw_spec, ucs_config_help_generic, "device_name:<number>[T|G|M|K]B|b[[p|/]s] or device_name:auto" \
    }
#define UCS_CONFIG_TYPE_SIGNO \
    { \
        ucs_config_sscanf_signo, ucs_config_sprintf_signo, ucs_config_clone_int, \
            ucs_config_release_nop, ucs_config_help_generic, "system signal (number or SIGxxx)" \
    }
#define UCS_CONFIG_TYPE_MEMUNITS \
    { \
        ucs_config_sscanf_memunits, ucs_config_sprintf_memunits, ucs_config_clone_ulong, \
            ucs_config_release_nop, ucs_config_help_generic, "memory units: <number>[b|kb|mb|gb], \"inf\", or \"auto\"" \
    }
#define UCS_CONFIG_TYPE_RANGE_SPEC \
    { \
        ucs_config_sscanf_range_spec, ucs_config_sprintf_range_spec, ucs_config_clone_range_spec, \
            ucs_config_release_nop, ucs_config_help_generic, "numbers range: <number>-<number>" \
    }
#define UCS_CONFIG_TYPE_LOG_COMP \
    { \
        ucs_config_sscanf_enum, ucs_config_sprintf_enum, ucs_config_clone_log_comp, \
            ucs_config_release_nop, ucs_config_help_enum, ucs_log_level_names \
    }
#define UCS_CONFIG_TYPE_ALLOW_LIST \
    { \
        ucs_config_sscanf_allow_list, ucs_config_sprintf_allow_list, ucs_config_clone_allow_list, \
            ucs_config_release_allow_list, ucs_config_help_allow_list, &ucs_config_array_string \
    }
#define UCS_CONFIG_TYPE_ENUM(_names) \
    { \
        ucs_config_sscanf_enum, ucs_config_sprintf_enum, ucs_config_clone_uint, \
            ucs_config_release_nop, ucs_config_help_enum, _names \
    }
#define UCS_CONFIG_TYPE_BITMAP(_names) \
    { \
        ucs_config_sscanf_bitmap, ucs_config_sprintf_bitmap, ucs_config_clone_uint, \
            ucs_config_release_nop, ucs_config_help_bitmap, _names \
    }
#define UCS_CONFIG_TYPE_ARRAY(_name) \
    { \
        ucs_config_sscanf_array, ucs_config_sprintf_array, ucs_config_clone_array, \
            ucs_config_release_array, ucs_config_help_array, &ucs_config_array_##_name \
    }
#define UCS_CONFIG_TYPE_TABLE(_fields) \
    { \
        ucs_config_sscanf_table, NULL, ucs_config_clone_table, \
            ucs_config_release_table, ucs_config_help_table, _fields \
    }
#define UCS_CONFIG_TYPE_STRING_ARRAY UCS_CONFIG_TYPE_ARRAY(string)
#define UCS_CONFIG_TYPE_DEPRECATED \
    { \
        (ucs_field_type(ucs_config_parser_t, read))ucs_empty_function_do_assert, \
            (ucs_field_type(ucs_config_parser_t, write))ucs_empty_function_do_assert, \
            (ucs_field_type(ucs_config_parser_t, clone))ucs_empty_function_do_assert, \
            (ucs_field_type(ucs_config_parser_t, release))ucs_empty_function_do_assert, \
            (ucs_field_type(ucs_config_parser_t, help))ucs_empty_function_do_assert, "" \
    }

#ifdef __cplusplus
extern "C" {
#endif

extern ucs_list_link_t ucs_config_global_list;
extern const char *ucs_log_level_names[];

UCS_CONFIG_DECLARE_ARRAY(string)

/* Functions of types. */
int ucs_config_sscanf_string(const char *buf, void *dest, const void *arg);
int ucs_config_sscanf_int(const char *buf, void *dest, const void *arg);
int ucs_config_sscanf_uint(const char *buf, void *dest, const void *arg);
int ucs_config_sscanf_ulong(const char *buf, void *dest, const void *arg);
int ucs_config_sscanf_ulunits(const char *buf, void *dest, const void *arg);
int ucs_config_sscanf_double(const char *buf, void *dest, const void *arg);
int ucs_config_sscanf_hex(const char *buf, void *dest, const void *arg);
int ucs_config_sscanf_bool(const char *buf, void *dest, const void *arg);
int ucs_config_sscanf_ternary(const char *buf, void *dest, const void *arg);
int ucs_config_sscanf_ternary_auto(const char *buf, void *dest, const void *arg);
int ucs_config_sscanf_on_off(const char *buf, void *dest, const void *arg);
int ucs_config_sscanf_on_off_auto(const char *buf, void *dest, const void *arg);
int ucs_config_sscanf_enum(const char *buf, void *dest, const void *arg);
int ucs_config_sscanf_bitmap(const char *buf, void *dest, const void *arg);
int ucs_config_sscanf_bitmask(const char *buf, void *dest, const void *arg);
int ucs_config_sscanf_time(const char *buf, void *dest, const void *arg);
int ucs_config_sscanf_time_units(const char *buf, void *dest, const void *arg);
int ucs_config_sscanf_bw(const char *buf, void *dest, const void *arg);
int ucs_config_sscanf_bw_spec(const char *buf, void *dest, const void *arg);
int ucs_config_sscanf_signo(const char *buf, void *dest, const void *arg);
int ucs_config_sscanf_memunits(const char *buf, void *dest, const void *arg);
int ucs_config_sscanf_range_spec(const char *buf, void *dest, const void *arg);
int ucs_config_sscanf_array(const char *buf, void *dest, const void *arg);
int ucs_config_sscanf_allow_list(const char *buf, void *dest, const void *arg);
int ucs_config_sscanf_table(const char *buf, void *dest, const void *arg);

int ucs_config_sprintf_string(char *buf, size_t max, const void *src, const void *arg);
int ucs_config_sprintf_int(char *buf, size_t max, const void *src, const void *arg);
int ucs_config_sprintf_uint(char *buf, size_t max, const void *src, const void *arg);
int ucs_config_sprintf_ulong(char *buf, size_t max, const void *src, const void *arg);
int ucs_config_sprintf_ulunits(char *buf, size_t max, const void *src, const void *arg);
int ucs_config_sprintf_double(char *buf, size_t max, const void *src, const void *arg);
int ucs_config_sprintf_hex(char *buf, size_t max, const void *src, const void *arg);
int ucs_config_sprintf_bool(char *buf, size_t max, const void *src, const void *arg);
int ucs_config_sprintf_ternary_auto(char *buf, size_t max, const void *src, const void *arg);
int ucs_config_sprintf_on_off_auto(char *buf, size_t max, const void *src, const void *arg);
int ucs_config_sprintf_enum(char *buf, size_t max, const void *src, const void *arg);
int ucs_config_sprintf_bitmap(char *buf, size_t max, const void *src, const void *arg);
int ucs_config_sprintf_bitmask(char *buf, size_t max, const void *src, const void *arg);
int ucs_config_sprintf_time(char *buf, size_t max, const void *src, const void *arg);
int ucs_config_sprintf_time_units(char *buf, size_t max, const void *src, const void *arg);
int ucs_config_sprintf_bw(char *buf, size_t max, const void *src, const void *arg);
int ucs_config_sprintf_bw_spec(char *buf, size_t max, const void *src, const void *arg);
int ucs_config_sprintf_signo(char *buf, size_t max, const void *src, const void *arg);
int ucs_config_sprintf_memunits(char *buf, size_t max, const void *src, const void *arg);
int ucs_config_sprintf_range_spec(char *buf, size_t max, const void *src, const void *arg);
int ucs_config_sprintf_array(char *buf, size_t max, const void *src, const void *arg);
int ucs_config_sprintf_allow_list(char *buf, size_t max, const void *src, const void *arg);

ucs_status_t ucs_config_clone_string(const void *src, void *dest, const void *arg);
ucs_status_t ucs_config_clone_int(const void *src, void *dest, const void *arg);
ucs_status_t ucs_config_clone_uint(const void *src, void *dest, const void *arg);
ucs_status_t ucs_config_clone_ulong(const void *src, void *dest, const void *arg);
ucs_status_t ucs_config_clone_double(const void *src, void *dest, const void *arg);
ucs_status_t ucs_config_clone_bw_spec(const void *src, void *dest, const void *arg);
ucs_status_t ucs_config_clone_range_spec(const void *src, void *dest, const void *arg);
ucs_status_t ucs_config_clone_array(const void *src, void *dest, const void *arg);
ucs_status_t ucs_config_clone_allow_list(const void *src, void *dest, const void *arg);
ucs_status_t ucs_config_clone_table(const void *src, void *dest, const void *arg);
ucs_status_t ucs_config_clone_log_comp(const void *src, void *dest, const void *arg);

void ucs_config_release_string(void *ptr, const void *arg);
void ucs_config_release_bw_spec(void *ptr, const void *arg);
void ucs_config_release_array(void *ptr, const void *arg);
void ucs_config_release_allow_list(void *ptr, const void *arg);
void ucs_config_release_table(void *ptr, const void *arg);
void ucs_config_release_nop(void *ptr, const void *arg);

void ucs_config_help_generic(char *buf, size_t max, const void *arg);
void ucs_config_help_enum(char *buf, size_t max, const void *arg);
void ucs_config_help_bitmap(char *buf, size_t max, const void *arg);
void ucs_config_help_array(char *buf, size_t max, const void *arg);
void ucs_config_help_allow_list(char *buf, size_t max, const void *arg);
void ucs_config_help_table(char *buf, size_t max, const void *arg);

/* Fills a structure: with defaults, or with defaults and what the environment and files say. A prefix may have several
 * parts: UCX_ counts below MPI_UCX_, which wins. */
ucs_status_t ucs_config_parser_set_default_values(void *opts, ucs_config_field_t *fields);
ucs_status_t ucs_config_parser_fill_opts(void *opts, ucs_config_field_t *fields, const char *env_prefix,
                                         const char *table_prefix, int ignore_errors);

ucs_status_t ucs_config_parser_clone_opts(const void *src, void *dst, ucs_config_field_t *fields);
void ucs_config_parser_release_opts(void *opts, ucs_config_field_t *fields);

/* One option, by its name with the prefixes of inner tables. */
ucs_status_t ucs_config_parser_get_value(void *opts, ucs_config_field_t *fields, const char *name, char *value,
                                         size_t max);
ucs_status_t ucs_config_parser_set_value(void *opts, ucs_config_field_t *fields, const char *name, const char *value);

void ucs_config_parser_print_opts(FILE *stream, const char *title, const void *opts, ucs_config_field_t *fields,
                                  const char *table_prefix, const char *prefix, ucs_config_print_flags_t flags);
void ucs_config_parser_print_all_opts(FILE *stream, const char *prefix, ucs_config_print_flags_t flags,
                                      ucs_list_link_t *config_list);

/* Warns of variables that no option has taken. */
void ucs_config_parser_print_env_vars_once(const char *env_prefix);

/* Files: of lines NAME=value, and the one that UCX_CONFIG_FILE names. */
void ucs_config_parse_config_file(const char *dir_path, const char *file_name, int override);
void ucs_config_parse_config_files(void);

/* A size, with another one for "auto" and a limit for "inf". */
size_t ucs_config_memunits_get(size_t config_size, size_t auto_size, size_t max_size);

/* Place of the first pattern that a string matches, or -1. */
int ucs_config_names_search(const ucs_config_names_array_t *config_names, const char *str);

#ifdef __cplusplus
}
#endif

#endif

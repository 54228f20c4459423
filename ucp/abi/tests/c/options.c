/*
 * Tables of options: types, defaults, the environment, names, copies, and texts that are no values. With an argument
 * it runs on UCX, which takes more texts as numbers.
 */
#include "check_macro.h"
#include <limits.h>
#include <math.h>
#include <string.h>
#include <unistd.h>
#include <ucs/config/parser.h>
#include <ucs/sys/string.h>

/* UCX declares it in a header of its log. */
extern const char *ucs_log_level_names[];

typedef struct {
    int  number;
    char *text;
} inner_t;

typedef struct {
    inner_t                       inherited;
    inner_t                       other;
    char                          *text;
    int                           number;
    unsigned                      choice;
    unsigned                      set;
    size_t                        size;
    double                        time;
    UCS_CONFIG_STRING_ARRAY_FIELD(names) list;
    ucs_config_allow_list_t       allowed;
    ucs_log_component_config_t    log;
    ucs_config_bw_spec_t          device;
    ucs_range_spec_t              range;
} options_t;

static const char *choices[] = {"one", "two", "three", NULL};

static ucs_config_field_t inner_fields[] = {
    {"NUMBER", "5", "A number.", ucs_offsetof(inner_t, number), UCS_CONFIG_TYPE_INT},
    {"INNER_TEXT", "in", "A text.\nWith two lines.", ucs_offsetof(inner_t, text), UCS_CONFIG_TYPE_STRING},
    {NULL}};

static ucs_config_field_t fields[] = {
    {"", "INNER_TEXT=changed", NULL, ucs_offsetof(options_t, inherited), UCS_CONFIG_TYPE_TABLE(inner_fields)},
    {"OTHER_", "", NULL, ucs_offsetof(options_t, other), UCS_CONFIG_TYPE_TABLE(inner_fields)},
    {"TEXT", "default", "A text.", ucs_offsetof(options_t, text), UCS_CONFIG_TYPE_STRING},
    {"COUNT", "-3", "A count.", ucs_offsetof(options_t, number), UCS_CONFIG_TYPE_INT},
    {"OLD_COUNT", NULL, "", ucs_offsetof(options_t, number), UCS_CONFIG_TYPE_INT},
    {"GONE", "", "Gone.", UCS_CONFIG_DEPRECATED_FIELD_OFFSET, UCS_CONFIG_TYPE_DEPRECATED},
    {"CHOICE", "two", "A choice.", ucs_offsetof(options_t, choice), UCS_CONFIG_TYPE_ENUM(choices)},
    {"SET", "one,three", "A set.", ucs_offsetof(options_t, set), UCS_CONFIG_TYPE_BITMAP(choices)},
    {"SIZE", "8k", "A size.", ucs_offsetof(options_t, size), UCS_CONFIG_TYPE_MEMUNITS},
    {"TIME", "1.5ms", "A time.", ucs_offsetof(options_t, time), UCS_CONFIG_TYPE_TIME},
    {"LIST", "a,b,c", "A list.", ucs_offsetof(options_t, list), UCS_CONFIG_TYPE_STRING_ARRAY},
    {"ALLOWED", "^x,y", "What is allowed.", ucs_offsetof(options_t, allowed), UCS_CONFIG_TYPE_ALLOW_LIST},
    {"LOG", "info", "A level.", ucs_offsetof(options_t, log), UCS_CONFIG_TYPE_LOG_COMP},
    {"DEVICE", "dev:10Gbs", "A device.", ucs_offsetof(options_t, device), UCS_CONFIG_TYPE_BW_SPEC},
    {"RANGE", "3-9", "A range.", ucs_offsetof(options_t, range), UCS_CONFIG_TYPE_RANGE_SPEC},
    {NULL}};

static ucs_config_field_t broken[] = {
    {"TEXT", "kept?", "A text.", 0, UCS_CONFIG_TYPE_STRING},
    {"NUMBER", "none", "A number.", sizeof(char*), UCS_CONFIG_TYPE_INT},
    {NULL}};

static int is_ucx;

static options_t filled(const char *prefix, const char *table_prefix)
{
    options_t options;

    memset(&options, 0xee, sizeof(options));
    CHECK(ucs_config_parser_fill_opts(&options, fields, prefix, table_prefix, 0) == UCS_OK);
    return options;
}

static void defaults(void)
{
    options_t options = filled("TESTA_", NULL);

    CHECK(options.inherited.number == 5 && strcmp(options.inherited.text, "changed") == 0);
    CHECK(options.other.number == 5 && strcmp(options.other.text, "in") == 0);
    CHECK(strcmp(options.text, "default") == 0 && options.number == -3);
    CHECK(options.choice == 1 && options.set == 5 && options.size == 8192);
    CHECK(fabs(options.time - 0.0015) < 1e-9);
    CHECK(options.list.count == 3 && strcmp(options.list.names[2], "c") == 0);
    CHECK(options.allowed.mode == UCS_CONFIG_ALLOW_LIST_NEGATE && options.allowed.array.count == 2);
    CHECK(options.log.log_level == UCS_LOG_LEVEL_INFO);
    CHECK(strcmp(options.device.name, "dev") == 0 && options.device.bw == 1342177280.0);
    CHECK(options.range.first == 3 && options.range.last == 9);
    ucs_config_parser_release_opts(&options, fields);

    memset(&options, 0xee, sizeof(options));
    CHECK(ucs_config_parser_set_default_values(&options, fields) == UCS_OK);
    CHECK(options.number == -3);
    ucs_config_parser_release_opts(&options, fields);
    if (!is_ucx) {
        /* What was filled before the default that is not valid is released. */
        CHECK(ucs_config_parser_fill_opts(&options, broken, "TESTA_", NULL, 0) == UCS_ERR_INVALID_PARAM);
    }
}

static void environment(void)
{
    options_t options;

    /* The program's prefix wins over its last part, a table's prefix is in between, and the outer table's wins. */
    setenv("TESTB_TAB_TEXT", "last part", 1);
    setenv("TESTB_TAB_SIZE", "2m", 1);
    setenv("MINE_TESTB_TAB_TEXT", "whole", 1);
    setenv("TESTB_OTHER_NUMBER", "6", 1);
    setenv("TESTB_OTHER_INNER_TEXT", "other", 1);
    setenv("TESTB_TAB_NUMBER", "7", 1);
    setenv("TESTB_TAB_OLD_COUNT", "11", 1);
    setenv("TESTB_LIST", "not of this table", 1);
    options = filled("MINE_TESTB_", "TAB_");
    CHECK(strcmp(options.text, "whole") == 0 && options.size == 2 << 20);
    CHECK(options.inherited.number == 7 && options.other.number == 7);
    CHECK(strcmp(options.other.text, "other") == 0 && strcmp(options.inherited.text, "changed") == 0);
    CHECK(options.number == 11 && options.list.count == 3);
    ucs_config_parser_release_opts(&options, fields);

    /* A bad value: the whole fails, or the default stays. */
    setenv("TESTC_COUNT", "many", 1);
    setenv("TESTC_LIST", "x", 1);
    memset(&options, 0xee, sizeof(options));
    CHECK(ucs_config_parser_fill_opts(&options, fields, "TESTC_", NULL, 0) == UCS_ERR_INVALID_PARAM);
    memset(&options, 0xee, sizeof(options));
    CHECK(ucs_config_parser_fill_opts(&options, fields, "TESTC_", NULL, 1) == UCS_OK);
    CHECK(options.number == -3 && options.list.count == 1 && strcmp(options.list.names[0], "x") == 0);
    ucs_config_parser_release_opts(&options, fields);
    if (!is_ucx) {
        setenv("TESTC_COUNT", "1", 1);
        setenv("TESTC_DEVICE", "no bandwidth", 1);
        CHECK(ucs_config_parser_fill_opts(&options, fields, "TESTC_", NULL, 0) == UCS_ERR_INVALID_PARAM);
        CHECK(ucs_config_parser_fill_opts(NULL, fields, "TESTC_", NULL, 0) == UCS_ERR_INVALID_PARAM);
        CHECK(ucs_config_parser_fill_opts(&options, NULL, "TESTC_", NULL, 0) == UCS_ERR_INVALID_PARAM);
        CHECK(ucs_config_parser_fill_opts(&options, fields, NULL, NULL, 0) == UCS_ERR_INVALID_PARAM);
    }
    CHECK(ucs_config_parser_fill_opts(&options, fields, "T", NULL, 0) == UCS_ERR_INVALID_PARAM);
}

static void names(void)
{
    options_t options = filled("TESTA_", NULL), copy;
    char value[64];

    CHECK(ucs_config_parser_get_value(&options, fields, "COUNT", value, sizeof(value)) == UCS_OK);
    CHECK(strcmp(value, "-3") == 0);
    CHECK(ucs_config_parser_get_value(&options, fields, "OTHER_INNER_TEXT", value, sizeof(value)) == UCS_OK);
    CHECK(strcmp(value, "in") == 0);
    CHECK(ucs_config_parser_get_value(&options, fields, "NUMBER", value, sizeof(value)) == UCS_OK);
    CHECK(ucs_config_parser_get_value(&options, fields, "TEXT", value, 4) == UCS_OK);
    CHECK(strncmp(value, "def", 3) == 0);
    CHECK(ucs_config_parser_get_value(&options, fields, "UNKNOWN", value, sizeof(value)) == UCS_ERR_NO_ELEM);
    CHECK(ucs_config_parser_set_value(&options, fields, "TEXT", "set") == UCS_OK);
    CHECK(ucs_config_parser_set_value(&options, fields, "OLD_COUNT", "9") == UCS_OK);
    CHECK(ucs_config_parser_set_value(&options, fields, "OTHER_NUMBER", "10") == UCS_OK);
    CHECK(ucs_config_parser_set_value(&options, fields, "LIST", "p,q") == UCS_OK);
    CHECK(strcmp(options.text, "set") == 0 && options.number == 9 && options.list.count == 2);
    CHECK(options.other.number == 10 && options.inherited.number == 5);
    CHECK(ucs_config_parser_set_value(&options, fields, "COUNT", "x") == UCS_ERR_INVALID_PARAM && options.number == 9);
    CHECK(ucs_config_parser_set_value(&options, fields, "UNKNOWN", "1") == UCS_ERR_NO_ELEM);
    /* What is refused leaves the value that was there, also one with memory. */
    CHECK(ucs_config_parser_set_value(&options, fields, "DEVICE", "other:5Gbs") == UCS_OK);
    CHECK(ucs_config_parser_set_value(&options, fields, "DEVICE", "none") == UCS_ERR_INVALID_PARAM);
    CHECK(strcmp(options.device.name, "other") == 0);
    if (!is_ucx) {
        CHECK(ucs_config_parser_set_value(&options, fields, "GONE", "1") == UCS_ERR_NO_ELEM);
        CHECK(ucs_config_parser_get_value(&options, fields, "GONE", value, sizeof(value)) == UCS_ERR_NO_ELEM);
        CHECK(ucs_config_parser_set_value(&options, fields, NULL, "1") == UCS_ERR_INVALID_PARAM);
    }

    CHECK(ucs_config_parser_clone_opts(&options, &copy, fields) == UCS_OK);
    ucs_config_parser_release_opts(&options, fields);
    CHECK(strcmp(copy.text, "set") == 0 && copy.number == 9 && copy.list.count == 2);
    CHECK(strcmp(copy.list.names[1], "q") == 0 && strcmp(copy.allowed.array.names[0], "x") == 0);
    CHECK(copy.allowed.mode == UCS_CONFIG_ALLOW_LIST_NEGATE && strcmp(copy.other.text, "in") == 0);
    CHECK(strcmp(copy.device.name, "other") == 0 && copy.range.last == 9);
    ucs_config_parser_release_opts(&copy, fields);
}

/* Text that a function prints to a stream. */
static char *printed(options_t *options, const char *prefix, unsigned flags)
{
    static char text[16384];
    FILE *file = tmpfile();
    size_t length;

    CHECK(file != NULL);
    ucs_config_parser_print_opts(file, "Title", options, fields, prefix, "TESTB_", (ucs_config_print_flags_t)flags);
    rewind(file);
    length       = fread(text, 1, sizeof(text) - 1, file);
    text[length] = 0;
    fclose(file);
    return text;
}

static void prints(void)
{
    static ucs_list_link_t list = UCS_LIST_INITIALIZER(&list, &list);
    UCS_CONFIG_DECLARE_TABLE(fields, "The table", "TAB_", options_t)
    options_t options = filled("TESTB_", "TAB_");
    FILE *file        = tmpfile();
    char *text, line[256];
    int found;

    text = printed(&options, "TAB_", UCS_CONFIG_PRINT_CONFIG);
    CHECK(strstr(text, "\nTESTB_TAB_TEXT=last part\nTESTB_TAB_COUNT=11\nTESTB_TAB_CHOICE=two\n") != NULL);
    CHECK(strstr(text, "TESTB_TAB_SET=one,three\nTESTB_TAB_SIZE=2M\nTESTB_TAB_TIME=1500.00us\n") != NULL);
    CHECK(strstr(text, "TESTB_TAB_LIST=a,b,c\nTESTB_TAB_ALLOWED=^x,y\nTESTB_TAB_LOG=INFO\n") != NULL);
    CHECK(strstr(text, "TESTB_TAB_DEVICE=dev:1280.00MBps\nTESTB_TAB_RANGE=3-9\n") != NULL);
    CHECK(strstr(text, "Title") == NULL && strstr(text, "OLD_COUNT") == NULL && strstr(text, "GONE") == NULL);

    text = printed(&options, "TAB_", UCS_CONFIG_PRINT_CONFIG | UCS_CONFIG_PRINT_HEADER | UCS_CONFIG_PRINT_DOC);
    CHECK(strstr(text, "#\n# Title\n#\n") != NULL);
    CHECK(strstr(text, "#\n# A choice.\n#\n# syntax:    [one|two|three]\n#\nTESTB_TAB_CHOICE=two\n\n") != NULL);
    CHECK(strstr(text, "#\n# A text.\n# With two lines.\n#\n# syntax:    string\n# inherits:  TESTB_OTHER_INNER_TEXT\n") !=
          NULL);

    text = printed(&options, "TAB_", UCS_CONFIG_PRINT_CONFIG | UCS_CONFIG_PRINT_DOC | UCS_CONFIG_PRINT_HIDDEN);
    CHECK(strstr(text, "# alias of:  TESTB_TAB_COUNT\n#\nTESTB_TAB_OLD_COUNT=11\n") != NULL);
    CHECK(strstr(text, "TESTB_TAB_GONE (deprecated)\n") != NULL);

    text = printed(&options, "TAB_", UCS_CONFIG_PRINT_CONFIG | UCS_CONFIG_PRINT_COMMENT_DEFAULT);
    CHECK(strstr(text, "\nTESTB_TAB_TEXT=last part\n# TESTB_TAB_COUNT=11\n") != NULL);
    ucs_config_parser_release_opts(&options, fields);

    UCS_CONFIG_ADD_TABLE(fields, &list);
    ucs_config_parser_print_all_opts(file, "TESTB_", UCS_CONFIG_PRINT_CONFIG, &list);
    UCS_CONFIG_REMOVE_TABLE(fields);
    rewind(file);
    for (found = 0; fgets(line, sizeof(line), file) != NULL;) {
        found += strcmp(line, "TESTB_TAB_SIZE=2M\n") == 0;
    }
    CHECK(found == 1);
    fclose(file);
}

/* A type: texts with what they are printed as, and texts that are no values. */
#define VALUE(_type, _text, _read, _write, _arg, _again) \
    do { \
        _type _value; \
        char _print[64] = ""; \
        CHECK(_read(_text, &_value, _arg) == 1); \
        _write(_print, sizeof(_print), &_value, _arg); \
        if (strcmp(_print, _again) != 0) { \
            fprintf(stderr, "%s is printed as %s\n", _text, _print); \
            exit(1); \
        } \
    } while (0)
#define NO_VALUE(_type, _text, _read, _arg) \
    do { \
        _type _value; \
        CHECK(_read(_text, &_value, _arg) != 1); \
    } while (0)

static void types(void)
{
    UCS_CONFIG_ARRAY_FIELD(int, elements) array;
    ucs_config_array_t numbers = {sizeof(int), UCS_CONFIG_TYPE_INT};
    ucs_config_allow_list_t allowed;
    char text[64];
    int i;
    static const char *const pairs[][2] = {{"y", "y"}, {"YES", "y"}, {"1", "y"}, {"n", "n"}, {"No", "n"}, {"0", "n"}};

    for (i = 0; i < 6; i++) {
        VALUE(int, pairs[i][0], ucs_config_sscanf_bool, ucs_config_sprintf_bool, NULL, pairs[i][1]);
        VALUE(int, pairs[i][0], ucs_config_sscanf_ternary, ucs_config_sprintf_ternary_auto, NULL, pairs[i][1]);
    }
    VALUE(int, "try", ucs_config_sscanf_ternary, ucs_config_sprintf_ternary_auto, NULL, "try");
    VALUE(int, "AUTO", ucs_config_sscanf_ternary_auto, ucs_config_sprintf_ternary_auto, NULL, "auto");
    VALUE(int, "on", ucs_config_sscanf_on_off, ucs_config_sprintf_on_off_auto, NULL, "on");
    VALUE(int, "auto", ucs_config_sscanf_on_off_auto, ucs_config_sprintf_on_off_auto, NULL, "auto");
    VALUE(int, "off", ucs_config_sscanf_on_off_auto, ucs_config_sprintf_on_off_auto, NULL, "off");
    VALUE(int, "0x10", ucs_config_sscanf_int, ucs_config_sprintf_int, NULL, "16");
    VALUE(unsigned, "inf", ucs_config_sscanf_uint, ucs_config_sprintf_uint, NULL, "inf");
    VALUE(unsigned long, "18446744073709551613", ucs_config_sscanf_ulong, ucs_config_sprintf_ulong, NULL,
          "18446744073709551613");
    VALUE(unsigned long, "auto", ucs_config_sscanf_ulunits, ucs_config_sprintf_ulunits, NULL, "auto");
    VALUE(unsigned long, "inf", ucs_config_sscanf_ulunits, ucs_config_sprintf_ulunits, NULL, "inf");
    VALUE(double, " 1.5", ucs_config_sscanf_double, ucs_config_sprintf_double, NULL, "1.500");
    VALUE(unsigned, "0xfF", ucs_config_sscanf_hex, ucs_config_sprintf_hex, NULL, "0xff");
    VALUE(unsigned, "auto", ucs_config_sscanf_hex, ucs_config_sprintf_hex, NULL, "auto");
    VALUE(unsigned, "7", ucs_config_sscanf_bitmask, ucs_config_sprintf_bitmask, NULL, "7");
    VALUE(unsigned, "THREE", ucs_config_sscanf_enum, ucs_config_sprintf_enum, choices, "three");
    VALUE(unsigned, "two,ONE", ucs_config_sscanf_bitmap, ucs_config_sprintf_bitmap, choices, "one,two");
    VALUE(unsigned, "", ucs_config_sscanf_bitmap, ucs_config_sprintf_bitmap, choices, "");
    VALUE(size_t, "3gb", ucs_config_sscanf_memunits, ucs_config_sprintf_memunits, NULL, "3G");
    VALUE(double, "2us", ucs_config_sscanf_time, ucs_config_sprintf_time, NULL, "2.00us");
    VALUE(unsigned long, "1ms", ucs_config_sscanf_time_units, ucs_config_sprintf_time_units, NULL, "1000.00us");
    VALUE(unsigned long, "inf", ucs_config_sscanf_time_units, ucs_config_sprintf_time_units, NULL, "inf");
    VALUE(double, "5MBs", ucs_config_sscanf_bw, ucs_config_sprintf_bw, NULL, "5120.00KBps");
    VALUE(double, "auto", ucs_config_sscanf_bw, ucs_config_sprintf_bw, NULL, "auto");
    VALUE(int, "SIGINT", ucs_config_sscanf_signo, ucs_config_sprintf_signo, NULL, "INT");
    VALUE(int, "KILL", ucs_config_sscanf_signo, ucs_config_sprintf_signo, NULL, "KILL");
    VALUE(ucs_range_spec_t, "7", ucs_config_sscanf_range_spec, ucs_config_sprintf_range_spec, NULL, "7");

    NO_VALUE(int, "", ucs_config_sscanf_int, NULL);
    NO_VALUE(int, "x", ucs_config_sscanf_int, NULL);
    NO_VALUE(int, "try", ucs_config_sscanf_bool, NULL);
    NO_VALUE(int, "auto", ucs_config_sscanf_ternary, NULL);
    NO_VALUE(int, "auto", ucs_config_sscanf_on_off, NULL);
    NO_VALUE(unsigned, "auto", ucs_config_sscanf_uint, NULL);
    NO_VALUE(unsigned, "5", ucs_config_sscanf_hex, NULL);
    NO_VALUE(unsigned, "four", ucs_config_sscanf_enum, choices);
    NO_VALUE(unsigned, "one,four", ucs_config_sscanf_bitmap, choices);
    NO_VALUE(size_t, "k", ucs_config_sscanf_memunits, NULL);
    NO_VALUE(double, "1h", ucs_config_sscanf_time, NULL);
    NO_VALUE(double, "5", ucs_config_sscanf_bw, NULL);
    NO_VALUE(ucs_config_bw_spec_t, "5MBs", ucs_config_sscanf_bw_spec, NULL);
    NO_VALUE(int, "SIGNOBODY", ucs_config_sscanf_signo, NULL);
    NO_VALUE(ucs_range_spec_t, "3-x", ucs_config_sscanf_range_spec, NULL);
    NO_VALUE(ucs_config_allow_list_t, "all,x", ucs_config_sscanf_allow_list, &ucs_config_array_string);
    if (!is_ucx) {
        /* Since UCX 1.15. */
        VALUE(int, "on", ucs_config_sscanf_bool, ucs_config_sprintf_bool, NULL, "y");
        VALUE(int, "off", ucs_config_sscanf_bool, ucs_config_sprintf_bool, NULL, "n");
        VALUE(int, "on", ucs_config_sscanf_ternary_auto, ucs_config_sprintf_ternary_auto, NULL, "y");
        NO_VALUE(int, "5x", ucs_config_sscanf_int, NULL);
        NO_VALUE(int, "99999999999", ucs_config_sscanf_int, NULL);
        NO_VALUE(size_t, "17179869184g", ucs_config_sscanf_memunits, NULL);
        NO_VALUE(int, NULL, ucs_config_sscanf_int, NULL);
        CHECK(ucs_config_sscanf_int("5", NULL, NULL) != 1);
    }

    CHECK(ucs_config_sscanf_array("1,,2", &array, &numbers) == 1 && array.count == 2);
    CHECK(array.elements[0] == 1 && array.elements[1] == 2);
    ucs_config_release_array(&array, &numbers);
    CHECK(ucs_config_sscanf_array("", &array, &numbers) == 1 && array.count == 0);
    ucs_config_release_array(&array, &numbers);
    CHECK(ucs_config_sscanf_allow_list("all", &allowed, &ucs_config_array_string) == 1);
    CHECK(allowed.mode == UCS_CONFIG_ALLOW_LIST_ALLOW_ALL && allowed.array.count == 0);
    ucs_config_release_allow_list(&allowed, &ucs_config_array_string);
    if (!is_ucx) {
        NO_VALUE(ucs_config_names_array_t, "1,x", ucs_config_sscanf_array, &numbers);
    }
    ucs_config_help_array(text, sizeof(text), &numbers);
    CHECK(strcmp(text, "comma-separated list of: integer") == 0);
    ucs_config_help_enum(text, 8, choices);
    CHECK(strncmp(text, "[one|tw", 7) == 0);
}

static void searches(void)
{
    char *patterns[] = {(char*)"ab*", (char*)"cd?"};
    ucs_config_names_array_t array;

    array.names = patterns;
    array.count = 2;
    CHECK(ucs_config_names_search(&array, "abc") == 0 && ucs_config_names_search(&array, "cdx") == 1);
    CHECK(ucs_config_names_search(&array, "cd") == -1);
    CHECK(ucs_config_memunits_get(UCS_MEMUNITS_AUTO, 5, 9) == 5);
    CHECK(ucs_config_memunits_get(UCS_MEMUNITS_INF, 5, 9) == 9 && ucs_config_memunits_get(7, 5, 9) == 7);
}

/* Texts of any bytes, which are not those of UTF-8. */
static void bytes(void)
{
    options_t options, copy;
    char value[64];
    FILE *file;

    setenv("TESTE_TEXT", "l\xe4nger", 1);
    setenv("TESTE_LIST", "\xe4,b\xff,", 1);
    setenv("TESTE_ALLOWED", "^\xf6", 1);
    setenv("TESTE_DEVICE", "d\xe9v:10Gbs", 1);
    options = filled("TESTE_", NULL);
    CHECK(strcmp(options.text, "l\xe4nger") == 0 && options.list.count == 2 && strcmp(options.list.names[1], "b\xff") == 0);
    CHECK(options.allowed.mode == UCS_CONFIG_ALLOW_LIST_NEGATE && strcmp(options.allowed.array.names[0], "\xf6") == 0);
    CHECK(strcmp(options.device.name, "d\xe9v") == 0);
    CHECK(ucs_config_parser_clone_opts(&options, &copy, fields) == UCS_OK);
    ucs_config_parser_release_opts(&options, fields);
    CHECK(strcmp(copy.device.name, "d\xe9v") == 0 && strcmp(copy.text, "l\xe4nger") == 0);
    CHECK(ucs_config_parser_get_value(&copy, fields, "TEXT", value, sizeof(value)) == UCS_OK);
    CHECK(strcmp(value, "l\xe4nger") == 0);
    CHECK(ucs_config_parser_get_value(&copy, fields, "LIST", value, sizeof(value)) == UCS_OK);
    CHECK(strcmp(value, "\xe4,b\xff") == 0);
    CHECK(ucs_config_parser_get_value(&copy, fields, "DEVICE", value, sizeof(value)) == UCS_OK);
    CHECK(strncmp(value, "d\xe9v:", 4) == 0);
    CHECK(ucs_config_parser_set_value(&copy, fields, "OTHER_INNER_TEXT", "\xfc") == UCS_OK);
    CHECK(strcmp(copy.other.text, "\xfc") == 0);
    file = tmpfile();
    ucs_config_parser_print_opts(file, "Title", &copy, fields, "", "TESTE_", UCS_CONFIG_PRINT_CONFIG);
    rewind(file);
    CHECK(fgets(value, sizeof(value), file) != NULL && fgets(value, sizeof(value), file) != NULL);
    while (strncmp(value, "TESTE_TEXT=", 11) != 0) {
        CHECK(fgets(value, sizeof(value), file) != NULL);
    }
    CHECK(strcmp(value, "TESTE_TEXT=l\xe4nger\n") == 0);
    fclose(file);
    /* A text that is refused leaves the one before. */
    CHECK(ucs_config_parser_set_value(&copy, fields, "DEVICE", "\xe4") == UCS_ERR_INVALID_PARAM);
    CHECK(strcmp(copy.device.name, "d\xe9v") == 0);
    ucs_config_parser_release_opts(&copy, fields);
}

/* A file of options: the environment wins over it. */
static void files(void)
{
    char folder[] = "/tmp/optionsXXXXXX", path[64];
    options_t options;
    FILE *file;

    CHECK(mkdtemp(folder) != NULL);
    snprintf(path, sizeof(path), "%s/options.conf", folder);
    CHECK((file = fopen(path, "w")) != NULL);
    fprintf(file, "# a comment\nTESTD_TEXT=of the file\nTESTD_SIZE=1k\n");
    fclose(file);
    setenv("TESTD_SIZE", "4k", 1);
    ucs_config_parse_config_file(folder, "options.conf", 1);
    ucs_config_parse_config_file(folder, "nobody.conf", 1);
    options = filled("TESTD_", NULL);
    CHECK(strcmp(options.text, "of the file") == 0 && options.size == 4096);
    ucs_config_parser_release_opts(&options, fields);

    CHECK((file = fopen(path, "w")) != NULL);
    fprintf(file, "\xef\xbb\xbf; \xe4\nTESTF_TEXT=x #\xe4=y ; z\n[A part] ; of the file\nTESTF_COUNT : 7\t;8\n"
                  "TESTF_LIST=a;b:c,;d\nno value\nTESTF_ALLOWED ;=z\nTESTF_OTHER_INNER_TEXT= ; nothing\n"
                  "TESTF_INNER_TEXT=first\n  TESTF_SIZE=1k ; all\n# a comment\n\n\t: more\n");
    fclose(file);
    ucs_config_parse_config_file(folder, "options.conf", 1);
    options = filled("TESTF_", NULL);
    CHECK(strcmp(options.text, "x #\xe4=y") == 0 && options.number == 7 && options.size == 8192);
    CHECK(options.list.count == 2 && strcmp(options.list.names[0], "a;b:c") == 0 && strcmp(options.list.names[1], ";d") == 0);
    CHECK(options.allowed.array.count == 2 && strcmp(options.other.text, "") == 0);
    CHECK(strcmp(options.inherited.text, ": more") == 0);
    ucs_config_parser_release_opts(&options, fields);
    unlink(path);
    rmdir(folder);
}

int main(int argc, char **argv)
{
    is_ucx = argc > 1;
    defaults();
    environment();
    names();
    prints();
    types();
    searches();
    bytes();
    files();
    ucs_config_parser_print_env_vars_once("TESTB_");
    return 0;
}

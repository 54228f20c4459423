/*
 * Types with parents, initialization that is done once, messages, and places of profiles: macros of headers of ucs that
 * call the library. With an argument it runs on UCX.
 */
#include "check_macro.h"
#include <signal.h>
#include <string.h>
#include <ucs/debug/log_def.h>
#include <ucs/debug/memtrack.h>
#include <ucs/debug/debug.h>
#include <ucs/profile/profile_on.h>
#include <ucs/type/class.h>
#include <ucs/type/init_once.h>

typedef struct {
    int sides;
} shape_t;

typedef struct {
    shape_t    super;
    const char *name;
} named_t;

typedef struct {
    named_t super;
    double  length;
} square_t;

static char made[32];
static int refuses;

static void note(char letter)
{
    made[strlen(made)] = letter;
}

static UCS_CLASS_INIT_FUNC(shape_t, int sides)
{
    if (refuses == 1) {
        return UCS_ERR_NO_DEVICE;
    }
    self->sides = sides;
    note('s');
    return UCS_OK;
}

static UCS_CLASS_CLEANUP_FUNC(shape_t)
{
    CHECK(self->sides > 0);
    note('S');
}

UCS_CLASS_DEFINE(shape_t, void)

UCS_CLASS_DECLARE(named_t, int, const char*)

UCS_CLASS_INIT_FUNC(named_t, int sides, const char *name)
{
    UCS_CLASS_CALL_SUPER_INIT(shape_t, sides);
    if (refuses == 2) {
        return UCS_ERR_BUSY;
    }
    self->name = name;
    note('n');
    return UCS_OK;
}

static UCS_CLASS_CLEANUP_FUNC(named_t)
{
    CHECK(self->name != NULL);
    note('N');
}

UCS_CLASS_DEFINE(named_t, shape_t)
UCS_CLASS_DEFINE_NEW_FUNC(named_t, shape_t, int, const char*)
UCS_CLASS_DEFINE_DELETE_FUNC(named_t, shape_t)

static UCS_CLASS_INIT_FUNC(square_t, double length)
{
    UCS_CLASS_CALL_SUPER_INIT(named_t, 4, "square");
    if (refuses == 3) {
        return UCS_ERR_TIMED_OUT;
    }
    self->length = length;
    note('q');
    return UCS_OK;
}

static UCS_CLASS_CLEANUP_FUNC(square_t)
{
    CHECK(self->length > 0);
    note('Q');
}

UCS_CLASS_DEFINE(square_t, named_t)
static UCS_CLASS_DEFINE_NAMED_NEW_FUNC(new_square, square_t, shape_t, double)
static UCS_CLASS_DEFINE_NAMED_DELETE_FUNC(delete_square, square_t, shape_t)

static int made_is(const char *wanted)
{
    int is = strcmp(made, wanted) == 0;

    memset(made, 0, sizeof(made));
    return is;
}

static void objects_have_all_their_parents(void)
{
    shape_t *shape = NULL;
    square_t place, *square;
    named_t named;

    CHECK(named_t_new(3, "triangle", &shape) == UCS_OK && made_is("sn"));
    CHECK(shape->sides == 3 && strcmp(ucs_derived_of(shape, named_t)->name, "triangle") == 0);
    named_t_delete(shape);
    CHECK(made_is("NS"));

    CHECK(new_square(2.5, &shape) == UCS_OK && made_is("snq"));
    square = (square_t*)shape;
    CHECK(square->length == 2.5 && strcmp(square->super.name, "square") == 0 && square->super.super.sides == 4);
    delete_square(shape);
    CHECK(made_is("QNS"));

    CHECK(UCS_CLASS_INIT(square_t, &place, 1.0) == UCS_OK && made_is("snq"));
    UCS_CLASS_CLEANUP(square_t, &place);
    CHECK(made_is("QNS"));
    CHECK(UCS_CLASS_NEW(square_t, &square, 4.0) == UCS_OK && made_is("snq") && square->length == 4.0);
    UCS_CLASS_CLEANUP_CALL(&UCS_CLASS_NAME(square_t), square);
    ucs_class_free(square);
    CHECK(made_is("QNS"));

    /* What was made before the failure is undone. */
    refuses = 1;
    CHECK(new_square(1, &shape) == UCS_ERR_NO_DEVICE && shape == NULL && made_is(""));
    refuses = 2;
    CHECK(new_square(1, &shape) == UCS_ERR_BUSY && shape == NULL && made_is("sS"));
    CHECK(UCS_CLASS_INIT(named_t, &named, 5, "x") == UCS_ERR_BUSY && made_is("sS"));
    refuses = 3;
    CHECK(UCS_CLASS_NEW(square_t, &square, 1.0) == UCS_ERR_TIMED_OUT && square == NULL && made_is("snNS"));
    refuses = 0;
    CHECK(strcmp(square_t_class.name, "square_t") == 0 && square_t_class.size == sizeof(square_t));
    CHECK(square_t_class.superclass == &named_t_class && shape_t_class.superclass == &void_class);
}

static ucs_init_once_t once = UCS_INIT_ONCE_INITIALIZER;
static int begun;

static void *begin(void *arg)
{
    int i;

    for (i = 0; i < 1000; i++) {
        UCS_INIT_ONCE(&once) {
            begun++;
            if (begun < 10) {
                continue;
            }
            begun = 1000;
        }
    }
    return arg;
}

static void initialization_is_done_once(void)
{
    pthread_t threads[4];
    int i;

    for (i = 0; i < 4; i++) {
        CHECK(pthread_create(&threads[i], NULL, begin, NULL) == 0);
    }
    for (i = 0; i < 4; i++) {
        CHECK(pthread_join(threads[i], NULL) == 0);
    }
    CHECK(begun == 1);
    for (i = 0; i < 2; i++) {
        UCS_CLEANUP_ONCE(&once) {
            begun += 10;
        }
    }
    CHECK(begun == 11);
    begin(NULL);
    CHECK(begun == 1000);
}

static int evaluated(void)
{
    return ++begun;
}

static void messages_have_levels(void)
{
    ucs_log_component_config_t component = {UCS_LOG_LEVEL_INFO, "SHAPES", "*"};

    begun = 0;
    ucs_log_component(UCS_LOG_LEVEL_INFO, &component, "a message of a component, number %d", evaluated());
    ucs_log_component(UCS_LOG_LEVEL_DEBUG, &component, "hidden %d", evaluated());
    CHECK(begun == 1 && ucs_log_component_is_enabled(UCS_LOG_LEVEL_WARN, &component));
    ucs_error("an error of the program, number %d", evaluated());
    ucs_warn("a warning of the program");
    ucs_debug("hidden %d", evaluated());
    ucs_trace_func("hidden=%d", evaluated());
    ucs_print("hidden %d", evaluated());
    CHECK(begun == 2 && ucs_log_is_enabled(UCS_LOG_LEVEL_ERROR) && !ucs_log_is_enabled(UCS_LOG_LEVEL_DEBUG));
    CHECK(ucs_global_opts_set_value("LOG_LEVEL", "error") == UCS_OK && !ucs_log_is_enabled(UCS_LOG_LEVEL_WARN));
    ucs_warn("hidden");
    CHECK(ucs_global_opts_set_value("LOG_LEVEL", "warn") == UCS_OK && ucs_log_is_enabled(UCS_LOG_LEVEL_WARN));
    CHECK(ucs_global_opts_set_value("MEMTYPE_CACHE", "n") == UCS_OK);
    CHECK(ucs_global_opts_set_value("NO_SUCH_OPTION", "n") == UCS_ERR_NO_ELEM);
    ucs_log_flush();
    CHECK(ucs_log_get_buffer_size() >= 1024 && strcmp(ucs_log_level_names[UCS_LOG_LEVEL_WARN], "WARN") == 0);
}

UCS_PROFILE_FUNC(int, profiled, (a, b), int a, int b)
{
    return a * b;
}

UCS_PROFILE_FUNC_VOID(profiled_void, (a), int *a)
{
    ++*a;
}

static void profiles_change_nothing(void)
{
    ucs_profile_context_t *profile = (ucs_profile_context_t*)&begun;
    int i, number = 5;

    CHECK(ucs_profile_init(0, "", 0, &profile) == UCS_OK);
    for (i = 0; i < 2; i++) {
        CHECK(profiled(2, 3) == 6);
        profiled_void(&number);
        UCS_PROFILE_CODE("code") {
            number += 10;
        }
        UCS_PROFILE_SAMPLE("sample");
        number = UCS_PROFILE_CALL(profiled, number, 1);
        UCS_PROFILE_CALL_VOID(profiled_void, &number);
        UCS_PROFILE_REQUEST_NEW(&number, "new", 1);
        UCS_PROFILE_REQUEST_EVENT(&number, "event", 1);
        UCS_PROFILE_REQUEST_FREE(&number);
    }
    CHECK(number == 29);
    ucs_profile_cleanup(profile);
}

int main(void)
{
    objects_have_all_their_parents();
    initialization_is_done_once();
    messages_have_levels();
    profiles_change_nothing();
    ucs_memtrack_allocated(made, sizeof(made), "made");
    ucs_memtrack_releasing(made);
    ucs_debug_disable_signal(SIGUSR2);
    return 0;
}

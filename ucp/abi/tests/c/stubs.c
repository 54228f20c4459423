/*
 * The libraries beside libucp.so.0 are opened and closed first, in every order: each finds the functions of UCX, and
 * the library works afterwards.
 */
#include "check_macro.h"

#include <dlfcn.h>
#include <signal.h>
#include <string.h>
#include <ucp/api/ucp.h>
#include <uct/api/uct.h>

static const char *const names[] = {"libuct.so.0", "libucs.so.0", "libucm.so.0", "libucp.so.0"};

static void *symbol(void *library, const char *name)
{
    void *found = dlsym(library, name);

    CHECK(found != NULL);
    return found;
}

/* One function of each of UCX's libraries, found by a handle. */
static void use(void *library)
{
    const char *(*text)(ucs_status_t)                            = symbol(library, "ucs_status_string");
    ucs_status_t (*query)(uct_component_h **, unsigned *)        = symbol(library, "uct_query_components");
    void (*release)(uct_component_h *)                           = symbol(library, "uct_release_component_list");
    void (*unmapped)(void *, size_t)                             = symbol(library, "ucm_vm_munmap");
    ucs_status_t (*read)(const char *, const char *, ucp_config_t **) = symbol(library, "ucp_config_read");
    void (*free_config)(ucp_config_t *)                          = symbol(library, "ucp_config_release");
    uct_component_h *components;
    ucp_config_t *config;
    unsigned count;

    CHECK(strcmp(text(UCS_OK), "Success") == 0);
    CHECK(query(&components, &count) == UCS_OK && count > 0);
    release(components);
    unmapped(components, 0);
    CHECK(read(NULL, NULL, &config) == UCS_OK);
    free_config(config);
}

/* The number of an order of four, as digits. */
static int is_order(int number, int *order)
{
    int i, seen = 0;

    for (i = 0; i < 4; i++, number /= 4) {
        order[i] = number % 4;
        seen |= 1 << order[i];
    }
    return seen == 15;
}

/* What becomes of each signal, and the mask of this thread. */
typedef struct {
    struct sigaction actions[NSIG];
    sigset_t mask;
} signals_t;

static void note_signals(signals_t *to)
{
    int number;

    memset(to, 0, sizeof(*to));
    for (number = 1; number < NSIG; number++) {
        sigaction(number, NULL, &to->actions[number]);
    }
    sigprocmask(SIG_SETMASK, NULL, &to->mask);
}

/* Neither loading nor use changes what becomes of a signal. */
static void check_signals(const signals_t *before)
{
    signals_t now;
    int number;

    note_signals(&now);
    for (number = 1; number < NSIG; number++) {
        CHECK(now.actions[number].sa_handler == before->actions[number].sa_handler);
        CHECK(now.actions[number].sa_flags == before->actions[number].sa_flags);
        CHECK(sigismember(&now.mask, number) == sigismember(&before->mask, number));
    }
}

int main(int argc, char **argv)
{
    signals_t before;
    int opened, closed, to_open[4], to_close[4], i;

    /* A process for each order of opening would be the first time for each: the arguments name one. */
    CHECK(argc == 2);
    opened = atoi(argv[1]);
    CHECK(is_order(opened, to_open));
    note_signals(&before);
    for (closed = 0; closed < 256; closed++) {
        void *libraries[4];

        if (!is_order(closed, to_close)) {
            continue;
        }
        for (i = 0; i < 4; i++) {
            libraries[to_open[i]] = dlopen(names[to_open[i]], RTLD_NOW | RTLD_LOCAL);
            CHECK(libraries[to_open[i]] != NULL);
            use(libraries[to_open[i]]);
            check_signals(&before);
        }
        for (i = 0; i < 4; i++) {
            use(libraries[to_close[i]]);
            CHECK(dlclose(libraries[to_close[i]]) == 0);
        }
    }
    return 0;
}

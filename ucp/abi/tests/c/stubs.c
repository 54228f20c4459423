/*
 * The libraries beside libucp.so.0 are opened and closed first, in every order: each finds the functions of UCX, and
 * the library works afterwards.
 */
#include "check_macro.h"

#include <dlfcn.h>
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

int main(int argc, char **argv)
{
    int opened, closed, to_open[4], to_close[4], i;

    /* A process for each order of opening would be the first time for each: the arguments name one. */
    CHECK(argc == 2);
    opened = atoi(argv[1]);
    CHECK(is_order(opened, to_open));
    for (closed = 0; closed < 256; closed++) {
        void *libraries[4];

        if (!is_order(closed, to_close)) {
            continue;
        }
        for (i = 0; i < 4; i++) {
            libraries[to_open[i]] = dlopen(names[to_open[i]], RTLD_NOW | RTLD_LOCAL);
            CHECK(libraries[to_open[i]] != NULL);
            use(libraries[to_open[i]]);
        }
        for (i = 0; i < 4; i++) {
            use(libraries[to_close[i]]);
            CHECK(dlclose(libraries[to_close[i]]) == 0);
        }
    }
    return 0;
}

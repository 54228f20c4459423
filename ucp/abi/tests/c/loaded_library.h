/* Which UCX an MPI or OpenSHMEM program has loaded. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Whether the program's UCX is the file that EXPECT_LIBRARY names (a part of its path), and no other is mapped. */
static int is_expected_library(void)
{
    const char *expected = getenv("EXPECT_LIBRARY");
    FILE *maps           = fopen("/proc/self/maps", "r");
    int found = 0, others = 0;
    char line[1024];

    if (maps == NULL) {
        return 0;
    }
    while (expected != NULL && fgets(line, sizeof(line), maps) != NULL) {
        if (strstr(line, "libucp") != NULL) {
            *(strstr(line, expected) != NULL ? &found : &others) = 1;
        }
    }
    fclose(maps);
    return expected == NULL || (found && !others);
}

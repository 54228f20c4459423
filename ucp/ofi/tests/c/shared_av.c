/* Address vectors with a name: one process inserts, another one sends by the same numbers. What a killed process
 * leaves is gone with the next domain. Links to the system's libfabric, which loads the provider from FI_PROVIDER_PATH. */
#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>
#include <rdma/fi_tagged.h>

#include "ends.h"

enum { TAG = 5 };

static char name[64], prefix[64], in[64];
static int to_child[2], to_parent[2];

static void tell(int pipe[2])
{
    CHECK(write(pipe[1], "", 1) == 1);
}

static void await(int pipe[2])
{
    char byte;
    CHECK(read(pipe[0], &byte, 1) == 1);
}

/* Files of vectors whose names begin as this program's. */
static int files(void)
{
    DIR *folder = opendir("/dev/shm");
    struct dirent *file;
    int found = 0;
    CHECK(folder);
    while ((file = readdir(folder)))
        found += strstr(file->d_name, prefix) != NULL;
    closedir(folder);
    return found;
}

/* Opens the vector to read in the domain that is open. */
static int open_to_read(struct fid_av **av)
{
    struct fi_av_attr attr = { .type = FI_AV_TABLE, .name = name, .flags = FI_READ };
    return fi_av_open(domain, &attr, av, NULL);
}

/* Inserts, and is killed. */
static void killed(int argc, char **argv)
{
    fi_addr_t number;
    alarm(60);
    open_ends(FI_TAGGED | FI_SHARED_AV, argc, argv);
    IS(fi_av_insert(b.av, a.name, 1, &number, 0, NULL), 1);
    IS(number, 0);
    tell(to_parent);
    for (;;)
        pause();
}

/* Opens a domain, which removes what killed processes have left. */
static void opener_of_a_domain(int argc, char **argv)
{
    open_domain(FI_TAGGED, argc, argv);
    CHECK(files() == 0);
    close_domain();
    exit(0);
}

/* Opens the vector to read, and sends to its first address. */
static void reader(int argc, char **argv)
{
    struct fi_cq_tagged_entry entry;
    char found[1024];
    size_t len = sizeof(found);
    fi_addr_t number = 0;

    alarm(60);
    await(to_child);
    av_attr.flags = FI_READ;
    open_ends(FI_TAGGED | FI_SHARED_AV, argc, argv);
    CHECK(av_attr.map_addr);
    number = ((fi_addr_t *)av_attr.map_addr)[0];
    IS(fi_av_insert(a.av, a.name, 1, &number, 0, NULL), -FI_EACCES);
    IS(fi_av_remove(a.av, &number, 1, 0), -FI_EACCES);
    IS(fi_av_lookup(a.av, 1, found, &len), -FI_EINVAL);
    tell(to_parent);
    await(to_child);
    len = sizeof(found);
    OK(fi_av_lookup(a.av, 1, found, &len));
    OK(fi_tsend(a.ep, "hello", 6, NULL, number, TAG, NULL));
    IS(next_of(&a, &entry, NULL), 1);
    await(to_child);
    close_ends();
    exit(0);
}

int main(int argc, char **argv)
{
    struct fi_cq_tagged_entry entry;
    struct fid_av *av;
    struct fi_av_attr unnamed = { .flags = FI_READ };
    char in_name[1024];
    size_t in_len = sizeof(in_name);
    fi_addr_t number;
    pid_t first, second;
    int status;

    snprintf(name, sizeof(name), "vector %d", (int)getpid());
    snprintf(prefix, sizeof(prefix), "vector%%20%d", (int)getpid());
    av_attr.name = name;
    CHECK(!pipe(to_child) && !pipe(to_parent));
    if ((first = fork()) == 0)
        killed(argc, argv);
    await(to_parent);
    CHECK(files() == 1);
    if ((second = fork()) == 0)
        reader(argc, argv);
    kill(first, SIGKILL);
    CHECK(waitpid(first, &status, 0) == first);
    CHECK(files() == 1);
    if ((first = fork()) == 0)
        opener_of_a_domain(argc, argv);
    CHECK(waitpid(first, &status, 0) == first && status == 0);
    CHECK(files() == 0);

    open_ends(FI_TAGGED | FI_SHARED_AV, argc, argv);
    CHECK(info->caps & FI_SHARED_AV && info->domain_attr->caps & FI_SHARED_AV);
    CHECK(((fi_addr_t *)av_attr.map_addr)[3] == 3);
    IS(fi_av_open(domain, &unnamed, &av, NULL), -FI_EINVAL);
    OK(open_to_read(&av));
    OK(fi_close(&av->fid));
    IS(fi_av_insert(a.av, a.name, 1, &number, 0, NULL), 1);
    IS(number, 0);

    tell(to_child);
    await(to_parent);
    /* A user that is stopped keeps nobody waiting. */
    kill(second, SIGSTOP);
    OK(fi_av_lookup(a.av, 0, in_name, &in_len));
    OK(open_to_read(&av));
    OK(fi_close(&av->fid));
    IS(fi_av_insert(b.av, b.name, 1, &number, 0, NULL), 1);
    IS(number, 1);
    kill(second, SIGCONT);
    OK(fi_trecv(a.ep, in, sizeof(in), NULL, FI_ADDR_UNSPEC, TAG, 0, in));
    tell(to_child);
    IS(next_of(&a, &entry, NULL), 1);
    CHECK(entry.tag == TAG && !strcmp(in, "hello"));
    close_ends();
    tell(to_child);
    CHECK(waitpid(second, &status, 0) == second && status == 0);
    CHECK(files() == 0);
    printf("ok\n");
    return 0;
}

/* A verbs program for the tests of softefa (tests/tests/softefa_edges.rs): what programs do at the edge of the contract, where a
 * NIC answers with a status and no program crashes or hangs. One scene per argument. */
#include "verbs_common.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/time.h>

static const uint8_t constant[4096] = {1};

/* Memory that may not be written is registered for reading only. */
static void scene_readonly(void) {
    CHECK(!ibv_reg_mr(pd, (void *)constant, sizeof(constant), IBV_ACCESS_LOCAL_WRITE) && errno == EFAULT);
    struct ibv_mr *read = ibv_reg_mr(pd, (void *)constant, sizeof(constant), 0);
    CHECK(read && ibv_dereg_mr(read) == 0);
    long page = sysconf(_SC_PAGESIZE);
    uint8_t *room = mmap(NULL, 3 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(room != MAP_FAILED);
    CHECK(mprotect(room + page, page, PROT_READ) == 0);
    CHECK(!ibv_reg_mr(pd, room, 3 * page, IBV_ACCESS_LOCAL_WRITE) && errno == EFAULT);
    CHECK(!ibv_reg_mr(pd, room, 3 * page, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE) && errno == EFAULT);
    CHECK(munmap(room + page, page) == 0);
    CHECK(!ibv_reg_mr(pd, room, 3 * page, 0) && errno == EFAULT);
    struct ibv_mr *first = ibv_reg_mr(pd, room, page, IBV_ACCESS_LOCAL_WRITE);
    CHECK(first && ibv_dereg_mr(first) == 0 && munmap(room, 3 * page) == 0);
}

static struct side polled_side;

/* What a library's exit handler does. */
static void close_all(void) {
    ibv_destroy_qp(polled_side.qp);
    ibv_destroy_cq(polled_side.cq);
    ibv_destroy_ah(ah);
    ibv_dereg_mr(mr);
    ibv_dealloc_pd(pd);
    ibv_close_device(ctx);
}

static void leave(int signal) {
    (void)signal;
    exit(0);
}

/* exit() from a signal handler that interrupts a poll, hundreds of times. */
static void scene_exits(void) {
    for (int i = 0; i < 100; i++) {
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            open_device();
            polled_side = open_side(IBV_QPT_DRIVER, 7);
            CHECK(atexit(close_all) == 0 && signal(SIGALRM, leave) != SIG_ERR);
            struct itimerval timer = {.it_value = {.tv_usec = 1000 + 37 * i}};
            CHECK(setitimer(ITIMER_REAL, &timer, NULL) == 0);
            for (;;)
                nothing(polled_side);
        }
        int status = -1;
        CHECK(waitpid(child, &status, 0) == child && status == 0);
    }
}

int main(int argc, char **argv) {
    const char *scene = argc > 1 ? argv[1] : "";
    open_device();
    if (!strcmp(scene, "readonly"))
        scene_readonly();
    else if (!strcmp(scene, "exits"))
        scene_exits();
    else
        CHECK(!"a scene");
    close_device();
    return 0;
}

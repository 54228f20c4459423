/* Part of the C interface of this project (docs/abi.md). Source compatible with programs written for UCX 1.13 to 1.23. */
#ifndef UCS_TYPE_INIT_ONCE_H_
#define UCS_TYPE_INIT_ONCE_H_

#include <pthread.h>

/* What is done once, and undone once, whichever thread comes first. */
typedef struct ucs_init_once {
    pthread_mutex_t lock;
    int             initialized;
} ucs_init_once_t;

#define UCS_INIT_ONCE_INITIALIZER \
    { \
        PTHREAD_MUTEX_INITIALIZER, 0 \
    }

/* Unlocks a mutex, and returns 0. */
static inline unsigned ucs_init_once_mutex_unlock(pthread_mutex_t *lock)
{
    (void)pthread_mutex_unlock(lock);
    return 0;
}

/*
 * Before a body that runs with the lock taken, and not again. `continue` ends it. `break` and `return` must not: they
 * would leave the lock taken.
 */
#define UCS_INIT_ONCE(_once) \
    for (pthread_mutex_lock(&(_once)->lock); \
         ((_once)->initialized == 0) || ucs_init_once_mutex_unlock(&(_once)->lock); (_once)->initialized = 1)

/* Before a body that runs if that of UCS_INIT_ONCE has, and makes it run again. */
#define UCS_CLEANUP_ONCE(_once) \
    for (pthread_mutex_lock(&(_once)->lock); \
         ((_once)->initialized != 0) || ucs_init_once_mutex_unlock(&(_once)->lock); (_once)->initialized = 0)

#endif

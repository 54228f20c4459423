/* Part of the C interface of this project (docs/abi.md). Source compatible with programs for UCX 1.13. */
#ifndef UCS_TYPE_SPINLOCK_H_
#define UCS_TYPE_SPINLOCK_H_

#include <ucs/async/async_fwd.h>
#include <ucs/sys/compiler_def.h>
#include <ucs/type/status.h>
#include <pthread.h>

enum {
    UCS_SPINLOCK_FLAG_SHARED = UCS_BIT(0)
};

typedef struct ucs_spinlock {
    pthread_spinlock_t lock;
} ucs_spinlock_t;

/* A lock that its owner may take again. */
typedef struct ucs_recursive_spinlock {
    ucs_spinlock_t super;
    int            count;
    pthread_t      owner;
} ucs_recursive_spinlock_t;

#ifdef __cplusplus
extern "C" {
#endif

void ucs_spinlock_destroy(ucs_spinlock_t *lock);
void ucs_recursive_spinlock_destroy(ucs_recursive_spinlock_t *lock);
int ucs_spinlock_is_held(ucs_spinlock_t *lock);
int ucs_recursive_spinlock_is_held(const ucs_recursive_spinlock_t *lock);

#ifdef __cplusplus
}
#endif

static inline ucs_status_t ucs_spinlock_init(ucs_spinlock_t *lock, int flags)
{
    int is_shared = (flags & UCS_SPINLOCK_FLAG_SHARED) ? PTHREAD_PROCESS_SHARED : PTHREAD_PROCESS_PRIVATE;

    return pthread_spin_init(&lock->lock, is_shared) == 0 ? UCS_OK : UCS_ERR_IO_ERROR;
}

static inline void ucs_spin_lock(ucs_spinlock_t *lock)
{
    pthread_spin_lock(&lock->lock);
}

static inline int ucs_spin_try_lock(ucs_spinlock_t *lock)
{
    return pthread_spin_trylock(&lock->lock) == 0;
}

static inline void ucs_spin_unlock(ucs_spinlock_t *lock)
{
    pthread_spin_unlock(&lock->lock);
}

static inline ucs_status_t ucs_recursive_spinlock_init(ucs_recursive_spinlock_t *lock, int flags)
{
    lock->owner = UCS_ASYNC_PTHREAD_ID_NULL;
    lock->count = 0;
    return ucs_spinlock_init(&lock->super, flags);
}

static inline int ucs_recursive_spin_is_owner(const ucs_recursive_spinlock_t *lock, pthread_t self)
{
    return lock->owner == self;
}

static inline int ucs_recursive_spin_trylock(ucs_recursive_spinlock_t *lock)
{
    pthread_t self = pthread_self();

    if (!ucs_recursive_spin_is_owner(lock, self)) {
        if (!ucs_spin_try_lock(&lock->super)) {
            return 0;
        }
        lock->owner = self;
    }
    lock->count++;
    return 1;
}

static inline void ucs_recursive_spin_lock(ucs_recursive_spinlock_t *lock)
{
    pthread_t self = pthread_self();

    if (!ucs_recursive_spin_is_owner(lock, self)) {
        ucs_spin_lock(&lock->super);
        lock->owner = self;
    }
    lock->count++;
}

static inline void ucs_recursive_spin_unlock(ucs_recursive_spinlock_t *lock)
{
    if (--lock->count == 0) {
        lock->owner = UCS_ASYNC_PTHREAD_ID_NULL;
        ucs_spin_unlock(&lock->super);
    }
}

#endif

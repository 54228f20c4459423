//! Locks of programs, which inline functions of UCX's header make and take.

use std::ffi::c_int;

use crate::entry::invalid;

/// `ucs_spinlock_t`.
#[repr(C)]
pub(crate) struct Spinlock {
    lock: libc::pthread_spinlock_t,
}

/// `ucs_recursive_spinlock_t`.
#[repr(C)]
pub(crate) struct RecursiveSpinlock {
    lock: Spinlock,
    count: c_int,
    owner: libc::pthread_t,
}

/// Destroys a lock.
///
/// # Safety
/// The lock is the caller's, or null.
unsafe fn destroy(lock: *mut Spinlock) -> Result<(), ::ucs::Status> {
    if lock.is_null() {
        return Err(invalid("a lock is null"));
    }
    // SAFETY: the contract of this function.
    match unsafe { libc::pthread_spin_destroy(&raw mut (*lock).lock) } {
        0 => {}
        error => tracing::warn!("a lock is not destroyed: error {error}"),
    }
    Ok(())
}

entry! {
    /// 1 if somebody holds a lock, which is taken and let go to find out; 0 if nobody does.
    fn ucs_spinlock_is_held(lock: *mut Spinlock) -> c_int {
        if lock.is_null() {
            return Err(invalid("a lock is null"));
        }
        // SAFETY: the lock is the caller's.
        let word = unsafe { &raw mut (*lock).lock };
        // SAFETY: as above.
        if unsafe { libc::pthread_spin_trylock(word) } != 0 {
            return Ok(1);
        }
        // SAFETY: as above; this thread holds it.
        unsafe { libc::pthread_spin_unlock(word) };
        Ok(0)
    }

    /// 1 if the calling thread holds a lock that its owner may take again, else 0.
    fn ucs_recursive_spinlock_is_held(lock: *const RecursiveSpinlock) -> c_int {
        if lock.is_null() {
            return Err(invalid("a lock is null"));
        }
        // Another thread may take the lock meanwhile: it writes its own name, which is not this thread's.
        // SAFETY: the lock is the caller's.
        let owner = unsafe { (&raw const (*lock).owner).read_volatile() };
        // SAFETY: it has no preconditions.
        Ok(c_int::from(owner == unsafe { libc::pthread_self() }))
    }

    /// Destroys a lock.
    fn ucs_spinlock_destroy(lock: *mut Spinlock) {
        // SAFETY: the lock is the caller's, or null.
        unsafe { destroy(lock) }
    }

    /// Destroys a lock that its owner may take again, and which should have none.
    fn ucs_recursive_spinlock_destroy(lock: *mut RecursiveSpinlock) {
        // SAFETY: as above.
        if unsafe { lock.as_ref() }.is_some_and(|lock| lock.count != 0) {
            tracing::warn!("ucs_recursive_spinlock_destroy: the lock is held");
        }
        // SAFETY: as above; the inner lock is at the beginning.
        unsafe { destroy(lock.cast()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_holds_a_lock_is_told() {
        // SAFETY: the locks are of this test, and made before they are asked for.
        unsafe {
            let mut lock: RecursiveSpinlock = std::mem::zeroed();
            let inner = &raw mut lock.lock;
            libc::pthread_spin_init(&raw mut (*inner).lock, 0);
            assert_eq!((ucs_spinlock_is_held(inner), ucs_recursive_spinlock_is_held(&lock)), (0, 0));
            libc::pthread_spin_lock(&raw mut (*inner).lock);
            (&raw mut lock.owner).write(libc::pthread_self());
            assert_eq!((ucs_spinlock_is_held(inner), ucs_recursive_spinlock_is_held(&lock)), (1, 1));
            libc::pthread_spin_unlock(&raw mut (*inner).lock);
            (&raw mut lock.owner).write(0);
            assert_eq!((ucs_spinlock_is_held(inner), ucs_recursive_spinlock_is_held(&lock)), (0, 0));
        }
    }

    #[test]
    fn layouts_are_those_of_the_headers() {
        let source = format!(
            "#include <stddef.h>\n#include <ucs/sys/compiler_def.h>\n#include <ucs/type/spinlock.h>\n\
             _Static_assert(sizeof(ucs_spinlock_t) == {}, \"\");\n\
             _Static_assert(sizeof(ucs_recursive_spinlock_t) == {}, \"\");\n\
             _Static_assert(offsetof(ucs_recursive_spinlock_t, owner) == {}, \"\");\n",
            size_of::<Spinlock>(),
            size_of::<RecursiveSpinlock>(),
            std::mem::offset_of!(RecursiveSpinlock, owner)
        );
        crate::layout::assert_compiles("/usr/include/ucs/type/spinlock.h", &source);
    }
}

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
    /// Destroys a lock.
    fn ucs_spinlock_destroy(lock: *mut Spinlock) {
        // SAFETY: the lock is the caller's, or null.
        unsafe { destroy(lock) }
    }

    /// Destroys a lock that its owner may take again, and which should have none.
    fn ucs_recursive_spinlock_destroy(lock: *mut RecursiveSpinlock) {
        // SAFETY: as above.
        if unsafe { lock.as_ref() }.is_some_and(|lock| lock.count != 0) {
            tracing::warn!("a lock that is held is destroyed");
        }
        // SAFETY: as above; the inner lock is at the beginning.
        unsafe { destroy(lock.cast()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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

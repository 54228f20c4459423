//! Functions of `libucm`: notifications of unmapped memory. This library gets them from the kernel
//! (userfaultfd), so it patches no function and needs no reports. `ucm_mmap` and the like call the C library.

use std::ffi::{c_char, c_int, c_void};

use ::ucs::Status;
use libc::{off_t, size_t};

use crate::entry::CStatus;

entry! {
    /// Announces events that the program will report. Keeps the module that calls in memory: some are
    /// unloaded while a hook of theirs is still called. A module whose last call this is, by a jump, is not
    /// on the stack: its caller is kept in its place.
    fn ucm_set_external_event(_events: c_int) {
        pin_caller();
        Ok(())
    }

    /// Withdraws the announcement.
    fn ucm_unset_external_event(_events: c_int) {
        Ok(())
    }

    /// Whether events are reported: all are, by the kernel.
    fn ucm_test_events(_events: c_int) -> CStatus {
        Ok(())
    }

    /// Whether events that the program reports arrive: none is needed.
    fn ucm_test_external_events(_events: c_int) -> CStatus {
        Ok(())
    }
}

entry! {
    /// Takes options of UCX's hooks. There are no hooks: nothing changes.
    fn ucm_set_global_opts(_options: *const c_void) {
        Ok(())
    }

    /// Not supported: no function is patched, so that nobody can be told of a call.
    fn ucm_set_event_handler(events: c_int, _priority: c_int, _cb: *const c_void, _arg: *mut c_void) -> CStatus {
        crate::log::init_from_env();
        tracing::error!("ucm_set_event_handler: events {events:#x}: nothing is patched, so that none is reported");
        Err(Status::Unsupported)
    }

    /// There is no handler to take away.
    fn ucm_unset_event_handler(_events: c_int, _cb: *const c_void, _arg: *mut c_void) {
        Ok(())
    }
}

/// Functions of the C library under two names of UCX each.
macro_rules! forward {
    ($($name:ident $orig:ident = $function:ident($($arg:ident: $T:ty),*) -> $Ret:ty;)+) => {$(
        #[doc = concat!("`", stringify!($function), "` of the C library.")]
        #[unsafe(no_mangle)]
        pub(crate) unsafe extern "C" fn $name($($arg: $T),*) -> $Ret {
            // SAFETY: the caller's contract is that of the C library's function.
            unsafe { libc::$function($($arg),*) }
        }

        #[doc = concat!("`", stringify!($function), "` of the C library.")]
        #[unsafe(no_mangle)]
        pub(crate) unsafe extern "C" fn $orig($($arg: $T),*) -> $Ret {
            // SAFETY: the caller's contract is that of the C library's function.
            unsafe { libc::$function($($arg),*) }
        }
    )+};
}

forward! {
    ucm_mmap ucm_orig_mmap = mmap(at: *mut c_void, length: size_t, prot: c_int, flags: c_int, fd: c_int, offset: off_t) -> *mut c_void;
    ucm_munmap ucm_orig_munmap = munmap(at: *mut c_void, length: size_t) -> c_int;
    // The program's variable argument, the new address, is read only with the flag that says it is there.
    ucm_mremap ucm_orig_mremap = mremap(at: *mut c_void, old: size_t, new: size_t, flags: c_int, to: *mut c_void) -> *mut c_void;
    ucm_shmat ucm_orig_shmat = shmat(id: c_int, at: *const c_void, flags: c_int) -> *mut c_void;
    ucm_shmdt ucm_orig_shmdt = shmdt(at: *const c_void) -> c_int;
    ucm_sbrk ucm_orig_sbrk = sbrk(increment: isize) -> *mut c_void;
    ucm_brk ucm_orig_brk = brk(at: *mut c_void) -> c_int;
    ucm_madvise ucm_orig_madvise = madvise(at: *mut c_void, length: size_t, advice: c_int) -> c_int;
}

/// `dlopen` of the C library.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ucm_dlopen(name: *const c_char, flags: c_int) -> *mut c_void {
    // SAFETY: the caller's contract is that of the C library's function.
    unsafe { libc::dlopen(name, flags) }
}

/// Memory that a hook of the program has mapped: nothing to do.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn ucm_vm_mmap(_address: *mut c_void, _length: usize) {}

/// Memory that a hook of the program has unmapped. Called from inside `free`: does nothing, since
/// registrations of such memory are withdrawn on the kernel's notification.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn ucm_vm_munmap(_address: *mut c_void, _length: usize) {}

/// Marks the module from which this library has been called as one that is not unloaded.
#[inline(never)]
fn pin_caller() {
    let mut trace = [std::ptr::null_mut::<c_void>(); 16];
    // SAFETY: the array has this many entries.
    let count = unsafe { libc::backtrace(trace.as_mut_ptr(), trace.len() as c_int) };
    let ours = module_of(pin_caller as fn() as *const c_void);
    let frames = trace.iter().take(usize::try_from(count).unwrap_or(0));
    let caller = frames.filter_map(|at| module_of(*at)).find(|name| Some(*name) != ours);
    if let Some(name) = caller {
        // SAFETY: the name is the loader's, and valid as long as the module.
        unsafe { libc::dlopen(name, libc::RTLD_LAZY | libc::RTLD_NOLOAD | libc::RTLD_NODELETE) };
    }
}

/// Name of the loaded module at an address.
fn module_of(at: *const c_void) -> Option<*const std::ffi::c_char> {
    // SAFETY: all zeros are a value of the type.
    let mut info: libc::Dl_info = unsafe { std::mem::zeroed() };
    // SAFETY: any address may be asked for.
    let found = unsafe { libc::dladdr(at, &mut info) } != 0;
    found.then_some(info.dli_fname).filter(|name| !name.is_null())
}

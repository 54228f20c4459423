//! Functions of `libucm` that consumers call: news of unmapped memory. The kernel tells this library by
//! itself (userfaultfd), so nothing is patched and nothing has to be told.

use std::ffi::{c_int, c_void};

use crate::entry::CStatus;

entry! {
    /// Announces events that the program will report. Keeps the module that calls in memory: some are
    /// unloaded while a hook of theirs is still called.
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

/// Memory that a hook of the program has unmapped. Called from inside `free`: does nothing, since
/// registrations of such memory are withdrawn by the kernel's news.
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

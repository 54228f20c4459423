//! Threads of the library: small, named, with all signals masked.

#![allow(unsafe_code)]

use std::io;
use std::mem::MaybeUninit;
use std::thread::{Builder, JoinHandle};

use crate::Errno;

/// Starts `body` on a thread with `stack` bytes that takes no signal: those are the program's.
pub fn spawn_masked(
    name: &str,
    stack: usize,
    body: impl FnOnce() + Send + 'static,
) -> Result<JoinHandle<()>, Errno> {
    let mut all = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: `all` is a set of ours; the call initialises it.
    unsafe { libc::sigfillset(all.as_mut_ptr()) };
    let mut before = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: both are sets of ours, `all` initialised above. A new thread begins with its maker's mask.
    let code = unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr()) };
    if code != 0 {
        return Err(Errno(code));
    }
    let made = Builder::new().name(name.into()).stack_size(stack).spawn(body);
    // SAFETY: `before` was initialised by the call above.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), std::ptr::null_mut()) };
    made.map_err(|e: io::Error| Errno(e.raw_os_error().unwrap_or(libc::EAGAIN)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_blocked(signal: i32) -> bool {
        let mut mask = MaybeUninit::<libc::sigset_t>::uninit();
        // SAFETY: `mask` is ours; with no new set the call only reads.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, std::ptr::null(), mask.as_mut_ptr()) };
        // SAFETY: initialised by the call above.
        unsafe { libc::sigismember(mask.as_ptr(), signal) == 1 }
    }

    #[test]
    fn signals_are_masked_in_the_new_thread_only() {
        let thread = spawn_masked("deaf", 1 << 16, || assert!(is_blocked(libc::SIGINT))).unwrap();
        thread.join().unwrap();
        assert!(!is_blocked(libc::SIGINT));
    }
}

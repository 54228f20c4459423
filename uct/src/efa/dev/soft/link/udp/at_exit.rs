//! Goodbye of a process that ends without destroying its queue pairs.
//!
//! A destructor of the module says it, not a handler of `atexit`: it runs behind all of those, also behind
//! one that still speaks to peers, such as a finalize of a runtime.

#![allow(unsafe_code)]

use super::{OPENED, Udp};
use std::panic::catch_unwind;
use std::sync::TryLockError;
use std::time::Duration;
use ucs::sys::proc;

/// Looks at a lock that another thread holds, a millisecond apart: the thread may have been interrupted for
/// good by the handler of a signal that calls `exit`.
const LOOKS: u32 = 50;

#[used]
// SAFETY: the section holds pointers to functions of this type, which the C library calls at the end.
#[unsafe(link_section = ".fini_array")]
static AT_EXIT: extern "C" fn() = at_exit;

extern "C" fn at_exit() {
    // Nobody is left to tell of a panic.
    let _ = catch_unwind(say_goodbye);
}

/// Says goodbye for each NIC of this process. Those in a forked child are its parent's.
pub(super) fn say_goodbye() {
    let opened: Vec<Udp> = match OPENED.try_lock() {
        Ok(opened) => opened.iter().filter(|nic| nic.pid == proc::pid()).map(|nic| nic.udp.clone()).collect(),
        Err(_) => return,
    };
    for udp in opened {
        say_goodbye_of(&udp);
    }
}

fn say_goodbye_of(udp: &Udp) {
    for _ in 0..LOOKS {
        match udp.0.nic.try_lock() {
            Ok(mut nic) => {
                let now = udp.0.now();
                return nic.say_goodbye(now);
            }
            Err(TryLockError::WouldBlock) => std::thread::sleep(Duration::from_millis(1)),
            Err(TryLockError::Poisoned(_)) => return,
        }
    }
}

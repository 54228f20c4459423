//! Goodbye of a process that ends without destroying its queue pairs.
//!
//! A destructor of the module says it, not a handler of `atexit`: it runs behind all of those, also behind
//! one that still speaks to peers, such as a finalize of a runtime.

#![allow(unsafe_code)]

use super::nic::Goodbye;
use super::{OPENED, Udp};
use std::panic::catch_unwind;
use std::sync::TryLockError;
use std::time::{Duration, Instant};
use ucs::sys::proc;

/// Time in which peers acknowledge what they were sent. Meanwhile it is sent again, and nobody does that
/// later. A peer that has heard the goodbye waits for as long. It is also the time in which another thread
/// may hold the lock: the handler of a signal that calls `exit` may have interrupted it for good.
const LINGER: Duration = Duration::from_millis(300);
const LOOK: Duration = Duration::from_millis(1);
/// Time between two tries: the timer of a peer that has acknowledged nothing yet would take 100 ms.
const RESEND: Duration = Duration::from_millis(10);

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
    let mut left: Vec<Leaving> = opened.into_iter().map(|udp| Leaving { udp, tried: None }).collect();
    let start = Instant::now();
    loop {
        let waited = start.elapsed();
        left.retain_mut(|nic| !nic.is_over(waited));
        if left.is_empty() || waited > LINGER {
            return;
        }
        std::thread::sleep(LOOK);
    }
}

/// A NIC of a process that ends.
struct Leaving {
    udp: Udp,
    /// When goodbye was said, or what is not acknowledged was sent again.
    tried: Option<Duration>,
}

impl Leaving {
    /// Sends BYE once everything queued for peers is sent, or half of the time is over. True once peers have
    /// acknowledged it, or all of the time is over. The NIC's thread receives meanwhile.
    fn is_over(&mut self, waited: Duration) -> bool {
        let mut nic = match self.udp.0.nic.try_lock() {
            Ok(nic) => nic,
            Err(TryLockError::WouldBlock) => return false,
            Err(TryLockError::Poisoned(_)) => return true,
        };
        let now = self.udp.0.now();
        match self.tried {
            None if nic.has_sent_all() || waited > LINGER / 2 => {
                nic.say_goodbye(now, Goodbye::All);
                self.tried = Some(waited);
            }
            Some(tried) if !nic.is_acknowledged() && waited > tried + RESEND => {
                nic.resend(now);
                self.tried = Some(waited);
            }
            _ => {}
        }
        let is_over = self.tried.is_some() && (nic.is_acknowledged() || waited > LINGER);
        if is_over {
            // Another thread may have spoken to somebody meanwhile.
            nic.say_goodbye(now, Goodbye::New);
        }
        is_over
    }
}

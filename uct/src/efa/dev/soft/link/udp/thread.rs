//! The NIC's thread. It serves peers while the program computes or sleeps. While the program polls, the
//! program does the work and the thread only looks now and then whether it still does.

use super::Shared;
use crate::api::{Error, OpenError};
use arrayvec::ArrayVec;
use std::os::fd::AsFd;
use std::sync::{Arc, TryLockError};
use std::time::Duration;
use ucs::sys::thread::spawn_masked;

use rustix::event::{PollFd, PollFlags, Timespec};

/// Time without a poll after which the thread takes over the NIC, ns.
pub(super) const IDLE_NS: u64 = 200_000;
/// Time between two looks at a program that polls.
const LOOK: Duration = Duration::from_millis(2);
/// Longest sleep: the program may have made a request meanwhile, with a timer that this sleep does not know.
const LONGEST_NS: u64 = 20_000_000;
const STACK: usize = 256 << 10;

/// Starts the thread of a NIC, which ends with the process.
pub(super) fn start(shared: &Arc<Shared>) -> Result<(), OpenError> {
    let shared = shared.clone();
    let failed = |errno| OpenError::Op(Error::Sys { call: "thread", errno });
    spawn_masked("efa-udp", STACK, move || serve(&shared)).map(drop).map_err(failed)
}

fn serve(shared: &Shared) {
    loop {
        if shared.is_polled(IDLE_NS) {
            std::thread::sleep(LOOK);
            continue;
        }
        let due = {
            // Whoever holds the lock does the work. A thread that waited for it would make each release of it
            // by the program a system call.
            let mut nic = match shared.nic.try_lock() {
                Ok(nic) => nic,
                Err(TryLockError::Poisoned(nic)) => nic.into_inner(),
                Err(TryLockError::WouldBlock) => {
                    std::thread::sleep(LOOK);
                    continue;
                }
            };
            let now = shared.now();
            nic.progress(now);
            nic.next_due().map_or(LONGEST_NS, |due| due.saturating_sub(now)).min(LONGEST_NS)
        };
        wait(shared, due);
    }
}

/// Sleeps until a datagram comes, or for so many nanoseconds.
fn wait(shared: &Shared, ns: u64) {
    let timeout = Timespec { tv_sec: 0, tv_nsec: ns.min(LONGEST_NS) as i64 };
    let fds = shared.sockets.iter().map(|fd| PollFd::from_borrowed_fd(fd.as_fd(), PollFlags::IN));
    let mut fds: ArrayVec<PollFd<'_>, 2> = fds.collect();
    // An error, such as a signal, ends the sleep early.
    let _ = rustix::event::poll(&mut fds, Some(&timeout));
}

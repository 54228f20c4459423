//! Checks whether processes of one user may access each other here, and if not, why and what to do.

#![allow(unsafe_code)]

use super::comp_channel::ShmCompChannel;
use super::lookup::{self, LookupError, QpName};
use crate::efa::dev::Problem;
use crate::efa::dev::soft::link::CompChannel;
use std::fs;
use ucs::Errno;
use ucs::mem::SharedMem;
use ucs::sys::proc::WatchError;
use ucs::sys::{EventFd, PidFd, ProcId, Waker};

/// Capability that overrides the restrictions.
const CAP_SYS_PTRACE: u64 = 1 << 19;

fn may_trace_all() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    effective(&status).is_some_and(|set| set & CAP_SYS_PTRACE != 0)
}

fn effective(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"))?;
    u64::from_str_radix(line.trim(), 16).ok()
}

/// Problem of a system that refuses copies between processes as such, tried on this process.
pub fn refused_copy() -> Option<Problem> {
    let errno = read_own_memory().err()?;
    Some(Problem {
        what: format!("process_vm_readv: {errno}; a seccomp filter forbids it"),
        remedy: "allow process_vm_readv and process_vm_writev in the container's profile",
    })
}

/// Problem that denies access to other processes' memory, needed for RDMA on ordinary memory.
pub fn peer_memory() -> Option<Problem> {
    if let Some(problem) = refused_copy() {
        return Some(problem);
    }
    let scope = fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").unwrap_or_default();
    barred_by_yama(scope.trim(), may_trace_all()).then(|| Problem {
        what: format!("kernel.yama.ptrace_scope is {}", scope.trim()),
        remedy: "sysctl kernel.yama.ptrace_scope=1",
    })
}

/// Scopes 0 and 1 allow processes of one user to copy; 2 needs a capability, 3 forbids it.
fn barred_by_yama(scope: &str, capable: bool) -> bool {
    scope == "3" || (scope == "2" && !capable)
}

/// Problem that hides this process from others, so that no message reaches it.
pub fn own_process() -> Option<Problem> {
    // SAFETY: reads an attribute of this process.
    let dumpable = unsafe { libc::prctl(libc::PR_GET_DUMPABLE, 0, 0, 0, 0) };
    (dumpable == 0).then(|| Problem {
        what: "this process is not dumpable".into(),
        remedy: "it changed its user or called prctl(PR_SET_DUMPABLE, 0): undo that before the device is opened",
    })
}

/// System calls that messages need and this system refuses, as the seccomp profile of a container does. Each
/// is tried once, on this process.
pub fn refused_calls() -> Vec<Problem> {
    type Trial = (&'static str, fn() -> Result<(), String>, &'static str);
    const ALL: [Trial; 4] = [
        (
            "pidfd_open",
            watch_process,
            "allow it in the container's profile: without it no other process is reached, since none is seen to die",
        ),
        (
            "unix sockets, memory files, /proc/PID/fd",
            find_queue_pair,
            "allow memfd_create and abstract unix sockets, and mount /proc without hidepid: queue pairs are found by them",
        ),
        (
            "pipe2, epoll_create1, timerfd_create",
            sleep_and_wake,
            "allow them in the container's profile: programs that sleep until a completion need them",
        ),
        ("eventfd2", signal, "allow it in the container's profile: no device opens without it"),
    ];
    let refused = ALL.iter().filter_map(|(call, trial, remedy)| {
        let why = trial().err()?;
        Some(Problem { what: format!("{call}: {why}"), remedy })
    });
    refused.collect()
}

/// Watches this process, as senders watch their peers.
fn watch_process() -> Result<(), String> {
    match PidFd::open(ProcId::current()) {
        Ok(pidfd) if pidfd.is_dead() => Err("poll finds a living process dead".into()),
        Ok(_) => Ok(()),
        Err(WatchError::Os { errno, .. }) => Err(errno.to_string()),
        Err(e) => Err(e.to_string()),
    }
}

/// Binds a queue pair's name, and opens its segment as a peer does.
fn find_queue_pair() -> Result<(), String> {
    // No device has the interface id 0.
    let (iid, qpn) = (0, std::process::id() as u16);
    let _segment = SharedMem::create(&lookup::memory_name("", iid, qpn), 4096, Default::default())
        .map_err(|e| e.to_string())?;
    let Some(name) = QpName::bind("", iid, qpn).map_err(|e| e.to_string())? else {
        // Another process is trying the same.
        return Ok(());
    };
    name.listen().map_err(|e| e.to_string())?;
    match lookup::lookup("", iid, qpn) {
        Ok(_) | Err(LookupError::Retry) => Ok(()),
        Err(LookupError::Denied(why)) => Err(why),
        Err(LookupError::NotFound | LookupError::DeviceDown) => {
            Err("a queue pair of this process is not found".into())
        }
    }
}

/// Signals a completion channel as a peer does.
fn sleep_and_wake() -> Result<(), String> {
    let channel = ShmCompChannel::new().map_err(|e| e.to_string())?;
    let waker = Waker::open(std::process::id(), channel.pipe_fd()).map_err(|e| e.to_string())?;
    waker.wake().map_err(|e| e.to_string())?;
    channel.clear();
    if channel.timer(1) { Ok(()) } else { Err("timerfd_settime fails".into()) }
}

fn signal() -> Result<(), String> {
    EventFd::new().and_then(|fd| fd.signal()).map_err(|e| e.to_string())
}

/// Copies a byte within this process, which only a seccomp filter can refuse.
fn read_own_memory() -> Result<(), Errno> {
    let (from, mut to) = (1u8, 0u8);
    let remote = libc::iovec { iov_base: (&raw const from).cast_mut().cast(), iov_len: 1 };
    let local = libc::iovec { iov_base: (&raw mut to).cast(), iov_len: 1 };
    let me = std::process::id() as libc::pid_t;
    // SAFETY: both ranges are one byte of this frame; `to` is written only by this call.
    let copied = unsafe { libc::process_vm_readv(me, &raw const local, 1, &raw const remote, 1, 0) };
    if copied == 1 { Ok(()) } else { Err(Errno::last_os()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_system_allows_every_call() {
        assert_eq!(refused_calls(), []);
    }

    #[test]
    fn yama_scopes_are_read() {
        for (scope, capable, barred) in [
            ("", false, false),
            ("0", false, false),
            ("1", false, false),
            ("2", false, true),
            ("2", true, false),
            ("3", true, true),
        ] {
            assert_eq!(barred_by_yama(scope, capable), barred, "{scope} {capable}");
        }
    }

    #[test]
    fn capabilities_are_read_from_the_status_file() {
        assert_eq!(effective("Name:\tx\nCapEff:\t0000000000080000\n"), Some(CAP_SYS_PTRACE));
        assert_eq!(effective("Name:\tx\n"), None);
    }
}

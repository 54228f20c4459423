//! Checks whether processes of one user may access each other here, and if not, why and what to do.

#![allow(unsafe_code)]

use crate::efa::dev::Problem;
use std::fs;
use ucs::Errno;

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

/// Problem that denies access to other processes' memory, needed for RDMA on ordinary memory.
pub fn peer_memory() -> Option<Problem> {
    if let Err(errno) = read_own_memory() {
        let what = format!("process_vm_readv: {errno}; a seccomp filter forbids it");
        return Some(Problem {
            what,
            remedy: "allow process_vm_readv and process_vm_writev in the container's profile",
        });
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

//! Whether this process may use the system calls, and if not, why and what helps; and what they cost. Called
//! when an interface opens. Changes nothing.

#![allow(unsafe_code)]

use super::vm::{self, Direction};
use crate::api::{Error, Iov, Linear, RmaPerf};
use std::fs;
use std::sync::OnceLock;
use std::time::Instant;
use ucs::Errno;

const CAP_SYS_PTRACE: u32 = 19;

/// Why the transport cannot be used here, as text for users; `None` if it can. A particular peer may still be
/// unreachable, of another user or pid namespace: connecting shows that.
pub fn unavailable_reason() -> Option<String> {
    let (from, mut to) = (0x5eed_u64, 0u64);
    let list = [Iov::<()>::new((&raw mut to).cast(), 8, None)];
    // SAFETY: both words are local; `to` is read after the call only.
    let result =
        unsafe { vm::transfer(Direction::Read, std::process::id(), &list, (&raw const from).addr() as u64) };
    match result {
        Ok(()) if to == from => {}
        Err(Error::Unreachable) => {
            return Some(
                "the system call process_vm_readv is forbidden_by_yama here (by the container's seccomp profile? run it with \
                 --cap-add=SYS_PTRACE, or another profile)"
                    .into(),
            );
        }
        Err(Error::Sys { errno: Errno(libc::ENOSYS), .. }) => {
            return Some(
                "this kernel has no process_vm_readv (CONFIG_CROSS_MEMORY_ATTACH), or hides it".into(),
            );
        }
        Err(e) => return Some(format!("process_vm_readv does not work here: {e}")),
        Ok(()) => return Some("process_vm_readv gives wrong bytes here".into()),
    }
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    forbidden_by_yama(ucs::sys::proc::yama_scope(), capabilities(&status))
}

/// Costs of put and get measured between two processes on an AMD EPYC.
const MEASURED_ON_EPYC: RmaPerf = RmaPerf::all(Linear::new(1600.0, 16e9), Linear::new(1600.0, 18e9));

/// Costs of put and get. On Intel processors, where kernels differ widely, they are measured once in a
/// process, in its own memory, within some 200 us. On others a copy within one processor's caches would be
/// misleadingly fast, so fixed values are used.
pub fn costs() -> RmaPerf {
    static COSTS: OnceLock<RmaPerf> = OnceLock::new();
    *COSTS.get_or_init(|| {
        let measured = || Some(RmaPerf::all(cost(Direction::Write)?, cost(Direction::Read)?));
        is_intel().then(measured).flatten().unwrap_or(MEASURED_ON_EPYC)
    })
}

#[cfg(target_arch = "x86_64")]
fn is_intel() -> bool {
    let maker = std::arch::x86_64::__cpuid(0);
    [maker.ebx, maker.edx, maker.ecx].map(u32::to_le_bytes).as_flattened() == b"GenuineIntel"
}

#[cfg(not(target_arch = "x86_64"))]
fn is_intel() -> bool {
    false
}

fn cost(direction: Direction) -> Option<Linear> {
    const SHORT: usize = 64;
    const LONG: usize = 64 << 10;
    const TRIES: u32 = 15;
    let (from, mut to) = (vec![1u8; LONG], vec![2u8; LONG]);
    let (local, remote) = match direction {
        Direction::Read => (to.as_mut_ptr(), from.as_ptr()),
        Direction::Write => (from.as_ptr().cast_mut(), to.as_mut_ptr().cast_const()),
    };
    let best = |len| {
        let once = |_| {
            let begun = Instant::now();
            // SAFETY: both vectors outlive the call; the one that is written is exclusive and not read.
            let moved = unsafe {
                vm::transfer(
                    direction,
                    std::process::id(),
                    &[Iov::<()>::new(local, len, None)],
                    remote.addr() as u64,
                )
            };
            moved.ok().map(|()| begun.elapsed().as_nanos() as f64)
        };
        (0..TRIES).filter_map(once).reduce(f64::min)
    };
    Some(Linear::through((SHORT, best(SHORT)?), (LONG, best(LONG)?)))
}

/// Why Yama forbids access between unrelated processes.
fn forbidden_by_yama(scope: Option<u32>, capabilities: u64) -> Option<String> {
    match scope {
        // With 1 an interface permits access when it opens (`UCX_CMA_ALLOW_PEERS`).
        None | Some(0 | 1) => None,
        Some(2) if capabilities & 1 << CAP_SYS_PTRACE != 0 => None,
        Some(scope) => Some(format!(
            "/proc/sys/kernel/yama/ptrace_scope is {scope}: processes may not read each other's memory \
             ({}set it to 0 or 1)",
            if scope == 2 { "give them CAP_SYS_PTRACE, or " } else { "" }
        )),
    }
}

fn capabilities(status: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    line.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok()).unwrap_or(0)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn yama_scope_is_explained() {
        assert_eq!(forbidden_by_yama(None, 0), None);
        assert_eq!(forbidden_by_yama(Some(1), 0), None);
        assert_eq!(forbidden_by_yama(Some(2), 1 << CAP_SYS_PTRACE), None);
        let text = forbidden_by_yama(Some(2), 0).unwrap();
        assert!(text.contains("ptrace_scope is 2") && text.contains("CAP_SYS_PTRACE"), "{text}");
        let text = forbidden_by_yama(Some(3), u64::MAX).unwrap();
        assert!(text.contains("ptrace_scope is 3") && !text.contains("CAP_SYS_PTRACE"), "{text}");
    }

    #[test]
    fn capabilities_are_parsed() {
        assert_eq!(capabilities("Name:\tx\nCapInh:\t1\nCapEff:\t00000000a80425fb\n"), 0xa804_25fb);
        assert_eq!(capabilities(""), 0);
    }
}

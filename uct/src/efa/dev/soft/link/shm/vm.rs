//! Copies between processes by system call, for memory that is not a memory file.

#![allow(unsafe_code)]

use crate::efa::dev::DevStatus;
use ucs::Errno;
use ucs::mem::page::page_size;

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum CopyDir {
    FromPeer,
    ToPeer,
}

/// Copies `len` bytes between the peer's `raddr` and `local`. An unmapped range is an error.
pub(super) fn copy(pid: u32, raddr: u64, local: *mut u8, len: u32, dir: CopyDir) -> Result<(), DevStatus> {
    let mut done = 0usize;
    while done < len as usize {
        let left = len as usize - done;
        let ours = libc::iovec { iov_base: local.wrapping_add(done).cast(), iov_len: left };
        let theirs =
            libc::iovec { iov_base: (raddr as usize).wrapping_add(done) as *mut libc::c_void, iov_len: left };
        let pid = pid as libc::pid_t;
        let n = if dir == CopyDir::FromPeer {
            // SAFETY: the kernel checks both ranges; the caller vouches that `local` may be written.
            unsafe { libc::process_vm_readv(pid, &ours, 1, &theirs, 1, 0) }
        } else {
            // SAFETY: the kernel checks both ranges; ours is only read.
            unsafe { libc::process_vm_writev(pid, &ours, 1, &theirs, 1, 0) }
        };
        match n {
            1.. => done += n as usize,
            _ => return Err(failure(pid, Errno::last_os())),
        }
    }
    Ok(())
}

/// Whether `len` bytes at `local` are mapped for their part in such a copy. Yes where the kernel cannot tell
/// (before Linux 5.14). The pages are filled, as the copy would have filled them.
#[cold]
pub(super) fn is_mapped(local: *mut u8, len: u32, dir: CopyDir) -> bool {
    let start = local.addr() & !(page_size() - 1);
    let pages = (local.addr() - start + len as usize).next_multiple_of(page_size());
    let advice = match dir {
        CopyDir::FromPeer => libc::MADV_POPULATE_WRITE,
        CopyDir::ToPeer => libc::MADV_POPULATE_READ,
    };
    // SAFETY: fills pages that the program has mapped, and changes no byte of them.
    let done = unsafe { libc::madvise(local.with_addr(start).cast(), pages, advice) };
    done == 0 || !matches!(Errno::last_os().0, libc::ENOMEM | libc::EFAULT)
}

#[cold]
fn failure(pid: libc::pid_t, errno: Errno) -> DevStatus {
    match errno.0 {
        libc::ESRCH => DevStatus::BadDestQpn,
        libc::EFAULT => DevStatus::RemoteBadAddress,
        libc::EPERM | libc::EACCES => {
            tracing::error!(
                "no permission to copy memory of process {pid}: run both as the same user in one pid namespace, and \
                 allow ptrace (kernel.yama.ptrace_scope below 2, no seccomp filter on process_vm_readv)"
            );
            DevStatus::RemoteAbort
        }
        _ => {
            tracing::error!("copy to or from process {pid}: {errno}");
            DevStatus::QpInternal
        }
    }
}

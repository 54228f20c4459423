//! `process_vm_readv` and `process_vm_writev` over lists of local blocks. The kernel checks every address on
//! either side. A transfer is complete when its call returns.

#![allow(unsafe_code)]

use crate::api::{Access, Error, Iov};
use crate::base::iov::Fragment;
use arrayvec::ArrayVec;
use ucs::Errno;

/// Most blocks of one system call. The kernel takes 1024, but more than these are not faster.
pub(super) const MAX_BLOCKS: usize = 64;
/// Most bytes of one system call; the kernel stops short of 2 GiB.
const MAX_BYTES: usize = 1 << 30;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Direction {
    Read,
    Write,
}

impl Direction {
    pub(super) fn need(self) -> Access {
        match self {
            Direction::Read => Access::REMOTE_READ,
            Direction::Write => Access::REMOTE_WRITE,
        }
    }
}

/// Transfers the blocks from or to `remote_addr` of process `pid`.
/// # Safety
/// The blocks must be valid for reads, or exclusively for writes if the direction is [`Direction::Read`]. The
/// remote range must be named by a key of the peer, or be ours and unused.
// HOT
pub unsafe fn transfer<M>(
    direction: Direction,
    pid: u32,
    list: &[Iov<'_, M>],
    remote_addr: u64,
) -> Result<(), Error> {
    let mut blocks = blocks(list);
    let mut rest = None;
    let mut at = remote_addr;
    loop {
        let mut batch = ArrayVec::<libc::iovec, MAX_BLOCKS>::new();
        let mut sum = 0;
        while sum < MAX_BYTES && !batch.is_full() {
            let Some((addr, len)) = rest.take().or_else(|| blocks.next()) else { break };
            let now = usize::min(len, MAX_BYTES - sum);
            if now > 0 {
                batch.push(local_block(addr, now));
                sum += now;
            }
            if now < len {
                rest = Some((addr.wrapping_add(now), len - now));
            }
        }
        if batch.is_empty() {
            return Ok(());
        }
        let mut remote = [remote_block(at, sum)];
        // SAFETY: the caller's promise is the same.
        unsafe { transfer_blocks(direction, pid, &mut batch, &mut remote, sum) }
            .map_err(|partial| partial.why)?;
        at = at.wrapping_add(sum as u64);
    }
}

/// Transfers the fragments of two lists, a batch in each system call.
/// # Safety
/// As [`transfer`], for every fragment.
pub unsafe fn transfer_fragments<'a, M: 'a, K: 'a>(
    direction: Direction,
    pid: u32,
    fragments: impl Iterator<Item = Fragment<'a, M, K>>,
) -> Result<(), Error> {
    let mut fragments = fragments.peekable();
    while fragments.peek().is_some() {
        let mut local = ArrayVec::<libc::iovec, MAX_BLOCKS>::new();
        let mut remote = ArrayVec::<libc::iovec, MAX_BLOCKS>::new();
        let mut sum = 0;
        while let Some(f) =
            fragments.next_if(|f| local.is_empty() || !local.is_full() && f.len <= MAX_BYTES - sum)
        {
            local.push(local_block(f.addr, f.len));
            remote.push(remote_block(f.remote, f.len));
            // Only the first can be longer than MAX_BYTES: it is alone in its batch.
            sum = usize::min(sum + f.len, MAX_BYTES);
        }
        let len = local.iter().map(|iov| iov.iov_len).sum();
        // SAFETY: the caller's promise is the same.
        unsafe { transfer_blocks(direction, pid, &mut local, &mut remote, len) }
            .map_err(|partial| partial.why)?;
    }
    Ok(())
}

pub(super) fn blocks<'a, M>(list: &'a [Iov<'_, M>]) -> impl Iterator<Item = (*mut u8, usize)> + 'a {
    list.iter().flat_map(|piece| piece.blocks().map(|addr| (addr, piece.len)))
}

pub(super) fn local_block(addr: *mut u8, len: usize) -> libc::iovec {
    libc::iovec { iov_base: addr.cast(), iov_len: len }
}

pub(super) fn remote_block(at: u64, len: usize) -> libc::iovec {
    libc::iovec { iov_base: std::ptr::without_provenance_mut(at as usize), iov_len: len }
}

fn advance(mut list: &mut [libc::iovec], mut skip: usize) -> &mut [libc::iovec] {
    while skip >= list[0].iov_len {
        skip -= list[0].iov_len;
        list = &mut list[1..];
    }
    list[0].iov_base = list[0].iov_base.cast::<u8>().wrapping_add(skip).cast();
    list[0].iov_len -= skip;
    list
}

/// A transfer that the kernel refused to continue after `done` bytes.
pub(super) struct PartialTransfer {
    pub done: usize,
    pub why: Error,
}

/// Transfers one batch, in as many calls as the kernel needs. Both lists have `len` bytes.
/// # Safety
/// As [`transfer`].
pub(super) unsafe fn transfer_blocks(
    direction: Direction,
    pid: u32,
    local: &mut [libc::iovec],
    remote: &mut [libc::iovec],
    len: usize,
) -> Result<(), PartialTransfer> {
    let (mut local, mut remote, mut left) = (local, remote, len);
    loop {
        // SAFETY: the caller's promise is the same.
        let done = unsafe { syscall(direction, pid, local, remote) };
        let done = done.map_err(|why| PartialTransfer { done: len - left, why })?;
        if done >= left {
            return Ok(());
        }
        // A remote page was not reachable, or a signal came: the next call shows which.
        left -= done;
        (local, remote) = (advance(local, done), advance(remote, done));
    }
}

/// # Safety
/// As [`transfer`].
unsafe fn syscall(
    direction: Direction,
    pid: u32,
    local: &[libc::iovec],
    remote: &[libc::iovec],
) -> Result<usize, Error> {
    let pid = libc::pid_t::try_from(pid).map_err(|_| Error::PeerDead)?;
    let (list, count) = (local.as_ptr(), local.len() as libc::c_ulong);
    let (far_list, far_count) = (remote.as_ptr(), remote.len() as libc::c_ulong);
    let done = match direction {
        // SAFETY: the caller vouches for the blocks; the kernel checks them and the remote range.
        Direction::Read => unsafe { libc::process_vm_readv(pid, list, count, far_list, far_count, 0) },
        // SAFETY: as above.
        Direction::Write => unsafe { libc::process_vm_writev(pid, list, count, far_list, far_count, 0) },
    };
    match usize::try_from(done) {
        Ok(0) => Err(Error::RemoteAccess),
        Ok(done) => Ok(done),
        Err(_) => Err(syscall_error(Errno::last_os())),
    }
}

#[cold]
fn syscall_error(errno: Errno) -> Error {
    match errno {
        Errno(libc::ESRCH) => Error::PeerDead,
        Errno(libc::EPERM) => Error::Unreachable,
        Errno(libc::EFAULT) => Error::RemoteAccess,
        Errno(libc::ENOMEM) => Error::NoMemory,
        errno => Error::Sys { call: "process_vm", errno },
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn transfer_self(direction: Direction, list: &[Iov<'_, ()>], remote_ptr: *const u8) -> Result<(), Error> {
        // SAFETY: the tests own both sides and read neither meanwhile.
        unsafe { transfer(direction, std::process::id(), list, remote_ptr.addr() as u64) }
    }

    #[test]
    fn many_blocks_are_split_into_calls() {
        let mut remote = vec![0u8; 3000];
        let local: Vec<u8> = (0..6000).map(|i| i as u8).collect();
        // 300 blocks of 10 bytes, 10 bytes apart, and empty ones between.
        let blocks = Iov { addr: local.as_ptr().cast_mut(), len: 10, stride: 20, count: 290, mem: None };
        let empty = Iov::new(local.as_ptr(), 0, None);
        let tail = Iov { addr: local[5800..].as_ptr().cast_mut(), len: 10, stride: 20, count: 10, mem: None };
        transfer_self(Direction::Write, &[empty, blocks, empty, tail], remote.as_mut_ptr()).unwrap();
        for (i, byte) in remote.iter().enumerate() {
            assert_eq!(*byte, local[i / 10 * 20 + i % 10], "{i}");
        }
        let mut back = vec![0u8; 3000];
        let list = [Iov { addr: back.as_mut_ptr(), len: 1, stride: 1, count: 3000, mem: None }];
        transfer_self(Direction::Read, &list, remote.as_ptr()).unwrap();
        assert_eq!(back, remote);
        assert_eq!(transfer_self(Direction::Read, &[empty], std::ptr::null()), Ok(()));
    }

    #[test]
    fn unmapped_range_is_an_error() {
        let map = ucs::mem::Mapping::new(1 << 16, Default::default()).unwrap();
        let hole = map.as_ptr().wrapping_add(1 << 15);
        // SAFETY: half of a mapping of this test, unused and never touched again.
        unsafe { rustix::mm::mprotect(hole.cast(), 1 << 15, rustix::mm::MprotectFlags::empty()) }.unwrap();
        let mut local = vec![7u8; 1 << 16];
        let list = [Iov::new(local.as_mut_ptr(), 1 << 16, None)];
        assert_eq!(transfer_self(Direction::Write, &list, map.as_ptr()), Err(Error::RemoteAccess));
        assert_eq!(transfer_self(Direction::Read, &list, hole), Err(Error::RemoteAccess));
        // SAFETY: the first half is still mapped; the kernel wrote it before it met the hole.
        assert_eq!(unsafe { hole.wrapping_sub(1).read_volatile() }, 7);
        let one = [Iov::new(local.as_mut_ptr(), 1, None)];
        // SAFETY: no process has this id.
        let gone = unsafe { transfer::<()>(Direction::Write, (1 << 22) + 1, &one, 4096) };
        assert_eq!(gone, Err(Error::PeerDead));
    }
}

//! An endpoint of `cma`: put and get by the kernel, or by the CPU where the memory is mapped. Zcopy through
//! the kernel may wait in a batch; everything else is done when its call returns, after what waits for the
//! same process.

#![allow(unsafe_code)]

use super::batch::Op;
use super::iface::{Inner, PUBLISHES, Proc};
use super::joint_copy::{self, Block, PeerCopies};
use super::vm::{self, Direction};
use super::{Mem, Rkey};
use crate::api::{self, Access, Comp, EpTag, Error, Iov, Outcome, Refused, RemoteIov, Sent};
use crate::base::ep_table::EpIdx;
use crate::base::{check, direct, iov};
use std::rc::Rc;

const WRONG_PROCESS: Error = Error::InvalidParam("key of memory of another process");

/// A connection to a process of this host. Endpoints to one process share its state.
pub struct Ep {
    peer: Rc<Proc>,
    /// Keeps the interface, and the fd server that watches the peer.
    own: Rc<Inner>,
    idx: EpIdx,
    /// Where the peer's interface keeps the key of its process, and behind it its published number.
    key_addr: u64,
}

impl Ep {
    pub(super) fn new(own: Rc<Inner>, peer: Rc<Proc>, key_addr: u64) -> Self {
        Ep { idx: peer.eps.insert(), peer, own, key_addr }
    }

    #[cfg(test)]
    pub(super) fn peer(&self) -> &Rc<Proc> {
        &self.peer
    }

    /// The mapping of a key, if there is one, for an operation that is done at once. Fails after the death of
    /// its owner, when it is mapped but not touched any more. No resource: an operation before it waits for
    /// the peer's part.
    // HOT
    #[inline(always)]
    fn resolve<'k>(&self, rkey: &'k Rkey) -> Outcome<Option<&'k direct::Window>> {
        if self.peer.failure_reported.get() {
            return Err(Error::PeerDead.into());
        }
        if rkey.owner() != self.peer.key {
            return Err(WRONG_PROCESS.into());
        }
        if self.peer.copies.is_waiting() {
            return Err(Refused::NoResource);
        }
        let window = rkey.window();
        if window.is_some() {
            self.own.batches.submit(&self.peer);
        }
        Ok(window)
    }

    /// Whether all keys of a scatter list are mapped.
    fn resolve_all(&self, remote: &[RemoteIov<'_, Rkey>]) -> Outcome<bool> {
        remote.iter().try_fold(!self.peer.failure_reported.get(), |all, piece| {
            Ok(all & self.resolve(piece.rkey)?.is_some())
        })
    }

    /// Checks that the key permits access to `len` bytes at `remote`, and that the process lives.
    #[inline]
    fn check_access(&self, remote: u64, len: usize, rkey: &Rkey, need: Access) -> Result<(), Error> {
        rkey.bounds().offset(remote, len, need)?;
        // The pid of a dead process may be reused.
        if self.peer.is_dead() { Err(Error::PeerDead) } else { Ok(()) }
    }

    /// Transfers a block by the kernel, now.
    /// # Safety
    /// As [`api::Ep::put_zcopy`] and [`api::Ep::get_zcopy`].
    unsafe fn transfer(
        &self,
        direction: Direction,
        block: Iov<'_, Mem>,
        remote: u64,
        rkey: &Rkey,
    ) -> Outcome {
        self.check_access(remote, block.total(), rkey, direction.need())?;
        self.own.batches.submit(&self.peer);
        // SAFETY: the caller vouches for the block, the owner's key for the remote range.
        unsafe { vm::transfer(direction, self.peer.pid, &[block], remote) }?;
        Ok(Sent::Done)
    }

    /// Transfers a list by the kernel: with the peer if it is one long block whose completion is wanted, else
    /// in a batch if there is room.
    /// # Safety
    /// As [`api::Ep::put_zcopy`] and [`api::Ep::get_zcopy`].
    #[inline]
    unsafe fn enqueue(
        &self,
        direction: Direction,
        list: &[Iov<'_, Mem>],
        remote: u64,
        rkey: &Rkey,
        comp: Comp,
    ) -> Outcome {
        let len = iov::checked_len(list, direct::MAX_IOV, isize::MAX as usize)?;
        self.check_access(remote, len, rkey, direction.need())?;
        if len >= joint_copy::MIN_LEN
            && let [Iov { addr: local, count: 1, .. }] = *list
            && !matches!(comp, Comp::None)
        {
            let block = Block { direction, local, remote, len };
            // SAFETY: the same promises.
            return unsafe { self.copy_long(block, comp) };
        }
        let op = Op { direction, list, len, remote_addr: remote, ep: self.idx };
        // SAFETY: the caller vouches for the blocks until the completion, the key for the remote range.
        if unsafe { self.own.batches.add(&self.peer, &op, comp) } {
            self.own.wake();
            return Ok(Sent::InProgress);
        }
        // SAFETY: the same promises.
        unsafe { vm::transfer(direction, self.peer.pid, list, remote) }?;
        Ok(Sent::Done)
    }
}

impl Ep {
    /// Transfers a long block by the kernel, together with the peer if it polls.
    /// # Safety
    /// As [`api::Ep::put_zcopy`] and [`api::Ep::get_zcopy`].
    #[inline(never)]
    unsafe fn copy_long(&self, block: Block, comp: Comp) -> Outcome {
        self.own.batches.submit(&self.peer);
        if block.len > joint_copy::MAX_LEN || !self.own.batches.has_room() {
            // SAFETY: the caller's promise is the same.
            unsafe { block.transfer(self.peer.pid) }?;
            return Ok(Sent::Done);
        }
        // SAFETY: the caller's promise is the same.
        let sent =
            unsafe { PeerCopies::copy(&self.own, (&self.peer, self.key_addr), block, (comp, self.idx)) }?;
        if sent == Sent::InProgress {
            self.own.add_waiting(&self.peer);
        }
        Ok(sent)
    }

    /// Transfers a scatter list; nothing is done unless all of it is permitted.
    /// # Safety
    /// As [`api::Ep::put_sgl`] and [`api::Ep::get_sgl`].
    unsafe fn transfer_sgl(
        &self,
        direction: Direction,
        list: &[Iov<'_, Mem>],
        remote: &[RemoteIov<'_, Rkey>],
    ) -> Outcome {
        iov::checked_sgl_len(list, remote, direct::MAX_IOV, isize::MAX as usize)?;
        for f in iov::fragments(list, remote) {
            f.rkey.bounds().offset(f.remote, f.len, direction.need())?;
        }
        if self.peer.is_dead() {
            return Err(Error::PeerDead.into());
        }
        self.own.batches.submit(&self.peer);
        // SAFETY: the caller vouches for the blocks, the owner's keys for the remote ranges.
        unsafe { vm::transfer_fragments(direction, self.peer.pid, iov::fragments(list, remote)) }?;
        Ok(Sent::Done)
    }
}

impl Drop for Ep {
    fn drop(&mut self) {
        self.own.batches.submit(&self.peer);
        if self.peer.copies.is_waiting() {
            self.own.await_copy(&self.peer, self.idx);
        }
        self.peer.eps.remove(self.idx);
    }
}

fn window(rkey: &Rkey) -> Result<&direct::Window, Error> {
    rkey.window().ok_or(Error::RemoteAccess)
}

impl api::Ep for Ep {
    type Mem = Mem;
    type Rkey = Rkey;

    fn tag(&self) -> EpTag {
        self.peer.eps.tag(self.idx)
    }

    fn set_tag(&self, tag: EpTag) {
        self.peer.eps.set_tag(self.idx, tag);
    }

    /// There are no active messages.
    fn max_bcopy(&self) -> usize {
        0
    }

    fn put_short(&self, bytes: &[u8], remote: u64, rkey: &Rkey) -> Outcome {
        match self.resolve(rkey)? {
            Some(window) => direct::put_short(window, bytes, remote),
            None => {
                let block = Iov::new(bytes.as_ptr(), bytes.len(), None);
                // SAFETY: nobody writes the borrowed `bytes` during the call, which completes the transfer.
                unsafe { self.transfer(Direction::Write, block, remote, rkey) }
            }
        }
    }

    fn put_bcopy<F: FnOnce(&mut [u8]) -> usize>(
        &self,
        max: usize,
        pack: F,
        remote: u64,
        rkey: &Rkey,
    ) -> Outcome<usize> {
        check::fits(max, self.own.max_bcopy())?;
        if let Some(window) = self.resolve(rkey)? {
            return direct::put_bcopy(window, max, pack, remote);
        }
        self.check_access(remote, max, rkey, Access::REMOTE_WRITE)?;
        self.own.with_bounce(|bounce| {
            let len = check::packed_bytes(pack(&mut bounce[..max]), max)?;
            self.put_short(&bounce[..len], remote, rkey).map(|_| len)
        })
    }

    fn get_short(&self, out: &mut [u8], remote: u64, rkey: &Rkey) -> Outcome {
        match self.resolve(rkey)? {
            Some(window) => direct::get_short(window, out, remote),
            None => {
                let block = Iov::new(out.as_mut_ptr().cast_const(), out.len(), None);
                // SAFETY: `out` is borrowed mutably during the call, which completes the transfer.
                unsafe { self.transfer(Direction::Read, block, remote, rkey) }
            }
        }
    }

    fn get_bcopy<F: FnOnce(&[u8]) + 'static>(
        &self,
        len: usize,
        unpack: F,
        remote: u64,
        rkey: &Rkey,
        _comp: Comp,
    ) -> Outcome {
        check::fits(len, self.own.max_bcopy())?;
        if let Some(window) = self.resolve(rkey)? {
            return direct::get_bcopy(window, len, unpack, remote);
        }
        self.own.with_bounce(|bounce| {
            let sent = self.get_short(&mut bounce[..len], remote, rkey)?;
            unpack(&bounce[..len]);
            Ok(sent)
        })
    }

    // HOT
    #[inline]
    unsafe fn put_zcopy(&self, iov: &[Iov<'_, Mem>], remote: u64, rkey: &Rkey, comp: Comp) -> Outcome {
        match self.resolve(rkey)? {
            // SAFETY: the caller's promise is the same.
            Some(window) => unsafe { direct::put_zcopy(window, iov, remote) },
            // SAFETY: the caller's promise is the same.
            None => unsafe { self.enqueue(Direction::Write, iov, remote, rkey, comp) },
        }
    }

    // HOT
    #[inline]
    unsafe fn get_zcopy(&self, iov: &[Iov<'_, Mem>], remote: u64, rkey: &Rkey, comp: Comp) -> Outcome {
        match self.resolve(rkey)? {
            // SAFETY: the caller's promise is the same.
            Some(window) => unsafe { direct::get_zcopy(window, iov, remote) },
            // SAFETY: the caller's promise is the same.
            None => unsafe { self.enqueue(Direction::Read, iov, remote, rkey, comp) },
        }
    }

    unsafe fn put_sgl(&self, iov: &[Iov<'_, Mem>], remote: &[RemoteIov<'_, Rkey>], _comp: Comp) -> Outcome {
        if self.resolve_all(remote)? {
            // SAFETY: the caller's promise is the same.
            return unsafe { direct::put_sgl(iov, remote, window) };
        }
        // SAFETY: the caller's promise is the same.
        unsafe { self.transfer_sgl(Direction::Write, iov, remote) }
    }

    unsafe fn get_sgl(&self, iov: &[Iov<'_, Mem>], remote: &[RemoteIov<'_, Rkey>], _comp: Comp) -> Outcome {
        if self.resolve_all(remote)? {
            // SAFETY: the caller's promise is the same.
            return unsafe { direct::get_sgl(iov, remote, window) };
        }
        // SAFETY: the caller's promise is the same.
        unsafe { self.transfer_sgl(Direction::Read, iov, remote) }
    }

    fn flush(&self, comp: Comp) -> Outcome {
        self.own.batches.submit(&self.peer);
        if self.peer.copies.is_waiting() {
            return Err(Refused::NoResource);
        }
        if self.peer.is_dead() { Err(Error::PeerDead.into()) } else { self.own.batches.flush(comp) }
    }

    fn fence(&self) -> Outcome {
        self.own.batches.submit(&self.peer);
        if self.peer.copies.is_waiting() {
            return Err(Refused::NoResource);
        }
        direct::fence();
        Ok(Sent::Done)
    }

    fn check(&self, _comp: Comp) -> Outcome {
        if self.peer.watch.check() { Err(Error::PeerDead.into()) } else { Ok(Sent::Done) }
    }

    fn is_connected(&self, device: &[u8], iface: &[u8]) -> bool {
        self.own.is_address_of(&self.peer, device, iface)
    }

    fn peer_process(&self) -> Option<u64> {
        Some(self.peer.key.0)
    }

    fn published(&self) -> Option<u64> {
        let [mark, number] = self.own.read_words(&self.peer, self.key_addr, 1).ok()?;
        (mark == PUBLISHES).then_some(number)
    }
}

//! An endpoint of `cma`: put and get by the kernel, or by the CPU where the memory is mapped.
//! Nothing is ever in progress: a call has done its work when it returns, so completions never fire.

use super::iface::{Inner, Proc};
use super::vm::{self, Way};
use super::{Mem, Rkey};
use crate::api::{self, Access, Comp, EpTag, Error, Iov, Outcome, Refused, RemoteIov, Sent};
use crate::base::eps::EpIdx;
use crate::base::{direct, iov};
use std::rc::Rc;

/// Why not one endpoint's key on another's.
const NOT_ITS: Error = Error::InvalidParam("key of memory of another process");

/// A connection to an interface of this host. Endpoints to the same process share what is known of it.
pub struct Ep {
    peer: Rc<Proc>,
    /// Keeps the interface, and the porter that watches the peer.
    own: Rc<Inner>,
    idx: EpIdx,
}

impl Ep {
    pub(super) fn new(own: Rc<Inner>, peer: Rc<Proc>) -> Self {
        Ep { idx: peer.eps.enter(), peer, own }
    }

    /// Mapped memory is there also when its owner is gone: then it is not touched. // HOT
    #[inline(always)]
    fn reach(&self) -> Result<(), Error> {
        if self.peer.lost.get() { Err(Error::PeerDead) } else { Ok(()) }
    }

    /// # Safety
    /// As [`api::Ep::put_zcopy`] and [`api::Ep::get_zcopy`].
    #[inline]
    unsafe fn transfer(
        &self,
        way: Way,
        list: &[Iov<'_, Mem>],
        remote: u64,
        rkey: &Rkey,
        need: Access,
    ) -> Outcome {
        if rkey.owner() != self.peer.key {
            return Err(NOT_ITS.into());
        }
        let len = iov::checked_len(list, direct::MAX_IOV, isize::MAX as usize)?;
        rkey.bounds().offset(remote, len, need)?;
        // A pid without its process may be another's by now.
        if self.peer.death.is_dead() {
            return Err(Error::PeerDead.into());
        }
        // SAFETY: the caller vouches for the blocks, the owner's key for the remote range.
        unsafe { vm::transfer(way, self.peer.pid, list, remote) }.map_err(Refused::Failed)?;
        Ok(Sent::Done)
    }
}

impl Ep {
    /// A scatter list, of which nothing is done unless all may be.
    ///
    /// # Safety
    /// As [`api::Ep::put_sgl`] and [`api::Ep::get_sgl`].
    unsafe fn scattered(
        &self,
        way: Way,
        list: &[Iov<'_, Mem>],
        remote: &[RemoteIov<'_, Rkey>],
        need: Access,
    ) -> Outcome {
        iov::checked_sgl_len(list, remote, direct::MAX_IOV, isize::MAX as usize)?;
        for f in iov::fragments(list, remote) {
            if f.rkey.owner() != self.peer.key {
                return Err(NOT_ITS.into());
            }
            f.rkey.bounds().offset(f.remote, f.len, need)?;
        }
        if self.peer.death.is_dead() {
            return Err(Error::PeerDead.into());
        }
        // SAFETY: the caller vouches for the blocks, the owner's keys for the remote ranges.
        unsafe { vm::scattered(way, self.peer.pid, iov::fragments(list, remote)) }?;
        Ok(Sent::Done)
    }
}

impl Drop for Ep {
    fn drop(&mut self) {
        self.peer.eps.leave(self.idx);
    }
}

/// The windows of all keys, if all are mapped here.
fn all_mapped(remote: &[RemoteIov<'_, Rkey>]) -> bool {
    remote.iter().all(|piece| piece.rkey.window().is_some())
}

/// A key's window, which [`all_mapped`] has found.
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

    fn max_bcopy(&self) -> usize {
        0
    }

    // HOT
    #[inline]
    unsafe fn put_zcopy(&self, iov: &[Iov<'_, Mem>], remote: u64, rkey: &Rkey, _comp: Comp) -> Outcome {
        self.reach()?;
        match rkey.window() {
            // SAFETY: the caller's promise is the same.
            Some(window) => unsafe { direct::put_zcopy(window, iov, remote) },
            // SAFETY: the caller's promise is the same.
            None => unsafe { self.transfer(Way::Write, iov, remote, rkey, Access::REMOTE_WRITE) },
        }
    }

    // HOT
    #[inline]
    unsafe fn get_zcopy(&self, iov: &[Iov<'_, Mem>], remote: u64, rkey: &Rkey, _comp: Comp) -> Outcome {
        self.reach()?;
        match rkey.window() {
            // SAFETY: the caller's promise is the same.
            Some(window) => unsafe { direct::get_zcopy(window, iov, remote) },
            // SAFETY: the caller's promise is the same.
            None => unsafe { self.transfer(Way::Read, iov, remote, rkey, Access::REMOTE_READ) },
        }
    }

    unsafe fn put_sgl(&self, iov: &[Iov<'_, Mem>], remote: &[RemoteIov<'_, Rkey>], _comp: Comp) -> Outcome {
        self.reach()?;
        if all_mapped(remote) {
            // SAFETY: the caller's promise is the same.
            return unsafe { direct::put_sgl(iov, remote, window) };
        }
        // SAFETY: the caller's promise is the same.
        unsafe { self.scattered(Way::Write, iov, remote, Access::REMOTE_WRITE) }
    }

    unsafe fn get_sgl(&self, iov: &[Iov<'_, Mem>], remote: &[RemoteIov<'_, Rkey>], _comp: Comp) -> Outcome {
        self.reach()?;
        if all_mapped(remote) {
            // SAFETY: the caller's promise is the same.
            return unsafe { direct::get_sgl(iov, remote, window) };
        }
        // SAFETY: the caller's promise is the same.
        unsafe { self.scattered(Way::Read, iov, remote, Access::REMOTE_READ) }
    }

    fn flush(&self, _comp: Comp) -> Outcome {
        if self.peer.death.is_dead() { Err(Error::PeerDead.into()) } else { Ok(Sent::Done) }
    }

    fn fence(&self) -> Outcome {
        direct::fence();
        Ok(Sent::Done)
    }

    fn check(&self, _comp: Comp) -> Outcome {
        if self.peer.death.look() { Err(Error::PeerDead.into()) } else { Ok(Sent::Done) }
    }

    fn is_connected(&self, device: &[u8], iface: &[u8]) -> bool {
        self.own.leads(&self.peer, device, iface)
    }
}

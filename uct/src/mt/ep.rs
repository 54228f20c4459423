//! An endpoint that threads share: the calls of the contract, each one inside the interface's gate.

use super::comp::Completion;
use super::iface::Shared;
use super::mem::{Mem, Rkey, behind_the_gate};
use crate::any;
use crate::api::{
    AddrBuf, AtomicOp, ConnectError, Ep as _, EpTag, Error, Iov, Outcome, Pack, PendingQueued, Refused,
    RemoteIov, Retry, Sent, UserQp, Word,
};
use crate::wrap::Watched;
use arrayvec::ArrayVec;
use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::sync::Arc;

/// Longest list of pieces; no transport takes more.
const MAX_PIECES: usize = 32;

behind_the_gate! {
    /// A connection to one remote interface.
    Ep, ep: any::Ep
}

/// Whether a completion will come.
fn in_progress(sent: &Sent) -> bool {
    *sent == Sent::InProgress
}

/// The list as the transport takes it.
fn inner_iov<'m>(
    shared: &Arc<Shared>,
    iov: &[Iov<'m, Mem>],
) -> Result<ArrayVec<Iov<'m, any::Mem>, MAX_PIECES>, Refused> {
    if iov.len() > MAX_PIECES {
        return Err(Error::TooLong { len: iov.len(), max: MAX_PIECES }.into());
    }
    let one = |piece: &Iov<'m, Mem>| {
        let mem = match piece.mem {
            Some(mem) => {
                shared.ours(&mem.shared)?;
                Some(&*mem.mem)
            }
            None => None,
        };
        Ok(Iov { addr: piece.addr, len: piece.len, stride: piece.stride, count: piece.count, mem })
    };
    iov.iter().map(one).collect()
}

impl Ep {
    /// For who is inside: what sends and shows it.
    #[cold]
    fn watched(&self) -> Watched<'_, any::Ep> {
        Watched { ep: &self.ep, tracer: &self.shared.tracer }
    }

    fn key<'k>(&self, rkey: &'k Rkey) -> Result<&'k any::Rkey, Error> {
        self.shared.ours(&rkey.shared)?;
        Ok(&rkey.rkey)
    }

    /// Sets the number that error reports of this endpoint carry.
    pub fn set_tag(&self, tag: EpTag) -> Result<(), Error> {
        let _inside = self.shared.enter()?;
        self.ep.set_tag(tag);
        Ok(())
    }

    /// That number.
    pub fn tag(&self) -> Result<EpTag, Error> {
        let _inside = self.shared.enter()?;
        Ok(self.ep.tag())
    }

    /// See [`crate::api::Ep::max_bcopy`].
    pub fn max_bcopy(&self) -> Result<usize, Error> {
        let _inside = self.shared.enter()?;
        Ok(self.ep.max_bcopy())
    }

    /// See [`crate::api::Ep::ep_addr`].
    pub fn ep_addr(&self) -> Result<AddrBuf, Error> {
        let _inside = self.shared.enter()?;
        self.ep.ep_addr()
    }

    /// See [`crate::api::Ep::connect_to_ep`].
    pub fn connect_to_ep(&self, device: &[u8], iface: &[u8], ep: &[u8]) -> Result<(), ConnectError> {
        let _inside = self.shared.enter()?;
        self.ep.connect_to_ep(device, iface, ep)
    }

    /// See [`crate::api::Ep::am_short`]. // HOT
    #[inline]
    pub fn am_short(&self, id: u8, header: u64, payload: &[u8]) -> Outcome {
        let _inside = self.shared.enter()?;
        if self.shared.is_traced() {
            return self.watched().am_short(id, header, payload);
        }
        self.ep.am_short(id, header, payload)
    }

    /// See [`crate::api::Ep::am_short_iov`]. // HOT
    #[inline]
    pub fn am_short_iov(&self, id: u8, iov: &[&[u8]]) -> Outcome {
        let _inside = self.shared.enter()?;
        if self.shared.is_traced() {
            return self.watched().am_short_iov(id, iov);
        }
        self.ep.am_short_iov(id, iov)
    }

    /// See [`crate::api::Ep::am_bcopy`]; `pack` runs inside the gate. // HOT
    #[inline]
    pub fn am_bcopy(&self, id: u8, pack: impl FnOnce(&mut [u8]) -> usize) -> Outcome<usize> {
        let _inside = self.shared.enter()?;
        if self.shared.is_traced() {
            return self.watched().am_bcopy(id, pack);
        }
        self.ep.am_bcopy(id, pack)
    }

    /// See [`crate::api::Ep::am_packet`]; `pack` runs inside the gate. // HOT
    #[inline]
    pub fn am_packet(&self, max: usize, pack: impl FnOnce(&mut [u8]) -> usize) -> Outcome<usize> {
        let _inside = self.shared.enter()?;
        if self.shared.is_traced() {
            return self.watched().am_packet(max, pack);
        }
        self.ep.am_packet(max, pack)
    }

    /// See [`crate::api::Ep::am_short_packet`]; `pack` runs inside the gate. // HOT
    #[inline]
    pub fn am_short_packet(&self, max: usize, pack: impl Pack + Copy) -> Outcome<usize> {
        let _inside = self.shared.enter()?;
        if self.shared.is_traced() {
            return self.watched().am_packet(max, |slot| pack.pack(slot));
        }
        self.ep.am_short_packet(max, pack)
    }

    /// See [`crate::api::Ep::send_to_user_qp`]; `pack` runs inside the gate.
    pub fn send_to_user_qp(
        &self,
        to: UserQp,
        max: usize,
        imm: Option<u32>,
        pack: impl FnOnce(&mut [u8]) -> usize,
    ) -> Outcome<usize> {
        let _inside = self.shared.enter()?;
        self.ep.send_to_user_qp(to, max, imm, pack)
    }

    /// See [`crate::api::Ep::am_zcopy`].
    ///
    /// # Safety
    /// As there.
    pub unsafe fn am_zcopy(
        &self,
        id: u8,
        header: &[u8],
        iov: &[Iov<'_, Mem>],
        comp: Option<&Arc<Completion>>,
    ) -> Outcome {
        let iov = inner_iov(&self.shared, iov)?;
        let call = |comp| {
            if self.shared.is_traced() {
                // SAFETY: the caller's promise is the same.
                return unsafe { self.watched().am_zcopy(id, header, &iov, comp) };
            }
            // SAFETY: as above.
            unsafe { self.ep.am_zcopy(id, header, &iov, comp) }
        };
        self.shared.run(comp, call, in_progress)
    }

    /// See [`crate::api::Ep::put_short`]. // HOT
    #[inline]
    pub fn put_short(&self, bytes: &[u8], remote: u64, rkey: &Rkey) -> Outcome {
        let rkey = self.key(rkey)?;
        let _inside = self.shared.enter()?;
        self.ep.put_short(bytes, remote, rkey)
    }

    /// See [`crate::api::Ep::put_bcopy`]; `pack` runs inside the gate.
    pub fn put_bcopy(
        &self,
        max: usize,
        pack: impl FnOnce(&mut [u8]) -> usize,
        remote: u64,
        rkey: &Rkey,
    ) -> Outcome<usize> {
        let rkey = self.key(rkey)?;
        let _inside = self.shared.enter()?;
        self.ep.put_bcopy(max, pack, remote, rkey)
    }

    /// See [`crate::api::Ep::put_zcopy`].
    ///
    /// # Safety
    /// As there.
    pub unsafe fn put_zcopy(
        &self,
        iov: &[Iov<'_, Mem>],
        remote: u64,
        rkey: &Rkey,
        comp: Option<&Arc<Completion>>,
    ) -> Outcome {
        let (iov, rkey) = (inner_iov(&self.shared, iov)?, self.key(rkey)?);
        // SAFETY: the caller's promise is the same.
        self.shared.run(comp, |comp| unsafe { self.ep.put_zcopy(&iov, remote, rkey, comp) }, in_progress)
    }

    /// See [`crate::api::Ep::get_short`]. // HOT
    #[inline]
    pub fn get_short(&self, out: &mut [u8], remote: u64, rkey: &Rkey) -> Outcome {
        let rkey = self.key(rkey)?;
        let _inside = self.shared.enter()?;
        self.ep.get_short(out, remote, rkey)
    }

    /// See [`crate::api::Ep::get_bcopy`]; `unpack` runs inside the gate, in whichever thread progresses.
    pub fn get_bcopy(
        &self,
        len: usize,
        unpack: impl FnOnce(&[u8]) + Send + 'static,
        remote: u64,
        rkey: &Rkey,
        comp: Option<&Arc<Completion>>,
    ) -> Outcome {
        let rkey = self.key(rkey)?;
        self.shared.run(comp, |comp| self.ep.get_bcopy(len, unpack, remote, rkey, comp), in_progress)
    }

    /// See [`crate::api::Ep::get_zcopy`].
    ///
    /// # Safety
    /// As there.
    pub unsafe fn get_zcopy(
        &self,
        iov: &[Iov<'_, Mem>],
        remote: u64,
        rkey: &Rkey,
        comp: Option<&Arc<Completion>>,
    ) -> Outcome {
        let (iov, rkey) = (inner_iov(&self.shared, iov)?, self.key(rkey)?);
        // SAFETY: the caller's promise is the same.
        self.shared.run(comp, |comp| unsafe { self.ep.get_zcopy(&iov, remote, rkey, comp) }, in_progress)
    }

    /// See [`crate::api::Ep::put_sgl`].
    ///
    /// # Safety
    /// As there.
    pub unsafe fn put_sgl(
        &self,
        iov: &[Iov<'_, Mem>],
        remote: &[RemoteIov<'_, Rkey>],
        comp: Option<&Arc<Completion>>,
    ) -> Outcome {
        let (iov, remote) = (inner_iov(&self.shared, iov)?, self.inner_remote(remote)?);
        // SAFETY: the caller's promise is the same.
        self.shared.run(comp, |comp| unsafe { self.ep.put_sgl(&iov, &remote, comp) }, in_progress)
    }

    /// See [`crate::api::Ep::get_sgl`].
    ///
    /// # Safety
    /// As there.
    pub unsafe fn get_sgl(
        &self,
        iov: &[Iov<'_, Mem>],
        remote: &[RemoteIov<'_, Rkey>],
        comp: Option<&Arc<Completion>>,
    ) -> Outcome {
        let (iov, remote) = (inner_iov(&self.shared, iov)?, self.inner_remote(remote)?);
        // SAFETY: the caller's promise is the same.
        self.shared.run(comp, |comp| unsafe { self.ep.get_sgl(&iov, &remote, comp) }, in_progress)
    }

    fn inner_remote<'k>(
        &self,
        remote: &[RemoteIov<'k, Rkey>],
    ) -> Result<ArrayVec<RemoteIov<'k, any::Rkey>, MAX_PIECES>, Refused> {
        if remote.len() > MAX_PIECES {
            return Err(Error::TooLong { len: remote.len(), max: MAX_PIECES }.into());
        }
        let one = |r: &RemoteIov<'k, Rkey>| {
            let rkey = self.key(r.rkey)?;
            Ok(RemoteIov { addr: r.addr, len: r.len, stride: r.stride, count: r.count, rkey })
        };
        remote.iter().map(one).collect()
    }

    /// See [`crate::api::Ep::put_imm`].
    ///
    /// # Safety
    /// As there.
    pub unsafe fn put_imm(
        &self,
        iov: &[Iov<'_, Mem>],
        remote: u64,
        rkey: &Rkey,
        imm: u32,
        comp: Option<&Arc<Completion>>,
    ) -> Outcome {
        let (iov, rkey) = (inner_iov(&self.shared, iov)?, self.key(rkey)?);
        // SAFETY: the caller's promise is the same.
        self.shared.run(comp, |comp| unsafe { self.ep.put_imm(&iov, remote, rkey, imm, comp) }, in_progress)
    }

    /// See [`crate::api::Ep::atomic_post`]. // HOT
    #[inline]
    pub fn atomic_post<W: Word>(&self, op: AtomicOp, value: W, remote: u64, rkey: &Rkey) -> Outcome {
        let rkey = self.key(rkey)?;
        let _inside = self.shared.enter()?;
        self.ep.atomic_post(op, value, remote, rkey)
    }

    /// See [`crate::api::Ep::atomic_fetch`]. // HOT
    ///
    /// # Safety
    /// As there.
    #[inline]
    pub unsafe fn atomic_fetch<W: Word>(
        &self,
        op: AtomicOp,
        value: W,
        result: NonNull<W>,
        remote: u64,
        rkey: &Rkey,
        comp: Option<&Arc<Completion>>,
    ) -> Outcome {
        let rkey = self.key(rkey)?;
        // SAFETY: the caller's promise is the same.
        let call = |comp| unsafe { self.ep.atomic_fetch(op, value, result, remote, rkey, comp) };
        self.shared.run(comp, call, in_progress)
    }

    /// See [`crate::api::Ep::atomic_cswap`]. // HOT
    ///
    /// # Safety
    /// As there.
    #[inline]
    pub unsafe fn atomic_cswap<W: Word>(
        &self,
        compare: W,
        swap: W,
        result: NonNull<W>,
        remote: u64,
        rkey: &Rkey,
        comp: Option<&Arc<Completion>>,
    ) -> Outcome {
        let rkey = self.key(rkey)?;
        // SAFETY: the caller's promise is the same.
        let call = |comp| unsafe { self.ep.atomic_cswap(compare, swap, result, remote, rkey, comp) };
        self.shared.run(comp, call, in_progress)
    }

    /// See [`crate::api::Ep::flush`].
    pub fn flush(&self, comp: Option<&Arc<Completion>>) -> Outcome {
        self.shared.run(comp, |comp| self.ep.flush(comp), in_progress)
    }

    /// See [`crate::api::Ep::fence`].
    pub fn fence(&self) -> Outcome {
        let _inside = self.shared.enter()?;
        self.ep.fence()
    }

    /// See [`crate::api::Ep::pending_add`]; the operation runs inside the gate, in whichever thread progresses.
    pub fn pending_add(&self, op: Box<dyn FnMut() -> Retry + Send>) -> Result<PendingQueued, Error> {
        let _inside = self.shared.enter()?;
        let added = self.ep.pending_add(op);
        if added == Ok(PendingQueued::Queued) {
            // Who sleeps without a limit counts on nothing waiting.
            self.shared.news.ring();
        }
        added
    }

    /// See [`crate::api::Ep::pending_purge`]: hands each waiting operation to `each`, still boxed.
    pub fn pending_purge(&self, each: &mut dyn FnMut(crate::api::Pending)) -> Result<(), Error> {
        let _inside = self.shared.enter()?;
        self.ep.pending_purge(each);
        Ok(())
    }

    /// See [`crate::api::Ep::ensure_connected`]; the gate is held meanwhile.
    pub fn ensure_connected(&self) -> Result<(), ConnectError> {
        let _inside = self.shared.enter()?;
        self.ep.ensure_connected()
    }

    /// See [`crate::api::Ep::begin_connecting`].
    pub fn begin_connecting(&self) -> Result<bool, ConnectError> {
        let _inside = self.shared.enter()?;
        self.ep.begin_connecting()
    }

    /// See [`crate::api::Ep::is_connected`].
    pub fn is_connected(&self, device: &[u8], iface: &[u8]) -> Result<bool, Error> {
        let _inside = self.shared.enter()?;
        Ok(self.ep.is_connected(device, iface))
    }

    /// See [`crate::api::Ep::cancel`].
    pub fn cancel(
        self,
        each: &mut dyn FnMut(crate::api::Pending),
        comp: Option<&Arc<Completion>>,
    ) -> Outcome {
        self.pending_purge(each)?;
        match self.flush(comp) {
            // Nothing goes to it, and nothing comes back.
            Err(Refused::Failed(Error::PeerDead)) => Ok(Sent::Done),
            flushed => flushed,
        }
    }

    /// See [`crate::api::Ep::check`].
    pub fn check(&self, comp: Option<&Arc<Completion>>) -> Outcome {
        self.shared.run(comp, |comp| self.ep.check(comp), in_progress)
    }
}

//! Endpoint of whichever transport. Delegation only; lists of local memory are rewritten on the stack.

use super::kinds::{KeyOf, OfKind, both, each};
use super::md::MIXED;
use super::{Ep, Mem, Rkey};
use crate::api::{
    self, AddrBuf, AtomicOp, Comp, ConnectError, EpTag, Error, Iov, Outcome, Pack, Pending, PendingQueued,
    Refused, RemoteIov, UserQp, Word,
};
use arrayvec::ArrayVec;
use std::ptr::NonNull;

/// Longest iov list that fits the stack; no transport takes more.
const MAX_IOV: usize = 32;

/// Calls `go` with the list, with registrations of the transport that will use it. // HOT
#[inline(always)]
fn with_iov<'m, M: OfKind<'m> + 'm>(
    iov: &[Iov<'m, Mem>],
    go: impl FnOnce(&[Iov<'m, M>]) -> Outcome,
) -> Outcome {
    // Nearly always it is one piece, for which room for a list would cost more than the operation.
    if let [piece] = iov { go(&[piece_of(piece)?]) } else { go(&list_of(iov)?) }
}

#[inline(always)]
pub(super) fn piece_of<'m, M: OfKind<'m> + 'm>(piece: &Iov<'m, Mem>) -> Result<Iov<'m, M>, Refused> {
    let mem = match piece.mem {
        Some(mem) => Some(M::of_kind(mem).ok_or(MIXED)?),
        None => None,
    };
    Ok(Iov { addr: piece.addr, len: piece.len, stride: piece.stride, count: piece.count, mem })
}

#[inline(never)]
fn list_of<'m, M: OfKind<'m> + 'm>(iov: &[Iov<'m, Mem>]) -> Result<ArrayVec<Iov<'m, M>, MAX_IOV>, Refused> {
    if iov.len() > MAX_IOV {
        return Err(Error::TooLong { len: iov.len(), max: MAX_IOV }.into());
    }
    iov.iter().map(piece_of).collect()
}

/// The same for remote pieces and their keys.
fn remote_of<'k, E: KeyOf>(
    _ep: &E,
    remote: &[RemoteIov<'k, Rkey>],
) -> Result<ArrayVec<RemoteIov<'k, E::Rkey>, MAX_IOV>, Refused> {
    if remote.len() > MAX_IOV {
        return Err(Error::TooLong { len: remote.len(), max: MAX_IOV }.into());
    }
    remote
        .iter()
        .map(|r| {
            let rkey = E::key_of(r.rkey).ok_or(MIXED)?;
            Ok(RemoteIov { addr: r.addr, len: r.len, stride: r.stride, count: r.count, rkey })
        })
        .collect()
}

impl api::Ep for Ep {
    type Mem = Mem;
    type Rkey = Rkey;

    #[inline]
    fn tag(&self) -> EpTag {
        each!(self, Ep(ep) => ep.tag())
    }

    fn set_tag(&self, tag: EpTag) {
        each!(self, Ep(ep) => ep.set_tag(tag))
    }

    // HOT
    #[inline]
    fn am_short(&self, id: u8, header: u64, payload: &[u8]) -> Outcome {
        each!(self, Ep(ep) => ep.am_short(id, header, payload))
    }

    // HOT
    #[inline]
    fn am_short_iov(&self, id: u8, iov: &[&[u8]]) -> Outcome {
        each!(self, Ep(ep) => ep.am_short_iov(id, iov))
    }

    // HOT
    #[inline]
    fn am_bcopy<F: FnOnce(&mut [u8]) -> usize>(&self, id: u8, pack: F) -> Outcome<usize> {
        each!(self, Ep(ep) => ep.am_bcopy(id, pack))
    }

    // HOT
    #[inline(always)]
    fn am_packet<F: FnOnce(&mut [u8]) -> usize>(&self, max: usize, pack: F) -> Outcome<usize> {
        each!(self, Ep(ep) => ep.am_packet(max, pack))
    }

    // HOT
    #[inline(always)]
    fn am_short_packet<P: Pack + Copy>(&self, max: usize, pack: P) -> Outcome<usize> {
        each!(self, Ep(ep) => ep.am_short_packet(max, pack.copy()))
    }

    fn send_to_user_qp<F: FnOnce(&mut [u8]) -> usize>(
        &self,
        to: UserQp,
        max: usize,
        imm: Option<u32>,
        pack: F,
    ) -> Outcome<usize> {
        each!(self, Ep(ep) => ep.send_to_user_qp(to, max, imm, pack))
    }

    #[inline]
    fn max_bcopy(&self) -> usize {
        each!(self, Ep(ep) => ep.max_bcopy())
    }

    #[inline]
    unsafe fn am_zcopy(&self, id: u8, header: &[u8], iov: &[Iov<'_, Mem>], comp: Comp) -> Outcome {
        // SAFETY: the caller's promise is the same.
        each!(self, Ep(ep) => with_iov(iov, |iov| unsafe { ep.am_zcopy(id, header, iov, comp) }))
    }

    #[inline]
    fn put_short(&self, bytes: &[u8], remote: u64, rkey: &Rkey) -> Outcome {
        both!(self, rkey, (Ep(ep), Rkey(rkey)) => ep.put_short(bytes, remote, rkey), else Err(MIXED.into()))
    }

    #[inline]
    fn put_bcopy<F: FnOnce(&mut [u8]) -> usize>(
        &self,
        max: usize,
        pack: F,
        remote: u64,
        rkey: &Rkey,
    ) -> Outcome<usize> {
        both!(self, rkey, (Ep(ep), Rkey(rkey)) => ep.put_bcopy(max, pack, remote, rkey), else Err(MIXED.into()))
    }

    #[inline]
    unsafe fn put_zcopy(&self, iov: &[Iov<'_, Mem>], remote: u64, rkey: &Rkey, comp: Comp) -> Outcome {
        both!(
            self, rkey,
            // SAFETY: the caller's promise is the same.
            (Ep(ep), Rkey(rkey)) => with_iov(iov, |iov| unsafe { ep.put_zcopy(iov, remote, rkey, comp) }),
            else Err(MIXED.into())
        )
    }

    #[inline]
    fn get_short(&self, out: &mut [u8], remote: u64, rkey: &Rkey) -> Outcome {
        both!(self, rkey, (Ep(ep), Rkey(rkey)) => ep.get_short(out, remote, rkey), else Err(MIXED.into()))
    }

    #[inline]
    fn get_bcopy<F: FnOnce(&[u8]) + 'static>(
        &self,
        len: usize,
        unpack: F,
        remote: u64,
        rkey: &Rkey,
        comp: Comp,
    ) -> Outcome {
        both!(
            self, rkey,
            (Ep(ep), Rkey(rkey)) => ep.get_bcopy(len, unpack, remote, rkey, comp),
            else Err(MIXED.into())
        )
    }

    #[inline]
    unsafe fn get_zcopy(&self, iov: &[Iov<'_, Mem>], remote: u64, rkey: &Rkey, comp: Comp) -> Outcome {
        both!(
            self, rkey,
            // SAFETY: the caller's promise is the same.
            (Ep(ep), Rkey(rkey)) => with_iov(iov, |iov| unsafe { ep.get_zcopy(iov, remote, rkey, comp) }),
            else Err(MIXED.into())
        )
    }

    unsafe fn put_sgl(&self, iov: &[Iov<'_, Mem>], remote: &[RemoteIov<'_, Rkey>], comp: Comp) -> Outcome {
        // SAFETY: the caller's promise is the same.
        each!(self, Ep(ep) => with_iov(iov, |iov| unsafe { ep.put_sgl(iov, &remote_of(ep, remote)?, comp) }))
    }

    unsafe fn get_sgl(&self, iov: &[Iov<'_, Mem>], remote: &[RemoteIov<'_, Rkey>], comp: Comp) -> Outcome {
        // SAFETY: the caller's promise is the same.
        each!(self, Ep(ep) => with_iov(iov, |iov| unsafe { ep.get_sgl(iov, &remote_of(ep, remote)?, comp) }))
    }

    unsafe fn put_imm(
        &self,
        iov: &[Iov<'_, Mem>],
        remote: u64,
        rkey: &Rkey,
        imm: u32,
        comp: Comp,
    ) -> Outcome {
        both!(
            self, rkey,
            // SAFETY: the caller's promise is the same.
            (Ep(ep), Rkey(rkey)) => with_iov(iov, |iov| unsafe { ep.put_imm(iov, remote, rkey, imm, comp) }),
            else Err(MIXED.into())
        )
    }

    #[inline]
    fn atomic_post<W: Word>(&self, op: AtomicOp, value: W, remote: u64, rkey: &Rkey) -> Outcome {
        both!(self, rkey, (Ep(ep), Rkey(rkey)) => ep.atomic_post(op, value, remote, rkey), else Err(MIXED.into()))
    }

    #[inline]
    unsafe fn atomic_fetch<W: Word>(
        &self,
        op: AtomicOp,
        value: W,
        result: NonNull<W>,
        remote: u64,
        rkey: &Rkey,
        comp: Comp,
    ) -> Outcome {
        both!(
            self, rkey,
            // SAFETY: the caller's promise is the same.
            (Ep(ep), Rkey(rkey)) => unsafe { ep.atomic_fetch(op, value, result, remote, rkey, comp) },
            else Err(MIXED.into())
        )
    }

    #[inline]
    unsafe fn atomic_cswap<W: Word>(
        &self,
        compare: W,
        swap: W,
        result: NonNull<W>,
        remote: u64,
        rkey: &Rkey,
        comp: Comp,
    ) -> Outcome {
        both!(
            self, rkey,
            // SAFETY: the caller's promise is the same.
            (Ep(ep), Rkey(rkey)) => unsafe { ep.atomic_cswap(compare, swap, result, remote, rkey, comp) },
            else Err(MIXED.into())
        )
    }

    fn flush(&self, comp: Comp) -> Outcome {
        each!(self, Ep(ep) => ep.flush(comp))
    }

    fn fence(&self) -> Outcome {
        each!(self, Ep(ep) => ep.fence())
    }

    fn pending_add(&self, op: Pending) -> Result<PendingQueued, Error> {
        each!(self, Ep(ep) => ep.pending_add(op))
    }

    fn pending_purge(&self, each_op: &mut dyn FnMut(Pending)) {
        each!(self, Ep(ep) => ep.pending_purge(each_op))
    }

    fn ensure_connected(&self) -> Result<(), ConnectError> {
        each!(self, Ep(ep) => ep.ensure_connected())
    }

    fn begin_connecting(&self) -> Result<bool, ConnectError> {
        each!(self, Ep(ep) => ep.begin_connecting())
    }

    fn check(&self, comp: Comp) -> Outcome {
        each!(self, Ep(ep) => ep.check(comp))
    }

    fn is_connected(&self, device: &[u8], iface: &[u8]) -> bool {
        each!(self, Ep(ep) => ep.is_connected(device, iface))
    }

    fn ep_addr(&self) -> Result<AddrBuf, Error> {
        each!(self, Ep(ep) => ep.ep_addr())
    }

    fn connect_to_ep(&self, device: &[u8], iface: &[u8], addr: &[u8]) -> Result<(), ConnectError> {
        each!(self, Ep(ep) => ep.connect_to_ep(device, iface, addr))
    }
}

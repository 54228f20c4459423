//! Endpoint of a transport chosen at run time. Delegation only; lists of local memory are rewritten on the
//! stack.

#![allow(unsafe_code)]

use super::dispatch::{MemOfTransport, RkeyOfTransport, both, each};
use super::md::WRONG_TRANSPORT;
use super::{Ep, Mem, Rkey};
use crate::api::{
    self, Access, Comp, EpTag, Error, Iov, Outcome, Pack, Pending, PendingQueued, Refused, RemoteIov,
};
use crate::delegate::{ep_control, ep_rma, ep_sends};
use arrayvec::ArrayVec;

const MAX_IOV: usize = 32;

/// Calls `go` with the list, with registrations of the transport that will use it.
// HOT
#[inline(always)]
fn with_iov<'m, M: MemOfTransport<'m> + 'm>(
    iov: &[Iov<'m, Mem>],
    go: impl FnOnce(&[Iov<'m, M>]) -> Outcome,
) -> Outcome {
    // Nearly always it is one piece, for which room for a list would cost more than the operation.
    if let [piece] = iov { go(&[piece_of(piece)?]) } else { go(&list_of(iov)?) }
}

#[inline(always)]
pub(super) fn piece_of<'m, M: MemOfTransport<'m> + 'm>(piece: &Iov<'m, Mem>) -> Result<Iov<'m, M>, Refused> {
    let mem = match piece.mem {
        Some(mem) => Some(M::of_any(mem).ok_or(WRONG_TRANSPORT)?),
        None => None,
    };
    Ok(Iov { addr: piece.addr, len: piece.len, stride: piece.stride, count: piece.count, mem })
}

#[inline(never)]
fn list_of<'m, M: MemOfTransport<'m> + 'm>(
    iov: &[Iov<'m, Mem>],
) -> Result<ArrayVec<Iov<'m, M>, MAX_IOV>, Refused> {
    if iov.len() > MAX_IOV {
        return Err(Error::TooLong { len: iov.len(), max: MAX_IOV }.into());
    }
    iov.iter().map(piece_of).collect()
}

fn remote_of<'k, E: RkeyOfTransport>(
    _ep: &E,
    remote: &[RemoteIov<'k, Rkey>],
) -> Result<ArrayVec<RemoteIov<'k, E::Rkey>, MAX_IOV>, Refused> {
    if remote.len() > MAX_IOV {
        return Err(Error::TooLong { len: remote.len(), max: MAX_IOV }.into());
    }
    remote
        .iter()
        .map(|r| {
            let rkey = E::rkey_of_any(r.rkey).ok_or(WRONG_TRANSPORT)?;
            Ok(RemoteIov { addr: r.addr, len: r.len, stride: r.stride, count: r.count, rkey })
        })
        .collect()
}

macro_rules! method {
    ([$($attr:tt)*] [] $name:ident [$($generics:tt)*] ($($arg:ident: $T:ty),*) $Ret:ty;
     iov() remote() rkey() comp($($comp:ident)?)) => {
        $($attr)*
        fn $name<$($generics)*>(&self, $($arg: $T),*) -> $Ret {
            each!(self, Ep(ep) => ep.$name($($arg),*))
        }
    };
    ([$($attr:tt)*] [] $name:ident [$($generics:tt)*] ($($arg:ident: $T:ty),*) $Ret:ty;
     iov() remote() rkey($rkey:ident) comp($($comp:ident)?)) => {
        $($attr)*
        fn $name<$($generics)*>(&self, $($arg: $T),*) -> $Ret {
            both!(self, $rkey, (Ep(ep), Rkey($rkey)) => ep.$name($($arg),*), else Err(WRONG_TRANSPORT.into()))
        }
    };
    ([$($attr:tt)*] [unsafe] $name:ident [$($generics:tt)*] ($($arg:ident: $T:ty),*) $Ret:ty;
     iov() remote() rkey($rkey:ident) comp($($comp:ident)?)) => {
        $($attr)*
        unsafe fn $name<$($generics)*>(&self, $($arg: $T),*) -> $Ret {
            both!(
                self, $rkey,
                // SAFETY: the caller's promise is the same.
                (Ep(ep), Rkey($rkey)) => unsafe { ep.$name($($arg),*) },
                else Err(WRONG_TRANSPORT.into())
            )
        }
    };
    ([$($attr:tt)*] [unsafe] $name:ident [] ($($arg:ident: $T:ty),*) $Ret:ty;
     iov($iov:ident) remote() rkey($rkey:ident) comp($comp:ident)) => {
        $($attr)*
        unsafe fn $name(&self, $($arg: $T),*) -> $Ret {
            both!(
                self, $rkey,
                // SAFETY: the caller's promise is the same.
                (Ep(ep), Rkey($rkey)) => with_iov($iov, |$iov| unsafe { ep.$name($($arg),*) }),
                else Err(WRONG_TRANSPORT.into())
            )
        }
    };
    ([$($attr:tt)*] [unsafe] $name:ident [] ($($arg:ident: $T:ty),*) $Ret:ty;
     iov($iov:ident) remote($($remote:ident)?) rkey() comp($comp:ident)) => {
        $($attr)*
        unsafe fn $name(&self, $($arg: $T),*) -> $Ret {
            each!(self, Ep(ep) => with_iov($iov, |$iov| {
                $(let $remote = &remote_of(ep, $remote)?[..];)?
                // SAFETY: the caller's promise is the same.
                unsafe { ep.$name($($arg),*) }
            }))
        }
    };
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
    #[inline(always)]
    fn am_short_packet<P: Pack + Copy>(&self, max: usize, pack: P) -> Outcome<usize> {
        each!(self, Ep(ep) => ep.am_short_packet(max, pack.copy()))
    }

    #[inline]
    fn max_bcopy(&self) -> usize {
        each!(self, Ep(ep) => ep.max_bcopy())
    }

    fn pending_add(&self, op: Pending) -> Result<PendingQueued, Error> {
        each!(self, Ep(ep) => ep.pending_add(op))
    }

    fn pending_purge(&self, each_op: &mut dyn FnMut(Pending)) {
        each!(self, Ep(ep) => ep.pending_purge(each_op))
    }

    fn is_connected(&self, device: &[u8], iface: &[u8]) -> bool {
        each!(self, Ep(ep) => ep.is_connected(device, iface))
    }

    fn peer_process(&self) -> Option<u64> {
        each!(self, Ep(ep) => ep.peer_process())
    }

    fn published(&self) -> Option<u64> {
        each!(self, Ep(ep) => ep.published())
    }

    // HOT
    #[inline(always)]
    fn may_access(&self, rkey: &Rkey, need: Access) -> bool {
        // The two that map memory. A match of all transports costs more instructions than the answer.
        if let (Ep::Posix(ep), Rkey::Posix(rkey)) = (self, rkey) {
            return ep.may_access(rkey, need);
        }
        if let (Ep::Loopback(ep), Rkey::Loopback(rkey)) = (self, rkey) {
            return ep.may_access(rkey, need);
        }
        false
    }

    ep_sends!(method, Mem, Comp);
    ep_rma!(method, Mem, Rkey, Comp);
    ep_control!(method, Comp);
}

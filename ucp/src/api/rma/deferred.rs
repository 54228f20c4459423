//! Deferral of one-sided operations on an endpoint whose peer is not known yet. Keys are copied without the
//! mapping of the memory, and operands of atomics with their bytes: both may go when the call returns.

#![allow(unsafe_code)]

use crate::api::core::error::Error;
use crate::api::core::requests::OpStatus;
use crate::api::data::iov::Iov;
use crate::api::ep::deferred::defer;
use crate::api::ep::handle::Ep;
use crate::api::rma::atomic_params::{AtomicIovParams, AtomicParams};
use crate::api::rma::params::{RemoteIov, RmaParams};
use crate::api::rma::rkey::Rkey;

use crate::rdm::RecvStatus;
use crate::wire::AtomicOp;

/// Remote pieces that own their keys.
struct OwnedRemote(Vec<(u64, usize, Rkey)>);

impl OwnedRemote {
    fn new(remote: &[RemoteIov<'_>]) -> OwnedRemote {
        OwnedRemote(remote.iter().map(|piece| (piece.addr, piece.len, piece.rkey.unmapped())).collect())
    }

    fn pieces(&self) -> Vec<RemoteIov<'_>> {
        self.0.iter().map(|(addr, len, rkey)| RemoteIov { addr: *addr, len: *len, rkey }).collect()
    }
}

/// Safety: as for [`Ep::put_iov_raw`].
#[cold]
pub(crate) unsafe fn defer_put(
    ep: &Ep,
    refusal: Error,
    local: &[Iov],
    remote: &[RemoteIov<'_>],
    params: &RmaParams,
) -> Result<OpStatus<()>, Error> {
    let (local, remote) = (local.to_vec(), OwnedRemote::new(remote));
    let (done, params) = (params.done, params.without_borrows());
    let start = move |ep: &Ep| {
        // SAFETY: the caller keeps the pieces valid until completion, which comes after this.
        let started = unsafe { ep.put_iov_raw(&local, &remote.pieces(), &params) };
        started.map(OpStatus::with_empty_status)
    };
    defer(ep, refusal, done, Box::new(start))
}

/// Safety: as for [`Ep::get_iov_raw`].
#[cold]
pub(crate) unsafe fn defer_get(
    ep: &Ep,
    refusal: Error,
    local: &[Iov],
    remote: &[RemoteIov<'_>],
    params: &RmaParams,
) -> Result<OpStatus<RecvStatus>, Error> {
    let (local, remote) = (local.to_vec(), OwnedRemote::new(remote));
    let (done, params) = (params.done, params.without_borrows());
    // SAFETY: as in `defer_put`.
    let start = move |ep: &Ep| unsafe { ep.get_iov_raw(&local, &remote.pieces(), &params) };
    defer(ep, refusal, done, Box::new(start))
}

/// Safety: as for [`Ep::atomic_raw`].
#[cold]
pub(crate) unsafe fn defer_atomic(
    ep: &Ep,
    refusal: Error,
    (remote, rkey): (u64, &Rkey),
    params: &AtomicParams<'_>,
) -> Result<OpStatus<RecvStatus>, Error> {
    let len = params.count.checked_mul(params.ty.size()).ok_or(Error::Invalid)?;
    let some = |is_used: bool| if is_used { len } else { 0 };
    // SAFETY: the caller passes readable operands where the operation uses them.
    let operand = unsafe { copy(&[Iov::of(params.operand, some(params.op != AtomicOp::Read))]) };
    let compares = params.op as u32 >= AtomicOp::CompareSwap as u32;
    // SAFETY: as above.
    let compare = unsafe { copy(&[Iov::of(params.compare, some(compares))]) };
    let (done, params, rkey) = (params.done, params.without_borrows(), rkey.unmapped());
    let start = move |ep: &Ep| {
        let params = AtomicParams { operand: operand.as_ptr(), compare: compare.as_ptr(), ..params };
        // SAFETY: the operands are kept with this closure until completion, the result by the caller.
        unsafe { ep.atomic_raw(remote, &rkey, &params) }
    };
    defer(ep, refusal, done, Box::new(start))
}

/// Safety: as for [`Ep::atomic_iov_raw`].
#[cold]
pub(crate) unsafe fn defer_atomic_iov(
    ep: &Ep,
    refusal: Error,
    remote: &[RemoteIov<'_>],
    params: &AtomicIovParams<'_>,
) -> Result<OpStatus<RecvStatus>, Error> {
    let remote = OwnedRemote::new(remote);
    // SAFETY: the caller passes readable operands.
    let mut operand = unsafe { copy(params.operand) };
    // SAFETY: as above.
    let mut compare = unsafe { copy(params.compare) };
    let result = params.result.map(<[Iov]>::to_vec);
    let (op, ty, sync, done) = (params.op, params.ty, params.sync, params.done);
    let start = move |ep: &Ep| {
        let (operand, compare) = (&pieces(&mut operand)[..], &pieces(&mut compare)[..]);
        let result = result.as_deref();
        let params = AtomicIovParams { op, ty, operand, compare, result, sync, done: None, mem: None };
        // SAFETY: the operands are kept with this closure until completion, the result by the caller.
        unsafe { ep.atomic_iov_raw(&remote.pieces(), &params) }
    };
    defer(ep, refusal, done, Box::new(start))
}

/// Copies the bytes of `pieces`. Safety: all are readable.
unsafe fn copy(pieces: &[Iov]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(pieces.iter().map(|piece| piece.len).sum());
    for piece in pieces.iter().filter(|piece| piece.len > 0) {
        // SAFETY: this function's contract.
        bytes.extend_from_slice(unsafe { std::slice::from_raw_parts(piece.addr, piece.len) });
    }
    bytes
}

/// Bytes as a list of one piece, or of none.
fn pieces(bytes: &mut Vec<u8>) -> Vec<Iov> {
    match bytes.len() {
        0 => Vec::new(),
        len => vec![Iov { addr: bytes.as_mut_ptr(), len }],
    }
}

//! Atomic operations on lists of up to four pieces. Always by packets, as in EFA RDM v4.

#![allow(unsafe_code)]

use crate::api::core::error::Error;
use crate::api::core::requests::{Callback, OpStatus};
use crate::api::data::iov::Iov;
use crate::api::ep::handle::Ep;
use crate::api::rma::put_get::{RemoteIov, remote_iovs};

use crate::rdm::{Access, AtomicArgs, Gather, RecvBuf, RecvStatus, Scatter, SendBuf};
use crate::select::Sync;
use crate::wire::{AtomicOp, Datatype};

/// Parameters of [`Ep::atomic_iov_raw`]. Each list has up to four pieces.
#[derive(Clone, Copy, Debug)]
pub struct AtomicIovParams<'a> {
    /// Operation.
    pub op: AtomicOp,
    /// Element type.
    pub ty: Datatype,
    /// One operand per element; empty for [`AtomicOp::Read`].
    pub operand: &'a [Iov],
    /// One compare value per element; empty for other operations.
    pub compare: &'a [Iov],
    /// Receives the old values; `None`: they are not returned.
    pub result: Option<&'a [Iov]>,
    /// When an operation without result is complete.
    pub sync: Sync,
    /// Called at completion, unless the operation completes in the call.
    pub done: Option<Callback>,
}

impl Ep {
    /// Executes `params.op` on each element of up to four pieces of the peer's memory, with the n-th operand
    /// and result. Each piece is a multiple of the element size.
    /// # Safety
    /// As for [`Ep::atomic_raw`], for every piece.
    pub unsafe fn atomic_iov_raw(
        &self,
        remote: &[RemoteIov<'_>],
        params: &AtomicIovParams<'_>,
    ) -> Result<OpStatus<RecvStatus>, Error> {
        if let Err(refusal) = self.usable() {
            // SAFETY: this function's contract.
            return unsafe { self.defer_atomic_iov(refusal, remote, params) };
        }
        let (remote, _) = remote_iovs(self.peer(), remote, Access::ATOMIC, false)?;
        let len = remote.total().and_then(|len| usize::try_from(len).ok()).ok_or(Error::Invalid)?;
        // SAFETY: the caller keeps the operands valid until completion.
        let operand = unsafe { gather(params.operand) }?;
        // SAFETY: as above.
        let compare = unsafe { gather(params.compare) }?;
        // SAFETY: the caller keeps the result pieces valid until completion.
        let result = params.result.map(|list| unsafe { scatter(list) }).transpose()?;
        let args = AtomicArgs {
            op: params.op,
            ty: params.ty,
            remote,
            operand,
            compare,
            result,
            sync: params.sync,
            user: 0,
        };
        self.worker().core().atomic(self, args, len, params.done)
    }
}

/// Unsafe: as for [`SendBuf::new`], of every piece.
unsafe fn gather(list: &[Iov]) -> Result<Gather, Error> {
    let mut all = Gather::EMPTY;
    for piece in list {
        // SAFETY: the caller's contract.
        let buf = unsafe { SendBuf::new(piece.addr, piece.len) };
        if !all.push(buf) {
            return Err(Error::Invalid);
        }
    }
    Ok(all)
}

/// Unsafe: as for [`RecvBuf::new`], of every piece.
unsafe fn scatter(list: &[Iov]) -> Result<Scatter, Error> {
    let mut all = Scatter::EMPTY;
    for piece in list {
        // SAFETY: the caller's contract.
        let buf = unsafe { RecvBuf::new(piece.addr, piece.len) };
        if !all.push(buf) {
            return Err(Error::Invalid);
        }
    }
    Ok(all)
}

//! Atomic operations on lists: elements in several pieces of the peer's memory, operands and results in several of ours, as
//! one operation. By packets, as EFA RDM v4 has it; single pieces are in `amo`.

use crate::api::core::error::Error;
use crate::api::core::requests::{Callback, OpStatus};
use crate::api::ep::handle::Ep;
use crate::api::rma::put_get::{Iov, RemoteIov, pieces};

use crate::rdm::{Access, AtomicArgs, Gather, RecvBuf, RecvStatus, Scatter, SendBuf};
use crate::select::Sync;
use crate::wire::{AtomicOp, Datatype};

/// An atomic operation on lists. Each list has up to four pieces.
#[derive(Clone, Copy, Debug)]
pub struct AtomicIovParams<'a> {
    /// What to do.
    pub op: AtomicOp,
    /// Type of the elements.
    pub ty: Datatype,
    /// The operands, one for each element; empty for [`AtomicOp::Read`].
    pub operand: &'a [Iov],
    /// The values to compare with, one for each element; empty for operations that do not compare.
    pub compare: &'a [Iov],
    /// Where the old values go; `None`: nobody wants them.
    pub result: Option<&'a [Iov]>,
    /// When one without result is complete; one with a result is when that is there.
    pub sync: Sync,
    /// Called at the end, if it does not end in the call.
    pub done: Option<Callback>,
}

impl Ep {
    /// Does `params.op` on each element of the pieces of the peer's memory, up to four, each a multiple of the type's size.
    /// Elements, operands and results stand to each other by their place in their lists. Carried by packets on every wire.
    ///
    /// # Safety
    /// The pieces of `operand` and `compare` are valid for reads, those of `result` for writes; unless the call answers
    /// *done* or an error, until the operation's end, all unchanged and touched by nobody else. `params.done` may be called
    /// with its argument.
    pub unsafe fn atomic_iov_raw(
        &self,
        remote: &[RemoteIov<'_>],
        params: &AtomicIovParams<'_>,
    ) -> Result<OpStatus<RecvStatus>, Error> {
        self.usable()?;
        let (remote, _) = pieces(self.peer(), remote, Access::ATOMIC, false)?;
        let len = remote.total().and_then(|len| usize::try_from(len).ok()).ok_or(Error::Invalid)?;
        // SAFETY: the caller vouches for the operands until the operation's end.
        let operand = unsafe { gather(params.operand) }?;
        // SAFETY: as above.
        let compare = unsafe { gather(params.compare) }?;
        // SAFETY: the caller vouches for the room as well.
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

/// # Safety
/// As for [`SendBuf::new`], of every piece.
unsafe fn gather(list: &[Iov]) -> Result<Gather, Error> {
    let mut all = Gather::EMPTY;
    for piece in list {
        // SAFETY: the caller's promise.
        let buf = unsafe { SendBuf::new(piece.addr, piece.len) };
        if !all.push(buf) {
            return Err(Error::Invalid);
        }
    }
    Ok(all)
}

/// # Safety
/// As for [`RecvBuf::new`], of every piece.
unsafe fn scatter(list: &[Iov]) -> Result<Scatter, Error> {
    let mut all = Scatter::EMPTY;
    for piece in list {
        // SAFETY: the caller's promise.
        let buf = unsafe { RecvBuf::new(piece.addr, piece.len) };
        if !all.push(buf) {
            return Err(Error::Invalid);
        }
    }
    Ok(all)
}

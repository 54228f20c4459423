//! Atomic operations on lists of up to four pieces. Always by packets, as in EFA RDM v4.

#![allow(unsafe_code)]

use crate::api::core::error::Error;
use crate::api::core::requests::OpStatus;
use crate::api::data::params::check_mem_of_pieces;
use crate::api::ep::handle::Ep;
use crate::api::rma::atomic::start_atomic;
use crate::api::rma::atomic_params::AtomicIovParams;
use crate::api::rma::deferred::defer_atomic_iov;
use crate::api::rma::params::RemoteIov;
use crate::api::rma::start::{gather, remote_iovs, scatter};

use crate::rdm::{Access, AtomicArgs, RecvStatus};

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
        check_mem_of_pieces(params.mem, params.result.unwrap_or(&[]))?;
        if let Some(refusal) = self.state().refusal.get() {
            // SAFETY: this function's contract.
            return unsafe { defer_atomic_iov(self, refusal, remote, params) };
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
            compare: Some(compare).filter(|values| !values.is_empty()),
            result,
            sync: params.sync,
            user: 0,
        };
        start_atomic(&mut self.worker().core(), self.state(), args, len, params.done)
    }
}

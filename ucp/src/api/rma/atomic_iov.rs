//! Atomic operations on lists: up to four pieces of the peer's memory, and any number of local ones. Always
//! by packets, as in EFA RDM v4.

#![allow(unsafe_code)]

use crate::api::core::error::Error;
use crate::api::core::requests::OpStatus;
use crate::api::data::params::check_mem_of_pieces;
use crate::api::ep::handle::Ep;
use crate::api::rma::atomic::start_atomic;
use crate::api::rma::atomic_params::AtomicIovParams;
use crate::api::rma::deferred::defer_atomic_iov;
use crate::api::rma::params::RemoteIov;
use crate::api::rma::pieces::{with_gather, with_scatter};
use crate::api::rma::start::remote_iovs;

use crate::rdm::{Access, AtomicArgs, Gather, RecvStatus};

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
        let worker = self.worker();
        let start = |operand, compare: Gather, result| {
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
            start_atomic(&mut worker.core(), self.state(), args, len, params.done)
        };
        let with_result = |operand, compare| match params.result {
            None => start(operand, compare, None),
            // SAFETY: the caller keeps the result pieces valid until completion.
            Some(list) => unsafe {
                with_scatter(worker, list, |result| start(operand, compare, Some(result)))
            },
        };
        // SAFETY: the caller keeps the values valid until completion.
        let with_compare =
            |operand| unsafe { with_gather(worker, params.compare, |compare| with_result(operand, compare)) };
        // SAFETY: as above, of the operands.
        unsafe { with_gather(worker, params.operand, with_compare) }
    }
}

//! Operations on endpoints whose peer is not known yet, in the order of their calls. `ep::deferred` adds and
//! starts them.

use std::collections::VecDeque;
use std::rc::Rc;

use crate::api::core::ep_state::EpState;
use crate::api::core::error::Error;
use crate::api::core::requests::{OpStatus, RequestId, Requests};

use crate::rdm::RecvStatus;

/// Starts an operation. Owns what the operation uses until its end.
pub(crate) type StartOp = Box<dyn FnMut() -> Result<OpStatus<RecvStatus>, Error>>;

pub(crate) struct DeferredOp {
    /// Request of the operation; `None` if it has none.
    pub(crate) id: Option<RequestId>,
    pub(crate) ep: Rc<EpState>,
    pub(crate) start: StartOp,
}

#[derive(Default)]
pub(crate) struct DeferredOps {
    ops: VecDeque<DeferredOp>,
    /// First error of an endpoint that has lost operations, for the next flush of the worker.
    lost: Option<Error>,
}

impl DeferredOps {
    pub(crate) fn is_empty(&self) -> bool {
        self.ops.is_empty()
    }

    pub(crate) fn push(&mut self, op: DeferredOp) {
        self.ops.push_back(op);
    }

    /// Takes the oldest operation of an endpoint.
    pub(crate) fn take_oldest(&mut self, ep: &Rc<EpState>) -> Option<DeferredOp> {
        let at = self.ops.iter().position(|op| Rc::ptr_eq(&op.ep, ep))?;
        self.ops.remove(at)
    }

    /// Ends every operation of an endpoint that never gets its peer. A flush of the worker reports that.
    pub(crate) fn fail(&mut self, ep: &Rc<EpState>, error: Error, reqs: &mut Requests) {
        if self.ops.iter().any(|op| op.id.is_some() && Rc::ptr_eq(&op.ep, ep)) {
            self.lost.get_or_insert(error);
        }
        self.end(ep, error, reqs);
    }

    /// Takes the error of operations that [`DeferredOps::fail`] has ended.
    pub(crate) fn take_lost(&mut self) -> Option<Error> {
        self.lost.take()
    }

    /// Ends every operation of an endpoint with `error`.
    pub(crate) fn end(&mut self, ep: &Rc<EpState>, error: Error, reqs: &mut Requests) {
        while let Some(op) = self.take_oldest(ep) {
            if let Some(id) = op.id {
                reqs.end(id, Err(error));
            }
        }
    }

    /// Cancels an operation that has not started.
    pub(crate) fn cancel(&mut self, id: RequestId, reqs: &mut Requests) -> bool {
        let at = self.ops.iter().position(|op| op.id == Some(id));
        let is_deferred = at.and_then(|at| self.ops.remove(at)).is_some();
        if is_deferred {
            reqs.end(id, Err(Error::Cancelled));
        }
        is_deferred
    }
}

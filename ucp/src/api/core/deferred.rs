//! Operations on endpoints whose peer is not known yet, in the order of their calls. `ep::deferred` adds and
//! starts them.

use std::collections::VecDeque;
use std::rc::Rc;

use crate::api::core::ep_state::EpState;
use crate::api::core::error::Error;
use crate::api::core::requests::{OpStatus, RequestId};

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
pub(crate) struct DeferredOps(VecDeque<DeferredOp>);

impl DeferredOps {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn push(&mut self, op: DeferredOp) {
        self.0.push_back(op);
    }

    /// Takes the oldest operation of an endpoint.
    pub(crate) fn take_oldest(&mut self, ep: &Rc<EpState>) -> Option<DeferredOp> {
        let at = self.0.iter().position(|op| Rc::ptr_eq(&op.ep, ep))?;
        self.0.remove(at)
    }

    pub(crate) fn take(&mut self, id: RequestId) -> Option<DeferredOp> {
        let at = self.0.iter().position(|op| op.id == Some(id))?;
        self.0.remove(at)
    }
}

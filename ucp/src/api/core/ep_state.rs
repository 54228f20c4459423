//! State of an endpoint, shared by its handle and the worker.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use arrayvec::ArrayVec;

use crate::api::core::ep_config::EpConfig;
use crate::api::core::error::Error;

use crate::lane::{LaneIdx, RmaOnlyEp};
use crate::rdm::MAX_RAILS;
use crate::rdm::io::PeerId;

pub(crate) const MAX_LANES: usize = 4;

/// Further lanes of an endpoint, as peers of the engine.
pub(crate) type Rails = ArrayVec<PeerId, { MAX_RAILS - 1 }>;

/// Handling of a failure of an endpoint's peer.
#[derive(Default)]
#[non_exhaustive]
pub enum ErrorMode {
    /// Operations complete with the error; there is no other notification.
    #[default]
    None,
    /// Progress also calls this callback, once.
    Peer(Box<dyn FnMut(Error)>),
}

pub(crate) struct EpState {
    /// Peer on the lane that carries messages.
    pub peer: PeerId,
    /// Lanes to the peer, cheapest first.
    pub(crate) lanes: ArrayVec<LaneIdx, MAX_LANES>,
    pub(crate) rma_only_ep: RmaOnlyEp,
    pub(crate) rails: Rails,
    pub(crate) tables: Rc<EpConfig>,
    /// Error of every send, once the endpoint is closed or failed.
    pub(crate) refusal: Cell<Option<Error>>,
    /// Bound below which tagged messages may go as one packet within the call; 0 once sends are refused.
    pub(crate) short_below: Cell<usize>,
    pub(crate) to_self: bool,
    pub(crate) errors: RefCell<ErrorMode>,
}

impl EpState {
    /// Records the peer's failure. Returns true the first time, if a callback is set.
    pub(crate) fn fail(&self, error: Error) -> bool {
        let first = self.failure().is_none();
        if self.refusal.get().is_none() {
            self.refuse(error);
        }
        first && matches!(&*self.errors.borrow(), ErrorMode::Peer(_))
    }

    pub(crate) fn refuse(&self, why: Error) {
        self.refusal.set(Some(why));
        self.short_below.set(0);
    }

    pub(crate) fn failure(&self) -> Option<Error> {
        self.refusal.get().filter(|e| *e != Error::Closed)
    }

    /// Calls the failure callback, which is user code.
    pub(crate) fn call_error_handler(&self, error: Error) {
        let taken = std::mem::take(&mut *self.errors.borrow_mut());
        if let ErrorMode::Peer(mut call) = taken {
            call(error);
        }
    }
}

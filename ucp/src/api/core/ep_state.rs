//! State of an endpoint, shared by its handle and the worker. Holds what sends look up, and the error once the peer has failed.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use arrayvec::ArrayVec;

use crate::api::core::ep_config::Tables;
use crate::api::core::error::Error;

use crate::lane::{LaneIdx, Reach};
use crate::rdm::MAX_RAILS;
use crate::rdm::io::PeerId;

/// Most lanes of one endpoint.
pub(crate) const MAX_LANES: usize = 4;

/// The further lanes of an endpoint, as peers of the engine.
pub(crate) type Rails = ArrayVec<PeerId, { MAX_RAILS - 1 }>;

/// What happens when the peer of an endpoint fails.
#[derive(Default)]
pub enum ErrorMode {
    /// Its operations end with the error; nobody is told besides.
    #[default]
    None,
    /// The callback is told too, once, from progress.
    Peer(Box<dyn FnMut(Error)>),
}

/// What an endpoint's operations and the worker share.
pub(crate) struct EpState {
    /// The peer on the lane that messages take.
    pub peer: PeerId,
    /// Every lane that leads to it, cheapest first.
    pub(crate) lanes: ArrayVec<LaneIdx, MAX_LANES>,
    /// The way to memory of the peer's that is not mapped here, if it is a process of this host.
    pub(crate) reach: Reach,
    /// Further lanes of the peer, for long transfers.
    pub(crate) rails: Rails,
    /// Protocol by size.
    pub(crate) tables: Rc<Tables>,
    /// Why nothing can be sent, if so: closed, or failed.
    pub(crate) refusal: Cell<Option<Error>>,
    /// Tagged messages of fewer bytes may go by the short way: one packet, at once. None may once nothing can be sent.
    pub(crate) short_below: Cell<usize>,
    /// It leads to its own worker.
    pub(crate) to_self: bool,
    pub(crate) errors: RefCell<ErrorMode>,
}

impl EpState {
    /// The peer's failure. `true` the first time, if somebody wants to hear of it.
    pub(crate) fn fail(&self, error: Error) -> bool {
        let first = self.failure().is_none();
        if self.refusal.get().is_none() {
            self.refuse(error);
        }
        first && matches!(&*self.errors.borrow(), ErrorMode::Peer(_))
    }

    /// From now on nothing can be sent.
    pub(crate) fn refuse(&self, why: Error) {
        self.refusal.set(Some(why));
        self.short_below.set(0);
    }

    /// Why the peer is lost, if it is.
    pub(crate) fn failure(&self) -> Option<Error> {
        self.refusal.get().filter(|e| *e != Error::Closed)
    }

    /// Tells the user of the failure. The callback is user code.
    pub(crate) fn tell(&self, error: Error) {
        let taken = std::mem::take(&mut *self.errors.borrow_mut());
        if let ErrorMode::Peer(mut call) = taken {
            call(error);
        }
    }
}

//! Flushes under way: scope, stage and deadline of each. Moved on by `worker::flush`.

use std::rc::Rc;

use ucs::coll::slots::SlotId;
use ucs::time::Nanos;

use crate::api::core::ep_state::EpState;
use crate::api::core::error::Error;

use crate::rdm::io::PeerId;

/// What is flushed, and how far it is.
pub(crate) struct Flush {
    pub(crate) id: SlotId,
    pub(crate) of: Of,
    pub(crate) stage: Stage,
    pub(crate) deadline: Nanos,
    pub(crate) late: Late,
    pub(crate) result: Result<(), Error>,
}

/// What follows when the time is over.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Late {
    /// Nothing: what was sent is still on its way.
    GoOn,
    /// The endpoint was to be closed: what it has under way ends.
    GiveUp,
}

pub(crate) enum Of {
    Worker,
    /// The endpoint is kept until the end.
    Ep(Rc<EpState>),
}

pub(crate) enum Stage {
    /// The engine still has something to send, or to hear from the peer.
    Protocol,
    /// Lanes not asked yet (next index) and lanes that have not answered.
    Lanes {
        next: usize,
        waiting: usize,
    },
    Ended,
}

impl Flush {
    pub(crate) fn is_of_all(&self) -> bool {
        matches!((&self.of, &self.stage), (Of::Worker, Stage::Protocol | Stage::Lanes { .. }))
    }

    pub(crate) fn peer(&self) -> Option<PeerId> {
        match &self.of {
            Of::Worker => None,
            Of::Ep(ep) => Some(ep.peer),
        }
    }

    pub(crate) fn deadline(&self) -> Nanos {
        self.deadline
    }

    /// Whether a completion or room on a lane moves it on.
    pub(crate) fn waits_for_lane(&self) -> bool {
        matches!(self.stage, Stage::Lanes { .. })
    }
}

//! Running flushes: scope, stage and deadline of each. Advanced by `worker::flush`.

use std::rc::Rc;

use ucs::time::Nanos;

use crate::api::core::ep_state::{EpState, LinkStage};
use crate::api::core::error::Error;
use crate::api::core::requests::RequestId;

use crate::rdm::io::{PeerError, PeerId};
use crate::rdm::{Conversation, OpError, Peers};

pub(crate) struct Flush {
    pub(crate) id: RequestId,
    /// Names the flush to the lanes: a late completion must not count for a later flush.
    pub(crate) number: u32,
    pub(crate) scope: FlushScope,
    pub(crate) stage: Stage,
    pub(crate) deadline: Nanos,
    pub(crate) on_timeout: OnTimeout,
    pub(crate) result: Result<(), Error>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum OnTimeout {
    /// Ends only the flush: the data remains in flight.
    EndFlush,
    /// Aborts the operations of the endpoint, which is being closed.
    AbortOps,
}

pub(crate) enum FlushScope {
    Worker,
    Ep(Rc<EpState>),
}

pub(crate) enum Stage {
    /// The engine has packets to send or acknowledgements to receive.
    Protocol,
    /// Next lane to flush, and number of lanes whose flush is pending.
    Lanes {
        next: usize,
        waiting: usize,
    },
    Ended,
}

impl Flush {
    pub(crate) fn is_worker_flush(&self) -> bool {
        matches!((&self.scope, &self.stage), (FlushScope::Worker, Stage::Protocol | Stage::Lanes { .. }))
    }

    /// Whether it waits for operations with this peer, or has ended and was not reported yet.
    pub(crate) fn covers(&self, peer: PeerId) -> bool {
        self.peer().is_none_or(|of| of == peer)
    }

    pub(crate) fn peer(&self) -> Option<PeerId> {
        match &self.scope {
            FlushScope::Worker => None,
            FlushScope::Ep(ep) => Some(ep.peer()),
        }
    }

    /// Returns the error of the endpoint's peer, also if another conversation with it has begun since.
    pub(crate) fn peer_fault(&self, peers: &Peers) -> Option<PeerError> {
        let FlushScope::Ep(ep) = &self.scope else { return None };
        let is_over = Conversation::with(peers, ep.peer()).number != ep.conversation();
        peers.peer_error(ep.peer()).or(is_over.then_some(PeerError::Closed))
    }

    /// Whether it is a flush, or the close, of this endpoint.
    pub(crate) fn is_of(&self, ep: &Rc<EpState>) -> bool {
        matches!(&self.scope, FlushScope::Ep(of) if Rc::ptr_eq(of, ep))
    }

    /// Whether it is the close of this endpoint, and goes on.
    pub(crate) fn closes(&self, ep: &Rc<EpState>) -> bool {
        self.is_of(ep) && self.on_timeout == OnTimeout::AbortOps && !matches!(self.stage, Stage::Ended)
    }

    pub(crate) fn link_stage(&self) -> LinkStage {
        match &self.scope {
            FlushScope::Worker => LinkStage::Linked,
            FlushScope::Ep(ep) => ep.stage(),
        }
    }

    pub(crate) fn deadline(&self) -> Nanos {
        self.deadline
    }

    pub(crate) fn waits_for_lane(&self) -> bool {
        matches!(self.stage, Stage::Lanes { .. })
    }
}

/// Ends the flushes that cover an operation with its error. False: there is none.
pub(crate) fn report_refusal(flushes: &mut [Flush], peer: PeerId, error: OpError) -> bool {
    let mut is_reported = false;
    for flush in flushes.iter_mut().filter(|flush| flush.covers(peer)) {
        flush.result = flush.result.and(Err(error.into()));
        is_reported = true;
    }
    is_reported
}

//! Handles of endpoints.

use std::rc::Rc;

use crate::api::core::ep_state::{EpState, ErrorMode};
use crate::api::core::error::Error;
use crate::api::worker::handle::Worker;

use crate::rdm::PeerView;
use crate::rdm::io::PeerId;

/// Parameters of [`Worker::connect`].
#[derive(Default)]
pub struct EpParams {
    /// Handling of a failure of the peer.
    pub errors: ErrorMode,
    /// Whether the call asks if the worker is there: one of this host that is gone is
    /// [`ConnectError::Unreachable`](crate::ConnectError::Unreachable). It waits for a process that does not
    /// run, for at most half a second. Else the first operation finds out.
    pub check_peer: bool,
}

impl EpParams {
    /// With a callback for the failure of the peer.
    pub fn on_error(call: impl FnMut(Error) + 'static) -> Self {
        EpParams { errors: ErrorMode::Peer(Box::new(call)), ..EpParams::default() }
    }
}

/// Endpoint to one peer. Dropping it does not cancel sends; receives that wait for the peer's stream end as
/// cancelled with the last endpoint to it.
pub struct Ep {
    worker: Worker,
    state: Rc<EpState>,
}

impl Ep {
    /// Worker of the endpoint.
    pub fn worker(&self) -> &Worker {
        &self.worker
    }

    pub(crate) fn from_state(worker: Worker, state: Rc<EpState>) -> Ep {
        Ep { worker, state }
    }

    // HOT
    #[inline(always)]
    pub(crate) fn state(&self) -> &Rc<EpState> {
        &self.state
    }

    /// Number of the peer at this worker, as in [`crate::rdm::RecvStatus::from`]. `u32::MAX` before the peer
    /// is known.
    #[inline]
    pub fn peer(&self) -> PeerId {
        self.state.peer()
    }

    /// Engine's view of the peer: handshake, features, outstanding operations. `None` once it is removed.
    pub fn peer_view(&self) -> Option<PeerView> {
        self.worker.core().engine.peers().info(self.state.peer())
    }
}

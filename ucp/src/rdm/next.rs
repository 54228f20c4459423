//! What the engine does after a packet was handled: handlers see only the parts of the engine that they change.

use crate::rdm::peers::peer::Ctl;
use crate::rdm::status::PeerError;

/// The engine's next action for a peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::rdm) enum Next {
    Nothing,
    /// Send this control packet, or queue it behind others.
    Ctl(Ctl),
    /// Send what is queued.
    Drive,
    /// Ask the peer's rails for their HANDSHAKEs, then send what is queued.
    DriveRails,
    /// The peer's HANDSHAKE has arrived: send what waited for it.
    Met,
    /// The peer failed.
    Fail(PeerError),
    /// The peer has lost the lane to us and has no other.
    LaneLost,
}

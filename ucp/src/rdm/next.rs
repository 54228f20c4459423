//! The engine's next action after a packet was handled. Handlers change parts of the engine and return it.

use crate::rdm::op::rx::Envelope;
use crate::rdm::peers::peer::Ctl;
use crate::rdm::protocol::DeliveryComplete;
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
    HandshakeReceived,
    /// Dispatch packets of the reorder window that are in order now.
    InOrder,
    /// The peer has sent a close, with this code; `taken` is our first message that it has not taken.
    Closed {
        code: u32,
        taken: u32,
    },
    /// A close of ours has arrived.
    CloseConfirmed,
    /// The peer failed.
    Fail(PeerError),
    /// The peer has lost the lane to us and has no other.
    LaneLost,
}

impl Next {
    /// Returns the RECEIPT that the sender of a complete message waits for.
    // [M6.1] [M6.3]
    #[inline]
    pub fn receipt(envelope: &Envelope) -> Next {
        match envelope.protocol.sync() {
            DeliveryComplete::Yes => {
                Next::Ctl(Ctl::Receipt { send_id: envelope.send_id, msg_id: envelope.msg_id })
            }
            DeliveryComplete::No => Next::Nothing,
        }
    }
}

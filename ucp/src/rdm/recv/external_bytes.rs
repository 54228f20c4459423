//! Accounting of received messages that the engine's caller keeps; they count as unexpected messages.

use crate::rdm::Engine;
use crate::rdm::ids::PeerId;
use crate::rdm::io::Wire;
use crate::rdm::peers::conversation;
use crate::rdm::peers::state::PeerFlags;
use crate::rdm::pending::Pending;
use crate::rdm::status::PeerError;

impl Pending {
    /// Adds bytes kept by the caller to the unexpected-message total. False: the limit would be exceeded.
    pub fn hold_external(&mut self, bytes: usize) -> bool {
        self.held_packets.add_external(bytes, self.unexpected_max)
    }

    /// Uncounts memory of messages that the caller has kept.
    pub fn release_external(&mut self, bytes: usize) {
        self.held_packets.remove_external(bytes);
    }
}

/// Closes a peer that has sent more than may be kept.
pub fn close_over_limit<W: Wire>(e: &mut Engine, w: &mut W, id: PeerId) {
    if e.peers.table.get(id).is_some() {
        e.peers.table[id].state.insert(PeerFlags::OVER_LIMIT);
        conversation::force_close_with(e, w, id, PeerError::OverLimit);
        e.pending.schedule(&mut e.peers, id);
    }
}

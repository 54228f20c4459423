//! Limits on the memory that a peer may occupy here. A peer that exceeds one is closed at the end of the
//! current packet or call.

use crate::rdm::ids::PeerId;
use crate::rdm::peers::Peers;
use crate::rdm::peers::peer::Ctl;
use crate::rdm::peers::state::PeerFlags;
use crate::rdm::pending::Pending;

/// Most control packets that wait for one peer. Each answers a packet of an operation that the peer has
/// begun, and a peer that runs this library never has so many.
pub(in crate::rdm) const MAX_QUEUED_CTL: usize = 1 << 20;

/// Notes that a peer exceeds a limit.
#[cold]
pub(in crate::rdm) fn note_over_limit(peers: &mut Peers, id: PeerId) {
    if !peers.over_limit.contains(&id) {
        peers.table[id].state.insert(PeerFlags::OVER_LIMIT);
        peers.over_limit.push(id);
    }
}

/// Queues a control packet behind others. A peer that has too many is noted.
pub(in crate::rdm) fn queue_ctl(peers: &mut Peers, pending: &mut Pending, id: PeerId, ctl: Ctl) {
    let queue = &mut peers.table[id].queue_mut().ctl;
    if queue.len() < MAX_QUEUED_CTL {
        queue.push_back(ctl);
    } else {
        note_over_limit(peers, id);
    }
    pending.schedule(peers, id);
}

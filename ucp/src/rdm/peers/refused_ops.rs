//! Refused operations that nobody waits for: flushes report them.

use crate::rdm::features::supports_classes;
use crate::rdm::ids::PeerId;
use crate::rdm::next::Next;
use crate::rdm::peers::Peers;
use crate::rdm::peers::state::PeerFlags;
use crate::rdm::status::OpError;
use crate::wire::ctl::ErrorRef;

/// The first refusal of each peer since a flush has reported one.
#[derive(Debug, Default)]
pub(crate) struct RefusedOps(Vec<(PeerId, OpError)>);

impl RefusedOps {
    /// Notes that an operation was refused. The peer and the way to it are well.
    #[cold]
    pub(crate) fn note(&mut self, peer: PeerId, error: OpError) {
        if !self.0.iter().any(|&(of, _)| of == peer) {
            self.0.push((peer, error));
        }
    }

    /// Takes the refusals of the peers that `is_wanted` names.
    #[cfg_attr(not(feature = "lanes"), allow(dead_code))]
    pub(crate) fn take(&mut self, is_wanted: impl Fn(PeerId) -> bool) -> Vec<(PeerId, OpError)> {
        self.0.extract_if(.., |&mut (peer, _)| is_wanted(peer)).collect()
    }

    /// Drops what belongs to a peer that is removed.
    pub(crate) fn forget(&mut self, peer: PeerId) {
        self.0.retain(|&(of, _)| of != peer);
    }
}

/// Answers the write by which a peer flushes, if a request before it was refused that named no operation: by
/// PEER_ERROR instead of a RECEIPT. `None`: the flush is served as any write. Only our own peers flush so,
/// and report it.
#[cold]
pub(in crate::rdm) fn refuse_flush(peers: &mut Peers, from: PeerId, send_id: u32) -> Option<Next> {
    let peer = &mut peers.table[from];
    peer.state.remove(PeerFlags::UNREPORTED_REFUSAL);
    let features = peer.features;
    let can_tell = peers.table.can_send_error(from) && supports_classes(features);
    can_tell.then(|| peers.error_to(from, ErrorRef::Op(send_id), OpError::Access(from)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_refusal_of_each_peer_is_kept_until_it_is_taken() {
        let (one, two) = (PeerId(1), PeerId(2));
        let mut refused = RefusedOps::default();
        refused.note(one, OpError::Access(one));
        refused.note(one, OpError::Aborted(one, 4127));
        refused.note(two, OpError::Access(two));
        assert_eq!(refused.take(|peer| peer == one), [(one, OpError::Access(one))]);
        assert_eq!(refused.take(|peer| peer == one), []);
        refused.forget(two);
        assert_eq!(refused.take(|_| true), []);
    }
}

//! Conversations that have ended, by peer: announcements of data, which the program may keep, belong to one.

use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;

use crate::rdm::io::PeerId;

/// Instead of a number of ended conversations: the data of an active message is lost.
pub(crate) const LOST: u16 = u16::MAX;

/// Numbers of ended conversations, modulo [`LOST`].
#[derive(Default)]
pub(crate) struct EndedConversations(HashMap<PeerId, u16, FxBuildHasher>);

impl EndedConversations {
    /// Notes that a conversation with a peer has ended.
    pub(crate) fn note(&mut self, peer: PeerId) {
        let ended = self.0.entry(peer).or_default();
        *ended = (*ended + 1) % LOST;
    }

    /// Returns how many conversations with a peer have ended.
    pub(crate) fn of(&self, peer: PeerId) -> u16 {
        if self.0.is_empty() { 0 } else { self.0.get(&peer).copied().unwrap_or(0) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_never_say_lost() {
        let mut ended = EndedConversations::default();
        for n in 0..=u32::from(LOST) {
            assert_eq!(u32::from(ended.of(PeerId(3))), n % u32::from(LOST));
            ended.note(PeerId(3));
        }
        assert_eq!(ended.of(PeerId(4)), 0);
    }
}

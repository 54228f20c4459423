//! The order of messages of one peer: the next `msg_id` due, and packets that came before their turn. In
//! order is one compare; how far ahead a packet may be is not limited (rule R9 of the wire facts).

use hashbrown::HashMap;

use crate::rdm::recv::held_bytes::HeldBytes;
use crate::rdm::recv::held_packets::HeldPackets;
use crate::rdm::recv::sequence::MsgIdUse;

#[derive(Debug)]
struct Waiting {
    packet: HeldBytes,
    id_use: MsgIdUse,
}

/// Packets of one peer that came early, by `msg_id`: chosen by it, so the hash has a key. Its memory is kept
/// for reuse.
#[derive(Debug, Default)]
pub struct ReorderWindow {
    chains: HashMap<u32, Vec<Waiting>>,
    spare: Vec<Vec<Waiting>>,
}

impl ReorderWindow {
    /// True when nothing waits.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.chains.is_empty()
    }

    /// Keeps a copy of an early packet; false if its id is taken by a packet it may not share it with.
    // [M4.4]
    pub fn keep(&mut self, hold: &mut HeldPackets, msg_id: u32, id_use: MsgIdUse, packet: &[u8]) -> bool {
        let spare = &mut self.spare;
        let chain = self.chains.entry(msg_id).or_insert_with(|| spare.pop().unwrap_or_default());
        if chain
            .first()
            .is_some_and(|first| first.id_use != MsgIdUse::Segments || id_use != MsgIdUse::Segments)
        {
            return false;
        }
        chain.push(Waiting { packet: hold.keep_early(packet), id_use });
        true
    }

    /// Marks a message that will not arrive: its place in the order is passed over.
    pub fn skip(&mut self, hold: &mut HeldPackets, msg_id: u32) {
        let spare = &mut self.spare;
        let chain = self.chains.entry(msg_id).or_insert_with(|| spare.pop().unwrap_or_default());
        chain.drain(..).for_each(|waiting| hold.release_early(waiting.packet));
        // No packet parses from no bytes; and nothing may share the id with it.
        chain.push(Waiting { packet: hold.keep_early(&[]), id_use: MsgIdUse::Single });
    }

    /// Takes all packets that carry `msg_id`, in order of arrival; each is handed back by
    /// [`HeldPackets::release_early`].
    pub fn take(&mut self, msg_id: u32, out: &mut Vec<HeldBytes>) -> bool {
        let Some(mut chain) = self.chains.remove(&msg_id) else { return false };
        out.extend(chain.drain(..).map(|waiting| waiting.packet));
        self.spare.push(chain);
        true
    }

    /// Drops everything.
    pub fn clear(&mut self, hold: &mut HeldPackets) {
        for (_, chain) in self.chains.drain() {
            chain.into_iter().for_each(|waiting| hold.release_early(waiting.packet));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_packets_of_one_message_share_an_id() {
        let (mut early, mut hold) = (ReorderWindow::default(), HeldPackets::new(usize::MAX));
        assert!(early.keep(&mut hold, 4, MsgIdUse::Single, b"a"));
        assert!(!early.keep(&mut hold, 4, MsgIdUse::Single, b"a"));
        assert!(!early.keep(&mut hold, 4, MsgIdUse::Segments, b"a"));
        assert!(early.keep(&mut hold, 6, MsgIdUse::Segments, b"b"));
        assert!(early.keep(&mut hold, 6, MsgIdUse::Segments, b"c"));
        assert!(!early.keep(&mut hold, 6, MsgIdUse::Single, b"d"));
        let mut out = Vec::new();
        assert!(!early.take(5, &mut out));
        assert!(early.take(6, &mut out) && early.take(4, &mut out));
        let texts: Vec<&[u8]> = out.iter().map(HeldBytes::bytes).collect();
        assert_eq!(texts, [b"b", b"c", b"a"]);
        assert!(early.is_empty());
        assert!(hold.early() > 0);
        out.into_iter().for_each(|held| hold.release_early(held));
        assert_eq!((hold.in_use(), hold.early()), (0, 0));
    }
}

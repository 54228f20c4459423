//! Reorder window of one peer: packets that arrived before an earlier message. How far ahead a packet may be
//! is not limited (rule R9 of the wire facts).

use hashbrown::HashMap;

use crate::rdm::recv::held_bytes::HeldBytes;
use crate::rdm::recv::held_packets::HeldPackets;
use crate::rdm::recv::sequence::MsgIdUse;

#[derive(Debug)]
struct HeldPacket {
    packet: HeldBytes,
    id_use: MsgIdUse,
}

/// Early packets of one peer, by `msg_id`. The peer chooses it, so the hash has a key. Memory is reused.
#[derive(Debug, Default)]
pub struct ReorderWindow {
    packets: HashMap<u32, Vec<HeldPacket>>,
    free_lists: Vec<Vec<HeldPacket>>,
}

impl ReorderWindow {
    /// True when nothing waits.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.packets.is_empty()
    }

    /// Keeps a copy of an early packet; false if its id is taken by a packet it may not share it with.
    // [M4.4]
    pub fn keep(&mut self, pool: &mut HeldPackets, msg_id: u32, id_use: MsgIdUse, packet: &[u8]) -> bool {
        let free_lists = &mut self.free_lists;
        let list = self.packets.entry(msg_id).or_insert_with(|| free_lists.pop().unwrap_or_default());
        if list
            .first()
            .is_some_and(|first| first.id_use != MsgIdUse::Segments || id_use != MsgIdUse::Segments)
        {
            return false;
        }
        list.push(HeldPacket { packet: pool.copy_reordered(packet), id_use });
        true
    }

    /// Marks a message that will not arrive: its place in the order is passed over.
    pub fn skip(&mut self, pool: &mut HeldPackets, msg_id: u32) {
        let free_lists = &mut self.free_lists;
        let list = self.packets.entry(msg_id).or_insert_with(|| free_lists.pop().unwrap_or_default());
        list.drain(..).for_each(|held| pool.release_reordered(held.packet));
        // No packet parses from no bytes; and nothing may share the id with it.
        list.push(HeldPacket { packet: pool.copy_reordered(&[]), id_use: MsgIdUse::Single });
    }

    /// Takes all packets that carry `msg_id`, in order of arrival; each is handed back by
    /// [`HeldPackets::release_reordered`].
    pub fn take(&mut self, msg_id: u32, out: &mut Vec<HeldBytes>) -> bool {
        let Some(mut list) = self.packets.remove(&msg_id) else { return false };
        out.extend(list.drain(..).map(|held| held.packet));
        self.free_lists.push(list);
        true
    }

    /// Drops everything.
    pub fn clear(&mut self, pool: &mut HeldPackets) {
        for (_, list) in self.packets.drain() {
            list.into_iter().for_each(|held| pool.release_reordered(held.packet));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_segments_of_one_message_share_msg_id() {
        let (mut window, mut pool) = (ReorderWindow::default(), HeldPackets::new(usize::MAX));
        assert!(window.keep(&mut pool, 4, MsgIdUse::Single, b"a"));
        assert!(!window.keep(&mut pool, 4, MsgIdUse::Single, b"a"));
        assert!(!window.keep(&mut pool, 4, MsgIdUse::Segments, b"a"));
        assert!(window.keep(&mut pool, 6, MsgIdUse::Segments, b"b"));
        assert!(window.keep(&mut pool, 6, MsgIdUse::Segments, b"c"));
        assert!(!window.keep(&mut pool, 6, MsgIdUse::Single, b"d"));
        let mut out = Vec::new();
        assert!(!window.take(5, &mut out));
        assert!(window.take(6, &mut out) && window.take(4, &mut out));
        let texts: Vec<&[u8]> = out.iter().map(HeldBytes::bytes).collect();
        assert_eq!(texts, [b"b", b"c", b"a"]);
        assert!(window.is_empty());
        assert!(pool.reordered() > 0);
        out.into_iter().for_each(|held| pool.release_reordered(held));
        assert_eq!((pool.in_use(), pool.reordered()), (0, 0));
    }
}

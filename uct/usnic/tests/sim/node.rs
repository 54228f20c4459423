//! A node: a module, what it sends, and what has arrived.

use crate::clock::Clock;
use std::collections::{HashMap, HashSet};
use usnic::{CloseReason, EpId, HEAD, Head, Module, Sink, Source};

/// Byte `at` of message `id`.
pub fn byte(id: u64, at: u32) -> u8 {
    (id.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(u64::from(at).wrapping_mul(0x2545_f491)) >> 24) as u8
}

pub fn head(id: u64, len: u32) -> Head {
    let mut head = [0; HEAD];
    head[..8].copy_from_slice(&id.to_le_bytes());
    head[8..12].copy_from_slice(&len.to_le_bytes());
    head
}

fn id_and_len(head: &Head) -> (u64, u32) {
    let id = u64::from_le_bytes(head[..8].try_into().unwrap());
    (id, u32::from_le_bytes(head[8..12].try_into().unwrap()))
}

/// The layer above: checks each message.
#[derive(Default)]
pub struct Received {
    pub whole: HashSet<u64>,
    pub refused: HashSet<u64>,
    pub aborted: HashSet<u64>,
    /// Incomplete messages by id: for each byte whether it has arrived.
    pub partly: HashMap<u64, Vec<bool>>,
    pub accepted: Vec<(EpId, u64)>,
    pub dead: Vec<(EpId, u64, CloseReason)>,
    /// Nodes to which the path is short: bytes that it carries, and bytes that were wanted.
    pub short_paths: Vec<(u64, u32, u32)>,
}

impl Received {
    fn complete(&mut self, id: u64) {
        assert!(self.whole.insert(id), "message {id} was delivered twice");
    }
}

/// Messages that the receiver refuses.
pub fn is_refused(id: u64) -> bool {
    id % 29 == 3
}

/// Messages whose bytes vanish when half of them are sent.
pub fn vanishes(id: u64) -> bool {
    id % 31 == 5
}

impl Sink for Received {
    fn on_accept(&mut self, ep: EpId, node: u64) {
        self.accepted.push((ep, node));
    }

    fn on_dead(&mut self, ep: EpId, node: u64, why: CloseReason) {
        self.dead.push((ep, node, why));
    }

    fn on_path(&mut self, _: EpId, node: u64, carried: u32, wanted: u32) {
        self.short_paths.push((node, carried, wanted));
    }

    fn on_frag(&mut self, _: EpId, head: &Head, payload: &[u8]) {
        let (id, len) = id_and_len(head);
        assert_eq!(payload.len(), len as usize);
        assert!(payload.iter().zip(0..).all(|(b, at)| *b == byte(id, at)), "message {id}");
        self.complete(id);
    }

    fn on_first_chunk(&mut self, _: EpId, head: &Head, total: u32) -> Option<u64> {
        let (id, len) = id_and_len(head);
        assert_eq!(total, len);
        if is_refused(id) {
            assert!(self.refused.insert(id), "message {id} was offered twice");
            return None;
        }
        let before = self.partly.insert(id, vec![false; total as usize]);
        assert!(before.is_none(), "message {id} began twice");
        Some(id)
    }

    fn on_chunk(&mut self, id: u64, offset: u32, bytes: &[u8]) {
        let map = self.partly.get_mut(&id).expect("a message that has begun");
        for (b, at) in bytes.iter().zip(offset..) {
            assert_eq!(*b, byte(id, at), "byte {at} of message {id}");
            assert!(!std::mem::replace(&mut map[at as usize], true), "byte {at} of message {id} twice");
        }
    }

    fn on_last_chunk(&mut self, _: EpId, id: u64, _: &Head, whole: bool) {
        let map = self.partly.remove(&id).expect("a message that has begun");
        if whole {
            assert!(map.iter().all(|arrived| *arrived), "message {id} has holes");
            self.complete(id);
        } else {
            assert!(self.aborted.insert(id), "message {id} was aborted twice");
        }
    }
}

/// Bytes of large messages.
#[derive(Default)]
pub struct Sent {
    pub large: HashMap<u64, u32>,
}

impl Source for Sent {
    fn fetch(&mut self, id: u64, offset: u32, to: &mut [u8]) -> bool {
        let len = self.large[&id];
        assert!(offset as usize + to.len() <= len as usize);
        to.iter_mut().zip(offset..).for_each(|(b, at)| *b = byte(id, at));
        !(vanishes(id) && offset > len / 2)
    }

    fn on_copied(&mut self, id: u64) {
        assert!(self.large.remove(&id).is_some(), "message {id} was copied twice");
    }
}

impl Node {
    /// Whether nothing is on its way from or to this node.
    pub fn is_idle(&self) -> bool {
        self.module.segments().0 == 0 && self.sent.large.is_empty() && self.received.partly.is_empty()
    }
}

/// A node of the network.
pub struct Node {
    pub module: Module,
    pub received: Received,
    pub sent: Sent,
    /// Time until which the node is not scheduled.
    pub asleep: u64,
    /// Clock that the module is told the time of.
    pub clock: Clock,
}

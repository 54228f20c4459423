//! Receives: posting, matching, the reorder window of each peer, and packet bytes that have to be kept.

mod abort;
pub(super) mod discard_queue;
pub(super) mod discards;
pub(super) mod external_bytes;
pub(super) mod held_bytes;
pub(super) mod held_packets;
pub mod matching;
pub(super) mod multi_recv;
pub(super) mod packets;
pub(super) mod receives;
pub(super) mod reorder;
pub(super) mod sequence;
pub mod streams;

use ucs::coll::slots::Slots;

use crate::rdm::op::rx::{RxEntry, RxOp, Unexpected};
use crate::rdm::op::table::{RecvTable, Table};
use crate::rdm::protocol::Kind;
use held_bytes::HeldBytes;
use held_packets::HeldPackets;
use multi_recv::MultiRecv;
use receives::MatchQueues;

/// Receives and unexpected messages.
///
/// Field order in memory: a short message reads the first three.
#[repr(C)]
pub(in crate::rdm) struct Recvs {
    /// Receives that are posted or not complete.
    pub table: RecvTable<RxOp>,
    pub multi_recvs: Slots<MultiRecv>,
    /// Posted receives and unexpected messages, by kind.
    pub match_queues: [MatchQueues; Kind::COUNT],
    /// Receives of which some packets have come.
    pub entries: Table<RxEntry>,
    pub unexpected: Slots<Unexpected, 24>,
    /// The caller waits for packets, or probed in vain.
    pub arrivals_wanted: bool,
    /// Packets of a reorder window while they are dispatched; kept for its memory.
    pub in_order_buf: Vec<HeldBytes>,
}

/// Unexpected messages, and bytes of buffers of each size, whose memory is kept when none are left.
const KEPT_MESSAGES: usize = 4096;
const KEPT_BYTES: usize = 256 << 10;
/// Memory of messages from which on the allocator is asked to return it to the system.
const RETURNED_BYTES: usize = 8 << 20;

impl Recvs {
    /// Whether there is memory of many unexpected messages, and none of them is left.
    #[inline]
    pub(in crate::rdm) fn needs_trim(&self) -> bool {
        self.unexpected.capacity() > KEPT_MESSAGES && self.unexpected.is_empty()
    }

    /// Gives the memory of many unexpected messages back once they are received.
    #[cold]
    pub(in crate::rdm) fn trim(&mut self, held_packets: &mut HeldPackets) {
        let many = self.unexpected.capacity() * size_of::<Unexpected>() > RETURNED_BYTES;
        self.unexpected.trim(KEPT_MESSAGES);
        self.match_queues.iter_mut().for_each(|queues| queues.unexpected.trim(KEPT_MESSAGES));
        held_packets.trim(KEPT_BYTES);
        if many {
            ucs::mem::return_free_memory();
        }
    }
}

impl Default for Recvs {
    fn default() -> Recvs {
        Recvs {
            table: RecvTable::new(),
            multi_recvs: Slots::new(),
            match_queues: Default::default(),
            entries: Table::new(),
            unexpected: Slots::new(),
            arrivals_wanted: false,
            in_order_buf: Vec::new(),
        }
    }
}

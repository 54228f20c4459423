//! Ids of operations. One 32-bit value is the user's [`OpId`] and the `send_id` or `recv_id` on the wire; a
//! generation inside tells stale or invented ids from live ones.

use ucs::coll::slots::{LOWER, LOWER_EVEN, LOWER_ODD, SlotId, Slots};

use crate::rdm::op::rx::RxOp;
use crate::rdm::recv::matching::{MatchEntry, MatchStore};

/// Operations of one kind by id, about a million at most. The top bit, set for one-sided ones, is clear.
pub type Table<T> = Slots<T, 20, LOWER>;

/// Sends by id. Sends and receives share no id, since a PEER_ERROR names either by its id alone.
pub type SendTable<T> = Slots<T, 20, LOWER_EVEN>;

pub type RecvTable<T> = Slots<T, 20, LOWER_ODD>;

/// Returns the index of a receive in its table, by which the queues of posted receives name it.
#[inline(always)]
pub fn index_of(receive: SlotId) -> u32 {
    RecvTable::<()>::index_of(receive) as u32
}

/// Queues only ask for receives that were queued, and that leave the table after the queue.
impl MatchStore for RecvTable<RxOp> {
    #[inline(always)]
    fn entry(&self, at: u32) -> &MatchEntry {
        &self.at(at as usize).expect("a posted receive is in its table").entry
    }
    #[inline(always)]
    fn entry_mut(&mut self, at: u32) -> &mut MatchEntry {
        &mut self.at_mut(at as usize).expect("a posted receive is in its table").entry
    }
}

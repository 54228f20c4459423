//! Names of operations. The same 32 bits are the user's [`OpId`] and the `send_id` or `recv_id` on the wire; a
//! generation inside tells a stale or invented one from a live one.

use ucs::coll::slots::{LOWER, LOWER_EVEN, LOWER_ODD, SlotId, Slots};

use crate::rdm::op::rx::RxOp;
use crate::rdm::recv::matching::{MatchEntry, MatchStore};

/// One kind of operation by id. Up to about a million at a time. The ids of one-sided operations (`one`) have the top
/// bit set, these have not.
pub type Table<T> = Slots<T, 20, LOWER>;

/// Sends by id. A PEER_ERROR names a send or a receive by nothing but its id, so the two have none in common.
pub type Sends<T> = Slots<T, 20, LOWER_EVEN>;

/// Receives by id.
pub type Receives<T> = Slots<T, 20, LOWER_ODD>;

/// The number of a receive in its table: what the queues of posted ones name it by.
#[inline(always)]
pub fn place(receive: SlotId) -> u32 {
    Receives::<()>::index_of(receive) as u32
}

/// Queues ask for receives that they have been given, and that leave the table only after the queue.
impl MatchStore for Receives<RxOp> {
    #[inline(always)]
    fn want(&self, at: u32) -> &MatchEntry {
        &self.at(at as usize).expect("a posted receive is in its table").want
    }
    #[inline(always)]
    fn want_mut(&mut self, at: u32) -> &mut MatchEntry {
        &mut self.at_mut(at as usize).expect("a posted receive is in its table").want
    }
}

//! The table of one-sided operations. A [compact](RmaOp::compact) one touches only the first cache line of
//! its slot; the state for lists, grants and rails is many times as long.

use ucs::coll::slots::{SlotId, Slots, UPPER};

use crate::rdm::ids::PeerId;
use crate::rdm::op::pieces::Gather;
use crate::rdm::op::rma_op::{Ack, Job, RmaOp, RmaState};
use crate::rdm::rma::args::RmaProtocol;

/// Slots are allocated in chunks and never move.
const CHUNK: usize = 64;

type Ids = Slots<(), 20, UPPER>;

#[derive(Debug)]
pub struct CompactRmaOp {
    pub peer: PeerId,
    pub user: u64,
    pub protocol: RmaProtocol,
    pub ack: Ack,
    pub len: u64,
}

/// One-sided operations by id. The top bit of an id tells them from sends and receives.
pub struct RmaTable {
    ids: Ids,
    /// By index of the id. A free slot is [blank](RmaOp::blank) but for compact fields, or
    /// [stale](RmaOp::stale).
    chunks: Vec<Box<[RmaOp]>>,
}

impl RmaTable {
    pub const fn new() -> RmaTable {
        RmaTable { ids: Slots::new(), chunks: Vec::new() }
    }

    pub const fn len(&self) -> usize {
        self.ids.len()
    }

    pub const fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }

    /// Adds an operation; `None` if the table is full.
    // HOT
    #[inline]
    pub fn insert(&mut self, rma: RmaOp) -> Option<SlotId> {
        let id = self.ids.insert(()).ok()?;
        *self.slot(id) = rma;
        Some(id)
    }

    /// Adds a compact operation; `None` if the table is full.
    // HOT
    #[inline]
    pub fn insert_compact(&mut self, compact: CompactRmaOp) -> Option<SlotId> {
        let id = self.ids.insert(()).ok()?;
        let rma = self.slot(id);
        if rma.stale {
            *rma = RmaOp::blank();
        }
        (rma.peer, rma.user, rma.protocol, rma.len) =
            (compact.peer, compact.user, compact.protocol, compact.len);
        (rma.ack, rma.notified, rma.result) = (compact.ack, compact.ack == Ack::IfAble, None);
        (rma.state, rma.fence_counted, rma.detached, rma.compact) = (RmaState::AllSent, true, false, true);
        Some(id)
    }

    /// Returns the operation with this id.
    // HOT
    #[inline]
    pub fn get(&self, id: SlotId) -> Option<&RmaOp> {
        self.ids.contains(id).then(|| self.at(id))
    }

    /// Returns the operation with this id, mutably.
    // HOT
    #[inline]
    pub fn get_mut(&mut self, id: SlotId) -> Option<&mut RmaOp> {
        let index = Ids::index_of(id);
        self.ids.contains(id).then(|| &mut self.chunks[index / CHUNK][index % CHUNK])
    }

    pub fn remove(&mut self, id: SlotId) -> Option<RmaOp> {
        self.ids.remove(id).map(|()| std::mem::replace(self.slot(id), RmaOp::blank()))
    }

    /// Drops an operation; false if there is none.
    // HOT
    #[inline]
    pub fn discard(&mut self, id: SlotId) -> bool {
        if !self.ids.discard(id) {
            return false;
        }
        let rma = self.slot(id);
        if !rma.compact {
            rma.release_owned();
        }
        true
    }

    pub fn iter(&self) -> impl Iterator<Item = (SlotId, &RmaOp)> {
        self.ids.iter().map(|(id, ())| (id, self.at(id)))
    }

    #[inline]
    fn at(&self, id: SlotId) -> &RmaOp {
        let index = Ids::index_of(id);
        &self.chunks[index / CHUNK][index % CHUNK]
    }

    /// Returns the slot of an id that has just been allocated or freed.
    #[inline]
    fn slot(&mut self, id: SlotId) -> &mut RmaOp {
        let index = Ids::index_of(id);
        if index / CHUNK >= self.chunks.len() {
            self.grow(index);
        }
        &mut self.chunks[index / CHUNK][index % CHUNK]
    }

    #[cold]
    fn grow(&mut self, index: usize) {
        while index / CHUNK >= self.chunks.len() {
            self.chunks.push((0..CHUNK).map(|_| RmaOp::blank()).collect());
        }
    }
}

impl RmaOp {
    fn blank() -> RmaOp {
        RmaOp::new(PeerId(0), Job::Put(Gather::EMPTY), RmaProtocol::EagerWrite, 0)
    }

    /// Frees the slot's owned memory and leaves the other fields as they are.
    fn release_owned(&mut self) {
        self.rail_plan = None;
        self.received = Default::default();
        if matches!(self.job, Job::Response(_)) {
            self.job = Job::Put(Gather::EMPTY);
        }
        self.stale = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rdm::ids::is_rma_id;

    use crate::wire::{Iovs, RmaIov};

    fn compact(user: u64) -> CompactRmaOp {
        CompactRmaOp { peer: PeerId(3), user, protocol: RmaProtocol::EagerWrite, ack: Ack::Wanted, len: 8 }
    }

    #[test]
    fn ids_go_stale_on_removal() {
        let mut ones = RmaTable::new();
        let ids: Vec<_> = (0..200).map(|user| ones.insert_compact(compact(user)).unwrap()).collect();
        assert!(ids.iter().all(|&id| is_rma_id(id)));
        assert_eq!(ones.len(), 200);
        for (user, &id) in ids.iter().enumerate() {
            assert_eq!(ones.get(id).unwrap().user, user as u64);
        }
        assert!(ones.discard(ids[7]) && !ones.discard(ids[7]));
        assert!(ones.get(ids[7]).is_none() && ones.remove(ids[7]).is_none());
        assert_eq!(ones.remove(ids[8]).unwrap().user, 8);
        assert_eq!(ones.iter().map(|(_, rma)| rma.user).sum::<u64>(), (0..200).sum::<u64>() - 7 - 8);
    }

    #[test]
    fn compact_operation_is_reset_on_slot_reuse() {
        let mut ones = RmaTable::new();
        for by_remove in [false, true] {
            let mut long =
                RmaOp::new(PeerId(9), Job::Response(Default::default()), RmaProtocol::DirectWrite, 1 << 20);
            (long.remote, long.cq_data) = (Iovs::one(RmaIov { addr: 1, len: 2, key: 3 }), Some(4));
            (long.in_flight, long.remote_id, long.first_key) = (5, Some(6), Some(7));
            (long.sent, long.window, long.detached, long.in_data_queue) = (8, 9, true, true);
            assert!(long.received.add(10, 11));
            let id = ones.insert(long).unwrap();
            if by_remove {
                ones.remove(id);
            } else {
                ones.discard(id);
            }
            let id = ones.insert_compact(compact(1)).unwrap();
            let got = format!("{:?}", ones.get(id).unwrap());
            let mut fresh = RmaTable::new();
            let id = fresh.insert_compact(compact(1)).unwrap();
            assert_eq!(got, format!("{:?}", fresh.get(id).unwrap()));
            ones = RmaTable::new();
        }
    }

    #[test]
    fn compact_operation_uses_one_cache_line() {
        use std::mem::offset_of;
        assert_eq!(align_of::<RmaOp>(), 64);
        for end in
            [offset_of!(RmaOp, result) + 16, offset_of!(RmaOp, stale) + 1, offset_of!(RmaOp, protocol) + 1]
        {
            assert!(end <= 64, "{end}");
        }
    }
}

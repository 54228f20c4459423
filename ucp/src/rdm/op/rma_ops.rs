//! The table of one-sided operations. A [brief](One::brief) one, whose only packet is out, is written in place and uses the
//! first line of its slot only: what is made for lists, grants and rails is many times as long, and would go through the caches
//! with every word that is put.

use ucs::coll::slots::{SlotId, Slots, UPPER};

use crate::rdm::io::PeerId;
use crate::rdm::op::pieces::Gather;
use crate::rdm::op::rma_op::{Ack, Job, One, OneState};
use crate::rdm::rma::args::RmaProtocol;

/// Slots are made so many at a time; they never move.
const CHUNK: usize = 64;

type Ids = Slots<(), 20, UPPER>;

/// What is kept of an operation whose only packet is out.
#[derive(Debug)]
pub struct Brief {
    /// Whom it was sent.
    pub peer: PeerId,
    /// Returned with the completion.
    pub user: u64,
    /// By which protocol.
    pub protocol: RmaProtocol,
    /// Is the target to acknowledge it?
    pub ack: Ack,
    /// Bytes in all.
    pub len: u64,
}

/// One-sided operations by id. Their ids have the top bit set, those of sends and receives have not: one word names
/// either in control packets and queues.
pub struct Ones {
    ids: Ids,
    /// By the index of their id. In a slot that is free, all is as in [`One::blank`] but for the fields of a brief one, or the
    /// slot is [`worn`](One::worn).
    chunks: Vec<Box<[One]>>,
}

impl Ones {
    /// None.
    pub const fn new() -> Ones {
        Ones { ids: Slots::new(), chunks: Vec::new() }
    }

    /// Number of operations.
    pub const fn len(&self) -> usize {
        self.ids.len()
    }

    /// Whether there is none.
    pub const fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }

    /// Takes one up; `None`: there is no room. // HOT
    #[inline]
    pub fn insert(&mut self, one: One) -> Option<SlotId> {
        let id = self.ids.insert(()).ok()?;
        *self.slot(id) = one;
        Some(id)
    }

    /// Takes a brief one up; `None`: there is no room. // HOT
    #[inline]
    pub fn insert_brief(&mut self, brief: Brief) -> Option<SlotId> {
        let id = self.ids.insert(()).ok()?;
        let one = self.slot(id);
        if one.worn {
            *one = One::blank();
        }
        (one.peer, one.user, one.protocol, one.len) = (brief.peer, brief.user, brief.protocol, brief.len);
        (one.ack, one.told, one.result) = (brief.ack, brief.ack == Ack::IfAble, None);
        (one.state, one.counted, one.orphan, one.brief) = (OneState::AllOut, true, false, true);
        Some(id)
    }

    /// The operation with this id, if there is one. // HOT
    #[inline]
    pub fn get(&self, id: SlotId) -> Option<&One> {
        self.ids.contains(id).then(|| self.at(id))
    }

    /// The same, to change it. // HOT
    #[inline]
    pub fn get_mut(&mut self, id: SlotId) -> Option<&mut One> {
        let index = Ids::index_of(id);
        self.ids.contains(id).then(|| &mut self.chunks[index / CHUNK][index % CHUNK])
    }

    /// Takes one out.
    pub fn remove(&mut self, id: SlotId) -> Option<One> {
        self.ids.remove(id).map(|()| std::mem::replace(self.slot(id), One::blank()))
    }

    /// Drops one; false: there is none. // HOT
    #[inline]
    pub fn discard(&mut self, id: SlotId) -> bool {
        if !self.ids.discard(id) {
            return false;
        }
        let one = self.slot(id);
        if !one.brief {
            one.wear();
        }
        true
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = (SlotId, &One)> {
        self.ids.iter().map(|(id, ())| (id, self.at(id)))
    }

    /// What an id names that is given out.
    #[inline]
    fn at(&self, id: SlotId) -> &One {
        let index = Ids::index_of(id);
        &self.chunks[index / CHUNK][index % CHUNK]
    }

    /// The slot of an id that has just been given out, or taken back.
    #[inline]
    fn slot(&mut self, id: SlotId) -> &mut One {
        let index = Ids::index_of(id);
        if index / CHUNK >= self.chunks.len() {
            self.grow(index);
        }
        &mut self.chunks[index / CHUNK][index % CHUNK]
    }

    #[cold]
    fn grow(&mut self, index: usize) {
        while index / CHUNK >= self.chunks.len() {
            self.chunks.push((0..CHUNK).map(|_| One::blank()).collect());
        }
    }
}

impl One {
    /// What a slot holds that nobody has used.
    fn blank() -> One {
        One::new(PeerId(0), Job::Put(Gather::EMPTY), RmaProtocol::EagerWrite, 0)
    }

    /// Ends its use of a slot: what it owned is freed, the rest is left as it is.
    fn wear(&mut self) {
        self.stripes = None;
        self.cover = Default::default();
        if matches!(self.job, Job::Answer(_)) {
            self.job = Job::Put(Gather::EMPTY);
        }
        self.worn = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rdm::op::rma_op::is_one;
    use crate::wire::{Iovs, RmaIov};

    fn brief(user: u64) -> Brief {
        Brief { peer: PeerId(3), user, protocol: RmaProtocol::EagerWrite, ack: Ack::Wanted, len: 8 }
    }

    #[test]
    fn ids_name_what_was_put_there_and_go_stale() {
        let mut ones = Ones::new();
        let ids: Vec<_> = (0..200).map(|user| ones.insert_brief(brief(user)).unwrap()).collect();
        assert!(ids.iter().all(|&id| is_one(id)));
        assert_eq!(ones.len(), 200);
        for (user, &id) in ids.iter().enumerate() {
            assert_eq!(ones.get(id).unwrap().user, user as u64);
        }
        assert!(ones.discard(ids[7]) && !ones.discard(ids[7]));
        assert!(ones.get(ids[7]).is_none() && ones.remove(ids[7]).is_none());
        assert_eq!(ones.remove(ids[8]).unwrap().user, 8);
        assert_eq!(ones.iter().map(|(_, one)| one.user).sum::<u64>(), (0..200).sum::<u64>() - 7 - 8);
    }

    #[test]
    fn a_brief_one_inherits_nothing() {
        let mut ones = Ones::new();
        for by_remove in [false, true] {
            let mut long =
                One::new(PeerId(9), Job::Answer(Default::default()), RmaProtocol::DirectWrite, 1 << 20);
            (long.remote, long.cq_data) = (Iovs::one(RmaIov { addr: 1, len: 2, key: 3 }), Some(4));
            (long.flying, long.theirs, long.first_key) = (5, Some(6), Some(7));
            (long.sent, long.window, long.orphan, long.in_data_queue) = (8, 9, true, true);
            assert!(long.cover.add(10, 11));
            let id = ones.insert(long).unwrap();
            if by_remove {
                ones.remove(id);
            } else {
                ones.discard(id);
            }
            let id = ones.insert_brief(brief(1)).unwrap();
            let got = format!("{:?}", ones.get(id).unwrap());
            let mut fresh = Ones::new();
            let id = fresh.insert_brief(brief(1)).unwrap();
            assert_eq!(got, format!("{:?}", fresh.get(id).unwrap()));
            ones = Ones::new();
        }
    }

    #[test]
    fn a_brief_one_uses_one_line() {
        use std::mem::offset_of;
        assert_eq!(align_of::<One>(), 64);
        for end in [offset_of!(One, result) + 16, offset_of!(One, worn) + 1, offset_of!(One, protocol) + 1] {
            assert!(end <= 64, "{end}");
        }
    }
}

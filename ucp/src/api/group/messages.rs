//! Messages that have come before their operation was started, and operations that wait for messages: what
//! a worker keeps for its groups.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;

use crate::api::core::error::Error;
use crate::api::worker::handle::{AmMessage, WeakWorker};
use crate::rdm::io::PeerId;

use super::early::EarlyMessages;
use super::part::{OpKey, Part};

/// Bytes of each member, by rank; `None` of those that send nothing.
pub(super) type Parts = Vec<Option<Vec<u8>>>;

/// A function that takes the end of an exchange.
pub(super) type Then = Box<dyn FnOnce(Result<Parts, Error>)>;

/// An exchange that has not ended.
pub(super) struct Running {
    parts: RefCell<Parts>,
    /// Length of the message of each member, bytes; `None`: none is expected.
    lens: Vec<Option<usize>>,
    awaited: Cell<usize>,
    sending: Cell<usize>,
    then: RefCell<Option<Then>>,
}

impl Running {
    /// Whether the message of a member has not come yet.
    fn waits_for(&self, rank: usize) -> bool {
        matches!(self.lens.get(rank), Some(Some(_))) && matches!(self.parts.borrow().get(rank), Some(None))
    }
}

/// Everything of the groups of one worker that its handler of messages needs.
#[derive(Default)]
pub(super) struct GroupMessages {
    early: RefCell<EarlyMessages>,
    running: RefCell<HashMap<OpKey, Rc<Running>>>,
    /// Number of operations of each group that have begun; of a group that is gone, the largest number. Late
    /// messages of these operations are dropped.
    begun: RefCell<HashMap<u64, u64>>,
    /// Members that have failed: group and rank.
    failed: RefCell<HashMap<(u64, usize), Error>>,
    /// Peers of the members of each group, by rank; `None` of this member.
    peers: RefCell<HashMap<u64, Vec<Option<PeerId>>>>,
    /// Number of groups that have been made of the same members.
    made: RefCell<HashMap<u64, u64>>,
}

impl GroupMessages {
    /// Makes what a worker keeps, without groups.
    pub(super) fn of(worker: WeakWorker) -> GroupMessages {
        GroupMessages { early: RefCell::new(EarlyMessages::of(worker)), ..GroupMessages::default() }
    }

    /// Number of groups of these members that have been made.
    pub(super) fn made(&self, members: u64) -> u64 {
        self.made.borrow().get(&members).copied().unwrap_or(0)
    }

    /// Notes that a group of these members has been made, whose endpoints have these peers.
    pub(super) fn add(&self, members: u64, group: u64, peers: Vec<Option<PeerId>>) {
        *self.made.borrow_mut().entry(members).or_default() += 1;
        self.peers.borrow_mut().insert(group, peers);
    }

    /// Takes a message from progress. One that is malformed is dropped.
    pub(super) fn receive(&self, message: &AmMessage) {
        let Some((key, rank)) = OpKey::of_header(message.header()) else { return };
        let Some(data) = message.data() else { return };
        self.take_in(key, Part { from: message.from(), rank, data: data.to_vec() });
    }

    /// Puts a message in its place, or keeps it for an operation that has not begun.
    fn take_in(&self, key: OpKey, part: Part) {
        let running = self.running.borrow().get(&key).cloned();
        match running {
            Some(running) => self.put(key, &running, part),
            None if self.begun.borrow().get(&key.group).is_some_and(|begun| key.number < *begun) => {}
            None => {
                let is_known = |group| self.peers.borrow().contains_key(&group);
                self.early.borrow_mut().keep(key, part, is_known);
            }
        }
    }

    /// Begins an exchange that sends `sending` messages and has `own` as the part of the member `rank`.
    pub(super) fn begin(
        &self,
        key: OpKey,
        lens: Vec<Option<usize>>,
        (rank, own): (usize, Option<Vec<u8>>),
        sending: usize,
        then: Then,
    ) {
        self.begun.borrow_mut().insert(key.group, key.number + 1);
        let mut parts = vec![None; lens.len()];
        parts[rank] = own;
        let awaited = lens.iter().flatten().count();
        let ranks = 0..lens.len();
        let running = Rc::new(Running {
            parts: RefCell::new(parts),
            lens,
            awaited: Cell::new(awaited),
            sending: Cell::new(sending),
            then: RefCell::new(Some(then)),
        });
        self.running.borrow_mut().insert(key, running.clone());
        let early = self.early.borrow_mut().take(key);
        for part in early {
            self.put(key, &running, part);
        }
        let of_failed = |at: usize| self.failed.borrow().get(&(key.group, at)).copied();
        match ranks.filter(|at| running.waits_for(*at)).find_map(of_failed) {
            Some(error) => self.end(key, &running, Err(error)),
            None => self.end_if_complete(key, &running),
        }
    }

    /// Whether the sender of a message is another member of the group than the message tells. Of a peer that
    /// is no endpoint's this is not known: a member may send by another transport than it is sent to. A peer
    /// that has failed may have left its number to another.
    fn is_of_other_member(&self, group: u64, from: PeerId, rank: usize) -> bool {
        let peers = self.peers.borrow();
        let Some(peers) = peers.get(&group) else { return false };
        if peers.get(rank) == Some(&Some(from)) {
            return false;
        }
        let of_sender = peers.iter().position(|peer| *peer == Some(from));
        of_sender.is_some_and(|rank| !self.failed.borrow().contains_key(&(group, rank)))
    }

    /// Puts the message of a member in its place. One that is not expected is dropped, one of another length
    /// fails the operation.
    fn put(&self, key: OpKey, running: &Rc<Running>, Part { from, rank, data }: Part) {
        let Some(Some(len)) = running.lens.get(rank).copied() else { return };
        if self.is_of_other_member(key.group, from, rank) {
            return tracing::debug!(
                peer = from.0,
                rank,
                "dropped a group message: the sender is not that rank"
            );
        }
        if data.len() != len {
            let error = Error::Truncated { len: data.len() as u64, room: len };
            return self.end(key, running, Err(error));
        }
        // There is no place for messages behind the end of the operation.
        let mut parts = running.parts.borrow_mut();
        let Some(place) = parts.get_mut(rank).filter(|place| place.is_none()) else { return };
        *place = Some(data);
        drop(parts);
        running.awaited.set(running.awaited.get() - 1);
        self.end_if_complete(key, running);
    }

    /// Notes that a message of the operation has been sent, or could not be.
    pub(super) fn sent(&self, key: OpKey, result: Result<(), Error>) {
        let running = self.running.borrow().get(&key).cloned();
        let Some(running) = running else { return };
        running.sending.set(running.sending.get().saturating_sub(1));
        match result {
            Ok(()) => self.end_if_complete(key, &running),
            Err(error) => self.end(key, &running, Err(error)),
        }
    }

    fn end_if_complete(&self, key: OpKey, running: &Rc<Running>) {
        if running.awaited.get() == 0 && running.sending.get() == 0 {
            let parts = running.parts.take();
            self.end(key, running, Ok(parts));
        }
    }

    /// Ends an exchange, once.
    fn end(&self, key: OpKey, running: &Running, result: Result<Parts, Error>) {
        self.running.borrow_mut().remove(&key);
        let then = running.then.borrow_mut().take();
        if let Some(then) = then {
            then(result);
        }
    }

    /// Fails the operations that wait for a member, and those that will.
    pub(super) fn fail(&self, group: u64, rank: usize, error: Error) {
        self.failed.borrow_mut().insert((group, rank), error);
        self.end_all(error, |key, running| {
            // Other groups have other members.
            key.group == group && running.waits_for(rank)
        });
    }

    /// Forgets a group that is dropped. Its operations end as cancelled.
    pub(super) fn forget(&self, group: u64) {
        self.begun.borrow_mut().insert(group, u64::MAX);
        self.early.borrow_mut().forget(group);
        self.failed.borrow_mut().retain(|(of, _), _| *of != group);
        self.peers.borrow_mut().remove(&group);
        self.end_all(Error::Cancelled, |key, _| key.group == group);
    }

    fn end_all(&self, error: Error, is_ended: impl Fn(&OpKey, &Running) -> bool) {
        let running = self.running.borrow();
        let of = running.iter().filter(|(key, running)| is_ended(key, running));
        let ended: Vec<_> = of.map(|(key, running)| (*key, running.clone())).collect();
        drop(running);
        for (key, running) in ended {
            self.end(key, &running, Err(error));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GROUP: u64 = 5;
    /// A group of two members.
    const SMALL: u64 = 6;

    fn key(number: u64) -> OpKey {
        OpKey { group: GROUP, number }
    }

    /// A message of a member whose peer has the number of its rank.
    fn part(rank: usize, data: &[u8]) -> Part {
        Part { from: PeerId(rank as u32), rank, data: data.to_vec() }
    }

    /// An operation in which the member of rank 0 gets a byte of each other member.
    fn begin_of(messages: &GroupMessages, key: OpKey, size: usize) -> Rc<Cell<Option<bool>>> {
        let ended = Rc::new(Cell::new(None));
        let of_end = ended.clone();
        let then = move |result: Result<Parts, Error>| of_end.set(Some(result.is_ok()));
        let mut lens = vec![Some(1); size];
        lens[0] = None;
        messages.begin(key, lens, (0, None), 0, Box::new(then));
        ended
    }

    /// An operation of three members. Returns whether it has ended well; `None`: it runs.
    fn begin(messages: &GroupMessages, number: u64) -> Rc<Cell<Option<bool>>> {
        begin_of(messages, key(number), 3)
    }

    #[test]
    fn only_messages_that_an_operation_will_want_are_kept() {
        let messages = GroupMessages::default();
        messages.take_in(key(0), part(1, &[1]));
        let first = begin(&messages, 0);
        assert!(messages.early.borrow().operations() == 0 && first.get().is_none());
        // The second message has a wrong length and ends the operation; the third comes too late.
        messages.take_in(key(0), part(2, &[1, 2]));
        assert_eq!(first.get(), Some(false));
        messages.take_in(key(0), part(2, &[1]));
        assert!(messages.early.borrow().operations() == 0);
        messages.take_in(key(1), part(2, &[1]));
        assert_eq!(messages.early.borrow().operations(), 1);
        messages.forget(GROUP);
        messages.take_in(key(1), part(1, &[1]));
        assert!(messages.early.borrow().operations() == 0 && messages.running.borrow().is_empty());
    }

    #[test]
    fn a_member_that_fails_ends_the_operations_of_its_group_only() {
        let messages = GroupMessages::default();
        let small = OpKey { group: SMALL, number: 0 };
        let (of_small, of_large) = (begin_of(&messages, small, 2), begin(&messages, 0));
        messages.fail(GROUP, 2, Error::Cancelled);
        assert_eq!((of_large.get(), of_small.get()), (Some(false), None));
        // No operation has such a member.
        messages.fail(SMALL, 7, Error::Cancelled);
        messages.take_in(small, part(1, &[1]));
        assert_eq!(of_small.get(), Some(true));
    }

    /// A message that has come before its member fails is used. An operation that fails leaves no message.
    #[test]
    fn messages_of_a_member_that_has_failed_since() {
        let messages = GroupMessages::default();
        for number in [0, 1] {
            messages.take_in(key(number), part(2, &[1]));
        }
        messages.take_in(key(0), part(1, &[1]));
        messages.fail(GROUP, 2, Error::Cancelled);
        messages.fail(GROUP, 1, Error::Cancelled);
        assert_eq!(begin(&messages, 0).get(), Some(true));
        assert_eq!(begin(&messages, 1).get(), Some(false));
        assert!(messages.early.borrow().operations() == 0 && messages.running.borrow().is_empty());
    }

    #[test]
    fn a_peer_may_send_more_messages_than_there_are() {
        for again in [&[1][..], &[1, 2], &[]] {
            let messages = GroupMessages::default();
            for part in [part(1, &[1]), part(2, &[1]), part(1, again), part(9, again)] {
                messages.take_in(key(0), part);
            }
            assert_eq!(begin(&messages, 0).get(), Some(true));
            assert!(messages.running.borrow().is_empty());
        }
    }

    #[test]
    fn a_member_sends_by_its_own_rank() {
        let messages = GroupMessages::default();
        let peers = [1, 2].map(|peer| Some(PeerId(peer)));
        messages.add(0, GROUP, [None].into_iter().chain(peers).collect());
        let ended = begin(&messages, 0);
        messages.take_in(key(0), Part { from: PeerId(1), ..part(2, &[1]) });
        messages.take_in(key(0), part(1, &[1]));
        assert_eq!(ended.get(), None);
        // A member may have other peers than its endpoint's.
        messages.take_in(key(0), Part { from: PeerId(3), ..part(2, &[1]) });
        assert_eq!(ended.get(), Some(true));
        let ended = begin(&messages, 1);
        messages.take_in(key(1), part(2, &[1]));
        // The peer of a member that has failed may be another one now.
        messages.fail(GROUP, 2, Error::Cancelled);
        messages.take_in(key(1), Part { from: PeerId(2), ..part(1, &[1]) });
        assert_eq!(ended.get(), Some(true));
    }
}

//! Messages that have come before their operation was started, and operations that wait for messages: what
//! a worker keeps for its groups.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;

use crate::api::core::error::Error;
use crate::api::worker::handle::AmMessage;

/// Bytes of the header of a message: group and number of the operation, u64 each, and the sender's rank, u32.
const HEADER: usize = 20;

/// An operation of a group: the group, and its number there.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct OpKey {
    pub group: u64,
    pub number: u64,
}

impl OpKey {
    /// Header of a message of the member with this rank.
    pub(super) fn header(self, rank: usize) -> [u8; HEADER] {
        let mut header = [0; HEADER];
        header[..8].copy_from_slice(&self.group.to_le_bytes());
        header[8..16].copy_from_slice(&self.number.to_le_bytes());
        header[16..].copy_from_slice(&(rank as u32).to_le_bytes());
        header
    }

    fn of_header(header: &[u8]) -> Option<(OpKey, usize)> {
        let header: &[u8; HEADER] = header.try_into().ok()?;
        let word = |at: usize| header[at..].first_chunk().map(|bytes| u64::from_le_bytes(*bytes));
        let rank = header[16..].first_chunk().map(|bytes| u32::from_le_bytes(*bytes))?;
        Some((OpKey { group: word(0)?, number: word(8)? }, rank as usize))
    }
}

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

/// Rank and data of a message that has come before its operation was started.
type Early = (usize, Vec<u8>);

/// Everything of the groups of one worker that its handler of messages needs.
#[derive(Default)]
pub(super) struct GroupMessages {
    early: RefCell<HashMap<OpKey, Vec<Early>>>,
    running: RefCell<HashMap<OpKey, Rc<Running>>>,
    /// Number of operations of each group that have begun; of a group that is gone, the largest number. Late
    /// messages of these operations are dropped.
    begun: RefCell<HashMap<u64, u64>>,
    /// Members that have failed: group and rank.
    failed: RefCell<HashMap<(u64, usize), Error>>,
    /// Number of groups that have been made of the same members.
    made: RefCell<HashMap<u64, u64>>,
}

impl GroupMessages {
    /// Number of groups of these members before this one.
    pub(super) fn count(&self, members: u64) -> u64 {
        let mut made = self.made.borrow_mut();
        let count = made.entry(members).or_default();
        *count += 1;
        *count - 1
    }

    /// Takes a message from progress. One that is malformed is dropped.
    pub(super) fn receive(&self, message: &AmMessage) {
        let Some((key, rank)) = OpKey::of_header(message.header()) else { return };
        let Some(data) = message.data() else { return };
        self.take_in(key, rank, data.to_vec());
    }

    /// Puts a message in its place, or keeps it for an operation that has not begun.
    fn take_in(&self, key: OpKey, rank: usize, data: Vec<u8>) {
        let running = self.running.borrow().get(&key).cloned();
        match running {
            Some(running) => self.put(key, &running, rank, data),
            None if self.begun.borrow().get(&key.group).is_some_and(|begun| key.number < *begun) => {}
            None => self.early.borrow_mut().entry(key).or_default().push((rank, data)),
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
        let of_failed = |at: usize| self.failed.borrow().get(&(key.group, at)).copied();
        let failure = (0..lens.len()).filter(|at| lens[*at].is_some()).find_map(of_failed);
        let running = Rc::new(Running {
            parts: RefCell::new(parts),
            lens,
            awaited: Cell::new(awaited),
            sending: Cell::new(sending),
            then: RefCell::new(Some(then)),
        });
        self.running.borrow_mut().insert(key, running.clone());
        if let Some(error) = failure {
            return self.end(key, &running, Err(error));
        }
        let early = self.early.borrow_mut().remove(&key).unwrap_or_default();
        for (rank, data) in early {
            self.put(key, &running, rank, data);
        }
        self.end_if_complete(key, &running);
    }

    /// Puts the message of a member in its place. One that is not expected is dropped, one of another length
    /// fails the operation.
    fn put(&self, key: OpKey, running: &Rc<Running>, rank: usize, data: Vec<u8>) {
        let Some(Some(len)) = running.lens.get(rank).copied() else { return };
        if data.len() != len {
            let error = Error::Truncated { len: data.len() as u64, room: len };
            return self.end(key, running, Err(error));
        }
        let before = running.parts.borrow_mut()[rank].replace(data);
        if before.is_none() {
            running.awaited.set(running.awaited.get() - 1);
            self.end_if_complete(key, running);
        }
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
            let waits = running.lens[rank].is_some() && running.parts.borrow()[rank].is_none();
            key.group == group && waits
        });
    }

    /// Forgets a group that is dropped. Its operations end as cancelled.
    pub(super) fn forget(&self, group: u64) {
        self.begun.borrow_mut().insert(group, u64::MAX);
        self.early.borrow_mut().retain(|key, _| key.group != group);
        self.failed.borrow_mut().retain(|(of, _), _| *of != group);
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

    fn key(number: u64) -> OpKey {
        OpKey { group: GROUP, number }
    }

    /// Begins an operation of three members that this one, of rank 0, gets a byte from each of.
    fn begin(messages: &GroupMessages, number: u64) -> Rc<Cell<bool>> {
        let is_ended = Rc::new(Cell::new(false));
        let ended = is_ended.clone();
        let then = move |_: Result<Parts, Error>| ended.set(true);
        messages.begin(key(number), vec![None, Some(1), Some(1)], (0, None), 0, Box::new(then));
        is_ended
    }

    #[test]
    fn only_messages_that_an_operation_will_want_are_kept() {
        let messages = GroupMessages::default();
        messages.take_in(key(0), 1, vec![1]);
        let first = begin(&messages, 0);
        assert!(messages.early.borrow().is_empty() && !first.get());
        // The second message has a wrong length and ends the operation; the third comes too late.
        messages.take_in(key(0), 2, vec![1, 2]);
        assert!(first.get());
        messages.take_in(key(0), 2, vec![1]);
        assert!(messages.early.borrow().is_empty());
        messages.take_in(key(1), 2, vec![1]);
        assert_eq!(messages.early.borrow().len(), 1);
        messages.forget(GROUP);
        messages.take_in(key(1), 1, vec![1]);
        assert!(messages.early.borrow().is_empty() && messages.running.borrow().is_empty());
    }
}

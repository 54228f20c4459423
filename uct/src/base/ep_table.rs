//! Endpoints to one peer, and their notification when the peer fails.

use crate::api::{EpTag, Error, Sink};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

/// An endpoint among those to one peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EpIdx(u32);

/// Endpoints by number.
#[derive(Default)]
pub struct EpTable {
    list: RefCell<List>,
}

#[derive(Default)]
struct List {
    entries: Vec<Option<Entry>>,
    free: Vec<u32>,
    peer_failed: bool,
}

#[derive(Clone, Copy)]
struct Entry {
    tag: EpTag,
    /// Created after the failure: its operations fail, so it is not notified.
    after_failure: bool,
}

impl EpTable {
    pub fn insert(&self) -> EpIdx {
        let mut list = self.list.borrow_mut();
        let entry = Some(Entry { tag: EpTag::default(), after_failure: list.peer_failed });
        if let Some(idx) = list.free.pop() {
            list.entries[idx as usize] = entry;
            return EpIdx(idx);
        }
        list.entries.push(entry);
        EpIdx(list.entries.len() as u32 - 1)
    }

    pub fn remove(&self, idx: EpIdx) {
        let mut list = self.list.borrow_mut();
        list.entries[idx.0 as usize] = None;
        list.free.push(idx.0);
    }

    pub fn tag(&self, idx: EpIdx) -> EpTag {
        self.list.borrow().entries[idx.0 as usize].map(|entry| entry.tag).unwrap_or_default()
    }

    pub fn set_tag(&self, idx: EpIdx, tag: EpTag) {
        if let Some(entry) = &mut self.list.borrow_mut().entries[idx.0 as usize] {
            entry.tag = tag;
        }
    }

    /// The first endpoint from `at` on to notify: the number after its own, and its tag.
    fn from(&self, at: u32) -> Option<(u32, EpTag)> {
        let list = self.list.borrow();
        let later = list.entries.iter().zip(1..).skip(at as usize);
        later
            .filter_map(|(entry, behind)| Some((behind, entry.filter(|entry| !entry.after_failure)?.tag)))
            .next()
    }
}

/// Failed peers whose endpoints are still to be notified, each with the next endpoint.
pub struct FailedPeers<P>(RefCell<VecDeque<(Rc<P>, u32)>>);

impl<P> Default for FailedPeers<P> {
    fn default() -> Self {
        FailedPeers(RefCell::default())
    }
}

impl<P> FailedPeers<P> {
    /// These are gone. Told are the endpoints that there are now; `eps` are those to a peer.
    pub fn add(&self, peers: impl IntoIterator<Item = Rc<P>>, eps: impl Fn(&P) -> &EpTable) {
        let entered = peers.into_iter().inspect(|peer| eps(peer).list.borrow_mut().peer_failed = true);
        self.0.borrow_mut().extend(entered.map(|peer| (peer, 0)));
    }

    /// Notifies up to `max` endpoints; answers how many. `eps` as for [`add`](FailedPeers::add), `why` is the
    /// error of a peer.
    pub fn notify<S: Sink>(
        &self,
        max: usize,
        eps: impl Fn(&P) -> &EpTable,
        why: impl Fn(&P) -> Error,
        sink: &mut S,
    ) -> usize {
        let mut notified = 0;
        while notified < max
            && let Some((tag, error)) = self.next(&eps, &why)
        {
            sink.on_ep_error(tag, error);
            notified += 1;
        }
        notified
    }

    pub fn is_empty(&self) -> bool {
        self.0.borrow().is_empty()
    }

    fn next(&self, eps: impl Fn(&P) -> &EpTable, why: impl Fn(&P) -> Error) -> Option<(EpTag, Error)> {
        let mut peers = self.0.borrow_mut();
        loop {
            let (peer, at) = peers.front_mut()?;
            if let Some((next, tag)) = eps(peer).from(*at) {
                *at = next;
                return Some((tag, why(peer)));
            }
            peers.pop_front();
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn freed_numbers_are_reused_without_their_tags() {
        let eps = EpTable::default();
        let (a, b) = (eps.insert(), eps.insert());
        eps.set_tag(a, EpTag(7));
        eps.set_tag(b, EpTag(8));
        eps.remove(a);
        assert_eq!((eps.from(0), eps.from(1), eps.from(2)), (Some((2, EpTag(8))), Some((2, EpTag(8))), None));
        let again = eps.insert();
        assert_eq!((again, eps.tag(again), eps.tag(b)), (a, EpTag::default(), EpTag(8)));
    }

    #[test]
    fn endpoints_are_notified_a_few_at_a_time() {
        struct Notified(Vec<u64>);
        impl Sink for Notified {
            fn on_am(&mut self, _am: crate::api::Am<'_>) {}
            fn on_comp(&mut self, _token: u64, _result: Result<(), Error>) {}
            fn on_ep_error(&mut self, tag: EpTag, error: Error) {
                assert_eq!(error, Error::PeerDead);
                self.0.push(tag.0);
            }
        }
        let (eps, others) = (Rc::new(EpTable::default()), Rc::new(EpTable::default()));
        let all: Vec<EpIdx> = (0..5).map(|_| eps.insert()).collect();
        all.iter().zip(10..).for_each(|(&idx, n)| eps.set_tag(idx, EpTag(n)));
        others.insert();
        let (failed, mut notified) = (FailedPeers::default(), Notified(Vec::new()));
        let mut notify = |max| failed.notify(max, |eps: &EpTable| eps, |_| Error::PeerDead, &mut notified);
        assert_eq!(notify(9), 0);
        failed.add([eps.clone(), others], |eps| eps);
        assert_eq!((notify(2), notify(0)), (2, 0));
        eps.remove(all[2]);
        eps.remove(all[4]);
        let late: Vec<EpIdx> = (0..3).map(|_| eps.insert()).collect();
        late.iter().for_each(|&idx| eps.set_tag(idx, EpTag(19)));
        assert_eq!((notify(1), notify(9), notify(9)), (1, 1, 0));
        assert!(failed.is_empty());
        assert_eq!(notified.0, [10, 11, 13, 0]);
    }
}

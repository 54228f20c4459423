//! Message matching: the oldest receive that fits a message, the oldest message that fits a receive. Exact
//! tags are found by hash bucket, masked ones by a walk.

use ucs::coll::list::{Link, Links, List};
use ucs::coll::slots::SlotId;
use ucs::mem::pool::FreeList;

use crate::rdm::ids::PeerId;

const TAG_MASK_FULL: u64 = !0;

/// The messages that a receive accepts. An untagged receive has mask 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pattern {
    /// Bits to compare.
    pub tag: u64,
    /// Mask of the bits that are compared.
    pub mask: u64,
    /// Only from this peer.
    pub from: Option<PeerId>,
}

impl Pattern {
    /// Every tag, any sender.
    pub const ANY: Pattern = Pattern { tag: 0, mask: 0, from: None };

    /// True if a message matches.
    #[inline]
    pub fn fits(&self, tag: u64, from: impl Sender) -> bool {
        (tag ^ self.tag) & self.mask == 0 && self.from.is_none_or(|only| from.is(only))
    }

    #[inline(always)]
    const fn is_exact(&self) -> bool {
        self.mask == TAG_MASK_FULL
    }
}

/// The sender of a message, for receives that take those of one peer only.
pub trait Sender: Copy {
    /// True if this is the peer `only`, or another of its worker.
    fn is(self, only: PeerId) -> bool;
}

impl Sender for PeerId {
    #[inline(always)]
    fn is(self, only: PeerId) -> bool {
        self == only
    }
}

/// Lists by hash of the tag; their number follows the number of elements.
#[derive(Debug)]
struct Buckets {
    lists: Vec<List>,
    shift: u32,
}

impl Buckets {
    const FIRST_COUNT: usize = 256;

    const fn new() -> Buckets {
        Buckets { lists: Vec::new(), shift: 0 }
    }

    #[inline]
    fn of(&self, tag: u64) -> usize {
        (tag.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> self.shift) as usize
    }

    /// True if `len` elements ask for more lists: [`grow`](Self::grow) and insert all anew.
    #[inline]
    fn needs_growth(&self, len: usize) -> bool {
        len >= self.lists.len() * 2
    }

    #[cold]
    fn grow(&mut self) {
        let count = (self.lists.len() * 4).max(Self::FIRST_COUNT);
        self.lists.clear();
        self.lists.resize_with(count, List::new);
        self.shift = 64 - count.trailing_zeros();
    }
}

/// Match entry of a posted receive, with its link in the queue: part of the receive, so that one look finds
/// both.
#[derive(Clone, Copy, Debug)]
pub struct MatchEntry {
    tag: u64,
    mask: u64,
    /// Order of posting: the oldest wins.
    seq: u64,
    /// Only from this peer, or [`ANY_SOURCE`].
    from: u32,
    link: Link,
}

/// The end of the peer table: no peer has this number.
const ANY_SOURCE: u32 = u32::MAX;

impl MatchEntry {
    /// Makes an entry for this pattern; it is in no queue yet.
    #[inline(always)]
    pub fn new(pattern: Pattern) -> MatchEntry {
        let from = pattern.from.map_or(ANY_SOURCE, |peer| peer.0);
        MatchEntry { tag: pattern.tag, mask: pattern.mask, seq: 0, from, link: Link::new() }
    }

    /// Returns the pattern of the entry.
    pub fn pattern(&self) -> Pattern {
        Pattern { tag: self.tag, mask: self.mask, from: self.source() }
    }

    /// Returns the only peer whose messages match, if there is one.
    #[inline]
    pub fn source(&self) -> Option<PeerId> {
        if self.from == ANY_SOURCE { None } else { Some(PeerId(self.from)) }
    }

    #[inline(always)]
    fn fits(&self, tag: u64, from: impl Sender) -> bool {
        (tag ^ self.tag) & self.mask == 0 && (self.from == ANY_SOURCE || from.is(PeerId(self.from)))
    }
}

/// A store of posted receives, by index. [`ExpectedQueue`] only asks for indices that were pushed.
pub trait MatchStore {
    /// Returns the entry of the receive at `at`.
    fn entry(&self, at: u32) -> &MatchEntry;
    /// Returns the entry of the receive at `at`, mutably.
    fn entry_mut(&mut self, at: u32) -> &mut MatchEntry;
}

impl MatchStore for Vec<MatchEntry> {
    #[inline(always)]
    fn entry(&self, at: u32) -> &MatchEntry {
        &self[at as usize]
    }
    #[inline(always)]
    fn entry_mut(&mut self, at: u32) -> &mut MatchEntry {
        &mut self[at as usize]
    }
}

/// The links in a store, for the intrusive lists.
struct StoreLinks<'a, S: ?Sized>(&'a mut S);

impl<S: MatchStore + ?Sized> Links for StoreLinks<'_, S> {
    #[inline(always)]
    fn link(&self, at: u32) -> &Link {
        &self.0.entry(at).link
    }
    #[inline(always)]
    fn link_mut(&mut self, at: u32) -> &mut Link {
        &mut self.0.entry_mut(at).link
    }
}

/// Posted receives of one kind, by their indices in a store.
#[derive(Debug)]
pub struct ExpectedQueue {
    buckets: Buckets,
    exact: usize,
    wildcard: List,
    seq: u64,
}

/// The end of a list, where a receive will be appended.
pub struct Place<'a> {
    entry: MatchEntry,
    list: &'a mut List,
    /// 1 if the receive names tag and sender exactly.
    added: usize,
    exact: &'a mut usize,
}

impl Place<'_> {
    /// The entry that the receive has in the store.
    // HOT
    #[inline(always)]
    pub fn entry(&self) -> MatchEntry {
        self.entry
    }

    /// Appends the receive at `at` of the store, which has [`entry`](Self::entry).
    // HOT
    #[inline(always)]
    pub fn fill<S: MatchStore + ?Sized>(self, all: &mut S, at: u32) {
        self.list.append_linked(&mut StoreLinks(all), at);
        *self.exact += self.added;
    }
}

impl ExpectedQueue {
    /// Makes an empty queue.
    pub fn new() -> ExpectedQueue {
        ExpectedQueue { buckets: Buckets::new(), exact: 0, wildcard: List::new(), seq: 0 }
    }

    /// Makes a place for a receive at the end of its list. The receive goes into the store with
    /// [`Place::entry`], then [`Place::fill`] appends it. Dropping the place appends nothing.
    // HOT
    #[inline(always)]
    pub fn place<S: MatchStore + ?Sized>(&mut self, all: &mut S, pattern: Pattern) -> Place<'_> {
        let entry = MatchEntry { seq: self.seq, ..MatchEntry::new(pattern) };
        self.seq += 1;
        let (list, exact) = if pattern.is_exact() {
            if self.buckets.needs_growth(self.exact) {
                self.rehash(all);
            }
            let bucket = self.buckets.of(pattern.tag);
            (&mut self.buckets.lists[bucket], 1)
        } else {
            (&mut self.wildcard, 0)
        };
        let entry = MatchEntry { link: list.next_link(), ..entry };
        Place { entry, list, added: exact, exact: &mut self.exact }
    }

    /// Removes the oldest receive that matches a message.
    #[inline(never)]
    pub fn take<S: MatchStore + ?Sized>(&mut self, all: &mut S, tag: u64, from: impl Sender) -> Option<u32> {
        let at = self.find(all, tag, from)?;
        self.remove(all, at);
        Some(at)
    }

    /// Returns the first receive of the only list that can match this tag, nearly always the right one.
    /// `None`: other lists have to be searched.
    // HOT
    #[inline(always)]
    pub fn first(&mut self, tag: u64) -> Option<FirstReceive<'_>> {
        if !self.wildcard.is_empty() {
            return None;
        }
        let bucket = self.buckets.of(tag);
        let list = self.buckets.lists.get_mut(bucket)?;
        let at = list.front()?;
        Some(FirstReceive { at, list, exact: &mut self.exact })
    }

    /// Finds the oldest receive that matches a message.
    pub fn find<S: MatchStore + ?Sized>(&self, all: &mut S, tag: u64, from: impl Sender) -> Option<u32> {
        let links = &StoreLinks(all);
        let fits = |&at: &u32| links.0.entry(at).fits(tag, from);
        let exact = match self.exact {
            0 => None,
            _ => self.buckets.lists[self.buckets.of(tag)].iter(links).find(fits),
        };
        let wildcard = if self.wildcard.is_empty() { None } else { self.wildcard.iter(links).find(fits) };
        match (exact, wildcard) {
            (Some(a), Some(b)) if links.0.entry(b).seq < links.0.entry(a).seq => Some(b),
            (Some(a), _) => Some(a),
            (None, b) => b,
        }
    }

    /// Removes the receive at `at`, which is in this queue.
    pub fn remove<S: MatchStore + ?Sized>(&mut self, all: &mut S, at: u32) {
        let MatchEntry { tag, mask, .. } = *all.entry(at);
        if mask == TAG_MASK_FULL {
            let bucket = self.buckets.of(tag);
            self.buckets.lists[bucket].remove(&mut StoreLinks(all), at);
            self.exact -= 1;
        } else {
            self.wildcard.remove(&mut StoreLinks(all), at);
        }
    }

    #[cold]
    fn rehash<S: MatchStore + ?Sized>(&mut self, all: &mut S) {
        let mut exact = Vec::with_capacity(self.exact);
        for list in &mut self.buckets.lists {
            exact.extend(std::iter::from_fn(|| list.pop_front(&mut StoreLinks(all))));
        }
        // Buckets merge and split, so the posting order within each is restored.
        exact.sort_unstable_by_key(|&at| all.entry(at).seq);
        self.buckets.grow();
        for at in exact {
            let bucket = self.buckets.of(all.entry(at).tag);
            self.buckets.lists[bucket].push_back(&mut StoreLinks(all), at);
        }
    }
}

/// The first receive of a list; see [`ExpectedQueue::first`].
pub struct FirstReceive<'a> {
    /// Index in the store.
    pub at: u32,
    list: &'a mut List,
    exact: &'a mut usize,
}

impl FirstReceive<'_> {
    /// Removes it from the queue if it matches; `want` is its entry. The caller then removes it from the
    /// store.
    // HOT
    #[inline(always)]
    pub fn take(self, entry: &MatchEntry, tag: u64, from: PeerId) -> Option<()> {
        // All receives of the list want one tag.
        if entry.tag != tag || entry.from != ANY_SOURCE && entry.from != from.0 {
            return None;
        }
        self.list.drop_front(&entry.link);
        *self.exact -= 1;
        Some(())
    }
}

impl Default for ExpectedQueue {
    fn default() -> Self {
        ExpectedQueue::new()
    }
}

#[derive(Clone, Copy, Debug)]
struct UnexpectedEntry {
    tag: u64,
    from: PeerId,
    op: SlotId,
}

/// Unexpected messages of one kind, in order of arrival.
#[derive(Debug)]
#[repr(C)]
pub struct UnexpectedQueue {
    /// First: every receive asks whether it is empty.
    all: List,
    buckets: Buckets,
    entries: Vec<UnexpectedEntry>,
    by_arrival: Vec<Link>,
    by_tag: Vec<Link>,
    free: FreeList,
}

impl UnexpectedQueue {
    /// Makes an empty queue.
    pub fn new() -> UnexpectedQueue {
        UnexpectedQueue {
            entries: Vec::new(),
            by_arrival: Vec::new(),
            by_tag: Vec::new(),
            free: FreeList::new(0),
            all: List::new(),
            buckets: Buckets::new(),
        }
    }

    /// True when there is no message.
    #[inline]
    pub const fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Number of messages.
    #[inline]
    pub const fn len(&self) -> usize {
        self.all.len()
    }

    /// Appends a message; returns the index to remove it by.
    pub fn push(&mut self, tag: u64, from: PeerId, op: SlotId) -> u32 {
        let at = self.free.take().unwrap_or_else(|| self.grow());
        if self.buckets.needs_growth(self.all.len()) {
            self.rehash();
        }
        self.entries[at as usize] = UnexpectedEntry { tag, from, op };
        self.all.push_back(self.by_arrival.as_mut_slice(), at);
        let bucket = self.buckets.of(tag);
        self.buckets.lists[bucket].push_back(self.by_tag.as_mut_slice(), at);
        at
    }

    /// Finds the oldest message that matches; `who` resolves a sender.
    pub fn find<F: Sender>(&self, pattern: &Pattern, who: impl Fn(PeerId) -> F) -> Option<SlotId> {
        if self.all.is_empty() {
            return None;
        }
        let fits = |&at: &u32| {
            let entry = &self.entries[at as usize];
            pattern.fits(entry.tag, who(entry.from))
        };
        let (list, links) = if pattern.is_exact() {
            (&self.buckets.lists[self.buckets.of(pattern.tag)], &self.by_tag)
        } else {
            (&self.all, &self.by_arrival)
        };
        let first = list.front().filter(fits);
        let at = first.or_else(|| list.iter(links.as_slice()).find(fits))?;
        Some(self.entries[at as usize].op)
    }

    /// Removes the message at `at`, an index from [`push`](Self::push).
    pub fn remove(&mut self, at: u32) {
        let bucket = self.buckets.of(self.entries[at as usize].tag);
        self.buckets.lists[bucket].remove(self.by_tag.as_mut_slice(), at);
        self.all.remove(self.by_arrival.as_mut_slice(), at);
        self.free.give(at);
    }

    /// Gives the memory of a long queue back once it is empty.
    #[cold]
    pub fn trim(&mut self, keep: usize) {
        if self.is_empty() && self.entries.len() > keep {
            *self = UnexpectedQueue::new();
        }
    }

    #[cold]
    fn grow(&mut self) -> u32 {
        let len = (self.entries.len() * 2).max(64);
        let blank = UnexpectedEntry { tag: 0, from: PeerId(0), op: SlotId::NONE };
        self.free.extend((len - self.entries.len()) as u32);
        self.entries.resize(len, blank);
        self.by_arrival.resize(len, Link::new());
        self.by_tag.resize(len, Link::new());
        self.free.take().expect("just extended")
    }

    #[cold]
    fn rehash(&mut self) {
        for list in &mut self.buckets.lists {
            while list.pop_front(self.by_tag.as_mut_slice()).is_some() {}
        }
        self.buckets.grow();
        let UnexpectedQueue { all, by_arrival, by_tag, buckets, entries, .. } = self;
        for at in all.iter(by_arrival.as_slice()) {
            let bucket = buckets.of(entries[at as usize].tag);
            buckets.lists[bucket].push_back(by_tag.as_mut_slice(), at);
        }
    }
}

impl Default for UnexpectedQueue {
    fn default() -> Self {
        UnexpectedQueue::new()
    }
}

#[cfg(test)]
mod tests;

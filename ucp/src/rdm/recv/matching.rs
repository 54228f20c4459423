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
    /// True if this is the peer `only`, under any of its aliases.
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
    const FIRST: usize = 256;

    const fn new() -> Buckets {
        Buckets { lists: Vec::new(), shift: 0 }
    }

    #[inline]
    fn of(&self, tag: u64) -> usize {
        (tag.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> self.shift) as usize
    }

    /// True if `len` elements ask for more lists: [`grow`](Self::grow) and insert all anew.
    #[inline]
    fn crowded(&self, len: usize) -> bool {
        len >= self.lists.len() * 2
    }

    #[cold]
    fn grow(&mut self) {
        let count = (self.lists.len() * 4).max(Self::FIRST);
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
    /// Only from this peer, or [`ANYBODY`].
    from: u32,
    link: Link,
}

/// The end of the peer table: no peer has this number.
const ANYBODY: u32 = u32::MAX;

impl MatchEntry {
    /// Makes an entry for this pattern; it is in no queue yet.
    #[inline(always)]
    pub fn new(pattern: Pattern) -> MatchEntry {
        let from = pattern.from.map_or(ANYBODY, |peer| peer.0);
        MatchEntry { tag: pattern.tag, mask: pattern.mask, seq: 0, from, link: Link::new() }
    }

    /// Returns the pattern of the entry.
    pub fn pattern(&self) -> Pattern {
        Pattern { tag: self.tag, mask: self.mask, from: self.only() }
    }

    /// Returns the only peer whose messages match, if there is one.
    #[inline]
    pub fn only(&self) -> Option<PeerId> {
        if self.from == ANYBODY { None } else { Some(PeerId(self.from)) }
    }

    #[inline(always)]
    fn fits(&self, tag: u64, from: impl Sender) -> bool {
        (tag ^ self.tag) & self.mask == 0 && (self.from == ANYBODY || from.is(PeerId(self.from)))
    }
}

/// A store of posted receives, by index. [`ExpectedQueue`] only asks for indices that were pushed.
pub trait MatchStore {
    /// Returns the entry of the receive at `at`.
    fn want(&self, at: u32) -> &MatchEntry;
    /// Returns the entry of the receive at `at`, mutably.
    fn want_mut(&mut self, at: u32) -> &mut MatchEntry;
}

impl MatchStore for Vec<MatchEntry> {
    #[inline(always)]
    fn want(&self, at: u32) -> &MatchEntry {
        &self[at as usize]
    }
    #[inline(always)]
    fn want_mut(&mut self, at: u32) -> &mut MatchEntry {
        &mut self[at as usize]
    }
}

/// A store as the intrusive lists see it.
struct Chain<'a, S: ?Sized>(&'a mut S);

impl<S: MatchStore + ?Sized> Links for Chain<'_, S> {
    #[inline(always)]
    fn link(&self, at: u32) -> &Link {
        &self.0.want(at).link
    }
    #[inline(always)]
    fn link_mut(&mut self, at: u32) -> &mut Link {
        &mut self.0.want_mut(at).link
    }
}

/// Posted receives of one kind, by their indices in a store.
#[derive(Debug)]
pub struct ExpectedQueue {
    buckets: Buckets,
    exact: usize,
    wild: List,
    seq: u64,
}

impl ExpectedQueue {
    /// Makes an empty queue.
    pub fn new() -> ExpectedQueue {
        ExpectedQueue { buckets: Buckets::new(), exact: 0, wild: List::new(), seq: 0 }
    }

    /// Appends a receive: `insert` puts it into the store with the entry given and returns its index. If it
    /// returns `None`, nothing is appended. // HOT
    #[inline(always)]
    pub fn push<S: MatchStore + ?Sized>(
        &mut self,
        all: &mut S,
        pattern: Pattern,
        insert: impl FnOnce(&mut S, MatchEntry) -> Option<u32>,
    ) -> Option<u32> {
        let want = MatchEntry { seq: self.seq, ..MatchEntry::new(pattern) };
        let exact = pattern.is_exact();
        let list = if exact {
            if self.buckets.crowded(self.exact) {
                self.rehash(all);
            }
            let bucket = self.buckets.of(pattern.tag);
            &mut self.buckets.lists[bucket]
        } else {
            &mut self.wild
        };
        let at = list.push_new(&mut Chain(all), |all, link| insert(all.0, MatchEntry { link, ..want }))?;
        self.exact += usize::from(exact);
        self.seq += 1;
        Some(at)
    }

    /// Removes the oldest receive that matches a message.
    #[inline(never)]
    pub fn take<S: MatchStore + ?Sized>(&mut self, all: &mut S, tag: u64, from: impl Sender) -> Option<u32> {
        let at = self.find(all, tag, from)?;
        self.remove(all, at);
        Some(at)
    }

    /// Returns the first receive of the only list that can match this tag, nearly always the right one.
    /// `None`: other lists have to be searched. // HOT
    #[inline(always)]
    pub fn first(&mut self, tag: u64) -> Option<First<'_>> {
        if !self.wild.is_empty() {
            return None;
        }
        let bucket = self.buckets.of(tag);
        let list = self.buckets.lists.get_mut(bucket)?;
        let at = list.front()?;
        Some(First { at, list, exact: &mut self.exact })
    }

    /// Finds the oldest receive that matches a message.
    pub fn find<S: MatchStore + ?Sized>(&self, all: &mut S, tag: u64, from: impl Sender) -> Option<u32> {
        let chain = &Chain(all);
        let fits = |&at: &u32| chain.0.want(at).fits(tag, from);
        let exact = match self.exact {
            0 => None,
            _ => self.buckets.lists[self.buckets.of(tag)].iter(chain).find(fits),
        };
        let wild = if self.wild.is_empty() { None } else { self.wild.iter(chain).find(fits) };
        match (exact, wild) {
            (Some(a), Some(b)) if chain.0.want(b).seq < chain.0.want(a).seq => Some(b),
            (Some(a), _) => Some(a),
            (None, b) => b,
        }
    }

    /// Removes the receive at `at`, which is in this queue.
    pub fn remove<S: MatchStore + ?Sized>(&mut self, all: &mut S, at: u32) {
        let MatchEntry { tag, mask, .. } = *all.want(at);
        if mask == TAG_MASK_FULL {
            let bucket = self.buckets.of(tag);
            self.buckets.lists[bucket].remove(&mut Chain(all), at);
            self.exact -= 1;
        } else {
            self.wild.remove(&mut Chain(all), at);
        }
    }

    #[cold]
    fn rehash<S: MatchStore + ?Sized>(&mut self, all: &mut S) {
        let mut exact = Vec::with_capacity(self.exact);
        for list in &mut self.buckets.lists {
            exact.extend(std::iter::from_fn(|| list.pop_front(&mut Chain(all))));
        }
        // Buckets merge and split, so the posting order within each is restored.
        exact.sort_unstable_by_key(|&at| all.want(at).seq);
        self.buckets.grow();
        for at in exact {
            let bucket = self.buckets.of(all.want(at).tag);
            self.buckets.lists[bucket].push_back(&mut Chain(all), at);
        }
    }
}

/// The first receive of a list; see [`ExpectedQueue::first`].
pub struct First<'a> {
    /// Index in the store.
    pub at: u32,
    list: &'a mut List,
    exact: &'a mut usize,
}

impl First<'_> {
    /// Removes it from the queue if it matches; `want` is its entry. The caller then removes it from the
    /// store. // HOT
    #[inline(always)]
    pub fn take(self, want: &MatchEntry, tag: u64, from: PeerId) -> Option<()> {
        // All receives of the list want one tag.
        if want.tag != tag || want.from != ANYBODY && want.from != from.0 {
            return None;
        }
        self.list.drop_front(&want.link);
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
struct Came {
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
    came: Vec<Came>,
    by_arrival: Vec<Link>,
    by_tag: Vec<Link>,
    free: FreeList,
}

impl UnexpectedQueue {
    /// Makes an empty queue.
    pub fn new() -> UnexpectedQueue {
        UnexpectedQueue {
            came: Vec::new(),
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
        if self.buckets.crowded(self.all.len()) {
            self.rehash();
        }
        self.came[at as usize] = Came { tag, from, op };
        self.all.push_back(self.by_arrival.as_mut_slice(), at);
        let bucket = self.buckets.of(tag);
        self.buckets.lists[bucket].push_back(self.by_tag.as_mut_slice(), at);
        at
    }

    /// Finds the oldest message that matches; `who` resolves a sender's aliases.
    pub fn find<F: Sender>(&self, pattern: &Pattern, who: impl Fn(PeerId) -> F) -> Option<SlotId> {
        if self.all.is_empty() {
            return None;
        }
        let fits = |&at: &u32| {
            let came = &self.came[at as usize];
            pattern.fits(came.tag, who(came.from))
        };
        let at = if pattern.is_exact() {
            let list = &self.buckets.lists[self.buckets.of(pattern.tag)];
            list.iter(self.by_tag.as_slice()).find(fits)
        } else {
            self.all.iter(self.by_arrival.as_slice()).find(fits)
        }?;
        Some(self.came[at as usize].op)
    }

    /// Removes the message at `at`, an index from [`push`](Self::push).
    pub fn remove(&mut self, at: u32) {
        let bucket = self.buckets.of(self.came[at as usize].tag);
        self.buckets.lists[bucket].remove(self.by_tag.as_mut_slice(), at);
        self.all.remove(self.by_arrival.as_mut_slice(), at);
        self.free.give(at);
    }

    #[cold]
    fn grow(&mut self) -> u32 {
        let len = (self.came.len() * 2).max(64);
        let blank = Came { tag: 0, from: PeerId(0), op: SlotId::NONE };
        self.free.extend((len - self.came.len()) as u32);
        self.came.resize(len, blank);
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
        let UnexpectedQueue { all, by_arrival, by_tag, buckets, came, .. } = self;
        for at in all.iter(by_arrival.as_slice()) {
            let bucket = buckets.of(came[at as usize].tag);
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

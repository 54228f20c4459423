//! Which receive gets which message: the oldest receive whose pattern fits, the oldest message that fits. Two queues,
//! each held once for tagged and once for untagged messages; exact tags are found by bucket, patterns by walking.
//! Knows names only; what they name is the rooms' business.

use ucs::coll::list::{Link, Links, List, NIL};
use ucs::coll::slots::SlotId;
use ucs::mem::pool::FreeList;

use super::io::PeerId;

/// The mask that compares every bit.
const EXACT: u64 = !0;

/// What a receive accepts. An untagged receive has mask 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pattern {
    /// Bits compared with the message's tag,
    pub tag: u64,
    /// where this is set.
    pub mask: u64,
    /// Only from this peer.
    pub from: Option<PeerId>,
}

impl Pattern {
    /// Every tag, any sender.
    pub const ANY: Pattern = Pattern { tag: 0, mask: 0, from: None };

    /// Does a message fit?
    #[inline]
    pub fn fits(&self, tag: u64, from: PeerId) -> bool {
        (tag ^ self.tag) & self.mask == 0 && self.from.is_none_or(|only| only == from)
    }

    #[inline(always)]
    const fn is_exact(&self) -> bool {
        self.mask == EXACT
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

    /// True when `len` elements ask for more lists: time to [`grow`](Self::grow) and insert all anew.
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

/// A posted receive, or an unused place: then `link` chains it to the next unused one.
#[derive(Clone, Copy, Debug)]
struct Want {
    tag: u64,
    mask: u64,
    /// Order of posting: the oldest wins.
    seq: u64,
    /// Only from this peer, or [`ANYBODY`].
    from: u32,
    op: SlotId,
    link: Link,
    next_free: u32,
}

/// No peer has this number: it is the end of the table's.
const ANYBODY: u32 = u32::MAX;

impl Want {
    #[inline(always)]
    fn fits(&self, tag: u64, from: PeerId) -> bool {
        (tag ^ self.tag) & self.mask == 0 && (self.from == ANYBODY || self.from == from.0)
    }
}

/// The places, lent to a list.
struct Wants<'a>(&'a mut [Want]);

impl Links for Wants<'_> {
    #[inline(always)]
    fn link(&self, at: u32) -> &Link {
        &self.0[at as usize].link
    }
    #[inline(always)]
    fn link_mut(&mut self, at: u32) -> &mut Link {
        &mut self.0[at as usize].link
    }
}

/// Posted receives of one kind.
#[derive(Debug)]
pub struct Expected {
    wants: Vec<Want>,
    /// First unused place.
    free: u32,
    buckets: Buckets,
    exact: usize,
    wild: List,
    seq: u64,
}

impl Expected {
    /// None posted.
    pub fn new() -> Expected {
        Expected {
            wants: Vec::new(),
            free: NIL,
            buckets: Buckets::new(),
            exact: 0,
            wild: List::new(),
            seq: 0,
        }
    }

    /// Appends a receive; answers its place, to remove it by. // HOT
    #[inline]
    pub fn push(&mut self, pattern: Pattern, op: SlotId) -> u32 {
        if self.free == NIL {
            self.grow();
        }
        if pattern.is_exact() && self.buckets.crowded(self.exact) {
            self.rehash();
        }
        let at = self.free;
        let wants = &mut Wants(&mut self.wants);
        let want = &mut wants.0[at as usize];
        self.free = want.next_free;
        (want.tag, want.mask) = (pattern.tag, pattern.mask);
        (want.seq, want.op) = (self.seq, op);
        want.from = pattern.from.map_or(ANYBODY, |peer| peer.0);
        self.seq += 1;
        if pattern.is_exact() {
            self.exact += 1;
            let bucket = self.buckets.of(pattern.tag);
            self.buckets.lists[bucket].push_back(wants, at);
        } else {
            self.wild.push_back(wants, at);
        }
        at
    }

    /// Takes out the oldest receive that fits a message. // HOT
    #[inline]
    pub fn take(&mut self, tag: u64, from: PeerId) -> Option<SlotId> {
        let (at, op) = self.find(tag, from)?;
        self.remove(at);
        Some(op)
    }

    /// The oldest receive that fits a message, and its place, left where it is. // HOT
    #[inline]
    pub fn find(&mut self, tag: u64, from: PeerId) -> Option<(u32, SlotId)> {
        let wants = &Wants(&mut self.wants);
        let fits = |&at: &u32| wants.0[at as usize].fits(tag, from);
        let exact = match self.exact {
            0 => None,
            _ => self.buckets.lists[self.buckets.of(tag)].iter(wants).find(fits),
        };
        let wild = if self.wild.is_empty() { None } else { self.wild.iter(wants).find(fits) };
        let at = match (exact, wild) {
            (Some(a), Some(b)) if wants.0[b as usize].seq < wants.0[a as usize].seq => b,
            (Some(a), _) => a,
            (None, b) => b?,
        };
        Some((at, wants.0[at as usize].op))
    }

    /// Takes out the receive at `at`, a place given by [`push`](Self::push) and not removed since.
    #[inline]
    pub fn remove(&mut self, at: u32) {
        let wants = &mut Wants(&mut self.wants);
        let Want { tag, mask, .. } = wants.0[at as usize];
        if mask == EXACT {
            let bucket = self.buckets.of(tag);
            self.buckets.lists[bucket].remove(wants, at);
            self.exact -= 1;
        } else {
            self.wild.remove(wants, at);
        }
        wants.0[at as usize].next_free = std::mem::replace(&mut self.free, at);
    }

    /// Adds unused places; there is none. Places stay below the number of receives there may be, far from [`NIL`].
    #[cold]
    fn grow(&mut self) {
        let (from, len) = (self.wants.len(), (self.wants.len() * 2).max(64));
        let blank = Want {
            tag: 0,
            mask: 0,
            seq: 0,
            from: ANYBODY,
            op: SlotId::NONE,
            link: Link::new(),
            next_free: NIL,
        };
        self.wants.resize(len, blank);
        for at in (from..len).rev() {
            self.wants[at].next_free = std::mem::replace(&mut self.free, at as u32);
        }
    }

    #[cold]
    fn rehash(&mut self) {
        let wants = &mut Wants(&mut self.wants);
        let mut exact = Vec::with_capacity(self.exact);
        for list in &mut self.buckets.lists {
            exact.extend(std::iter::from_fn(|| list.pop_front(wants)));
        }
        // Within a bucket the order is that of posting; buckets merge and split, so restore it.
        exact.sort_unstable_by_key(|&at| wants.0[at as usize].seq);
        self.buckets.grow();
        for at in exact {
            let bucket = self.buckets.of(wants.0[at as usize].tag);
            self.buckets.lists[bucket].push_back(wants, at);
        }
    }
}

impl Default for Expected {
    fn default() -> Self {
        Expected::new()
    }
}

#[derive(Clone, Copy, Debug)]
struct Came {
    tag: u64,
    from: PeerId,
    op: SlotId,
}

/// Messages of one kind that no receive has matched, in order of arrival.
#[derive(Debug)]
pub struct Arrived {
    came: Vec<Came>,
    by_arrival: Vec<Link>,
    by_tag: Vec<Link>,
    free: FreeList,
    all: List,
    buckets: Buckets,
}

impl Arrived {
    /// None arrived.
    pub fn new() -> Arrived {
        Arrived {
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

    /// Appends a message; answers its place, to remove it by.
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

    /// The oldest message that fits, left where it is.
    pub fn find(&self, pattern: &Pattern) -> Option<SlotId> {
        if self.all.is_empty() {
            return None;
        }
        let fits = |&at: &u32| {
            let came = &self.came[at as usize];
            pattern.fits(came.tag, came.from)
        };
        let at = if pattern.is_exact() {
            let list = &self.buckets.lists[self.buckets.of(pattern.tag)];
            list.iter(self.by_tag.as_slice()).find(fits)
        } else {
            self.all.iter(self.by_arrival.as_slice()).find(fits)
        }?;
        Some(self.came[at as usize].op)
    }

    /// Takes out the message at `at`, a place given by [`push`](Self::push) and not removed since.
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
        let Arrived { all, by_arrival, by_tag, buckets, came, .. } = self;
        for at in all.iter(by_arrival.as_slice()) {
            let bucket = buckets.of(came[at as usize].tag);
            buckets.lists[bucket].push_back(by_tag.as_mut_slice(), at);
        }
    }
}

impl Default for Arrived {
    fn default() -> Self {
        Arrived::new()
    }
}

#[cfg(test)]
mod tests;

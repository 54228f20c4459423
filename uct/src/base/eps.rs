//! The endpoints to one peer, and what they are called: whoever finds the peer dead tells each of them.
//! Used by the transports whose endpoints share what they know of a peer. Calls nobody.

use crate::api::EpTag;
use std::cell::RefCell;

/// An endpoint among those to one peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EpIdx(u32);

/// Endpoints by number.
#[derive(Default)]
pub struct Eps {
    list: RefCell<List>,
}

#[derive(Default)]
struct List {
    tags: Vec<Option<EpTag>>,
    free: Vec<u32>,
}

impl Eps {
    /// Enters an endpoint.
    pub fn enter(&self) -> EpIdx {
        let mut list = self.list.borrow_mut();
        let tag = Some(EpTag::default());
        if let Some(idx) = list.free.pop() {
            list.tags[idx as usize] = tag;
            return EpIdx(idx);
        }
        list.tags.push(tag);
        EpIdx(list.tags.len() as u32 - 1)
    }

    /// Strikes an endpoint out.
    pub fn leave(&self, idx: EpIdx) {
        let mut list = self.list.borrow_mut();
        list.tags[idx.0 as usize] = None;
        list.free.push(idx.0);
    }

    /// An endpoint's tag.
    pub fn tag(&self, idx: EpIdx) -> EpTag {
        self.list.borrow().tags[idx.0 as usize].unwrap_or_default()
    }

    /// Changes an endpoint's tag.
    pub fn set_tag(&self, idx: EpIdx, tag: EpTag) {
        self.list.borrow_mut().tags[idx.0 as usize] = Some(tag);
    }

    /// The first endpoint from number `at` on: its tag, and the number behind its own.
    pub fn from(&self, at: u32) -> Option<(u32, EpTag)> {
        let list = self.list.borrow();
        let later = list.tags.iter().zip(1..).skip(at as usize);
        later.filter_map(|(tag, behind)| tag.map(|tag| (behind, tag))).next()
    }

    /// The tags of all.
    pub fn tags(&self) -> Vec<EpTag> {
        self.list.borrow().tags.iter().copied().flatten().collect()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_used_again_and_tags_are_not() {
        let eps = Eps::default();
        let (a, b) = (eps.enter(), eps.enter());
        eps.set_tag(a, EpTag(7));
        eps.set_tag(b, EpTag(8));
        eps.leave(a);
        assert_eq!(eps.tags(), [EpTag(8)]);
        assert_eq!((eps.from(0), eps.from(1), eps.from(2)), (Some((2, EpTag(8))), Some((2, EpTag(8))), None));
        let again = eps.enter();
        assert_eq!((again, eps.tag(again), eps.tag(b)), (a, EpTag::default(), EpTag(8)));
    }
}

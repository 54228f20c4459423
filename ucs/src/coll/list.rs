//! Intrusive doubly linked lists by index: no allocation, O(1) removal. Never owns the elements.

/// "No element": end of a list, or a link that is in no list.
pub const NIL: u32 = u32::MAX;

/// The two indices an element carries for each list it may be in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    prev: u32,
    next: u32,
    linked: bool,
}

impl Link {
    /// A link in no list.
    pub const fn new() -> Link {
        Link { prev: NIL, next: NIL, linked: false }
    }

    /// True while the element is in a list.
    #[inline]
    pub const fn is_linked(&self) -> bool {
        self.linked
    }
}

impl Default for Link {
    fn default() -> Self {
        Link::new()
    }
}

/// A store of elements whose links are reached by index.
pub trait Links {
    /// The link of element `at`. Lists only ask for indices that were pushed.
    fn link(&self, at: u32) -> &Link;
    /// The link of element `at`, to change.
    fn link_mut(&mut self, at: u32) -> &mut Link;
}

impl Links for [Link] {
    #[inline]
    fn link(&self, at: u32) -> &Link {
        &self[at as usize]
    }
    #[inline]
    fn link_mut(&mut self, at: u32) -> &mut Link {
        &mut self[at as usize]
    }
}

/// Head and tail of one list. Every call gets the store that holds the links.
#[derive(Debug)]
pub struct List {
    head: u32,
    tail: u32,
    len: u32,
}

impl List {
    /// Empty.
    pub const fn new() -> List {
        List { head: NIL, tail: NIL, len: 0 }
    }

    /// Number of elements.
    #[inline]
    pub const fn len(&self) -> usize {
        self.len as usize
    }

    /// True when nothing is queued.
    #[inline]
    pub const fn is_empty(&self) -> bool {
        self.head == NIL
    }

    /// First element.
    #[inline]
    pub const fn front(&self) -> Option<u32> {
        if self.head == NIL { None } else { Some(self.head) }
    }

    /// Appends element `at`, which must be in no list of this link.
    #[inline(always)]
    pub fn push_back<L: Links + ?Sized>(&mut self, links: &mut L, at: u32) {
        let link = links.link_mut(at);
        assert!(!link.linked, "element {at} is in a list already");
        *link = Link { prev: self.tail, next: NIL, linked: true };
        match self.tail {
            NIL => self.head = at,
            tail => links.link_mut(tail).next = at,
        }
        self.tail = at;
        self.len += 1;
    }

    /// Link of an element that is to be appended by [`append_linked`](Self::append_linked).
    // HOT
    #[inline(always)]
    pub const fn next_link(&self) -> Link {
        Link { prev: self.tail, next: NIL, linked: true }
    }

    /// Appends element `at`, whose link is [`next_link`](Self::next_link) of this list as it is now.
    // HOT
    #[inline(always)]
    pub fn append_linked<L: Links + ?Sized>(&mut self, links: &mut L, at: u32) {
        match self.tail {
            NIL => self.head = at,
            tail => links.link_mut(tail).next = at,
        }
        self.tail = at;
        self.len += 1;
    }

    /// Puts element `at` first; it must be in no list of this link.
    #[inline]
    pub fn push_front<L: Links + ?Sized>(&mut self, links: &mut L, at: u32) {
        let link = links.link_mut(at);
        assert!(!link.linked, "element {at} is in a list already");
        *link = Link { prev: NIL, next: self.head, linked: true };
        match self.head {
            NIL => self.tail = at,
            head => links.link_mut(head).prev = at,
        }
        self.head = at;
        self.len += 1;
    }

    /// Takes the first element out.
    #[inline]
    pub fn pop_front<L: Links + ?Sized>(&mut self, links: &mut L) -> Option<u32> {
        let at = self.front()?;
        self.remove(links, at);
        Some(at)
    }

    /// Takes the first element out by its link alone, for an element that leaves the store too.
    // HOT
    #[inline(always)]
    pub fn drop_front(&mut self, link: &Link) {
        debug_assert!(self.head != NIL && link.linked);
        self.head = link.next;
        if link.next == NIL {
            self.tail = NIL;
        }
        self.len -= 1;
    }

    /// Takes element `at` out, which must be in this list.
    #[inline(always)]
    pub fn remove<L: Links + ?Sized>(&mut self, links: &mut L, at: u32) {
        let Link { prev, next, linked } = std::mem::take(links.link_mut(at));
        assert!(linked, "element {at} is in no list");
        self.len -= 1;
        if self.head == at {
            // What the second says of the first is not looked at any more.
            self.head = next;
        } else {
            links.link_mut(prev).next = next;
            if next != NIL {
                links.link_mut(next).prev = prev;
            }
        }
        if next == NIL {
            self.tail = if self.head == NIL { NIL } else { prev };
        }
    }

    /// The element after `at` in this list.
    #[inline]
    pub fn after<L: Links + ?Sized>(&self, links: &L, at: u32) -> Option<u32> {
        match links.link(at).next {
            NIL => None,
            next => Some(next),
        }
    }

    /// Indices from first to last.
    pub fn iter<'a, L: Links + ?Sized>(&'a self, links: &'a L) -> impl Iterator<Item = u32> + 'a {
        std::iter::successors(self.front(), move |&at| self.after(links, at))
    }
}

impl Default for List {
    fn default() -> Self {
        List::new()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn removes_from_anywhere() {
        let mut links = vec![Link::new(); 4];
        let links = links.as_mut_slice();
        let mut list = List::new();
        for n in 0..4 {
            list.push_back(links, n);
        }
        list.remove(links, 2);
        list.remove(links, 0);
        list.push_front(links, 2);
        assert_eq!(list.iter(links).collect::<Vec<_>>(), [2, 1, 3]);
        assert!(!links.link(0).is_linked());
        assert_eq!((list.pop_front(links), list.len()), (Some(2), 2));
    }

    #[test]
    #[should_panic(expected = "in a list already")]
    fn refuses_an_element_twice() {
        let mut links = [Link::new(); 1];
        let mut list = List::new();
        list.push_back(&mut links[..], 0);
        list.push_back(&mut links[..], 0);
    }

    proptest! {
        #[test]
        fn behaves_like_a_vector(steps in prop::collection::vec((0u8..6, 0u32..16), 0..200)) {
            let mut store = vec![Link::new(); 16];
            let links = store.as_mut_slice();
            let mut list = List::new();
            let mut model: Vec<u32> = Vec::new();
            for (step, at) in steps {
                let there = links.link(at).is_linked();
                prop_assert_eq!(there, model.contains(&at));
                match step {
                    0 if !there => { list.push_back(links, at); model.push(at); }
                    1 if !there => { list.push_front(links, at); model.insert(0, at); }
                    4 if !there => {
                        links[at as usize] = list.next_link();
                        list.append_linked(links, at);
                        model.push(at);
                    }
                    5 if !model.is_empty() => {
                        let first = model.remove(0);
                        list.drop_front(&links[first as usize].clone());
                        links[first as usize] = Link::new();
                    }
                    2 if there => { list.remove(links, at); model.retain(|&x| x != at); }
                    3 => {
                        let want = if model.is_empty() { None } else { Some(model.remove(0)) };
                        prop_assert_eq!(list.pop_front(links), want);
                    }
                    _ => {}
                }
                prop_assert!(list.iter(links).eq(model.iter().copied()));
                prop_assert_eq!(list.len(), model.len());
            }
        }
    }
}

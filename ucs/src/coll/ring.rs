//! First-in first-out queue of fixed capacity for one thread: a completion queue, a list of ready work.
//! Used by devices and workers. Never grows, never allocates after `new`.

use std::fmt;
use std::mem::MaybeUninit;

/// Fixed FIFO. Capacity is what was asked for, rounded up to a power of two.
pub struct Ring<T> {
    cells: Box<[MaybeUninit<T>]>,
    /// Free-running count of pops. Cells `head..tail` (modulo capacity) are initialised: the invariant of this type.
    head: u32,
    /// Free-running count of pushes.
    tail: u32,
}

impl<T> Ring<T> {
    /// A ring for at least `capacity` elements (1 to 2^31).
    pub fn new(capacity: usize) -> Ring<T> {
        assert!(capacity <= 1 << 31, "ring of {capacity} elements");
        let capacity = capacity.max(1).next_power_of_two();
        Ring { cells: (0..capacity).map(|_| MaybeUninit::uninit()).collect(), head: 0, tail: 0 }
    }

    /// Most elements it holds.
    #[inline]
    pub fn capacity(&self) -> usize {
        self.cells.len()
    }

    /// Elements in it now.
    #[inline]
    pub fn len(&self) -> usize {
        self.tail.wrapping_sub(self.head) as usize
    }

    /// True when there is nothing to pop.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.tail == self.head
    }

    /// True when a push would be refused.
    #[inline]
    pub fn is_full(&self) -> bool {
        self.len() == self.capacity()
    }

    #[inline]
    fn cell(&self, at: u32) -> usize {
        at as usize & (self.cells.len() - 1)
    }

    /// Appends, or gives the value back when full.
    #[inline]
    // HOT
    pub fn push(&mut self, value: T) -> Result<(), T> {
        if self.is_full() {
            return Err(value);
        }
        let cell = self.cell(self.tail);
        self.cells[cell].write(value);
        self.tail = self.tail.wrapping_add(1);
        Ok(())
    }

    /// Takes the oldest.
    #[inline]
    // HOT
    pub fn pop(&mut self) -> Option<T> {
        if self.is_empty() {
            return None;
        }
        let cell = self.cell(self.head);
        self.head = self.head.wrapping_add(1);
        // SAFETY: the cell was inside head..tail, hence initialised; head has moved past it, so it is read once.
        Some(unsafe { self.cells[cell].assume_init_read() })
    }

    /// The oldest, left where it is.
    #[inline]
    pub fn front(&self) -> Option<&T> {
        self.get(0)
    }

    /// The element `n` places behind the oldest.
    #[inline]
    pub fn get(&self, n: usize) -> Option<&T> {
        if n >= self.len() {
            return None;
        }
        let cell = self.cell(self.head.wrapping_add(n as u32));
        // SAFETY: n < len, so the cell is inside head..tail, hence initialised.
        Some(unsafe { self.cells[cell].assume_init_ref() })
    }

    /// The oldest, to change in place.
    #[inline]
    pub fn front_mut(&mut self) -> Option<&mut T> {
        if self.is_empty() {
            return None;
        }
        let cell = self.cell(self.head);
        // SAFETY: not empty, so the head cell is inside head..tail, hence initialised.
        Some(unsafe { self.cells[cell].assume_init_mut() })
    }

    /// From oldest to newest.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        (0..self.len()).filter_map(|n| self.get(n))
    }

    /// Drops everything.
    pub fn clear(&mut self) {
        while self.pop().is_some() {}
    }
}

impl<T> Drop for Ring<T> {
    fn drop(&mut self) {
        self.clear();
    }
}

impl<T: fmt::Debug> fmt::Debug for Ring<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::rc::Rc;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn refuses_when_full_and_drops_what_is_left() {
        let token = Rc::new(());
        let mut ring = Ring::new(3);
        assert_eq!(ring.capacity(), 4);
        for _ in 0..4 {
            ring.push(token.clone()).unwrap();
        }
        assert!(ring.push(token.clone()).is_err());
        assert!(ring.pop().is_some());
        assert_eq!(Rc::strong_count(&token), 4);
        drop(ring);
        assert_eq!(Rc::strong_count(&token), 1);
    }

    #[test]
    fn counters_wrap() {
        let mut ring = Ring::new(4);
        ring.head = u32::MAX - 1;
        ring.tail = u32::MAX - 1;
        for n in 0..4 {
            ring.push(n).unwrap();
        }
        assert!(ring.is_full());
        assert_eq!(ring.iter().copied().collect::<Vec<_>>(), [0, 1, 2, 3]);
        *ring.front_mut().unwrap() = 9;
        assert_eq!((ring.pop(), ring.front()), (Some(9), Some(&1)));
    }

    proptest! {
        #[test]
        fn behaves_like_a_bounded_deque(steps in prop::collection::vec(any::<Option<Box<u16>>>(), 0..300)) {
            let mut ring = Ring::new(8);
            let mut model = VecDeque::new();
            for step in steps {
                match step {
                    Some(v) if model.len() == 8 => prop_assert_eq!(ring.push(v.clone()), Err(v)),
                    Some(v) => {
                        model.push_back(v.clone());
                        prop_assert_eq!(ring.push(v), Ok(()));
                    }
                    None => prop_assert_eq!(ring.pop(), model.pop_front()),
                }
                prop_assert_eq!(ring.len(), model.len());
                prop_assert!(ring.iter().eq(model.iter()));
            }
        }
    }
}

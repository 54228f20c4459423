//! FIFO of fixed capacity for one thread, pushed and popped by shared reference. Never grows or blocks.

use std::cell::Cell;

/// Fixed FIFO.
pub struct Ring<T> {
    /// A power of two of them; `head..tail` (modulo their number) are `Some`.
    cells: Box<[Cell<Option<T>>]>,
    capacity: u32,
    head: Cell<u32>,
    tail: Cell<u32>,
}

impl<T> Ring<T> {
    /// A ring for `capacity` elements (1 to 2^31).
    pub fn new(capacity: usize) -> Ring<T> {
        assert!((1..=1 << 31).contains(&capacity), "ring of {capacity} elements");
        let cells = (0..capacity.next_power_of_two()).map(|_| Cell::new(None)).collect();
        Ring { cells, capacity: capacity as u32, head: Cell::new(0), tail: Cell::new(0) }
    }

    /// Most elements it holds.
    pub fn capacity(&self) -> usize {
        self.capacity as usize
    }

    /// Elements in it now.
    // HOT
    #[inline(always)]
    pub fn len(&self) -> usize {
        self.tail.get().wrapping_sub(self.head.get()) as usize
    }

    /// True when there is nothing to pop.
    // HOT
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.tail.get() == self.head.get()
    }

    /// True when a push would be refused.
    // HOT
    #[inline(always)]
    pub fn is_full(&self) -> bool {
        self.len() >= self.capacity()
    }

    #[inline(always)]
    fn cell(&self, at: u32) -> &Cell<Option<T>> {
        &self.cells[at as usize & (self.cells.len() - 1)]
    }

    /// Appends, or gives the value back when full.
    // HOT
    #[inline(always)]
    pub fn push(&self, value: T) -> Result<(), T> {
        if self.is_full() {
            return Err(value);
        }
        let tail = self.tail.get();
        self.cell(tail).set(Some(value));
        self.tail.set(tail.wrapping_add(1));
        Ok(())
    }

    /// The oldest, which stays.
    // HOT
    #[inline(always)]
    pub fn front(&self) -> Option<T>
    where
        T: Copy,
    {
        if self.is_empty() { None } else { self.cell(self.head.get()).get() }
    }

    /// Takes the oldest.
    // HOT
    #[inline(always)]
    pub fn pop(&self) -> Option<T> {
        if self.is_empty() {
            return None;
        }
        let head = self.head.get();
        self.head.set(head.wrapping_add(1));
        self.cell(head).take()
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
        let ring = Ring::new(3);
        assert_eq!(ring.capacity(), 3);
        for _ in 0..3 {
            ring.push(token.clone()).unwrap();
        }
        assert!(ring.is_full() && ring.push(token.clone()).is_err());
        assert!(ring.pop().is_some());
        assert_eq!(Rc::strong_count(&token), 3);
        drop(ring);
        assert_eq!(Rc::strong_count(&token), 1);
    }

    #[test]
    fn counters_wrap() {
        let ring = Ring::new(4);
        ring.head.set(u32::MAX - 1);
        ring.tail.set(u32::MAX - 1);
        for n in 0..4 {
            ring.push(n).unwrap();
        }
        assert!(ring.is_full());
        assert_eq!(std::array::from_fn(|_| ring.pop()), [Some(0), Some(1), Some(2), Some(3), None]);
    }

    proptest! {
        #[test]
        fn behaves_like_a_bounded_deque(
            capacity in 1usize..9,
            steps in prop::collection::vec(any::<Option<Box<u16>>>(), 0..300),
        ) {
            let ring = Ring::new(capacity);
            let mut model = VecDeque::new();
            for step in steps {
                match step {
                    Some(v) if model.len() == capacity => prop_assert_eq!(ring.push(v.clone()), Err(v)),
                    Some(v) => {
                        model.push_back(v.clone());
                        prop_assert_eq!(ring.push(v), Ok(()));
                    }
                    None => prop_assert_eq!(ring.pop(), model.pop_front()),
                }
                prop_assert_eq!(ring.len(), model.len());
                prop_assert_eq!((ring.is_empty(), ring.is_full()), (model.is_empty(), model.len() == capacity));
            }
        }
    }
}

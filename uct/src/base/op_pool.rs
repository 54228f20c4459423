//! Preallocated operation handles: completions with user data of a chosen type. One thread.

use crate::api::{Comp, Completion, Error};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

/// Called at the end of an operation, with its room and the first error among its parts.
type OnComplete<T> = Box<dyn FnMut(T, Result<(), Error>)>;

struct Slots<T> {
    user_data: Vec<Option<T>>,
    free: Vec<u32>,
    /// Out while it runs, so that it may start and end operations.
    on_complete: Option<OnComplete<T>>,
    completed: VecDeque<(T, Result<(), Error>)>,
}

/// A pool of operation handles with a `T` in each that is in use.
pub struct OpPool<T> {
    slots: Rc<RefCell<Slots<T>>>,
    comps: Box<[Rc<Completion>]>,
}

/// A handle in use: give [`Op::comp`] to as many operations as were announced.
pub struct Op<'a> {
    comp: &'a Rc<Completion>,
}

impl<T: 'static> OpPool<T> {
    /// `count` handles; `on_complete` is called for each finished operation, from progress, and may start
    /// others.
    pub fn new(count: u32, on_complete: impl FnMut(T, Result<(), Error>) + 'static) -> Self {
        let slots = Slots {
            user_data: (0..count).map(|_| None).collect(),
            free: (0..count).rev().collect(),
            on_complete: Some(Box::new(on_complete)),
            completed: VecDeque::with_capacity(count as usize),
        };
        let slots = Rc::new(RefCell::new(slots));
        let comp = |n: u32| {
            let slots = slots.clone();
            Completion::new(0, move |result| end(&slots, n, result))
        };
        OpPool { comps: (0..count).map(comp).collect(), slots }
    }

    /// Starts an operation of `parts` parts with user data; gives the data back when all handles are in use.
    // HOT
    pub fn start(&self, parts: u32, data: T) -> Result<Op<'_>, T> {
        let mut slots = self.slots.borrow_mut();
        let Some(n) = slots.free.pop() else { return Err(data) };
        slots.user_data[n as usize] = Some(data);
        drop(slots);
        let comp = &self.comps[n as usize];
        comp.add(parts.max(1));
        let op = Op { comp };
        if parts == 0 {
            op.part_done(Ok(()));
        }
        Ok(op)
    }

    /// Handles in use.
    pub fn in_use(&self) -> usize {
        self.comps.len() - self.slots.borrow().free.len()
    }
}

fn end<T>(slots: &RefCell<Slots<T>>, n: u32, result: Result<(), Error>) {
    let mut s = slots.borrow_mut();
    let Some(data) = s.user_data[n as usize].take() else { return };
    s.completed.push_back((data, result));
    // The handle is free when its completion's callback, which we are in, has nothing left to do.
    let Some(on_complete) = s.on_complete.take() else {
        // Running already: the caller's loop goes on with this one.
        return s.free.push(n);
    };
    drop(s);
    let mut running = Running { slots, n, on_complete: Some(on_complete) };
    loop {
        let next = slots.borrow_mut().completed.pop_front();
        let (Some((data, result)), Some(on_complete)) = (next, &mut running.on_complete) else { break };
        on_complete(data, result);
    }
}

/// The running callback; put back on drop, also after a panic.
struct Running<'a, T> {
    slots: &'a RefCell<Slots<T>>,
    n: u32,
    on_complete: Option<OnComplete<T>>,
}

impl<T> Drop for Running<'_, T> {
    fn drop(&mut self) {
        let mut s = self.slots.borrow_mut();
        s.on_complete = self.on_complete.take();
        s.free.push(self.n);
    }
}

impl Op<'_> {
    /// Completion for an operation.
    pub fn comp(&self) -> Comp {
        Comp::Handle(self.comp.clone())
    }

    /// A part answered *done*, or did not start: one fewer. With the last one the operation is completed.
    pub fn part_done(&self, result: Result<(), Error>) {
        self.comp.update(result);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn user_data_comes_back_once_with_its_operation() {
        let log = Rc::new(RefCell::new(Vec::new()));
        let seen = log.clone();
        let pool = OpPool::new(2, move |data: (u32, &str), result| seen.borrow_mut().push((data, result)));
        let one = pool.start(2, (1, "one")).ok().unwrap();
        let two = pool.start(1, (2, "two")).ok().unwrap();
        assert!(pool.start(1, (3, "three")).is_err_and(|data| data == (3, "three")));
        one.comp().fire(Err(Error::PeerDead), |_, _| panic!("no token"));
        assert!(log.borrow().is_empty());
        two.part_done(Ok(()));
        one.comp().fire(Ok(()), |_, _| panic!("no token"));
        assert_eq!(*log.borrow(), [((2, "two"), Ok(())), ((1, "one"), Err(Error::PeerDead))]);
        assert_eq!(pool.in_use(), 0);
        assert!(pool.start(1, (4, "four")).is_ok());
        assert_eq!(pool.in_use(), 1);
    }

    #[test]
    fn operation_without_parts_completes_at_once() {
        let log = Rc::new(RefCell::new(Vec::new()));
        let seen = log.clone();
        let pool = OpPool::new(1, move |data: u32, result| seen.borrow_mut().push((data, result)));
        for n in 0..3 {
            assert!(pool.start(0, n).is_ok());
            assert_eq!(pool.in_use(), 0);
        }
        assert_eq!(*log.borrow(), [(0, Ok(())), (1, Ok(())), (2, Ok(()))]);
    }

    #[test]
    fn a_callback_that_panics_is_called_again() {
        let log = Rc::new(RefCell::new(Vec::new()));
        let seen = log.clone();
        let pool = OpPool::new(2, move |data: u32, _| {
            seen.borrow_mut().push(data);
            assert!(data != 1, "the first time");
        });
        let first = pool.start(1, 1).ok().unwrap();
        let on_complete = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| first.part_done(Ok(()))));
        assert!(on_complete.is_err());
        assert_eq!(pool.in_use(), 0);
        for n in 2..6 {
            pool.start(1, n).ok().unwrap().part_done(Ok(()));
        }
        assert_eq!((&log.borrow()[..], pool.in_use()), (&[1, 2, 3, 4, 5][..], 0));
    }

    #[test]
    fn operations_may_end_within_callbacks() {
        let log = Rc::new(RefCell::new(Vec::new()));
        let seen = log.clone();
        let pool: Rc<RefCell<Option<Rc<OpPool<u32>>>>> = Rc::default();
        let again = pool.clone();
        *pool.borrow_mut() = Some(Rc::new(OpPool::new(2, move |data, _| {
            seen.borrow_mut().push(data);
            if data < 5 {
                let pool = again.borrow().clone().unwrap();
                pool.start(1, data + 1).ok().unwrap().part_done(Ok(()));
            }
        })));
        let the_pool = pool.borrow_mut().clone().unwrap();
        the_pool.start(1, 0).ok().unwrap().part_done(Ok(()));
        assert_eq!(*log.borrow(), [0, 1, 2, 3, 4, 5]);
        pool.borrow_mut().take();
    }
}

//! Receive buffers that handlers keep, returned from any thread by one exchange; the receiver takes all
//! returned ones at once. The memory lives while anything is kept.

#![allow(unsafe_code)]

use crate::api::{RecvDesc, RecvDescOwner};
use std::any::Any;
use std::sync::Arc;
use ucs::sync::{AtomicU32, Ordering};

const NIL: u32 = u32::MAX;

/// A lock-free stack emptied only as a whole, so that early reuse (ABA) does no harm.
#[derive(Debug)]
pub struct ReturnStack {
    head: AtomicU32,
    next: Box<[AtomicU32]>,
}

impl ReturnStack {
    /// For numbers below `count`, none given back yet.
    pub fn new(count: u32) -> Self {
        ReturnStack { head: AtomicU32::new(NIL), next: (0..count).map(|_| AtomicU32::new(NIL)).collect() }
    }

    /// Gives `n` back. Each number at most once between two [`ReturnStack::take_all`] that yield it.
    pub fn push(&self, n: u32) {
        let mut head = self.head.load(Ordering::Relaxed);
        loop {
            self.next[n as usize].store(head, Ordering::Relaxed);
            // SYNC(returned): what the giver read of the buffer, and its link, come before the taker's reuse.
            match self.head.compare_exchange_weak(head, n, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return,
                Err(now) => head = now,
            }
        }
    }

    /// Takes all that was given back, in no particular order; answers how many.
    pub fn take_all(&self, mut each: impl FnMut(u32)) -> u32 {
        if self.head.load(Ordering::Relaxed) == NIL {
            return 0;
        }
        // SYNC(returned): a push in between continues the release sequence of those before it.
        let mut at = self.head.swap(NIL, Ordering::Acquire);
        let mut taken = 0;
        while at != NIL {
            // Before `each`, which may lend the number out again.
            let next = self.next[at as usize].load(Ordering::Relaxed);
            each(at);
            taken += 1;
            at = next;
        }
        taken
    }
}

/// The lending side of a pool of receive buffers.
pub struct RecvDescPool {
    returns: ReturnStack,
    _memory: Arc<dyn Any + Send + Sync>,
}

impl RecvDescPool {
    pub fn new(count: u32, memory: Arc<dyn Any + Send + Sync>) -> Arc<Self> {
        Arc::new(RecvDescPool { returns: ReturnStack::new(count), _memory: memory })
    }

    /// Lends out buffer `slot`, whose packet of `len` bytes starts at `at`.
    /// # Safety
    /// The packet lies in this pool's memory, initialised, and unwritten until [`RecvDescPool::reclaim`].
    pub unsafe fn lend(self: &Arc<Self>, slot: u32, at: *const u8, len: usize) -> RecvDesc {
        // SAFETY: `self` keeps the memory mapped; the rest is the caller's promise.
        unsafe { RecvDesc::from_pool(self.clone(), slot, at, len) }
    }

    /// Takes back all buffers whose messages were dropped; answers how many.
    pub fn reclaim(&self, each: impl FnMut(u32)) -> u32 {
        self.returns.take_all(each)
    }
}

impl RecvDescOwner for RecvDescPool {
    fn release(&self, slot: u32) {
        self.returns.push(slot);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ucs::sync::{Arc, UnsafeCell, thread};

    #[test]
    fn loom_returned_buffers_are_exclusive_again() {
        ucs::sync::model(|| {
            struct Pool(ReturnStack, [UnsafeCell<u32>; 2]);
            // SAFETY: each cell is read by its keeper until it is given back, and written by the taker
            // afterwards.
            unsafe impl Sync for Pool {}
            // SAFETY: nothing in it is bound to a thread.
            unsafe impl Send for Pool {}
            let pool = Arc::new(Pool(ReturnStack::new(2), [UnsafeCell::new(10), UnsafeCell::new(11)]));
            let keepers: Vec<_> = (0..2u32)
                .map(|n| {
                    let pool = pool.clone();
                    thread::spawn(move || {
                        // SAFETY: nobody writes the cell before it is given back.
                        let seen = pool.1[n as usize].with(|at| unsafe { at.read() });
                        assert_eq!(seen, 10 + n);
                        pool.0.push(n);
                    })
                })
                .collect();
            let mut taken = 0;
            let mut take = || {
                pool.0.take_all(|n| {
                    // SAFETY: given back, so nobody reads it any more.
                    pool.1[n as usize].with_mut(|at| unsafe { at.write(99) });
                    taken += 1;
                })
            };
            take();
            keepers.into_iter().for_each(|keeper| keeper.join().unwrap());
            take();
            assert_eq!(taken, 2);
            assert_eq!(pool.0.take_all(|_| panic!("nothing left")), 0);
        });
    }

    #[test]
    fn loom_numbers_may_return_early() {
        ucs::sync::model(|| {
            let returns = Arc::new(ReturnStack::new(2));
            let other = {
                let returns = returns.clone();
                thread::spawn(move || returns.push(1))
            };
            let mut seen = [0; 2];
            for _ in 0..2 {
                returns.push(0);
                returns.take_all(|n| seen[n as usize] += 1);
            }
            other.join().unwrap();
            returns.take_all(|n| seen[n as usize] += 1);
            assert_eq!(seen, [2, 1]);
        });
    }
}

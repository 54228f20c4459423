//! Constant-time flush and fence over unordered completions: counters of outstanding operations, one set per
//! endpoint and one per interface. Used by `tx`.
//!
//! An operation belongs to the epoch in which it was issued. A flush closes the current epoch and is done
//! when no epoch up to the closed one has operations left. A fence blocks further operations until all
//! earlier ones are done.

use crate::api::{Comp, Outcome, Refused, Sent};
use std::collections::VecDeque;

/// Most closed epochs with operations left; beyond them a flush answers *no resource*.
const MAX_CLOSED: usize = 1 << 16;

const FENCED: u32 = 1 << 31;

/// Slots are reserved for another endpoint: see [`Epochs::set_reserved`].
const RESERVED: u32 = 1 << 30;

/// Counts of outstanding operations by epoch. One per endpoint, so kept small.
#[derive(Default)]
pub(super) struct Epochs {
    current: u32,
    /// Outstanding operations of the current epoch, with [`FENCED`] and [`RESERVED`].
    open: u32,
    /// Allocated by the first flush that waits; most endpoints never have it.
    flushes: Option<Box<Flushes>>,
}

#[derive(Default)]
struct Flushes {
    /// Outstanding operations of earlier epochs, oldest first; the oldest is never 0.
    closed: VecDeque<u32>,
    /// Flushes, each with the epoch it closed, oldest first.
    waiters: VecDeque<(u32, Comp)>,
}

impl Epochs {
    /// Whether a fence or a reservation blocks operations.
    // HOT
    #[inline(always)]
    pub(super) fn is_blocked(&self) -> bool {
        self.open & (FENCED | RESERVED) != 0
    }

    // HOT
    #[inline(always)]
    pub(super) fn is_fenced(&self) -> bool {
        self.open & FENCED != 0
    }

    pub(super) fn set_reserved(&mut self, reserved: bool) {
        self.open = self.open & !RESERVED | if reserved { RESERVED } else { 0 };
    }

    #[inline]
    pub(super) fn is_idle(&self) -> bool {
        self.count() == 0 && self.flushes.as_ref().is_none_or(|f| f.closed.is_empty())
    }

    #[inline(always)]
    fn count(&self) -> u32 {
        self.open & !(FENCED | RESERVED)
    }

    /// Counts an operation and returns its epoch.
    // HOT
    #[inline(always)]
    pub(super) fn start(&mut self) -> u32 {
        self.open += 1;
        self.current
    }

    /// Ends an operation of `epoch`; moves flushes that waited for it to `done`.
    // HOT
    #[inline(always)]
    pub(super) fn finish(&mut self, epoch: u32, done: &mut VecDeque<Comp>) {
        if epoch == self.current {
            self.open -= 1;
        } else {
            self.finish_closed(epoch, done);
        }
        if self.is_fenced() && self.is_idle() {
            self.open &= !FENCED;
        }
    }

    #[cold]
    fn finish_closed(&mut self, epoch: u32, done: &mut VecDeque<Comp>) {
        let f = self.flushes.as_mut().expect("only a flush closes an epoch");
        let first = self.current.wrapping_sub(f.closed.len() as u32);
        f.closed[epoch.wrapping_sub(first) as usize] -= 1;
        while f.closed.front() == Some(&0) {
            f.closed.pop_front();
        }
        let first = self.current.wrapping_sub(f.closed.len() as u32);
        while let Some((_, comp)) = f.waiters.pop_front_if(|(e, _)| (e.wrapping_sub(first) as i32) < 0) {
            done.push_back(comp);
        }
    }

    /// Answers *done* if nothing is outstanding; else fires `comp` when all of it has completed.
    pub(super) fn flush(&mut self, comp: &Comp) -> Outcome {
        if self.is_idle() {
            return Ok(Sent::Done);
        }
        if matches!(comp, Comp::None) {
            return Ok(Sent::InProgress); // asked again until done: nobody to remember
        }
        let open = self.count();
        let f = self.flushes.get_or_insert_default();
        if open > 0 {
            if f.closed.len() >= MAX_CLOSED {
                return Err(Refused::NoResource);
            }
            f.closed.push_back(open);
            self.open &= FENCED | RESERVED;
            self.current = self.current.wrapping_add(1);
        }
        f.waiters.push_back((self.current.wrapping_sub(1), comp.clone()));
        Ok(Sent::InProgress)
    }

    pub(super) fn fence(&mut self) {
        if !self.is_idle() {
            self.open |= FENCED;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn token(c: Comp) -> u64 {
        let Comp::Token(t) = c else { panic!("only tokens here") };
        t
    }

    #[test]
    fn a_fence_ends_when_all_earlier_operations_are_done() {
        let (mut e, mut done) = (Epochs::default(), VecDeque::new());
        e.fence();
        assert!(!e.is_fenced(), "nothing to wait for");
        let (a, b) = (e.start(), e.start());
        assert_eq!(e.flush(&Comp::Token(1)), Ok(Sent::InProgress));
        e.fence();
        e.finish(b, &mut done);
        assert!(e.is_fenced());
        e.finish(a, &mut done);
        assert!(!e.is_fenced() && e.is_idle());
        assert_eq!(done.drain(..).map(token).collect::<Vec<_>>(), [1]);
    }

    #[test]
    fn a_reservation_outlives_fences_and_flushes() {
        let (mut e, mut done) = (Epochs::default(), VecDeque::new());
        e.set_reserved(true);
        assert!(e.is_blocked() && !e.is_fenced() && e.is_idle());
        let a = e.start();
        e.fence();
        assert_eq!(e.flush(&Comp::Token(1)), Ok(Sent::InProgress));
        e.finish(a, &mut done);
        assert!(e.is_blocked() && !e.is_fenced() && e.is_idle());
        assert_eq!(done.drain(..).map(token).collect::<Vec<_>>(), [1]);
        e.set_reserved(false);
        assert!(!e.is_blocked());
    }

    #[test]
    fn flush_without_a_completion_only_reports_progress() {
        let (mut e, mut done) = (Epochs::default(), VecDeque::new());
        let a = e.start();
        assert_eq!(e.flush(&Comp::None), Ok(Sent::InProgress));
        e.finish(a, &mut done);
        assert_eq!(e.flush(&Comp::None), Ok(Sent::Done));
        assert!(done.is_empty());
    }

    proptest! {
        #[test]
        fn a_flush_waits_for_exactly_the_operations_before_it(
            start in any::<u32>(),
            steps in prop::collection::vec((0u8..3, any::<u16>()), 0..300),
        ) {
            let mut e = Epochs { current: start, ..Epochs::default() };
            let mut done = VecDeque::new();
            let mut ops: Vec<(u64, u32)> = Vec::new(); // outstanding: number, epoch
            let mut flushes: Vec<(u64, Vec<u64>)> = Vec::new(); // flush, what it still waits for
            let mut next = 0;
            for (what, pick) in steps {
                next += 1;
                match what {
                    0 => ops.push((next, e.start())),
                    1 if !ops.is_empty() => {
                        let (op, epoch) = ops.swap_remove(usize::from(pick) % ops.len());
                        e.finish(epoch, &mut done);
                        flushes.iter_mut().for_each(|(_, waits)| waits.retain(|&w| w != op));
                    }
                    _ => match e.flush(&Comp::Token(next)) {
                        Ok(Sent::Done) => prop_assert!(ops.is_empty()),
                        other => {
                            prop_assert_eq!(other, Ok(Sent::InProgress));
                            prop_assert!(!ops.is_empty());
                            flushes.push((next, ops.iter().map(|o| o.0).collect()));
                        }
                    },
                }
                let over: Vec<u64> = flushes.iter().filter(|f| f.1.is_empty()).map(|f| f.0).collect();
                flushes.retain(|f| !f.1.is_empty());
                prop_assert_eq!(done.drain(..).map(token).collect::<Vec<_>>(), over);
                prop_assert_eq!(e.is_idle(), ops.is_empty());
            }
        }
    }
}

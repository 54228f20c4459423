//! Operations that wait for a counter.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Operations of the program that start when a counter of its own reaches a threshold: descriptions of them,
/// or closures. Whoever changes the counter asks for what is due, in any thread, and starts it where the
/// operation's worker is used.
///
/// ```
/// # use ucp::Triggers;
/// let arrived = Triggers::default();
/// arrived.defer(2, "answer");
/// arrived.defer(1, "log");
/// assert_eq!(arrived.take_due(0), None);
/// assert_eq!(arrived.take_due(2), Some((1, "log")));
/// assert_eq!(arrived.take_due(2), Some((2, "answer")));
/// ```
#[derive(Debug)]
pub struct Triggers<T> {
    waiting: Mutex<Vec<(u64, T)>>,
    /// Least threshold, read without the lock; the greatest number if nothing waits.
    least: AtomicU64,
}

impl<T> Default for Triggers<T> {
    fn default() -> Triggers<T> {
        Triggers { waiting: Mutex::default(), least: AtomicU64::new(u64::MAX) }
    }
}

impl<T> Triggers<T> {
    /// Adds an operation, behind those of the same threshold.
    pub fn defer(&self, threshold: u64, what: T) {
        let mut waiting = self.lock();
        waiting.push((threshold, what));
        self.note(&waiting);
    }

    /// Adds an operation that could not start yet, before those of the same threshold.
    pub fn put_back(&self, threshold: u64, what: T) {
        let mut waiting = self.lock();
        waiting.insert(0, (threshold, what));
        self.note(&waiting);
    }

    /// Whether the counter has reached the threshold of an operation.
    pub fn is_due(&self, counter: u64) -> bool {
        self.least.load(Ordering::Acquire) <= counter
    }

    /// Takes an operation whose threshold the counter has reached: the least one first, then the oldest.
    pub fn take_due(&self, counter: u64) -> Option<(u64, T)> {
        if !self.is_due(counter) {
            return None;
        }
        let mut waiting = self.lock();
        let due = waiting.iter().enumerate().filter(|(_, (threshold, _))| *threshold <= counter);
        let (at, _) = due.min_by_key(|(_, (threshold, _))| *threshold)?;
        let taken = waiting.remove(at);
        self.note(&waiting);
        Some(taken)
    }

    /// Removes the first operation for which `is_it` is true.
    pub fn cancel(&self, is_it: impl FnMut(&T) -> bool) -> Option<T> {
        let mut is_it = is_it;
        let mut waiting = self.lock();
        let at = waiting.iter().position(|(_, what)| is_it(what))?;
        let (_, what) = waiting.remove(at);
        self.note(&waiting);
        Some(what)
    }

    /// Number of operations for which `is_it` is true.
    pub fn count(&self, is_it: impl Fn(&T) -> bool) -> usize {
        self.lock().iter().filter(|(_, what)| is_it(what)).count()
    }

    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }

    fn note(&self, waiting: &[(u64, T)]) {
        let least = waiting.iter().map(|(threshold, _)| *threshold).min().unwrap_or(u64::MAX);
        self.least.store(least, Ordering::Release);
    }

    fn lock(&self) -> MutexGuard<'_, Vec<(u64, T)>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_threshold_and_the_oldest_go_first() {
        let triggers = Triggers::default();
        for (threshold, what) in [(5, 'a'), (3, 'b'), (5, 'c'), (3, 'd'), (u64::MAX, 'e')] {
            triggers.defer(threshold, what);
        }
        assert_eq!(triggers.take_due(2), None);
        assert_eq!((triggers.is_due(2), triggers.is_due(3)), (false, true));
        assert_eq!(triggers.take_due(3), Some((3, 'b')));
        triggers.put_back(3, 'b');
        assert_eq!((triggers.take_due(5), triggers.take_due(5)), (Some((3, 'b')), Some((3, 'd'))));
        assert_eq!(triggers.take_due(4), None);
        assert_eq!(triggers.count(|what| "ace".contains(*what)), 3);
        assert_eq!(triggers.cancel(|what| *what == 'a'), Some('a'));
        assert_eq!(triggers.cancel(|what| *what == 'a'), None);
        assert_eq!((triggers.take_due(9), triggers.take_due(9)), (Some((5, 'c')), None));
        assert_eq!(triggers.take_due(u64::MAX), Some((u64::MAX, 'e')));
        assert_eq!(triggers.take_due(u64::MAX), None);
    }
}

//! A bell that tolls once, and who wants to hear it: whether it tolled before or will, everybody is told.
//! One for each process that the porter watches. Tolled by the porter's thread; listened to by threads of interfaces.

use std::sync::{Arc, PoisonError, Weak};
use ucs::sync::{AtomicBool, Mutex, MutexGuard, Ordering};

/// Raised when a bell tolls, and taken down by whoever has seen to it.
#[derive(Default)]
pub struct Flag(AtomicBool);

/// Not tolled yet, or tolled. `L` is what listens.
pub struct Toll<L> {
    tolled: AtomicBool,
    listeners: Mutex<Vec<Weak<L>>>,
}

impl Flag {
    /// Raises it.
    pub fn raise(&self) {
        // SYNC(flag)
        self.0.store(true, Ordering::Release);
    }

    /// Whether it is raised.
    #[inline(always)]
    pub fn is_raised(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Takes it down: true if it was raised. Whatever tolled before it was raised is seen by then.
    pub fn take(&self) -> bool {
        // SYNC(flag)
        self.0.swap(false, Ordering::Acquire)
    }
}

impl<L> Default for Toll<L> {
    fn default() -> Self {
        Toll { tolled: AtomicBool::new(false), listeners: Mutex::new(Vec::new()) }
    }
}

impl<L> Toll<L> {
    /// Whether it has tolled. One load.
    #[inline]
    pub fn has_tolled(&self) -> bool {
        // SYNC(toll)
        self.tolled.load(Ordering::Acquire)
    }

    /// Tolls it: those to be told.
    pub fn toll(&self) -> Vec<Weak<L>> {
        // SYNC(toll): before the list is taken; whoever comes too late for that sees it.
        self.tolled.store(true, Ordering::Release);
        std::mem::take(&mut *lock(&self.listeners))
    }

    /// Enters `listener`, once however often: false if it has tolled, and the caller is to tell it.
    pub fn listen(&self, listener: &Arc<L>) -> bool {
        let mut listeners = lock(&self.listeners);
        listeners
            .retain(|known| known.strong_count() > 0 && !std::ptr::eq(known.as_ptr(), Arc::as_ptr(listener)));
        listeners.push(Arc::downgrade(listener));
        // After the push: whoever tolls meanwhile takes the list behind this lock.
        !self.has_tolled()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ucs::sync::{AtomicU32, model, thread};

    struct Ear {
        flag: Flag,
        woken: AtomicU32,
    }

    fn ear() -> Arc<Ear> {
        Arc::new(Ear { flag: Flag::default(), woken: AtomicU32::new(0) })
    }

    fn raise(ear: &Ear) {
        ear.flag.raise();
        ear.woken.fetch_add(1, Ordering::SeqCst);
    }

    /// Who listens while it tolls is told by one of the two, and finds then that it has tolled.
    #[test]
    fn loom_everybody_hears_of_it() {
        model(|| {
            let toll = Arc::new(Toll::default());
            let (early, late) = (ear(), ear());
            assert!(toll.listen(&early) && toll.listen(&early));
            let porter = {
                let toll = toll.clone();
                thread::spawn(move || {
                    toll.toll().iter().filter_map(Weak::upgrade).for_each(|ear| raise(&ear));
                })
            };
            if !toll.listen(&late) {
                raise(&late);
            }
            if late.flag.is_raised() {
                assert!(late.flag.take() && toll.has_tolled(), "raised for nothing");
                late.flag.raise();
            }
            porter.join().unwrap();
            for ear in [early, late] {
                assert!(ear.flag.take() && !ear.flag.take());
                assert!((1..=2).contains(&ear.woken.load(Ordering::SeqCst)));
            }
            assert!(toll.toll().len() <= 1);
        });
    }
}

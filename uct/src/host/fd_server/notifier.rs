//! A bell that tolls once, and who wants to hear it: whether it tolled before or will, everybody is told.
//! One for each process that the fd server watches. Tolled by the fd server's thread; listened to by threads of interfaces.

use std::sync::{Arc, PoisonError, Weak};
use ucs::sync::{AtomicBool, Mutex, MutexGuard, Ordering};

/// Raised when a bell tolls, and taken down by whoever has seen to it.
#[derive(Default)]
pub struct Flag(AtomicBool);

/// Not tolled yet, or tolled. `L` is what listens.
pub struct Notifier<L> {
    notified: AtomicBool,
    subscribers: Mutex<Vec<Weak<L>>>,
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

impl<L> Default for Notifier<L> {
    fn default() -> Self {
        Notifier { notified: AtomicBool::new(false), subscribers: Mutex::new(Vec::new()) }
    }
}

impl<L> Notifier<L> {
    /// Whether it has tolled. One load.
    #[inline]
    pub fn is_notified(&self) -> bool {
        // SYNC(notify)
        self.notified.load(Ordering::Acquire)
    }

    /// Tolls it: those to be told.
    pub fn notify(&self) -> Vec<Weak<L>> {
        // SYNC(notify): before the list is taken; whoever comes too late for that sees it.
        self.notified.store(true, Ordering::Release);
        std::mem::take(&mut *lock(&self.subscribers))
    }

    /// Enters `subscriber`, once however often: false if it has tolled, and the caller is to tell it.
    pub fn subscribe(&self, subscriber: &Arc<L>) -> bool {
        let mut subscribers = lock(&self.subscribers);
        subscribers.retain(|known| {
            known.strong_count() > 0 && !std::ptr::eq(known.as_ptr(), Arc::as_ptr(subscriber))
        });
        subscribers.push(Arc::downgrade(subscriber));
        // After the push: whoever tolls meanwhile takes the list behind this lock.
        !self.is_notified()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ucs::sync::{AtomicU32, model, thread};

    struct Subscriber {
        flag: Flag,
        woken: AtomicU32,
    }

    fn subscriber() -> Arc<Subscriber> {
        Arc::new(Subscriber { flag: Flag::default(), woken: AtomicU32::new(0) })
    }

    fn raise(subscriber: &Subscriber) {
        subscriber.flag.raise();
        subscriber.woken.fetch_add(1, Ordering::SeqCst);
    }

    /// Who listens while it tolls is told by one of the two, and finds then that it has tolled.
    #[test]
    fn loom_every_subscriber_is_notified() {
        model(|| {
            let notifier = Arc::new(Notifier::default());
            let (early, late) = (subscriber(), subscriber());
            assert!(notifier.subscribe(&early) && notifier.subscribe(&early));
            let server = {
                let notifier = notifier.clone();
                thread::spawn(move || {
                    notifier
                        .notify()
                        .iter()
                        .filter_map(Weak::upgrade)
                        .for_each(|subscriber| raise(&subscriber));
                })
            };
            if !notifier.subscribe(&late) {
                raise(&late);
            }
            if late.flag.is_raised() {
                assert!(late.flag.take() && notifier.is_notified(), "raised for nothing");
                late.flag.raise();
            }
            server.join().unwrap();
            for subscriber in [early, late] {
                assert!(subscriber.flag.take() && !subscriber.flag.take());
                assert!((1..=2).contains(&subscriber.woken.load(Ordering::SeqCst)));
            }
            assert!(notifier.notify().len() <= 1);
        });
    }
}

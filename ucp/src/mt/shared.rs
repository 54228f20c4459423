//! A worker behind its lock, and the objects of it that threads share: used and dropped inside the lock.

#![allow(unsafe_code)]

use std::any::Any;
use std::ops::Deref;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use ucs::sync::{LeaderGroup, LockError, RecursiveGuard, RecursiveLock, ThreadMode, this_thread};
use ucs::sys::{Wakeup, proc};

use crate::Worker;

pub(super) struct Shared {
    lock: RecursiveLock,
    /// Process that made it.
    pid: u32,
    worker: Worker,
    pub(super) wakeup: Wakeup,
    /// Threads that wait for operations of the worker.
    pub(super) waiters: LeaderGroup,
    /// Set by a signal, until a wait has seen it.
    pub(super) is_signalled: AtomicBool,
    abandoned: Abandoned,
}

// SAFETY: `worker`, and the parts of `wakeup` that are not atomic, are used by the thread inside `lock` only,
// or by the one that drops the last handle, which is alone. Whatever shares the worker's state (endpoints,
// requests, messages) is made inside by this module and lies in a `Locked`, which holds to the same rule:
// nothing plain leaves this module but through unsafe functions. What users leave inside (buffers, callbacks,
// handlers) is `Send`. Thread locals of the transports used hold only what any thread may share.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

impl Shared {
    /// Shares a worker of which no other handle exists.
    pub(super) fn new(worker: Worker, mode: ThreadMode) -> Arc<Shared> {
        worker.inner.wakers.collect();
        Arc::new(Shared {
            lock: RecursiveLock::new(mode, this_thread()),
            pid: proc::pid(),
            worker,
            wakeup: Wakeup::new(),
            waiters: LeaderGroup::default(),
            is_signalled: AtomicBool::new(false),
            abandoned: Abandoned::default(),
        })
    }

    /// Gives a worker of mode single to the calling thread; see [`RecursiveLock::adopt`].
    pub(super) fn adopt(&self) -> bool {
        self.lock.adopt(this_thread())
    }

    pub(super) fn mode(&self) -> ThreadMode {
        self.lock.mode()
    }

    /// Whether the calling thread is inside: in a handler, a callback or a closure.
    pub(super) fn is_held_here(&self) -> bool {
        self.lock.is_entered_by(this_thread())
    }

    /// Goes in, as the mode says.
    // HOT
    #[inline]
    pub(super) fn enter<'a>(self: &'a Arc<Self>) -> Result<Inside<'a>, LockError> {
        Ok(Inside { shared: self, guard: Some(self.lock.enter()?), adds_work: true })
    }

    /// Goes in as [`Shared::enter`], in mode single without a look at thread and depth.
    /// # Safety
    /// In mode single, as for [`SharedWorker::unlocked`](super::SharedWorker::unlocked).
    // HOT
    #[inline(always)]
    pub(super) unsafe fn enter_short(self: &Arc<Self>) -> Result<ShortInside<'_, true>, LockError> {
        if self.lock.mode() != ThreadMode::Single {
            std::mem::forget(self.lock.enter()?);
        }
        Ok(ShortInside(self))
    }

    /// Goes in as [`Shared::enter_to_progress`], in mode single without a look at thread and depth.
    /// # Safety
    /// As for [`Shared::enter_short`].
    // HOT
    #[inline(always)]
    pub(super) unsafe fn enter_short_to_progress(
        self: &Arc<Self>,
    ) -> Result<Option<ShortInside<'_, false>>, LockError> {
        if self.lock.mode() != ThreadMode::Single {
            match self.lock.try_enter()? {
                Some(guard) => std::mem::forget(guard),
                None => return Ok(None),
            }
        }
        Ok(Some(ShortInside(self)))
    }

    /// [`Inside::progress`], for a thread that is inside.
    // HOT
    #[inline(always)]
    fn progress_inside(&self) -> usize {
        if self.abandoned.any.load(Ordering::Relaxed) {
            self.abandoned.release();
        }
        let events = self.worker.progress();
        if events > 0 {
            self.wakeup.count_events(events);
        }
        events
    }

    /// Goes in for what leaves no work.
    pub(super) fn enter_to_query<'a>(self: &'a Arc<Self>) -> Result<Inside<'a>, LockError> {
        Ok(Inside { shared: self, guard: Some(self.lock.enter()?), adds_work: false })
    }

    /// Goes in to progress, unless another thread is inside (`None`).
    // HOT
    #[inline]
    pub(super) fn enter_to_progress<'a>(self: &'a Arc<Self>) -> Result<Option<Inside<'a>>, LockError> {
        let guard = self.lock.try_enter()?;
        Ok(guard.map(|guard| Inside { shared: self, guard: Some(guard), adds_work: false }))
    }

    /// Goes in for what cannot fail. `None`: the worker is another thread's ([`ThreadMode::Single`]).
    pub(super) fn enter_waiting<'a>(self: &'a Arc<Self>) -> Option<Inside<'a>> {
        let guard = self.lock.enter_waiting();
        guard.map(|guard| Inside { shared: self, guard: Some(guard), adds_work: true })
    }

    /// Whether this process got it by a fork: threads that are inside need not be here.
    fn is_inherited(&self) -> bool {
        self.pid != proc::pid()
    }

    /// Goes in to drop something. `None`: the worker is another thread's, or is inherited, and a thread of
    /// the parent was inside.
    fn enter_unless_orphaned<'a>(self: &'a Arc<Self>) -> Option<Inside<'a>> {
        let guard = self.lock.enter_unless_orphaned(|| self.is_inherited());
        guard.map(|guard| Inside { shared: self, guard: Some(guard), adds_work: true })
    }

    /// Empty progress calls of a wait before it sleeps.
    pub(super) fn spin(&self) -> u32 {
        // Not inside the lock: never changes.
        self.worker.inner.spin
    }

    /// Descriptor of the worker's lanes, for sleeps that end at the next deadline.
    pub(super) fn lanes_fd(&self) -> Option<BorrowedFd<'_>> {
        // Not inside the lock: never changes.
        self.worker.inner.events.as_ref().map(AsFd::as_fd)
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.abandoned.release();
    }
}

/// The calling thread is inside the lock of a worker.
pub(super) struct Inside<'a> {
    pub(super) shared: &'a Arc<Shared>,
    /// `None`: in mode single, the caller vouches for the thread.
    guard: Option<RecursiveGuard<'a>>,
    /// Whether what is done inside may leave work for a thread that sleeps.
    adds_work: bool,
}

impl Inside<'_> {
    // HOT
    #[inline]
    pub(super) fn worker(&self) -> &Worker {
        &self.shared.worker
    }

    /// Receives and completes, and wakes those that sleep for events. Returns the number of events.
    // HOT
    #[inline]
    pub(super) fn progress(&self) -> usize {
        self.shared.progress_inside()
    }

    /// Whether another thread waits to go in.
    // HOT
    #[inline]
    pub(super) fn has_waiters(&self) -> bool {
        self.shared.lock.has_waiters()
    }

    /// Leaves; what was done inside has left no work.
    pub(super) fn leave_idle(mut self) {
        self.adds_work = false;
    }
}

impl Shared {
    /// Wakes the thread that sleeps for work, if there is some that no arrival will start, and those that
    /// sleep for events or on the armed descriptor, if that does not tell of it. Inside.
    #[cold]
    fn wake_for_work(&self) {
        if !self.worker.inner.awaits_arrivals_only() {
            self.wakeup.wake_for_work();
        }
        if self.worker.inner.needs_wakeup() {
            self.wakeup.wake_armed_fd();
            self.wakeup.wake_event_sleepers();
        }
    }

    /// Leaves, then wakes those whose requests have ended.
    #[cold]
    fn leave_and_wake(&self, guard: Option<RecursiveGuard<'_>>) {
        let wakers = self.worker.inner.wakers.take();
        drop(guard);
        wakers.into_iter().for_each(std::task::Waker::wake);
    }
}

impl Drop for Inside<'_> {
    // HOT: passes its parts to functions, and not itself, so that they stay in registers.
    #[inline(always)]
    fn drop(&mut self) {
        if self.adds_work && self.shared.wakeup.has_work_sleepers() {
            self.shared.wake_for_work();
        }
        if self.shared.worker.inner.wakers.has_some() && !self.shared.lock.is_nested() {
            self.shared.leave_and_wake(self.guard.take());
        }
    }
}

/// An [`Inside`] that is an address only, so that it is kept in a register: the mode tells whether there is a
/// lock to leave. `ADDS_WORK` is [`Inside::adds_work`].
pub(super) struct ShortInside<'a, const ADDS_WORK: bool>(&'a Arc<Shared>);

impl<const ADDS_WORK: bool> ShortInside<'_, ADDS_WORK> {
    // HOT
    #[inline(always)]
    pub(super) fn worker(&self) -> &Worker {
        &self.0.worker
    }

    /// [`Inside::progress`].
    // HOT
    #[inline(always)]
    pub(super) fn progress(&self) -> usize {
        self.0.progress_inside()
    }

    #[cold]
    #[inline(never)]
    fn leave_and_wake(&self) {
        let is_locked = self.0.lock.mode() != ThreadMode::Single;
        let guard = is_locked.then(|| self.0.lock.guard());
        drop(Inside { shared: self.0, guard, adds_work: ADDS_WORK });
    }
}

impl<const ADDS_WORK: bool> Drop for ShortInside<'_, ADDS_WORK> {
    // HOT
    #[inline(always)]
    fn drop(&mut self) {
        let Shared { lock, worker, wakeup, .. } = &**self.0;
        if ADDS_WORK && wakeup.has_work_sleepers() || worker.inner.wakers.has_some() {
            self.leave_and_wake();
        } else if lock.mode() != ThreadMode::Single {
            lock.unlock();
        }
    }
}

/// The lock of a worker, held until this is dropped. Gives the plain worker.
pub struct WorkerGuard<'a>(Inside<'a>);

impl<'a> WorkerGuard<'a> {
    pub(super) fn of(shared: &'a Arc<Shared>) -> Result<WorkerGuard<'a>, LockError> {
        Ok(WorkerGuard(shared.enter()?))
    }

    /// In mode single without a look at the thread.
    /// # Safety
    /// As for [`SharedWorker::lock_unless_single`](super::SharedWorker::lock_unless_single).
    // HOT
    #[inline(always)]
    pub(super) unsafe fn unless_single(shared: &'a Arc<Shared>) -> WorkerGuard<'a> {
        let guard = match shared.lock.mode() {
            ThreadMode::Single => None,
            // Only a lock of mode single may be another thread's.
            ThreadMode::Serialized | ThreadMode::Multi => shared.lock.enter_waiting(),
        };
        WorkerGuard(Inside { shared, guard, adds_work: true })
    }

    // HOT
    #[inline(always)]
    pub(super) fn progress_inside(&self) -> usize {
        self.0.progress()
    }
}

impl Deref for WorkerGuard<'_> {
    type Target = Worker;

    // HOT
    #[inline(always)]
    fn deref(&self) -> &Worker {
        self.0.worker()
    }
}

/// The plain worker of a shared one of [`ThreadMode::Single`], used without its lock.
pub struct Unlocked<'a>(&'a Arc<Shared>);

impl<'a> Unlocked<'a> {
    // HOT
    #[inline(always)]
    pub(super) fn of(shared: &'a Arc<Shared>) -> Option<Unlocked<'a>> {
        // Made in this mode only: dropping one touches the worker.
        (shared.lock.mode() == ThreadMode::Single).then(|| Unlocked(shared))
    }

    /// The worker of a value of this type.
    // HOT
    #[inline(always)]
    pub(super) fn plain(shared: &Arc<Shared>) -> Option<&Worker> {
        (shared.lock.mode() == ThreadMode::Single).then_some(&shared.worker)
    }

    /// Wakes threads that sleep until there is work, as dropping a value of this type does.
    // HOT
    #[inline(always)]
    pub(super) fn wake_sleepers(shared: &Arc<Shared>) {
        if shared.wakeup.has_work_sleepers() {
            Unlocked(shared).wake();
        }
    }

    #[cold]
    #[inline(never)]
    fn wake(&self) {
        drop(Inside { shared: self.0, guard: None, adds_work: true });
    }
}

impl Deref for Unlocked<'_> {
    type Target = Worker;

    // HOT
    #[inline(always)]
    fn deref(&self) -> &Worker {
        &self.0.worker
    }
}

impl Drop for Unlocked<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        if self.0.wakeup.has_work_sleepers() {
            self.wake();
        }
    }
}

/// An object of a worker that may lie in a [`Locked`].
/// # Safety
/// The object shares state with its worker only, and what it owns of the user is `Send`.
pub unsafe trait OfWorker: 'static {}

/// A plain object of a shared worker, used and dropped inside its lock.
pub(super) struct Locked<T: OfWorker> {
    /// `None`: taken by [`Locked::consume`] or [`Locked::enter_to_progress`], to be dropped next.
    object: Option<T>,
    shared: Arc<Shared>,
}

const TAKEN: &str = "an object is used once it has been consumed";

// SAFETY: the object is used and dropped inside the lock, and is `OfWorker`: see `Shared`.
unsafe impl<T: OfWorker> Send for Locked<T> {}
// SAFETY: as above.
unsafe impl<T: OfWorker> Sync for Locked<T> {}

impl<T: OfWorker> Locked<T> {
    /// Wraps an object of the worker that the thread is inside.
    pub(super) fn new(object: T, inside: &Inside<'_>) -> Self {
        Locked { object: Some(object), shared: inside.shared.clone() }
    }

    pub(super) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    // HOT
    #[inline]
    pub(super) fn enter(&self) -> Result<Inside<'_>, LockError> {
        self.shared.enter()
    }

    /// Runs `f` inside.
    // HOT
    #[inline]
    pub(super) fn with<R>(&self, f: impl FnOnce(&T, &Inside<'_>) -> R) -> Result<R, LockError> {
        let inside = self.shared.enter()?;
        Ok(f(self.fixed(), &inside))
    }

    /// Runs `f`, which leaves no work, inside.
    pub(super) fn look<R>(&self, f: impl FnOnce(&T) -> R) -> Result<R, LockError> {
        let _inside = self.shared.enter_to_query()?;
        Ok(f(self.fixed()))
    }

    /// Runs `f`, which leaves no work, inside.
    pub(super) fn look_mut<R>(&mut self, f: impl FnOnce(&mut T) -> R) -> Result<R, LockError> {
        let _inside = self.shared.enter_to_query()?;
        Ok(f(self.object.as_mut().expect(TAKEN)))
    }

    /// Runs `f` inside.
    pub(super) fn with_mut<R>(&mut self, f: impl FnOnce(&mut T) -> R) -> Result<R, LockError> {
        let _inside = self.shared.enter()?;
        Ok(f(self.object.as_mut().expect(TAKEN)))
    }

    /// Runs `f` inside, waiting in each mode; for operations that must end.
    pub(super) fn with_mut_waiting<R>(&mut self, f: impl FnOnce(&mut T) -> R) -> Option<R> {
        let _inside = self.shared.enter_waiting()?;
        Some(f(self.object.as_mut().expect(TAKEN)))
    }

    /// Consumes the object inside. On an error it is dropped, as by [`Drop`].
    pub(super) fn consume<R>(mut self, f: impl FnOnce(T, &Inside<'_>) -> R) -> Result<R, LockError> {
        let inside = self.shared.enter()?;
        let object = self.object.take().expect(TAKEN);
        Ok(f(object, &inside))
    }

    /// Goes in to progress, unless another thread is inside (`None`), with the object. A caller that takes it
    /// out drops it inside.
    // HOT
    #[inline]
    pub(super) fn enter_to_progress(&mut self) -> Result<Option<(Inside<'_>, &mut Option<T>)>, LockError> {
        let inside = self.shared.enter_to_progress()?;
        Ok(inside.map(|inside| (inside, &mut self.object)))
    }

    /// The object without the lock, for what it holds that never changes.
    // HOT
    #[inline]
    pub(super) fn fixed(&self) -> &T {
        self.object.as_ref().expect(TAKEN)
    }
}

impl<T: OfWorker> Drop for Locked<T> {
    fn drop(&mut self) {
        let Some(object) = self.object.take() else { return };
        match self.shared.enter_unless_orphaned() {
            Some(_inside) => drop(object),
            // Nobody drops it later, and the list of those to be dropped may be locked for ever.
            None if self.shared.is_inherited() => std::mem::forget(object),
            None => self.shared.abandoned.add(object),
        }
    }
}

/// Objects dropped by a thread that may not go in ([`ThreadMode::Single`]): the worker's thread drops them.
#[derive(Default)]
struct Abandoned {
    any: AtomicBool,
    objects: Mutex<Vec<Object>>,
}

struct Object(Box<dyn Any>);

// SAFETY: the object is `OfWorker`, and is dropped inside the lock, or with the worker.
unsafe impl Send for Object {}

impl Abandoned {
    #[cold]
    fn add<T: OfWorker>(&self, object: T) {
        let object = Object(Box::new(object));
        self.objects.lock().unwrap_or_else(PoisonError::into_inner).push(object);
        self.any.store(true, Ordering::Release);
    }

    /// Drops them: inside the lock, or with the worker.
    #[cold]
    fn release(&self) {
        self.any.store(false, Ordering::Relaxed);
        let objects = std::mem::take(&mut *self.objects.lock().unwrap_or_else(PoisonError::into_inner));
        objects.into_iter().for_each(|object| drop(object.0));
    }
}

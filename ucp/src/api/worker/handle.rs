//! Handle of a worker, with received active messages and receives posted for them.

use std::any::Any;
use std::cell::{Cell, OnceCell, RefCell, RefMut};
use std::ops::{Deref, DerefMut};
use std::rc::{Rc, Weak};
use std::task::Waker;

use ucs::sys::fd::Epoll;
use ucs::sys::fork::ForkNotice;

use crate::api::am::handlers::AmHandlers;
use crate::api::am::pool::AmBuf;
use crate::api::am::tag::AmKind;
use crate::api::core::groups::Groups;
use crate::api::core::requests::Action;
use crate::api::core::staging::{Staged, Staging};
use crate::api::core::worker_core::WorkerCore;
use crate::api::data::ops::DataOps;
use crate::api::worker::deadline_timer::DeadlineTimer;
use crate::api::worker::forks;
use crate::api::worker::signal::Signals;
use crate::api::worker::wakers::WakerList;

use crate::rdm::RecvList;
use crate::rdm::io::PeerId;
use crate::select::Thresholds;

/// Communication context of one thread. Clones refer to the same worker. Neither `Send` nor `Sync`.
#[derive(Clone)]
pub struct Worker {
    pub(crate) inner: Rc<Inner>,
}

pub(crate) struct Inner {
    /// Before the core, whose word it names.
    fork_notice: OnceCell<ForkNotice>,
    pub(crate) core: RefCell<WorkerCore>,
    /// Dropped after the engine, which writes into its buffers.
    pub(crate) am_handlers: AmHandlers<AmMessage, PostedRecv>,
    /// Dropped after the engine, which reads them.
    pub(crate) staging: Staging<Staged>,
    pub(crate) recv_lists: Staging<Box<RecvList>>,
    /// Dropped after the engine, which calls its callbacks.
    pub(crate) data_ops: DataOps,
    pub(crate) events: Option<Epoll>,
    pub(crate) signals: Signals,
    pub(crate) timer: DeadlineTimer,
    pub(crate) limits: Thresholds,
    pub(crate) spin: u32,
    pub(crate) wakers: WakerList,
    /// Whether a send to this worker itself calls callbacks.
    pub(crate) is_calling: Cell<bool>,
    /// Dropped after the engine, which calls their callbacks.
    pub(crate) groups: Groups<WeakWorker>,
    /// Counts of operations, which their callbacks name. Dropped after the engine, which calls these.
    pub(crate) counts: RefCell<Vec<Rc<dyn Any>>>,
    /// Memory for the results of atomic operations, between two of them.
    pub(crate) fetch_bufs: RefCell<Vec<Box<[u8]>>>,
}

impl Inner {
    /// Runs user code: nothing of the worker may be borrowed.
    pub(crate) fn run(&self, action: Action) {
        match action {
            Action::Wake(waker) => self.wakers.wake(waker),
            Action::WakeMultiRecv(waker, watcher) => {
                waker.into_iter().for_each(|waker| self.wakers.wake(waker));
                self.wakers.wake(Waker::clone(&watcher));
            }
            Action::RawOfDropped(call, id, ended) => {
                call.run(id, ended);
                let _ = self.core.borrow_mut().reqs.take(id);
            }
            action => action.run(),
        }
    }

    /// Core for progress and for what makes progress by itself. The next progress runs a full poll.
    #[inline(always)]
    pub(crate) fn core_in_progress(&self) -> RefMut<'_, WorkerCore> {
        let mut core = self.core.borrow_mut();
        core.idle = false;
        core
    }

    /// Whether nothing is to be done until something arrives.
    pub(crate) fn awaits_arrivals_only(&self) -> bool {
        self.core.try_borrow().is_ok_and(|core| core.is_idle(&self.am_handlers.queue))
    }

    /// Whether a program that sleeps on the armed descriptor is to be woken.
    pub(crate) fn needs_wakeup(&self) -> bool {
        self.core.try_borrow().is_ok_and(|core| core.needs_wakeup())
    }

    /// Makes the armed descriptor readable if there is something to do.
    #[cold]
    #[inline(never)]
    fn wake_if_needed(&self, core: &mut WorkerCore) {
        if core.needs_wakeup() {
            self.wake_armed(core);
        }
    }

    /// Makes the armed descriptor readable.
    #[cold]
    pub(crate) fn wake_armed(&self, core: &mut WorkerCore) {
        core.is_armed = false;
        self.signals.wake();
    }
}

/// A handle that does not keep its worker, for handlers and callbacks: see [`Worker::close`].
#[derive(Clone)]
pub struct WeakWorker(Weak<Inner>);

impl WeakWorker {
    /// Returns the worker, unless its last handle has been dropped.
    pub fn upgrade(&self) -> Option<Worker> {
        Some(Worker { inner: self.0.upgrade()? })
    }
}

impl std::fmt::Debug for WeakWorker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("WeakWorker")
    }
}

/// A worker's core in use by a call that may begin or end operations.
pub(crate) struct CoreMut<'a> {
    core: RefMut<'a, WorkerCore>,
    worker: &'a Worker,
}

impl<'a> CoreMut<'a> {
    /// Core for what leaves work in a call that has begun with [`Worker::core_keep_idle`].
    #[inline(always)]
    pub(crate) fn new(worker: &'a Worker, core: RefMut<'a, WorkerCore>) -> Self {
        CoreMut { core, worker }
    }
}

impl Deref for CoreMut<'_> {
    type Target = WorkerCore;

    #[inline(always)]
    fn deref(&self) -> &WorkerCore {
        &self.core
    }
}

impl DerefMut for CoreMut<'_> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut WorkerCore {
        &mut self.core
    }
}

impl Drop for CoreMut<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        if self.core.is_armed {
            self.worker.inner.wake_if_needed(&mut self.core);
        }
    }
}

/// Posted receive of an active message.
pub(crate) struct PostedRecv {
    pub(crate) worker: WeakWorker,
    pub(crate) buf: Cell<Option<AmBuf>>,
}

/// Received active message. A handler may keep it; dropping it recycles its memory.
pub struct AmMessage {
    pub(crate) worker: Worker,
    /// Header, followed by data or an `Rts` of `am::recv`.
    pub(crate) buf: AmBuf,
    pub(crate) tag: u64,
    pub(crate) from: PeerId,
    pub(crate) kind: AmKind,
    /// Conversations with the sender that had ended when it announced data; `LOST`: the data is lost.
    pub(crate) ended: u16,
}

impl Worker {
    pub(crate) fn new(
        core: WorkerCore,
        events: Option<Epoll>,
        limits: Thresholds,
        (spin, am_alignment): (u32, usize),
    ) -> Self {
        let worker = Worker {
            inner: Rc::new(Inner {
                fork_notice: OnceCell::new(),
                core: RefCell::new(core),
                am_handlers: AmHandlers::new(am_alignment),
                staging: Staging::default(),
                recv_lists: Staging::default(),
                data_ops: DataOps::default(),
                events,
                signals: Signals::default(),
                timer: DeadlineTimer::default(),
                limits,
                spin,
                wakers: WakerList::default(),
                is_calling: Cell::new(false),
                groups: Groups::default(),
                counts: RefCell::default(),
                fetch_bufs: RefCell::default(),
            }),
        };
        let _ = worker.inner.fork_notice.set(forks::watch(&worker.inner.core));
        worker
    }

    /// Core for any use. The next progress runs a full poll, which a program that sleeps on the armed
    /// descriptor is told of.
    #[inline(always)]
    pub(crate) fn core(&self) -> CoreMut<'_> {
        CoreMut::new(self, self.inner.core_in_progress())
    }

    /// Core for uses that leave no work for progress, such as short sends and completion checks.
    // HOT
    #[inline(always)]
    pub(crate) fn core_keep_idle(&self) -> RefMut<'_, WorkerCore> {
        self.inner.core.borrow_mut()
    }

    /// Returns a handle that does not keep the worker.
    pub fn downgrade(&self) -> WeakWorker {
        WeakWorker(Rc::downgrade(&self.inner))
    }

    pub(crate) fn is(&self, other: &Worker) -> bool {
        Rc::ptr_eq(&self.inner, &other.inner)
    }
}

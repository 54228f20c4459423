//! Handle of a worker, with received active messages and receives posted for them.

use std::cell::{Cell, RefCell, RefMut};
use std::rc::{Rc, Weak};

use ucs::sys::fd::Epoll;

use crate::api::am::handlers::AmHandlers;
use crate::api::am::pool::AmBuf;
use crate::api::am::tag::AmKind;
use crate::api::core::requests::Action;
use crate::api::core::staging::{Staged, Staging};
use crate::api::core::worker_core::WorkerCore;
use crate::api::data::ops::DataOps;
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
    pub(crate) limits: Thresholds,
    pub(crate) spin: u32,
    pub(crate) wakers: WakerList,
}

pub(crate) struct WeakWorker(Weak<Inner>);

impl WeakWorker {
    pub(crate) fn upgrade(&self) -> Option<Worker> {
        Some(Worker { inner: self.0.upgrade()? })
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
}

impl Worker {
    pub(crate) fn new(core: WorkerCore, events: Option<Epoll>, limits: Thresholds, spin: u32) -> Self {
        Worker {
            inner: Rc::new(Inner {
                core: RefCell::new(core),
                am_handlers: AmHandlers::default(),
                staging: Staging::default(),
                recv_lists: Staging::default(),
                data_ops: DataOps::default(),
                events,
                signals: Signals::default(),
                limits,
                spin,
                wakers: WakerList::default(),
            }),
        }
    }

    /// Runs user code: nothing of the worker may be borrowed.
    pub(crate) fn run(&self, action: Action) {
        match action {
            Action::Wake(waker) => self.inner.wakers.wake(waker),
            action => action.run(),
        }
    }

    /// Core for any use. The next progress runs a full poll.
    #[inline(always)]
    pub(crate) fn core(&self) -> RefMut<'_, WorkerCore> {
        let mut core = self.inner.core.borrow_mut();
        core.idle = false;
        core
    }

    /// Core for uses that leave no work for progress, such as short sends and completion checks. // HOT
    #[inline(always)]
    pub(crate) fn core_keep_idle(&self) -> RefMut<'_, WorkerCore> {
        self.inner.core.borrow_mut()
    }

    /// Whether nothing is to be done until something arrives.
    pub(crate) fn awaits_arrivals_only(&self) -> bool {
        let core = self.inner.core.try_borrow();
        core.is_ok_and(|core| core.is_idle(&self.inner.am_handlers.queue))
    }

    pub(crate) fn downgrade(&self) -> WeakWorker {
        WeakWorker(Rc::downgrade(&self.inner))
    }

    pub(crate) fn is(&self, other: &Worker) -> bool {
        Rc::ptr_eq(&self.inner, &other.inner)
    }
}

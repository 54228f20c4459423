//! Handle of a worker: shared state and access to its core. Also the types that refer to a worker and that its state refers to:
//! received active messages and the receives posted for them.

use std::cell::{Cell, RefCell, RefMut};
use std::rc::{Rc, Weak};

use ucs::sys::fd::Epoll;

use crate::api::am::handlers::AmHandlers;
use crate::api::am::pool::AmBuf;
use crate::api::am::tag::LabelKind;
use crate::api::core::staging::{Staged, Staging};
use crate::api::core::worker_core::Core;

use crate::rdm::RecvList;
use crate::rdm::io::PeerId;
use crate::select::Thresholds;

/// A communication context of one thread: lanes, peers, messages. Cheap to clone; clones are the same worker.
///
/// Neither `Send` nor `Sync`.
#[derive(Clone)]
pub struct Worker {
    pub(crate) inner: Rc<Inner>,
}

pub(crate) struct Inner {
    pub(crate) core: RefCell<Core>,
    /// Dropped after the engine, which writes into its buffers.
    pub(crate) ams: AmHandlers<AmMessage, Place>,
    /// Likewise: the engine reads what they lend.
    pub(crate) staging: Staging<Staged>,
    /// Likewise: it looks there for the pieces that a message goes into.
    pub(crate) rooms: Staging<Box<RecvList>>,
    pub(crate) events: Option<Epoll>,
    pub(crate) limits: Thresholds,
    pub(crate) spin: u32,
}

/// A worker that is not kept by this.
pub(crate) struct WeakWorker(Weak<Inner>);

impl WeakWorker {
    /// The worker, if there still is one.
    pub(crate) fn upgrade(&self) -> Option<Worker> {
        Some(Worker { inner: self.0.upgrade()? })
    }
}

/// A posted receive.
pub(crate) struct Place {
    pub(crate) worker: WeakWorker,
    pub(crate) room: Cell<Option<AmBuf>>,
}

/// An active message, as its handler gets it. It may be kept; its memory is reused when it is dropped.
pub struct AmMessage {
    pub(crate) worker: Worker,
    /// Header, and data or [`Notice`].
    pub(crate) buf: AmBuf,
    pub(crate) tag: u64,
    pub(crate) from: PeerId,
    pub(crate) kind: LabelKind,
}

impl Worker {
    pub(crate) fn new(core: Core, events: Option<Epoll>, limits: Thresholds, spin: u32) -> Self {
        Worker {
            inner: Rc::new(Inner {
                core: RefCell::new(core),
                ams: AmHandlers::default(),
                staging: Staging::default(),
                rooms: Staging::default(),
                events,
                limits,
                spin,
            }),
        }
    }

    /// The core, to do anything with: the next progress looks for what may have come of it.
    #[inline(always)]
    pub(crate) fn core(&self) -> RefMut<'_, Core> {
        let mut core = self.inner.core.borrow_mut();
        core.calm = false;
        core
    }

    /// The core, for who leaves nothing to do that there was not: no operation waits, ends or has a deadline because of it, and
    /// no message is held. Short messages, receives that are posted, and looks at ends. // HOT
    #[inline(always)]
    pub(crate) fn core_as_it_is(&self) -> RefMut<'_, Core> {
        self.inner.core.borrow_mut()
    }

    /// What is kept for active messages.
    #[inline]
    pub(crate) fn ams(&self) -> &AmHandlers<AmMessage, Place> {
        &self.inner.ams
    }

    pub(crate) fn staging(&self) -> &Staging<Staged> {
        &self.inner.staging
    }

    pub(crate) fn rooms(&self) -> &Staging<Box<RecvList>> {
        &self.inner.rooms
    }

    /// The worker, without keeping it.
    pub(crate) fn downgrade(&self) -> WeakWorker {
        WeakWorker(Rc::downgrade(&self.inner))
    }

    /// Whether both are the same worker.
    pub(crate) fn is(&self, other: &Worker) -> bool {
        Rc::ptr_eq(&self.inner, &other.inner)
    }

    pub(crate) fn limits(&self) -> &Thresholds {
        &self.inner.limits
    }
}

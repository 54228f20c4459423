//! The interface behind its lock: opening, handlers, progress, memory, sleeping.

#![allow(unsafe_code)]

use super::comp::{Completion, Tokens};
use super::inner::{Inner, InnerEp, inner};
use super::trace::{self, TraceEvent, TraceKind, TracedSink};
use super::{Ep, ThreadMode};
use crate::any;
use crate::api::{
    self, AddrBuf, Am, Comp, ConnectError, EpTag, Error, Iface as _, IfaceAttr, Imm, OpenError, Outcome,
    RecvDesc, Sent, Sink, SrcAddr,
};
use crate::base::am::{AmTable, CopyOnKeep, TableSink};
use crate::wrap::Paired;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use ucs::config::Source;
use ucs::sync::{LockError, RecursiveGuard, RecursiveLock, this_thread};
use ucs::sys::{Wakeup, proc};

/// In which thread a handler may be called.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HandlerThread {
    /// Any that progresses the interface, a [`super::ProgressThread`] included.
    Any,
    /// Callers of [`Iface::progress`] only. A progress thread keeps up to 128 messages or 4 MiB for them,
    /// then stops receiving, and peers find no resource.
    Caller,
}

/// A handler that any thread may call.
pub type AmHandler = Box<dyn FnMut(Am<'_>) + Send>;

/// Tracer of active messages: see [`Iface::set_tracer`].
pub type Tracer = Box<dyn FnMut(TraceEvent<'_>) + Send>;

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Progressor {
    Caller,
    ProgressThread,
}

/// An interface shared by threads. A clone has its own view of events ([`wait`](Iface::wait)).
pub struct Iface {
    pub(super) shared: Arc<Shared>,
    seen: AtomicU64,
}

impl Clone for Iface {
    fn clone(&self) -> Self {
        Iface { shared: self.shared.clone(), seen: AtomicU64::new(self.seen.load(Ordering::Relaxed)) }
    }
}

impl std::fmt::Debug for Iface {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Iface({}, {:?})", self.shared.attr.tl, self.mode())
    }
}

/// Most messages kept for callers, and most bytes of them, give or take one.
const MAX_KEPT: usize = 128;
const MAX_BYTES: usize = 4 << 20;

pub(super) struct Shared {
    lock: RecursiveLock,
    /// Process that opened it.
    pid: u32,
    traced: Cell<bool>,
    attr: IfaceAttr,
    device_addr: AddrBuf,
    iface_addr: AddrBuf,
    pub(super) iface: Inner,
    handlers: AmTable,
    pub(super) tokens: Tokens,
    for_callers: RefCell<Box<[bool; 256]>>,
    kept: RefCell<VecDeque<(SrcAddr, Option<EpTag>, RecvDesc)>>,
    /// While a kept message is delivered: the endpoint that it came for.
    kept_for: Cell<Option<EpTag>>,
    kept_len: Cell<usize>,
    kept_bytes: Cell<usize>,
    /// `Send`, like handlers: there is no other way to set it.
    pub(super) tracer: RefCell<trace::Tracer>,
    pub(super) wakeup: Wakeup,
}

// SAFETY: fields with interior mutability are used inside the lock (`wakeup` is locked or atomic outside);
// attributes and addresses never change. `iface` shares state only with objects made here, which follow the
// same rule, and with its domain, which is `Send` and `Sync` (`open_iface_for_threads`). Handlers are `Send`.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

impl From<LockError> for Error {
    #[cold]
    fn from(error: LockError) -> Error {
        Error::InvalidParam(match error {
            LockError::WrongThread => "this interface belongs to another thread (thread mode single)",
            LockError::Concurrent => "two threads at a time (thread mode serialized)",
        })
    }
}

impl Shared {
    /// Goes in, as the mode says.
    // HOT
    #[inline]
    pub(super) fn lock(&self) -> Result<RecursiveGuard<'_>, Error> {
        Ok(self.lock.enter()?)
    }

    pub(super) fn try_lock(&self) -> Result<Option<RecursiveGuard<'_>>, Error> {
        Ok(self.lock.try_enter()?)
    }

    /// Locks to drop something: waits in every mode. `None`: the object leaks, of another thread's interface,
    /// or in a forked child of one that another thread of the parent is inside.
    pub(super) fn lock_for_drop(&self) -> Option<RecursiveGuard<'_>> {
        let guard = self.lock.enter_unless_orphaned(|| self.pid != proc::pid());
        if guard.is_none() {
            tracing::warn!("leaked an object: this thread may not enter its interface");
        }
        guard
    }

    /// Whether active messages are shown to a tracer.
    // HOT
    #[inline(always)]
    pub(super) fn is_traced(&self) -> bool {
        self.traced.get()
    }

    /// Dispatches a traced message, and shows it again if it has no handler.
    #[cold]
    fn dispatch_traced(&self, am: Am<'_>) {
        let (source, id, packet, before) = (am.source(), am.id(), am.packet(), self.handlers.dropped());
        self.handlers.dispatch_as(id, am);
        if self.handlers.dropped() > before {
            let (kind, head) = (TraceKind::Dropped(source), &packet[1..]);
            (self.tracer.borrow_mut())(TraceEvent { kind, id, head, len: head.len() });
        }
    }

    /// Events that a progress thread may take in now, so that what is kept for callers has a bound.
    pub(super) fn keep_budget(&self, max: usize) -> usize {
        let bytes = MAX_BYTES.saturating_sub(self.kept_bytes.get());
        let messages = bytes.div_ceil(self.attr.am.max_bcopy.max(1));
        max.min(messages).min(MAX_KEPT.saturating_sub(self.kept_len.get()))
    }

    /// Within a handler: the tag of the endpoint that a message came for, if it was sent to one.
    fn receiver(&self) -> Option<EpTag> {
        match &self.iface {
            Inner::Plain(_) => None,
            Inner::Paired(iface) => self.kept_for.get().or_else(|| iface.receiver()),
        }
    }

    /// Runs an operation inside, with a token for its completion.
    // HOT
    #[inline]
    pub(super) fn run<T>(
        &self,
        comp: Option<&Arc<Completion>>,
        call: impl FnOnce(Comp) -> Outcome<T>,
        in_progress: impl FnOnce(&T) -> bool,
    ) -> Outcome<T> {
        let _guard = self.lock()?;
        let token = self.tokens.issue(comp);
        let number = if let Comp::Token(number) = token { Some(number) } else { None };
        let sent = call(token);
        if !sent.as_ref().is_ok_and(in_progress)
            && let Some(number) = number
        {
            // It will not come back by itself.
            drop(self.tokens.take(number));
        }
        sent
    }
}

struct HandlerSink<'a> {
    shared: &'a Shared,
    by: Progressor,
}

impl Sink for HandlerSink<'_> {
    #[inline]
    fn on_am(&mut self, am: Am<'_>) {
        // Read once: between two reads the sender could change who runs the handler.
        let id = am.id();
        if self.by == Progressor::ProgressThread && self.shared.for_callers.borrow()[usize::from(id)] {
            self.shared.kept_len.set(self.shared.kept_len.get() + 1);
            self.shared.kept_bytes.set(self.shared.kept_bytes.get() + am.packet().len());
            return self.shared.kept.borrow_mut().push_back((am.source(), self.shared.receiver(), am.keep()));
        }
        self.shared.handlers.dispatch_as(id, am);
    }

    fn on_comp(&mut self, token: u64, result: Result<(), Error>) {
        // The borrow of the table ends before the callback starts: it may send.
        if let Some(comp) = self.shared.tokens.take(token) {
            comp.update(result);
        }
    }

    fn on_ep_error(&mut self, ep: EpTag, error: Error) {
        TableSink(&self.shared.handlers).on_ep_error(ep, error);
    }

    fn on_imm(&mut self, imm: Imm) {
        TableSink(&self.shared.handlers).on_imm(imm);
    }
}

impl Iface {
    /// Opens transport `tl` on device `dev`, with a memory domain of its own.
    pub fn open(tl: &str, dev: &str, source: &Source, mode: ThreadMode) -> Result<Iface, OpenError> {
        Iface::open_on(&any::open_md(tl, dev, source)?, source, mode)
    }

    /// Opens an interface on a memory domain that other interfaces may share. One of `self` exchanges
    /// messages with itself only.
    pub fn open_on(md: &any::Md, source: &Source, mode: ThreadMode) -> Result<Iface, OpenError> {
        Ok(Iface::of(Inner::Plain(any::open_iface_for_threads(md, source)?), mode))
    }

    /// [`Iface::open`], with endpoints that connect to endpoints ([`Iface::create_ep`]) beside those that
    /// connect to interfaces. Both ends are opened so; a message is four bytes longer.
    pub fn open_paired(tl: &str, dev: &str, source: &Source, mode: ThreadMode) -> Result<Iface, OpenError> {
        Iface::open_paired_on(&any::open_md(tl, dev, source)?, source, mode)
    }

    /// [`Iface::open_paired`] on a memory domain that other interfaces may share.
    pub fn open_paired_on(md: &any::Md, source: &Source, mode: ThreadMode) -> Result<Iface, OpenError> {
        Ok(Iface::of(Inner::Paired(Paired::new(any::open_iface_for_threads(md, source)?)), mode))
    }

    fn of(inner: Inner, mode: ThreadMode) -> Iface {
        let (device_addr, iface_addr) = inner!(inner, iface => (iface.device_addr(), iface.iface_addr()));
        let mut attr = inner!(inner, iface => iface.attr().clone());
        // User receives are reported to sinks only, and threads have handlers.
        attr.caps.remove(api::Caps::USER_RECV);
        let shared = Shared {
            lock: RecursiveLock::new(mode, this_thread()),
            pid: proc::pid(),
            traced: Cell::new(false),
            attr,
            device_addr,
            iface_addr,
            iface: inner,
            kept_for: Cell::new(None),
            handlers: AmTable::default(),
            tokens: Tokens::default(),
            for_callers: RefCell::new(Box::new([false; 256])),
            kept: RefCell::default(),
            kept_len: Cell::new(0),
            kept_bytes: Cell::new(0),
            tracer: RefCell::new(Box::new(|_| {})),
            wakeup: Wakeup::new(),
        };
        Iface { shared: Arc::new(shared), seen: AtomicU64::new(0) }
    }

    /// Attributes.
    pub fn attr(&self) -> &IfaceAttr {
        &self.shared.attr
    }

    /// The memory domain, for any thread, without the lock.
    pub fn md(&self) -> &any::Md {
        inner!(self.shared.iface, iface => iface.md())
    }

    /// The thread mode it was opened with.
    pub fn mode(&self) -> ThreadMode {
        self.shared.lock.mode()
    }

    /// Where the device is.
    pub fn device_addr(&self) -> AddrBuf {
        self.shared.device_addr.clone()
    }

    /// Which interface on the device.
    pub fn iface_addr(&self) -> AddrBuf {
        self.shared.iface_addr.clone()
    }

    /// Whether [`Iface::connect`] to that address can work, and if not, why.
    pub fn reachable(&self, device: &[u8], iface: &[u8]) -> Result<(), ConnectError> {
        let _guard = self.shared.lock()?;
        inner!(self.shared.iface, it => it.reachable(device, iface))
    }

    /// A new endpoint to be connected by [`Ep::connect_to_ep`].
    pub fn create_ep(&self) -> Result<Ep, Error> {
        let _guard = self.shared.lock()?;
        let ep = match &self.shared.iface {
            Inner::Plain(iface) => InnerEp::Plain(iface.create_ep()?),
            Inner::Paired(iface) => InnerEp::Paired(iface.create_ep()?),
        };
        Ok(Ep::new(ep, &self.shared))
    }

    /// A new endpoint to a remote interface.
    pub fn connect(&self, device: &[u8], iface: &[u8]) -> Result<Ep, ConnectError> {
        let _guard = self.shared.lock()?;
        let ep = match &self.shared.iface {
            Inner::Plain(it) => InnerEp::Plain(it.connect(device, iface)?),
            Inner::Paired(it) => InnerEp::Paired(it.connect(device, iface)?),
        };
        Ok(Ep::new(ep, &self.shared))
    }

    /// Within a handler: the tag of the receiving endpoint; `None` for the interface itself. Interfaces of
    /// [`Iface::open_paired`] only.
    pub fn receiver(&self) -> Result<Option<EpTag>, Error> {
        let _guard = self.shared.lock()?;
        Ok(self.shared.receiver())
    }

    /// Registers or removes the handler of an active message id, and says where it may run.
    pub fn set_am_handler(
        &self,
        id: u8,
        thread: HandlerThread,
        handler: Option<AmHandler>,
    ) -> Result<(), Error> {
        let _guard = self.shared.lock()?;
        self.shared.for_callers.borrow_mut()[usize::from(id)] = thread == HandlerThread::Caller;
        self.shared.handlers.set(id, handler.map(|handler| handler as api::AmHandler));
        Ok(())
    }

    /// Sets or removes the handler of failures that have no completion.
    pub fn set_error_handler(
        &self,
        handler: Option<Box<dyn FnMut(EpTag, Error) + Send>>,
    ) -> Result<(), Error> {
        let _guard = self.shared.lock()?;
        self.shared.handlers.set_error(handler.map(|handler| handler as _));
        Ok(())
    }

    /// Sets or removes the handler of immediates of a peer's writes.
    pub fn set_imm_handler(&self, handler: Option<Box<dyn FnMut(Imm) + Send>>) -> Result<(), Error> {
        let _guard = self.shared.lock()?;
        self.shared.handlers.set_imm(handler.map(|handler| handler as _));
        Ok(())
    }

    /// Shows active messages to `tracer`, in any thread, until `None`. It must not use the interface.
    pub fn set_tracer(&self, tracer: Option<Tracer>) -> Result<(), Error> {
        let _guard = self.shared.lock()?;
        self.shared.traced.set(tracer.is_some());
        let before = self.shared.tracer.replace(match tracer {
            Some(tracer) => tracer,
            None => Box::new(|_| {}),
        });
        // It may own anything: dropped outside the borrow.
        drop(before);
        Ok(())
    }

    /// Receives up to `max` events, calls handlers and completions, answers the events. 0 at once while
    /// another thread holds the lock ([`ThreadMode::Multi`]), up to four times in a row for a waiting one,
    /// and in a handler.
    #[inline]
    pub fn progress(&self, max: usize) -> Result<usize, Error> {
        self.progress_from(max, Progressor::Caller)
    }

    /// Progresses; if nothing came, answers events that others received since this handle last knew.
    #[inline]
    pub(super) fn progress_or_unseen(&self, max: usize) -> Result<usize, Error> {
        let shared = &*self.shared;
        let Some(_guard) = shared.try_lock()? else { return Ok(0) };
        match self.poll_locked(max, Progressor::Caller) {
            0 => Ok(self.take_unseen() as usize),
            events => Ok(events),
        }
    }

    #[inline]
    pub(super) fn progress_from(&self, max: usize, by: Progressor) -> Result<usize, Error> {
        let Some(_guard) = self.shared.try_lock()? else { return Ok(0) };
        Ok(self.poll_locked(max, by))
    }

    #[inline]
    fn poll_locked(&self, max: usize, by: Progressor) -> usize {
        let shared = &*self.shared;
        if shared.handlers.is_running() {
            // Called by a handler: messages come one after another.
            return 0;
        }
        let mut events = 0;
        let max = match by {
            Progressor::Caller => {
                if shared.kept_len.get() > 0 {
                    events = self.deliver_kept(max);
                }
                max
            }
            Progressor::ProgressThread => match shared.keep_budget(max) {
                0 => return 0,
                max => max,
            },
        };
        let mut sink = HandlerSink { shared, by };
        events += if shared.is_traced() {
            self.poll_traced(max - events, &mut sink)
        } else {
            inner!(shared.iface, iface => iface.poll(max - events, &mut sink))
        };
        if events > 0 {
            // Others may wait for what has come; this handle knows of it.
            shared.wakeup.count_events(events);
            self.seen.store(self.seen.load(Ordering::Relaxed) + events as u64, Ordering::Relaxed);
        }
        events
    }

    #[cold]
    fn poll_traced(&self, max: usize, sink: &mut HandlerSink<'_>) -> usize {
        let shared = &*self.shared;
        let (tracer, table) = (&shared.tracer, Some(&shared.handlers));
        let mut sink = TracedSink { tracer, table, then: sink };
        inner!(shared.iface, iface => iface.poll(max, &mut sink))
    }

    fn deliver_kept(&self, max: usize) -> usize {
        let (shared, mut events) = (&*self.shared, 0);
        let was_full = shared.keep_budget(1) == 0;
        while events < max {
            let Some((source, receiver, kept)) = shared.kept.borrow_mut().pop_front() else { break };
            shared.kept_len.set(shared.kept_len.get() - 1);
            shared.kept_bytes.set(shared.kept_bytes.get() - kept.packet().len());
            let am = Am::new(kept.packet(), source, &CopyOnKeep);
            shared.kept_for.set(receiver);
            if shared.is_traced() {
                shared.dispatch_traced(am);
            } else {
                shared.handlers.dispatch(am);
            }
            shared.kept_for.set(None);
            events += 1;
        }
        if was_full {
            shared.wakeup.wake_all();
        }
        events
    }

    pub(super) fn take_unseen(&self) -> u64 {
        let count = self.shared.wakeup.count();
        count - self.seen.swap(count, Ordering::Relaxed)
    }

    pub(super) fn has_unseen(&self) -> bool {
        self.shared.kept_len.get() > 0 || self.shared.wakeup.count() != self.seen.load(Ordering::Relaxed)
    }

    /// Completes when everything issued so far on all endpoints has; see [`api::Iface::flush`].
    pub fn flush(&self, comp: Option<&Arc<Completion>>) -> Outcome {
        self.shared.run(
            comp,
            |comp| inner!(self.shared.iface, iface => iface.flush(comp)),
            |sent| *sent == Sent::InProgress,
        )
    }

    /// Operations issued after it take effect after those issued before it.
    pub fn fence(&self) -> Outcome {
        let _guard = self.shared.lock()?;
        inner!(self.shared.iface, iface => iface.fence())
    }

    /// Whether the calling thread is inside: in a handler, a completion or a closure of an operation.
    pub(super) fn is_held_here(&self) -> bool {
        self.shared.lock.is_held_by(this_thread())
    }
}

//! The shared worker: opening, progress, receives, and queries.

#![allow(unsafe_code)]

use std::future::Future;
use std::io::IoSliceMut;
use std::os::fd::BorrowedFd;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use ucs::sync::ThreadMode;
use uct::api::{IfaceAttr, OpenError};

use super::message::SharedMessage;
use super::request::SharedRequest;
use super::shared::{Inside, Locked, Shared, Unlocked, WorkerGuard};
use crate::api::arm_lanes;
use crate::rdm::trace::TraceEvent;
use crate::rdm::{LocalError, RdmStats};
use crate::{
    Access, Address, AddressTable, Context, Diagnostics, Envelope, Error, FlushRequest, IoBufMut, Iov, Match,
    Mem, MemError, OpParams, OpStatus, PeerId, RecvData, RecvRequest, RecvStatus, RemoteWrite, Report,
    WaitStatus, Worker, WorkerEvents,
};

/// A worker that threads share: see the [module](super). A clone is another handle to it, with its own view
/// of events ([`wait`](SharedWorker::wait)).
pub struct SharedWorker {
    pub(super) shared: Arc<Shared>,
    /// Events that this handle knows of.
    seen: AtomicU64,
}

impl Clone for SharedWorker {
    fn clone(&self) -> Self {
        let seen = AtomicU64::new(self.seen.load(Ordering::Relaxed));
        SharedWorker { shared: self.shared.clone(), seen }
    }
}

/// A handle that does not keep its shared worker, for handlers and callbacks: [`Worker::close`].
#[derive(Clone)]
pub struct WeakSharedWorker(Weak<Shared>);

impl WeakSharedWorker {
    /// Returns the worker, unless its last handle has been dropped.
    pub fn upgrade(&self) -> Option<SharedWorker> {
        self.0.upgrade().map(|shared| SharedWorker::of(&shared))
    }
}

impl std::fmt::Debug for WeakSharedWorker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("WeakSharedWorker")
    }
}

impl std::fmt::Debug for SharedWorker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SharedWorker({:?})", self.mode())
    }
}

impl Context {
    /// Creates a worker that threads share as `mode` says, with an interface on each of
    /// [`Context::resources`]. In mode single it is the calling thread's.
    pub fn shared_worker(&self, mode: ThreadMode) -> Result<SharedWorker, OpenError> {
        let worker = self.worker_with(uct::any::open_iface_for_threads)?;
        Ok(SharedWorker::of(&Shared::new(worker, mode)))
    }
}

/// Defines methods that call the plain worker's inside the lock, which is entered by `enter`.
macro_rules! inside {
    ($enter:ident: $($(#[$doc:meta])+ $name:ident($($arg:ident: $T:ty),*) $Ret:ty;)+) => {$(
        $(#[$doc])+
        pub fn $name(&self, $($arg: $T),*) -> Result<$Ret, Error> {
            let inside = self.shared.$enter()?;
            Ok(inside.worker().$name($($arg),*))
        }
    )+};
}

/// Defines methods that start an operation of the plain worker inside the lock. `else`: the output if the
/// thread may not go in.
macro_rules! start {
    ($($(#[$doc:meta])+ $name:ident [$($generics:tt)*] ($($arg:ident: $T:ty),*) $Request:ty;
       |$error:ident| else $refused:expr;)+) => {$(
        $(#[$doc])+
        #[inline]
        pub fn $name<$($generics)*>(&self, $($arg: $T),*) -> SharedRequest<$Request> {
            match self.shared.enter() {
                Ok(inside) => SharedRequest::new(inside.worker().$name($($arg),*), &inside),
                Err(e) => {
                    let $error = Error::from(e);
                    SharedRequest::ended($refused)
                }
            }
        }
    )+};
}

impl SharedWorker {
    /// Makes `worker`, of [`Context::worker_on`] or a simulation, one that threads share.
    /// # Safety
    /// There is no other handle to the worker or its interfaces, and nothing that is made from them. The
    /// interfaces are for any thread ([`uct::any::open_iface_for_threads`]), or only one thread uses the
    /// worker.
    #[doc(hidden)]
    pub unsafe fn from_worker(worker: Worker, mode: ThreadMode) -> SharedWorker {
        SharedWorker::of(&Shared::new(worker, mode))
    }

    pub(super) fn of(shared: &Arc<Shared>) -> SharedWorker {
        SharedWorker { shared: shared.clone(), seen: AtomicU64::new(0) }
    }

    /// Returns a handle that does not keep the worker.
    pub fn downgrade(&self) -> WeakSharedWorker {
        WeakSharedWorker(Arc::downgrade(&self.shared))
    }

    /// The thread mode it was created with.
    pub fn mode(&self) -> ThreadMode {
        self.shared.mode()
    }

    /// Runs `f` on the plain worker, inside the lock.
    /// # Safety
    /// A plain object of the worker (a clone, an endpoint, a request, a message) that outlives `f` is used
    /// and dropped only inside such a call, or while no other thread uses the worker. Callbacks, buffers and
    /// handlers that `f` leaves in the worker may be called, used and dropped by any thread.
    pub unsafe fn with<R>(&self, f: impl FnOnce(&Worker) -> R) -> Result<R, Error> {
        let inside = self.shared.enter()?;
        Ok(f(inside.worker()))
    }

    /// Locks the worker for the calling thread until the result is dropped: for several calls that no other
    /// thread may come between, and for the plain worker. The thread may use the shared worker meanwhile.
    /// [`Error::Thread`]: it may not, by the worker's mode.
    /// # Safety
    /// As for [`SharedWorker::with`], with the life of the result in place of `f`.
    pub unsafe fn lock(&self) -> Result<WorkerGuard<'_>, Error> {
        Ok(WorkerGuard::of(&self.shared)?)
    }

    /// [`SharedWorker::lock`], in mode single without a look at the thread; in the others it waits.
    /// # Safety
    /// As for [`SharedWorker::lock`]; in mode single also as for [`SharedWorker::unlocked`].
    // HOT
    #[inline(always)]
    pub unsafe fn lock_unless_single(&self) -> WorkerGuard<'_> {
        // SAFETY: this function's contract.
        unsafe { WorkerGuard::unless_single(&self.shared) }
    }

    /// The plain worker in [`ThreadMode::Single`], without a look at the thread. `None` in other modes.
    /// Wakers of futures are woken by the next progress.
    /// # Safety
    /// As for [`SharedWorker::with`]. Until the result is dropped, no other thread uses the worker, and what
    /// the last one has done comes before this call.
    // HOT
    #[inline(always)]
    pub unsafe fn unlocked(&self) -> Option<Unlocked<'_>> {
        Unlocked::of(&self.shared)
    }

    /// The plain worker as [`SharedWorker::unlocked`], for the shortest calls: nothing is kept in memory to
    /// be dropped. [`SharedWorker::wake_sleepers`] follows an operation that has begun.
    /// # Safety
    /// As for [`SharedWorker::unlocked`], until the result is not used any more.
    // HOT
    #[inline(always)]
    pub unsafe fn plain(&self) -> Option<&Worker> {
        Unlocked::plain(&self.shared)
    }

    /// Wakes threads that sleep until there is work, after an operation of [`SharedWorker::plain`].
    // HOT
    #[inline(always)]
    pub fn wake_sleepers(&self) {
        Unlocked::wake_sleepers(&self.shared);
    }

    /// [`SharedWorker::with`], in mode single without a look at the thread.
    /// # Safety
    /// As for [`SharedWorker::with`]; in mode single also as for [`SharedWorker::unlocked`].
    // HOT
    #[inline(always)]
    pub unsafe fn with_unlocked<R>(&self, f: impl FnOnce(&Worker) -> R) -> Result<R, Error> {
        // SAFETY: this function's contract.
        let inside = unsafe { self.shared.enter_short() }?;
        Ok(f(inside.worker()))
    }

    /// [`SharedWorker::progress`], in mode single without a look at the thread.
    /// # Safety
    /// In mode single, as for [`SharedWorker::unlocked`].
    // HOT
    #[inline(always)]
    pub unsafe fn progress_unlocked(&self) -> Result<usize, Error> {
        // SAFETY: this function's contract.
        let Some(inside) = unsafe { self.shared.enter_short_to_progress() }? else { return Ok(0) };
        let events = inside.progress();
        self.see(events);
        Ok(events)
    }

    /// [`SharedWorker::progress`] by a thread that is inside, without another look at the lock.
    // HOT
    #[inline(always)]
    pub fn progress_inside(&self, inside: &WorkerGuard<'_>) -> usize {
        let events = inside.progress_inside();
        self.see(events);
        events
    }

    /// Gives a worker of [`ThreadMode::Single`] to the calling thread. Returns false in other modes, and
    /// while its thread is inside.
    /// # Safety
    /// No other thread uses the worker meanwhile, and what its last thread has done comes before this call.
    pub unsafe fn adopt(&self) -> bool {
        self.shared.adopt()
    }

    /// Receives arrivals, sends queued packets, completes operations, calls callbacks and handlers. Returns
    /// the number of events: 0 at once while another thread is inside, and, up to four times in a row, while
    /// one waits to go in. Wakes those whose requests have ended after it has left the lock.
    // HOT
    pub fn progress(&self) -> Result<usize, Error> {
        let Some(inside) = self.shared.enter_to_progress()? else { return Ok(0) };
        let events = inside.progress();
        self.see(events);
        Ok(events)
    }

    /// Others may wait for events that have come; this handle knows of them.
    // HOT
    #[inline(always)]
    fn see(&self, events: usize) {
        if events > 0 {
            self.seen.store(self.seen.load(Ordering::Relaxed) + events as u64, Ordering::Relaxed);
        }
    }

    /// Sleeps until there may be something to progress, another thread has received events since this
    /// handle's last wait or progress, a [`signal`](SharedWorker::signal), or the timeout. One handle per
    /// waiting thread. The lock is not held meanwhile.
    pub fn wait(&self, timeout: Option<Duration>) -> Result<WaitStatus, Error> {
        drop(self.shared.enter_to_query()?);
        Ok(self.shared.sleep_for_events(timeout, || self.takes_unseen()).unwrap_or_else(|errno| {
            tracing::debug!(%errno, "cannot sleep");
            std::thread::yield_now();
            WaitStatus::Ready
        }))
    }

    /// Whether other handles have received events that this one did not know of. Inside the lock.
    fn takes_unseen(&self) -> bool {
        let count = self.shared.wakeup.count();
        self.seen.swap(count, Ordering::Relaxed) != count
    }

    fn takes_signal(&self) -> bool {
        self.shared.is_signalled.swap(false, Ordering::SeqCst)
    }

    /// Wakes a thread in [`SharedWorker::wait`], or ends the next wait at once, and makes
    /// [`SharedWorker::event_fd`] readable if it is armed. From any thread in each mode; takes no lock.
    pub fn signal(&self) {
        self.shared.is_signalled.store(true, Ordering::SeqCst);
        self.shared.wakeup.wake_all();
    }

    /// Descriptor that becomes readable after [`SharedWorker::arm`] at an event, also one that another thread
    /// receives, and when a back-off, close or check is due; `None` if a lane lacks one, or the process has
    /// no descriptor left.
    pub fn event_fd(&self) -> Result<Option<BorrowedFd<'_>>, Error> {
        let inside = self.shared.enter_to_query()?;
        // With the timer of the worker.
        let lanes = inside.worker().event_fd().and_then(|_| self.shared.lanes_fd());
        Ok(lanes.and_then(|lanes| self.shared.wakeup.event_fd(lanes).ok()))
    }

    /// An owner of the descriptor of [`SharedWorker::event_fd`]: [`Worker::event_source`].
    pub fn event_source(&self) -> Result<Option<WorkerEvents>, Error> {
        let Some(fd) = self.event_fd()? else { return Ok(None) };
        fd.try_clone_to_owned().map(|fd| Some(WorkerEvents::new(fd))).map_err(|error| {
            let errno = ucs::Errno::from(error);
            Error::Local(None, LocalError::System(ucs::InternedStr::kept(&format!("dup: {errno}"))))
        })
    }

    /// Arms [`SharedWorker::event_fd`] for one wakeup of one thread, also at the next deadline, and by an
    /// operation that another thread or task begins meanwhile and that has to wait ([`Worker::arm`]). False
    /// if there may be something to do, or there was, or a deadline has passed: call progress again.
    pub fn arm(&self) -> Result<bool, Error> {
        let inside = self.shared.enter_to_query()?;
        // With the timer of the worker.
        let lanes = inside.worker().event_fd().and_then(|_| self.shared.lanes_fd());
        let Some(lanes) = lanes else { return Ok(false) };
        if self.takes_unseen() || self.takes_signal() || !arm_lanes(inside.worker()) {
            return Ok(false);
        }
        if self.shared.wakeup.arm(lanes).is_err() {
            return Ok(false);
        }
        self.shared.wakeup.arm_for_work();
        // A signal since has found nothing armed.
        Ok(!self.takes_signal())
    }

    /// Runs a future to completion, with progress between its polls.
    pub fn block_on<F: Future>(&self, future: F) -> Result<F::Output, Error> {
        drop(self.shared.enter_to_query()?);
        let mut future = pin!(future);
        Ok(self.shared.block_on(|cx| future.as_mut().poll(cx)))
    }

    /// As [`SharedWorker::block_on`]; calls `after` outside the worker, behind each progress call and sleep.
    pub(super) fn block_on_with<F: Future>(
        &self,
        future: F,
        after: impl FnMut(),
    ) -> Result<F::Output, Error> {
        drop(self.shared.enter_to_query()?);
        let mut future = pin!(future);
        Ok(self.shared.block_on_with(|cx| future.as_mut().poll(cx), after))
    }

    start! {
        /// Receives a message that matches `matching`: [`Worker::recv`].
        recv [B: RecvData + Send] (matching: Match, buf: B) RecvRequest<B>; |e| else (Err(e), buf);
        /// Receives a message with a tag equal to `tag` in the bits of `mask`: [`Worker::tag_recv`].
        tag_recv [B: RecvData + Send] (tag: u64, mask: u64, buf: B) RecvRequest<B>; |e| else (Err(e), buf);
        /// Receives an untagged message: [`Worker::msg_recv`].
        msg_recv [B: RecvData + Send] (buf: B) RecvRequest<B>; |e| else (Err(e), buf);
        /// Receives a message into containers, filled in order: [`Worker::recv_iov`].
        recv_iov [B: IoBufMut + Send] (matching: Match, bufs: Vec<B>) RecvRequest<Vec<B>>;
            |e| else (Err(e), bufs);
        /// Completes when everything sent to any peer was handed over: [`Worker::flush`].
        flush [] () FlushRequest; |e| else Err(e);
        /// Flushes within the time limit: [`Worker::flush_within`].
        flush_within [] (limit: Duration) FlushRequest; |e| else Err(e);
    }

    /// Receives a tagged message into borrowed memory, making progress until it has arrived.
    pub fn tag_recv_blocking(&self, tag: u64, mask: u64, buf: &mut [u8]) -> Result<RecvStatus, Error> {
        let inside = self.shared.enter()?;
        // SAFETY: `buf` is borrowed until the wait below has seen the end of the operation.
        let started = unsafe {
            inside.worker().recv_raw(
                buf.as_mut_ptr(),
                buf.len(),
                Match::tagged(tag, mask),
                &OpParams::default(),
            )
        };
        match started? {
            OpStatus::Done(status) => Ok(status),
            OpStatus::InProgress(id) => super::blocking::wait(inside, id),
        }
    }

    /// Receives a message into pieces of borrowed memory, filled in order, making progress until it has
    /// arrived.
    pub fn recv_iov_blocking(
        &self,
        matching: Match,
        bufs: &mut [IoSliceMut<'_>],
    ) -> Result<RecvStatus, Error> {
        let inside = self.shared.enter()?;
        let iov = |buf: &mut IoSliceMut<'_>| Iov { addr: buf.as_mut_ptr(), len: buf.len() };
        let pieces: Vec<Iov> = bufs.iter_mut().map(iov).collect();
        // SAFETY: as in `tag_recv_blocking`.
        match unsafe { inside.worker().recv_layout_raw(&pieces, matching, &OpParams::default()) }? {
            OpStatus::Done(status) => Ok(status),
            OpStatus::InProgress(id) => super::blocking::wait(inside, id),
        }
    }

    /// Removes the oldest unexpected message that matches from the queue: [`Worker::mprobe`].
    pub fn mprobe(&self, matching: Match) -> Result<Option<SharedMessage>, Error> {
        let inside = self.shared.enter()?;
        Ok(inside.worker().mprobe(matching).map(|message| SharedMessage(Locked::new(message, &inside))))
    }

    /// Discards the oldest unexpected message that matches: [`Worker::discard`].
    pub fn discard(&self, matching: Match) -> Result<Option<Envelope>, Error> {
        let inside = self.shared.enter()?;
        Ok(inside.worker().discard(matching))
    }

    /// Calls `f` with the queries of the worker's resources and counters: [`Worker::diagnostics`].
    pub fn diagnostics<R>(&self, f: impl FnOnce(Diagnostics<'_>) -> R) -> Result<R, Error> {
        let inside = self.shared.enter_to_query()?;
        Ok(f(inside.worker().diagnostics()))
    }

    /// Address of the sender of a message: [`Address::of_sender`].
    pub fn sender_address(&self, from: PeerId) -> Result<Option<Address>, Error> {
        let inside = self.shared.enter_to_query()?;
        Ok(Address::of_sender(inside.worker(), from))
    }

    /// Allocates memory as [`Context::mem_alloc`], for the workers of the same context.
    pub fn mem_alloc(&self, len: usize, access: Access) -> Result<Mem, MemError> {
        self.shared.enter()?.worker().mem_alloc(len, access)
    }

    /// Registers memory as [`Context::mem_map`], for the workers of the same context.
    /// # Safety
    /// As for [`Context::mem_map`].
    pub unsafe fn mem_map(&self, addr: *mut u8, len: usize, access: Access) -> Result<Mem, MemError> {
        // SAFETY: the caller's promise is the same.
        unsafe { self.shared.enter()?.worker().mem_map(addr, len, access) }
    }

    inside! { enter:
        /// Orders one-sided operations to each peer: [`Worker::fence`].
        fence() ();
        /// Ends everything that the worker does, so that dropping its handles frees it: [`Worker::close`].
        close() ();
        /// Removes handler number `id` of active messages.
        clear_am_handler(id: u16) ();
        /// Checks at once whether every peer lives: [`Worker::check_peers`].
        check_peers() bool;
    }

    inside! { enter_to_query:
        /// Address by which peers connect to this worker.
        address() Address;
        /// Address by which peers of other hosts connect to this worker: [`Worker::address_net`].
        address_net() Address;
        /// Finds the oldest unexpected message that matches, and leaves it there: [`Worker::probe`].
        probe(matching: Match) Option<Envelope>;
        /// Takes the next completed remote write that carried data: [`Worker::take_remote_write`].
        take_remote_write() Option<RemoteWrite>;
        /// Number of the sender of a message in a table: [`Worker::sender_in`].
        sender_in(table: &mut AddressTable, from: PeerId) Option<u64>;
        /// Time until a back-off, close or check is due, of which [`SharedWorker::event_fd`] tells, too.
        next_timer() Option<Duration>;
        /// Size of the user memory behind each request: [`Worker::request_size`].
        request_size() usize;
        /// Attributes of every interface, in polling order.
        ifaces() Vec<IfaceAttr>;
        /// Counters of the protocol engine, by packet type and protocol.
        stats() RdmStats;
        /// Printable counters of this worker.
        report() Report;
        /// Takes the next trace event: [`Worker::take_trace_event`].
        take_trace_event() Option<TraceEvent>;
    }

    pub(super) fn enter(&self) -> Result<Inside<'_>, Error> {
        Ok(self.shared.enter()?)
    }
}
